//! The orders that a child process takes.

use std::io::{self, BufRead, Write};
use std::thread;

use conformance::{Ready, START, line};
use platform::{Class, Error, read_line};
use serde::Serialize;

use super::protocol::{Answer, REPORT, Report};
use crate::error::RunError;

/// Reads orders, and prints reports.
pub(crate) struct Control<I, O, R> {
    pub(crate) orders: I,
    pub(crate) output: O,
    /// Returns the report so far.
    pub(crate) report: R,
}

/// An order other than a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Start,
    Stop,
}

impl<I, O, R> Control<I, O, R>
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
    R: Fn() -> Report + Send + 'static,
{
    /// Prints that it is ready, waits for the order to start, and does the work. At the end of the orders it calls
    /// `stop`, which must end the work.
    pub(crate) fn obey(
        mut self,
        ready: Ready,
        stop: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        self.say(&Answer::Ready(ready))?;
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

impl<I: BufRead, O: Write, R: Fn() -> Report> Control<I, O, R> {
    fn next(&mut self) -> Result<Order, Error> {
        loop {
            let order = read_line(&mut self.orders).map_err(|error| failed("read", error))?;
            let Some(order) = order else { return Ok(Order::Stop) };
            match order.trim_end() {
                START => return Ok(Order::Start),
                REPORT => self.say(&(self.report)())?,
                other => {
                    let reason = format!("{other} is neither \"start\" nor \"report\"");
                    return Err(failed("obey", io::Error::new(io::ErrorKind::InvalidInput, reason)));
                }
            }
        }
    }

    /// Reads orders to their end. A second start has no effect.
    pub(crate) fn until_end(&mut self) -> Result<(), Error> {
        while self.next()? == Order::Start {}
        Ok(())
    }

    fn say(&mut self, answer: &impl Serialize) -> Result<(), Error> {
        let written = self.output.write_all(line(answer).as_bytes()).and_then(|()| self.output.flush());
        written.map_err(|error| failed("answer", error))
    }
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::new(Class::Failed, operation, "the orders of the parent process", source)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn control(orders: &str) -> Control<&[u8], Vec<u8>, impl Fn() -> Report + use<>> {
        let report = || {
            let mut report = Report::default();
            report.counts.to_far.read_packets = 7;
            report
        };
        Control { orders: orders.as_bytes(), output: Vec::new(), report }
    }

    #[test]
    fn orders_are_obeyed_one_after_the_other() {
        let mut control = control("\"report\"\n\"start\"\n\"report\"\n");
        assert_eq!(control.next().unwrap(), Order::Start);
        assert_eq!(control.next().unwrap(), Order::Stop);
        assert_eq!(control.next().unwrap(), Order::Stop, "the end stays the end");
        let answers = String::from_utf8(control.output).unwrap();
        let reports: Vec<Report> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0].counts.to_far.read_packets, 7);
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
