//! The side of a worker that takes the orders.

use std::io::{self, BufRead, Write};
use std::thread;

use serde::Serialize;

use super::child::read_line;
use super::worker::{REPORT, START, line};
use crate::{Class, Error};

/// The line that says that a worker of this program is ready.
const READY: &str = "{\"ready\":{\"offload\":false}}\n";

/// Reads orders, and prints reports.
#[derive(Debug)]
pub struct Control<I, O, R> {
    /// Its standard input.
    pub orders: I,
    /// Its standard output.
    pub output: O,
    /// Returns the report so far.
    pub report: R,
}

/// An order other than a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Start,
    Stop,
}

impl<I, O, R, S> Control<I, O, R>
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
    R: Fn() -> S + Send + 'static,
    S: Serialize,
{
    /// Prints that it is ready, waits for the order to start, and does the work. At the end of the orders it calls
    /// `stop`, which must end the work.
    pub fn obey<E: From<Error>>(
        mut self,
        stop: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.say(READY)?;
        if self.next()? == Order::Stop {
            return Ok(());
        }
        // If the work fails, this thread may still wait for an order. Then it ends with the process.
        let control = thread::spawn(move || {
            let end = self.until_end();
            stop();
            end
        });
        work()?;
        let panicked = |_| Err(failed("obey", io::Error::other("the thread that reads them panicked")));
        Ok(control.join().unwrap_or_else(panicked)?)
    }
}

impl<I: BufRead, O: Write, R: Fn() -> S, S: Serialize> Control<I, O, R> {
    fn next(&mut self) -> Result<Order, Error> {
        loop {
            let order = read_line(&mut self.orders).map_err(|error| failed("read", error))?;
            let Some(order) = order else { return Ok(Order::Stop) };
            match order.trim_end() {
                START => return Ok(Order::Start),
                REPORT => self.say(&line(&(self.report)()))?,
                other => {
                    let reason = format!("{other} is neither \"start\" nor \"report\"");
                    return Err(failed("obey", io::Error::new(io::ErrorKind::InvalidInput, reason)));
                }
            }
        }
    }

    /// Reads orders to their end. A second start has no effect.
    pub fn until_end(&mut self) -> Result<(), Error> {
        while self.next()? == Order::Start {}
        Ok(())
    }

    fn say(&mut self, line: &str) -> Result<(), Error> {
        let written = self.output.write_all(line.as_bytes()).and_then(|()| self.output.flush());
        written.map_err(|error| failed("answer", error))
    }
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::new(Class::Failed, operation, "the orders of the parent process", source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(orders: &str) -> Control<&[u8], Vec<u8>, fn() -> u64> {
        Control { orders: orders.as_bytes(), output: Vec::new(), report: || 7 }
    }

    #[test]
    fn orders_are_obeyed_one_after_the_other() {
        let mut control = control("\"report\"\n\"start\"\n\"report\"\n");
        assert_eq!(control.next().unwrap(), Order::Start);
        assert_eq!(control.next().unwrap(), Order::Stop);
        assert_eq!(control.next().unwrap(), Order::Stop, "the end stays the end");
        assert_eq!(control.output, b"7\n7\n");
    }

    #[test]
    fn an_unknown_order_is_an_error() {
        assert_eq!(
            control("\"start\"\n\"reprot\"\n").until_end().unwrap_err().to_string(),
            "obey the orders of the parent process: \"reprot\" is neither \"start\" nor \"report\""
        );
    }

    /// An empty line is an error. It does not stop a forwarder as the end of the orders would.
    #[test]
    fn an_empty_line_is_not_the_end() {
        assert!(control("\n\"start\"\n").next().is_err());
    }
}
