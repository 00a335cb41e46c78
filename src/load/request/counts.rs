//! The counts of the requests of a thread.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::load::error::LoadError;
use crate::sample::{Latency, Status};

#[derive(Clone, Default)]
pub(super) struct Counts {
    pub(super) latency: Latency,
    pub(super) errors: BTreeMap<&'static str, u64>,
    pub(super) failed: u64,
    /// Over UDP: requests that were sent, responses that came in time, and responses that came again.
    pub(super) sent: u64,
    pub(super) arrived: u64,
    pub(super) duplicated: u64,
}

impl Counts {
    /// Counts a request without a response. Its latency is at least `latency`.
    pub(super) fn unanswered(&mut self, latency: Duration) {
        self.latency.record(latency);
        self.fail("unanswered", 1);
    }

    pub(super) fn fail(&mut self, kind: &'static str, count: u64) {
        self.failed += count;
        *self.errors.entry(kind).or_default() += count;
    }

    pub(super) fn verdict(&self, answered: u64) -> Result<(), LoadError> {
        let Some((most, _)) = self.errors.iter().max_by_key(|(_, count)| **count) else { return Ok(()) };
        let status = match *most {
            "unanswered" | "timed out" | "not closed" => Status::Stalled,
            "closed early" => Status::Short,
            _ => Status::Reset,
        };
        let kinds: Vec<_> = self.errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        Err(LoadError::Requests { status, failed: self.failed, answered, kinds: kinds.join(", ") })
    }
}

pub(super) fn kind(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused",
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => "reset",
        io::ErrorKind::TimedOut => "timed out",
        io::ErrorKind::UnexpectedEof => "closed early",
        io::ErrorKind::AddrNotAvailable => "without a port",
        _ => "other",
    }
}
