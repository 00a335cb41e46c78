//! A timer that wakes a task. It is as precise as the system's timers; tokio's round to a millisecond.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::sys::Pause;

/// Wakes one task at a set time. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// The thread waits in it.
    pause: Pause,
}

#[derive(Debug, Default)]
struct State {
    next: Option<(Instant, Waker)>,
    ended: bool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let thread = thread::Builder::new().name("link-clock".to_owned()).spawn(move || ours.run()).ok();
        Self { shared, thread }
    }

    /// Wakes this task at that time. This replaces the time and task that were set before.
    pub(crate) fn set(&self, at: Instant, waker: &Waker) {
        let Some(thread) = &self.thread else {
            // The system has no more threads, so the task has to poll in a loop.
            return waker.wake_by_ref();
        };
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.next.as_ref().is_some_and(|(then, other)| *then == at && other.will_wake(waker)) {
            return;
        }
        state.next = Some((at, waker.clone()));
        drop(state);
        self.shared.pause.end(thread.thread());
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.pause.end(thread.thread());
        // The alarm's own thread may drop the task, and the link with it. It must not join itself.
        if thread.thread().id() != thread::current().id() {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let _timers = crate::sharpen_timers();
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let due = state.next.take_if(|(at, _)| *at <= now);
            let (at, ended) = (state.next.as_ref().map(|(at, _)| *at), state.ended);
            drop(state);
            match due {
                _ if ended => return,
                Some((_, waker)) => waker.wake(),
                None => self.pause.until(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    struct Rings(Mutex<mpsc::Sender<Instant>>);

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().send(Instant::now()).unwrap();
        }
    }

    #[test]
    fn the_last_time_that_was_set_holds_and_is_never_early() {
        let (rings, rung) = mpsc::channel();
        let waker = Waker::from(Arc::new(Rings(Mutex::new(rings))));
        let alarm = Alarm::new();
        for _ in 0..50 {
            // An earlier time, after a later one for which the thread waits.
            alarm.set(Instant::now() + Duration::from_mins(1), &waker);
            let at = Instant::now() + Duration::from_millis(1);
            alarm.set(at, &waker);
            assert!(rung.recv_timeout(Duration::from_secs(20)).unwrap() >= at);
        }
        drop((alarm, waker));
        rung.recv().unwrap_err();
    }
}
