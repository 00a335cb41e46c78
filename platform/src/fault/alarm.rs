//! A timer that wakes a task. It is as precise as a sleep of the system; tokio's timers round to a millisecond.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Wakes one task at a set time. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct Alarm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: Option<(Instant, Waker)>,
    ended: bool,
}

impl Alarm {
    pub(super) fn new() -> Self {
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let thread = thread::Builder::new().name("link-clock".to_owned()).spawn(move || ours.run()).ok();
        Self { shared, thread }
    }

    /// Wakes this task at that time. This replaces the time and task that were set before.
    pub(super) fn set(&self, at: Instant, waker: &Waker) {
        if self.thread.is_none() {
            // The system has no more threads, so the task has to poll in a loop.
            return waker.wake_by_ref();
        }
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.next.as_ref().is_some_and(|(then, other)| *then == at && other.will_wake(waker)) {
            return;
        }
        state.next = Some((at, waker.clone()));
        self.shared.changed.notify_one();
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.changed.notify_one();
        // The alarm's own thread may drop the task, and the link with it. It must not join itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        crate::sharpen_timers();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.ended {
            let now = Instant::now();
            state = match state.next.take_if(|(at, _)| *at <= now) {
                Some((_, waker)) => {
                    drop(state);
                    waker.wake();
                    self.state.lock().unwrap_or_else(PoisonError::into_inner)
                }
                None => match state.next.as_ref().map(|(at, _)| *at - now) {
                    Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                },
            };
        }
    }
}
