//! Checks whether this machine has everything that a run needs. The checks only read: they create and change nothing.

pub use crate::check::{Check, Verdict};
use crate::sys::{Native, System};

/// Checks the system for runs with TCP windows of `window_bytes`.
pub fn examine(window_bytes: usize) -> Vec<Check> {
    Native::examine(window_bytes)
}

/// The machine's memory, in bytes. `None` if the system does not report it.
pub fn memory_bytes() -> Option<u64> {
    Native::memory_bytes()
}
