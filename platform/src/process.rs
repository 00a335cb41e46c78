//! This process and other ones.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::OnceLock;

use crate::{Switches, sys};

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this code.
    Exited(i32),
    /// The user's Ctrl-C ended it: it had no handler yet.
    Interrupted,
    /// The system ended it, for this reason: `SIGSEGV`, `exception 0xc0000005`.
    Crashed(String),
}

impl ProcessEnd {
    /// The meaning of an exit status on this system.
    pub fn of(status: ExitStatus) -> Self {
        sys::process_end(status)
    }
}

/// The path of this program's file, or the name that it was started with if the system does not report the path.
pub(crate) fn program_on_disk() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| std::env::args_os().next().unwrap_or_default().into())
}

/// Keeps the calling thread, and the threads and processes that it starts, on one processor. Fails if the thread may
/// not use it, and on systems other than Linux.
pub fn pin_thread(processor: u16) -> io::Result<()> {
    // Read before a thread is kept on one.
    parallelism();
    sys::set_processor(processor)
}

/// How many processors this process may use; `None` if the system does not say. It is read once, because a thread that is kept
/// on one processor sees no other.
pub fn parallelism() -> Option<usize> {
    static COUNT: OnceLock<Option<usize>> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().ok().map(Into::into))
}

/// Reads the CPU time and memory of another process. After the process has ended, all values are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMeter {
    pub(crate) pid: u32,
}

impl ProcessMeter {
    /// A meter for the process with this ID.
    pub const fn of(pid: u32) -> Self {
        Self { pid }
    }
}

/// What a process has at a moment, and how often its threads have been switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCondition {
    /// Its memory: pages that several processes share are divided among them (proportional set size). `None` if the
    /// system does not report it.
    pub pss_bytes: Option<u64>,
    /// Its threads.
    pub threads: u64,
    /// Its open files. `None` if the system does not report them.
    pub open_files: Option<u64>,
    /// The context switches of its threads so far.
    pub switches: Switches,
}
