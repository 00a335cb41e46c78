//! Other processes: which program this one is, and how one ended.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::sys::{Native, System};

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
        Native::process_end(status)
    }
}

/// The path by which this very program can be started again. On Linux it leads to it even where its file
/// has been replaced since, so that what is built meanwhile does not mix with what is measured.
pub fn this_program() -> PathBuf {
    Native::this_program()
}

/// Raises the limit on open files to so many, as far as it is allowed.
pub fn allow_open_files(wanted: u64) {
    Native::allow_open_files(wanted);
}

/// Has the allocator ask the system for each buffer of 128 KiB and more, and give it back when it is freed. Such a buffer is zero
/// and takes memory only where it was written to.
///
/// glibc (`mallopt(3)`, `M_MMAP_THRESHOLD`) would keep them from the first one that is freed, and write zeros to all of each one
/// that is asked for again. Other systems need nothing.
pub fn return_large_buffers() {
    Native::return_large_buffers();
}

/// Has sleeps of the calling thread end on time: on Linux, where they end up to 50 microseconds late otherwise.
pub fn sharpen_timers() {
    Native::sharpen_timers();
}

/// Has the system kill this process when the one that started it ends, whatever ends that: on Linux alone,
/// elsewhere nothing is done. `parent` is the process at whose order this one was started, by its number;
/// `false` where that has gone already. To be called by the first thread, before there is another.
pub fn end_with_parent(parent: u32) -> bool {
    Native::end_with_parent(parent)
}

/// Has the system kill the process that the command starts when the thread that starts it ends, whatever ends
/// that, and keep a terminal's interrupts from it: on Linux alone, elsewhere nothing is done.
pub fn end_with_this_thread(command: &mut Command) {
    Native::end_with_this_thread(command);
}

/// What another process costs, seen from outside.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMeter {
    pid: u32,
}

impl ProcessMeter {
    /// Of the process of that number, as long as it is there.
    pub const fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// CPU time, user and system, of all its threads so far. `None` where the system does not say.
    pub fn cpu(self) -> Option<Duration> {
        Native::cpu_of(self.pid)
    }

    /// Its resident set now, in bytes. `None` where the system does not say.
    pub fn rss_bytes(self) -> Option<u64> {
        Native::rss_bytes_of(self.pid)
    }

    /// Its largest resident set so far, in bytes. `None` where the system does not say.
    pub fn peak_rss_bytes(self) -> Option<u64> {
        Native::peak_rss_bytes_of(self.pid)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::process;
    use std::thread;

    use super::*;

    #[test]
    fn a_process_is_seen_from_outside_as_from_inside() {
        let meter = ProcessMeter::of(process::id());
        let before = meter.cpu().unwrap();
        let mut sum = 0_u64;
        while crate::cpu_of_process().unwrap() < before + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(meter.cpu().unwrap() >= before + Duration::from_millis(20), "{sum}");
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        assert!(meter.rss_bytes().unwrap() >= block.len() as u64);
        assert!(meter.peak_rss_bytes().unwrap() >= block.len() as u64);
    }

    #[test]
    fn nothing_is_said_of_a_process_that_is_not_there() {
        // Beyond the most that a kernel gives (`PID_MAX_LIMIT`, `include/linux/threads.h`).
        let meter = ProcessMeter::of((1 << 22) + 1);
        assert_eq!((meter.cpu(), meter.rss_bytes(), meter.peak_rss_bytes()), (None, None, None));
    }

    #[test]
    fn a_parent_that_is_dead_and_not_buried_is_gone() {
        let mut parent = Command::new("true").spawn().unwrap();
        // Nobody has waited for it.
        let gone = |parent: u32| !crate::sys::linux::is_alive(parent);
        while !gone(parent.id()) {
            thread::yield_now();
        }
        parent.wait().unwrap();
        assert!(gone(parent.id()));
        assert!(!gone(process::id()));
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let starter = thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            end_with_this_thread(&mut command);
            command.spawn().unwrap()
        });
        let status = starter.join().unwrap().wait().unwrap();
        assert_eq!(ProcessEnd::of(status), ProcessEnd::Crashed("SIGKILL".to_owned()));
    }
}
