//! The moment at which all streams begin together.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::meter::{Meter, Snapshot, Usage};
use super::transfer::TransferError;

/// Holds all streams until each is warm, and takes the first [`Snapshot`] when they begin.
pub(super) struct StartBarrier {
    streams: usize,
    meter: Box<dyn Meter>,
    state: Mutex<State>,
    changed: Condvar,
    /// Tells the opening to one task at most.
    opening: Notify,
}

#[derive(Default)]
struct State {
    waiting: usize,
    cancelled: bool,
    opened: Option<Snapshot>,
}

impl StartBarrier {
    /// A barrier for so many streams, and the meter that is read at it.
    pub(super) fn new(streams: usize, meter: impl Meter) -> Self {
        Self {
            streams,
            meter: Box::new(meter),
            state: Mutex::default(),
            changed: Condvar::new(),
            opening: Notify::new(),
        }
    }

    /// Waits for the other streams. The last one opens the barrier for all.
    pub(super) fn wait(&self) -> Result<(), TransferError> {
        let is_last = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting += 1;
            state.waiting == self.streams
        };
        // Read before the clock, so that the cost of reading is outside the timed window; and without the lock,
        // because it may take a while.
        let counters = is_last.then(|| (platform::stolen_time(), self.meter.counters()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((stolen, counters)) = counters {
            state.opened = Some(Snapshot { at: Instant::now(), usage: self.meter.usage(), counters, stolen });
            self.changed.notify_all();
            self.opening.notify_one();
        }
        while state.opened.is_none() && !state.cancelled {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// All readings of now.
    pub(super) fn read(&self) -> Snapshot {
        // The clock first: the rest is outside the timed window.
        let at = Instant::now();
        let usage = self.meter.usage();
        Snapshot { at, usage, counters: self.meter.counters(), stolen: platform::stolen_time() }
    }

    /// The readings of now that take little time.
    pub(super) fn usage(&self) -> Usage {
        self.meter.usage()
    }

    /// The readings when the barrier opened, if it has.
    pub(super) fn opened(&self) -> Option<Snapshot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).opened
    }

    /// Waits, in a task, until it opens. Safe to cancel and call again.
    pub(super) async fn opening(&self) -> Snapshot {
        loop {
            if let Some(snapshot) = self.opened() {
                return snapshot;
            }
            self.opening.notified().await;
        }
    }

    /// Makes every [`StartBarrier::wait`] return, with an error.
    pub(super) fn cancel(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
        self.changed.notify_all();
    }
}
