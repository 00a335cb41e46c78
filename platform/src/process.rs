//! This process and other ones: how they are started, spoken to, metered and ended.
//!
//! | file | |
//! |---|---|
//! | `child` | a process that this one has started: its orders, its output and its end |
//! | `worker`, `control` | a process that works for this one: the lines between both, from both sides |
//! | `words` | the end of a process in words |

mod child;
mod control;
mod words;
mod worker;

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;

pub use self::child::{Child, Conversation, End, MAX_OUTPUT, Orders, Printed, read_line};
pub use self::control::Control;
pub use self::words::{ending, last_lines, last_words, shown};
pub use self::worker::{NotReady, PROTOCOL, Worker, line, parse_ready};

use crate::{Switches, sys};

/// The environment variable that tells a process the ID of the one that has started it: see [`end_with_parent`].
pub const PARENT: &str = "RUST_TUN_PERF_PARENT";

/// A program and its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Program {
    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }
}

/// If another process started this one for a run, ties this process to it: when the parent is killed, this process ends
/// too, and does not disturb later runs. Does nothing on a system that cannot do it. Returns `false` if the parent has ended
/// already. Call it in the main thread.
pub fn end_with_parent() -> bool {
    let parent = env::var(PARENT).ok().and_then(|parent| parent.parse().ok());
    parent.is_none_or(sys::end_with_parent)
}

/// Runs a program to its end. It is killed after `limit`, or when the calling thread ends.
pub fn output(mut command: Command, limit: Duration) -> io::Result<Arc<End>> {
    sys::end_with_this_thread(&mut command);
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let late = |_| io::Error::other(format!("it took longer than {} seconds", limit.as_secs_f64()));
        let child = Child::start(command, "")?;
        let end = timeout(limit, child.ended()).await.map_err(late)?;
        end.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    })
}

/// The output of a program; `None` if it fails, or does not end within `limit`.
pub fn printed(command: Command, limit: Duration) -> Option<String> {
    let end = output(command, limit).ok().filter(|end| end.by == ProcessEnd::Exited(0))?;
    String::from_utf8(end.stdout.clone()).ok()
}

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
    env::current_exe().unwrap_or_else(|_| env::args_os().next().unwrap_or_default().into())
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

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_mins(1);

    #[test]
    fn the_version_of_a_program_is_its_output_or_none() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(printed(shell("echo 1.2; echo 3"), DEADLINE), Some("1.2\n3\n".to_owned()));
        assert_eq!(printed(shell("echo 1.2; exit 1"), DEADLINE), None);
        assert_eq!(printed(Command::new("/nowhere/iperf3"), DEADLINE), None);
        // It prints without end, and is killed.
        assert_eq!(printed(shell("exec yes"), DEADLINE), None);
        // It never ends.
        assert_eq!(printed(shell("echo 1.2; exec sleep 1000"), Duration::from_millis(50)), None);
    }
}
