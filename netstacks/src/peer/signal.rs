//! Wakes a thread that waits for a link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};

/// Unparks the waiting thread, either as the waker of a link or with a flag for the thread.
#[derive(Debug)]
pub(super) struct Signal {
    /// The thread that waits, or the last one that did.
    thread: Mutex<Thread>,
    raised: AtomicBool,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self { thread: Mutex::new(thread::current()), raised: AtomicBool::new(false) }
    }

    /// Sends wakes to the current thread from now on. Call it before the link is polled.
    pub(super) fn attach(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = thread::current();
    }

    /// Sets the flag, and wakes the thread.
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.unpark();
    }

    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Clears the flag, and returns whether it was set.
    pub(super) fn lower(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }

    fn unpark(&self) {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).unpark();
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}
