//! Other processes: which program this one is, and how one ended.

use std::path::PathBuf;
use std::process::ExitStatus;

use crate::imp;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself, with this exit code.
    Exited(i32),
    /// By the user's Ctrl-C, for which it had no handler yet.
    Interrupted,
    /// By the system, for this reason: `SIGSEGV`, `exception 0xc0000005`.
    Crashed(String),
}

impl ProcessEnd {
    /// What an exit status means on this system.
    pub fn of(status: ExitStatus) -> Self {
        imp::process_end(status)
    }
}

/// The path by which this very program can be started again. On Linux it leads to it even where its file
/// has been replaced since, so that what is built meanwhile does not mix with what is measured.
pub fn this_program() -> PathBuf {
    imp::this_program()
}

/// Has the system kill this process when the one that started it ends, whatever ends that: on Linux alone,
/// elsewhere nothing is done. `parent` is the process at whose order this one was started, by its number;
/// `false` where that has gone already. To be called by the first thread, before there is another.
pub fn end_with_parent(parent: u32) -> bool {
    imp::end_with_parent(parent)
}

/// By its name on the disk; by what it was started as where the system does not say.
pub(crate) fn program_on_disk() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| std::env::args_os().next().unwrap_or_default().into())
}
