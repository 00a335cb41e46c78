//! The moment at which all clients begin together.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::meter::{Meter, Snapshot, Usage};
use super::transfer::TransferError;

/// Holds all clients until each has done its warm-up, and takes the first [`Snapshot`] when they begin.
pub(super) struct StartBarrier {
    streams: usize,
    meter: Box<dyn Meter>,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes at most one task when the barrier opens.
    opening: Notify,
}

#[derive(Default)]
struct State {
    waiting: usize,
    cancelled: bool,
    opened: Option<Snapshot>,
}

impl StartBarrier {
    /// A barrier for this number of clients. It reads the meter when it opens.
    pub(super) fn new(streams: usize, meter: impl Meter) -> Self {
        Self {
            streams,
            meter: Box::new(meter),
            state: Mutex::default(),
            changed: Condvar::new(),
            opening: Notify::new(),
        }
    }

    /// Waits for the other clients. The last one opens the barrier for all.
    pub(super) fn wait(&self) -> Result<(), TransferError> {
        let is_last = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting += 1;
            state.waiting == self.streams
        };
        // Read before the clock, so that the cost of reading is outside the timed window. Read without the lock,
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

    /// Takes all readings now.
    pub(super) fn read(&self) -> Snapshot {
        // The clock first: the other readings are outside the timed window.
        let at = Instant::now();
        let usage = self.meter.usage();
        Snapshot { at, usage, counters: self.meter.counters(), stolen: platform::stolen_time() }
    }

    /// Takes only the readings that cost little time.
    pub(super) fn usage(&self) -> Usage {
        self.meter.usage()
    }

    /// The readings of the moment when the barrier opened; `None` before it.
    pub(super) fn opened(&self) -> Option<Snapshot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).opened
    }

    /// Waits in a task until the barrier opens. Safe to cancel and call again.
    pub(super) async fn opening(&self) -> Snapshot {
        loop {
            if let Some(snapshot) = self.opened() {
                return snapshot;
            }
            self.opening.notified().await;
        }
    }

    /// Makes every [`StartBarrier::wait`] return an error.
    pub(super) fn cancel(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
        self.changed.notify_all();
    }
}
