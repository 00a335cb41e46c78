//! The timed window: the moment when all clients begin together, the moments when they end, and their cost.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use platform::SocketCount;
use tokio::sync::Notify;

use super::error::LoadError;
use crate::meter::{Cost, Meter, Snapshot, Usage, Withheld};

/// Holds all client threads until each has done its warm-up. Takes a [`Snapshot`] when they begin, and when each ends. If all wait
/// again, it opens anew.
pub(crate) struct Window {
    threads: usize,
    meter: Box<dyn Meter>,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the tasks that wait for it to open.
    opening: Notify,
}

#[derive(Default)]
struct State {
    waiting: usize,
    openings: usize,
    cancelled: bool,
    opened: Option<Snapshot>,
    ended: Option<Ended>,
}

/// The end of the window for the client threads that have ended so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) end: Snapshot,
    pub(crate) cost: Cost,
}

impl Window {
    /// A window for this number of client threads. It reads the meter when it opens.
    pub(crate) fn new(threads: usize, meter: Box<dyn Meter>) -> Self {
        Self { threads, meter, state: Mutex::default(), changed: Condvar::new(), opening: Notify::new() }
    }

    /// Waits for the other threads. The last one opens the window for all.
    pub(crate) fn wait(&self) -> Result<(), LoadError> {
        let (is_last, openings) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting += 1;
            (state.waiting == self.threads, state.openings)
        };
        // Before the clock, so that the cost of reading is outside the window, and without the lock, as it may take a while.
        let counters = is_last.then(|| (Withheld::so_far(), self.meter.counters()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((withheld, counters)) = counters {
            (state.waiting, state.openings, state.ended) = (0, openings + 1, None);
            state.opened = Some(Snapshot { at: Instant::now(), usage: self.meter.usage(), counters, withheld });
            self.changed.notify_all();
            self.opening.notify_waiters();
        }
        while state.openings == openings && !state.cancelled {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled { Err(LoadError::Cancelled) } else { Ok(()) }
    }

    /// Ends the window for a thread with this cost in it.
    pub(crate) fn end(&self, cost: Cost) {
        let end = self.read();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let cost = state.ended.map_or(cost, |others| others.cost + cost);
        // Of two snapshots, the later one may have been read first.
        let end = state.ended.map_or(end, |others| if others.end.at > end.at { others.end } else { end });
        state.ended = Some(Ended { end, cost });
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    pub(crate) fn read(&self) -> Snapshot {
        // The clock first: the other readings are outside the timed window.
        let at = Instant::now();
        let usage = self.meter.usage();
        Snapshot { at, usage, counters: self.meter.counters(), withheld: Withheld::so_far() }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.meter.usage()
    }

    pub(crate) fn sockets(&self) -> Option<SocketCount> {
        self.meter.sockets()
    }

    /// The readings of the moment when the window opened; `None` before it.
    pub(crate) fn opened(&self) -> Option<Snapshot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).opened
    }

    /// Waits in a task until the window opens. Safe to cancel and call again.
    pub(crate) async fn opening(&self) -> Snapshot {
        loop {
            // Made before the check: it hears of an opening between the two.
            let opening = self.opening.notified();
            if let Some(snapshot) = self.opened() {
                return snapshot;
            }
            opening.await;
        }
    }

    /// Makes every [`Window::wait`] return an error.
    pub(crate) fn cancel(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::meter::LinkMeter;

    #[test]
    fn a_window_that_all_wait_for_again_opens_anew() {
        let window = Window::new(2, Box::new(LinkMeter::new([], || None)));
        let twice = || {
            [(); 2].map(|()| {
                window.wait().unwrap();
                window.end(Cost { cpu: Some(Duration::from_secs(1)), switches: None });
                window.opened().unwrap().at
            })
        };
        let [one, other] =
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(twice)).map(|thread| thread.join().unwrap()));
        assert!(one == other && one[0] < one[1], "{one:?} {other:?}");
        // The cost of the last one alone.
        assert_eq!(window.ended().unwrap().cost.cpu, Some(Duration::from_secs(2)));
    }
}
