//! Wakes a thread or a task that waits for a link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

/// Wakes the waiting thread or task, either as the waker of a link or with a flag for it.
#[derive(Debug)]
pub(super) struct Signal {
    waiter: Mutex<Waiter>,
    raised: AtomicBool,
}

#[derive(Debug)]
enum Waiter {
    Thread(Thread),
    Task(Waker),
}

impl Signal {
    pub(super) fn new() -> Self {
        Self { waiter: Mutex::new(Waiter::Thread(thread::current())), raised: AtomicBool::new(false) }
    }

    /// Sends wakes to the current thread from now on. Call it before the link is polled.
    pub(super) fn attach(&self) {
        *self.waiter() = Waiter::Thread(thread::current());
    }

    /// Sends wakes to this task from now on. Call it before the link is polled.
    pub(super) fn attach_task(&self, waker: &Waker) {
        match &mut *self.waiter() {
            Waiter::Task(task) => task.clone_from(waker),
            other @ Waiter::Thread(_) => *other = Waiter::Task(waker.clone()),
        }
    }

    fn waiter(&self) -> MutexGuard<'_, Waiter> {
        crate::lock(&self.waiter)
    }

    /// Sets the flag, and wakes the waiter.
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.wake_waiter();
    }

    /// Clears the flag, and returns whether it was set.
    pub(super) fn lower(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }

    fn wake_waiter(&self) {
        match &*self.waiter() {
            Waiter::Thread(thread) => thread.unpark(),
            Waiter::Task(task) => task.wake_by_ref(),
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_waiter();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_waiter();
    }
}
