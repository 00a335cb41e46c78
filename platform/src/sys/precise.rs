//! Waits, on systems whose timers are precise.

use std::io;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Instant;

use mio::{Events, Poll, Waker};

/// While it lives, timers are as precise as the system can make them; see [`sharpen_timers`](super::sharpen_timers).
#[derive(Debug)]
#[must_use = "the timers are coarse again when it is dropped"]
pub struct SharpTimers(pub(super) ());

/// Waits for events until a time: to the microsecond on Unix, and on Windows to half a millisecond.
#[derive(Debug)]
pub struct PollClock(());

impl PollClock {
    /// The waker is one of the poll's. Windows has a thread that uses it.
    pub fn new(_waker: &Arc<Waker>) -> Self {
        Self(())
    }

    /// Waits until there are events, or until `end`. A waker may end it earlier.
    pub fn poll_until(&mut self, poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
        super::poll_until(poll, events, end)
    }
}

/// A wait of one thread that another one can end.
#[derive(Debug, Default)]
pub(crate) struct Pause(());

impl Pause {
    /// Ends the wait of this thread, or its next one.
    #[allow(clippy::unused_self, reason = "on Windows it is an event")]
    pub(crate) fn end(&self, of: &Thread) {
        of.unpark();
    }

    /// Waits until that time, or without an end. It may return earlier.
    #[allow(clippy::unused_self, reason = "on Windows it is an event")]
    pub(crate) fn until(&self, at: Option<Instant>) {
        match at {
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}
