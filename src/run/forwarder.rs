//! The process that carries packets between two TUN devices, for the one that has started it.
//!
//! | what it reads | what it does |
//! |---|---|
//! | nothing yet | makes the devices and prints `ready` |
//! | `start` | begins to carry packets: by now the other one has set the devices up |
//! | `report` | prints what it has carried so far, as one line of JSON |
//! | the end of the file | stops: the other one wants it so, or is gone |

use std::io::{self, BufRead, Write};
use std::thread;

use forwarders::{Counts, DevicePair as Ends, ForwardConfig as Way, Forwarder};
use platform::{Class, Error};

use super::RunError;

/// Says that the devices are there.
pub(super) const READY: &str = "ready";

/// The order to begin.
pub(super) const START: &str = "start";

/// The order to tell what has been carried.
pub(super) const REPORT: &str = "report";

/// Carries packets for as long as there are orders to come.
///
/// # Errors
///
/// A device that cannot be made or is lost, an order that is none, or nobody who listens.
pub fn forwarder(
    ends: &Ends,
    way: &Way,
    orders: impl BufRead + Send + 'static,
    out: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let forwarder = Forwarder::open(ends, way)?;
    let counters = forwarder.counters();
    let mut clerk = Clerk { orders, out, counts: move || counters.read() };
    clerk.say(READY)?;
    if clerk.next()? == Next::Stop {
        return Ok(());
    }
    let stopper = forwarder.stopper();
    // Where the forwarder fails, this one may wait for an order that never comes: it is left behind then, and
    // ends with the process.
    let clerk = thread::spawn(move || {
        let end = clerk.until_end();
        stopper.stop();
        end
    });
    forwarder.run()?;
    let panicked = |_| Err(failed("obey", io::Error::other("who does has panicked")));
    Ok(clerk.join().unwrap_or_else(panicked)?)
}

/// Reads orders and answers those that the forwarder itself has no part in.
struct Clerk<I, O, C> {
    orders: I,
    out: O,
    /// What has been carried so far.
    counts: C,
}

/// An order for the forwarder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Start,
    Stop,
}

impl<I: BufRead, O: Write, C: Fn() -> Counts> Clerk<I, O, C> {
    fn next(&mut self) -> Result<Next, Error> {
        loop {
            let mut order = String::new();
            if self.orders.read_line(&mut order).map_err(|error| failed("read", error))? == 0 {
                return Ok(Next::Stop);
            }
            match order.trim_end() {
                START => return Ok(Next::Start),
                REPORT => {
                    let counts = serde_json::to_string(&(self.counts)()).map_err(io::Error::from);
                    self.say(&counts.map_err(|error| failed("answer", error))?)?;
                }
                other => {
                    let reason = format!("{other:?} is neither start nor report");
                    return Err(failed("obey", io::Error::new(io::ErrorKind::InvalidInput, reason)));
                }
            }
        }
    }

    /// Starting what is started changes nothing.
    fn until_end(&mut self) -> Result<(), Error> {
        while self.next()? == Next::Start {}
        Ok(())
    }

    fn say(&mut self, line: &str) -> Result<(), Error> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(|error| failed("answer", error))
    }
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::new(Class::Failed, operation, "the orders of the forwarder", source)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn clerk(orders: &str) -> Clerk<&[u8], Vec<u8>, impl Fn() -> Counts + use<>> {
        let counts = || {
            let mut counts = Counts::default();
            counts.to_far.read_packets = 7;
            counts
        };
        Clerk { orders: orders.as_bytes(), out: Vec::new(), counts }
    }

    #[test]
    fn orders_are_obeyed_in_turn() {
        let mut clerk = clerk("report\nstart\nreport\n");
        assert!(clerk.next().unwrap() == Next::Start);
        assert!(clerk.next().unwrap() == Next::Stop);
        assert!(clerk.next().unwrap() == Next::Stop, "the end stays the end");
        let answers = String::from_utf8(clerk.out).unwrap();
        let counts: Vec<Counts> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(counts.len(), 2);
        assert_eq!(counts[0].to_far.read_packets, 7);
    }

    #[test]
    fn what_is_no_order_is_an_error() {
        let mut clerk = clerk("start\nreprot\n");
        assert_eq!(
            clerk.until_end().unwrap_err().to_string(),
            "obey the orders of the forwarder: \"reprot\" is neither start nor report"
        );
    }

    /// A forwarder is not to stop for an empty line.
    #[test]
    fn an_empty_line_is_no_end() {
        assert!(clerk("\nstart\n").next().is_err());
    }
}
