//! Limits a stack that keeps its state in globals to one instance in a process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{StackKind, StartError};

/// The right to use lwIP's globals. Only one exists at a time: a build has at most one lwIP.
pub(crate) struct Running(());

static RUNNING: AtomicBool = AtomicBool::new(false);

impl Running {
    pub(crate) fn acquire(stack: StackKind) -> Result<Self, StartError> {
        match RUNNING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Self(())),
            Err(_) => Err(StartError::AlreadyRunning(stack)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Release);
    }
}
