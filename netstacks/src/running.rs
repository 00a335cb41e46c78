//! One instance of a stack in a process at a time, for a stack that keeps its state in globals.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{StackKind, StartError};

/// The right to use lwIP's globals, of which there is one. A build has one lwIP at most.
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
