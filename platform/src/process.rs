//! Processes: this one and its limits, the end of another one, and the CPU time and memory of another one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

use crate::Switches;
use crate::sys::{Native, System};

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
        Native::process_end(status)
    }
}

/// The path that starts this program again. On Linux it leads to the running program even if its file was replaced
/// since: a build during a measurement does not change the measured program.
pub fn this_program() -> PathBuf {
    Native::this_program()
}

/// Raises the limit on open files to `wanted`, or as far as the system allows.
pub fn allow_open_files(wanted: u64) {
    Native::allow_open_files(wanted);
}

/// Makes glibc map buffers of 128 KiB and more by themselves, and unmap them when they are freed. A new zeroed buffer then
/// takes memory only where it is written to. There is an exception: if freed memory in the heap has room for a buffer,
/// glibc uses it, and fills the whole buffer with zeros.
///
/// Without this call, glibc keeps large buffers after the first one was freed (`mallopt(3)`, `M_MMAP_THRESHOLD`). With
/// other allocators it does nothing.
pub fn return_large_buffers() {
    Native::return_large_buffers();
}

/// Gives the memory of an anonymous private mapping back to the system, which maps new pages where it is used again. Its
/// bytes are lost. Returns whether the system has done so; only Linux does.
///
/// # Safety
///
/// This writes to the memory, which must be whole pages.
pub unsafe fn discard(memory: *mut [u8]) -> bool {
    // SAFETY: the caller promises the same.
    unsafe { Native::discard(memory) }
}

/// Makes sleeps of the calling thread end on time. On Linux they otherwise end up to 50 microseconds late; other
/// systems ignore the call.
pub fn sharpen_timers() {
    Native::sharpen_timers();
}

/// The processors that the calling thread may use, by their numbers. `None` if the system does not report them; only Linux
/// does.
pub fn processors() -> Option<Vec<u16>> {
    Native::processors()
}

/// Keeps the calling thread, and the threads and processes that it starts, on one processor.
///
/// # Errors
///
/// The thread may not use this processor, or the system is not Linux.
pub fn pin_thread(processor: u16) -> io::Result<()> {
    // Read before a thread is kept on one.
    parallelism();
    Native::pin_thread(processor)
}

/// How many processors this process may use; `None` if the system does not say. It is read once, because a thread that is kept
/// on one processor sees no other.
pub fn parallelism() -> Option<usize> {
    static COUNT: OnceLock<Option<usize>> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().ok().map(Into::into))
}

/// Makes the system kill this process when its parent process ends for any reason. `parent` is the process ID of the
/// process that ordered the start of this one. Returns `false` if that process has already ended. Call it in the main
/// thread, before there is another thread. Systems other than Linux do nothing and return `true`.
pub fn end_with_parent(parent: u32) -> bool {
    Native::end_with_parent(parent)
}

/// Makes the system kill the process of this command when the thread that starts it ends for any reason. The process
/// also gets no interrupts from the terminal. Systems other than Linux do nothing.
pub fn end_with_this_thread(command: &mut Command) {
    Native::end_with_this_thread(command);
}

/// Gives the process of this command a view of the file system of its own: each first path, a file or a folder, is bound to
/// the second one, which must exist.
///
/// # Errors
///
/// A path has a zero byte, or the system has no such mounts; only Linux has them.
pub fn with_mounts(command: &mut Command, mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    Native::with_mounts(command, mounts)
}

/// Reads the CPU time and memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMeter {
    pid: u32,
}

impl ProcessMeter {
    /// A meter for the process with this ID. After the process has ended, all values are `None`.
    pub const fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// CPU time, user and system, of all its threads so far. On Linux it includes children that have ended and that the process
    /// has waited for. `None` if the system does not report it.
    pub fn cpu(self) -> Option<Duration> {
        Native::cpu_of(self.pid)
    }

    /// Its resident set now, in bytes. `None` if the system does not report it.
    pub fn rss_bytes(self) -> Option<u64> {
        Native::rss_bytes_of(self.pid)
    }

    /// Its memory, threads, files and context switches now. `None` if it has ended, or the system does not report them.
    pub fn condition(self) -> Option<ProcessCondition> {
        Native::condition_of(self.pid)
    }

    /// The context switches of those of its threads that have not ended. `None` if the system does not report them.
    pub fn switches(self) -> Option<Switches> {
        Native::switches_of(self.pid)
    }

    /// Whether any of its threads has something to do: it runs, is ready to, or is within a call of the kernel that nothing
    /// interrupts. A system that does not report it says no.
    pub fn is_busy(self) -> bool {
        Native::is_busy(self.pid)
    }

    /// Asks it to end, as `kill` does (SIGTERM). A system without such a request does nothing.
    pub fn terminate(self) {
        Native::terminate(self.pid);
    }

    /// Kills it.
    pub fn kill(self) {
        Native::kill(self.pid);
    }

    /// Its largest resident set so far, in bytes. `None` if the system does not report it.
    pub fn peak_rss_bytes(self) -> Option<u64> {
        Native::peak_rss_bytes_of(self.pid)
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

/// The processes in the network of the thread with this folder under `/proc`, other than this one. Empty if the system
/// does not report them.
pub fn processes_in(thread: &Path) -> Vec<ProcessMeter> {
    Native::processes_in(thread).into_iter().map(ProcessMeter::of).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::process::{self, Stdio};
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

    /// Else the CPU time of a program with a process for each connection would fall.
    #[test]
    fn the_time_of_a_child_stays_with_its_parent() {
        let burn = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; read end";
        let mut command = Command::new("sh");
        let mut parent = command.args(["-c", burn]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        parent.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let cpu = ProcessMeter::of(parent.id()).cpu().unwrap();
        drop(parent.stdin.take());
        parent.wait().unwrap();
        assert!(cpu >= Duration::from_millis(20), "{cpu:?}");
    }

    #[test]
    fn a_process_is_found_in_its_network_with_its_threads_and_files() {
        let mut inside = Command::new("sleep").arg("60").spawn().unwrap();
        let meter = ProcessMeter::of(inside.id());
        let found = processes_in(&crate::folder_of_thread());
        let condition = meter.condition().unwrap();
        meter.kill();
        inside.wait().unwrap();
        assert!(found.contains(&meter) && !found.contains(&ProcessMeter::of(process::id())), "{found:?}");
        assert_eq!((condition.threads, condition.pss_bytes > Some(0)), (1, true));
        assert!(ProcessMeter::of(process::id()).is_busy());
        assert!(condition.open_files >= Some(3), "{condition:?}");
        let own = ProcessMeter::of(process::id());
        let before = own.switches().unwrap();
        thread::sleep(Duration::from_millis(1));
        assert!(own.switches().unwrap().since(before).waits > 0);
        assert_eq!(processes_in(Path::new("/proc/0/task/0")), []);
    }

    #[test]
    fn nothing_is_said_of_a_process_that_is_not_there() {
        // Larger than any process ID (`PID_MAX_LIMIT`, `include/linux/threads.h`).
        let meter = ProcessMeter::of((1 << 22) + 1);
        assert_eq!((meter.cpu(), meter.rss_bytes(), meter.peak_rss_bytes()), (None, None, None));
        assert_eq!(meter.condition(), None);
    }

    #[test]
    fn a_parent_that_is_dead_and_not_buried_is_gone() {
        let mut parent = Command::new("true").spawn().unwrap();
        // It is a zombie until `wait`.
        let gone = |parent: u32| !crate::sys::linux::is_alive(parent);
        while !gone(parent.id()) {
            thread::yield_now();
        }
        parent.wait().unwrap();
        assert!(gone(parent.id()));
        assert!(!gone(process::id()));
    }

    #[test]
    fn a_process_has_mounts_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        for made in [&from, &to] {
            fs::create_dir(made).unwrap();
        }
        fs::write(from.join("file"), "inside").unwrap();
        let print = move || {
            let mut command = Command::new("cat");
            command.arg(to.join("file"));
            with_mounts(&mut command, &[(from, to.clone())]).unwrap();
            (to, command.output())
        };
        // It has the right to mount in a user namespace.
        let (to, printed) = match crate::Namespace::new() {
            Ok(namespace) => namespace.run(print).unwrap(),
            // The test harness would hide it if it were printed.
            Err(error) => return drop(writeln!(io::stderr(), "SKIP {}: {error}", module_path!())),
        };
        assert_eq!(printed.unwrap().stdout, b"inside");
        assert!(fs::read_dir(to).unwrap().next().is_none(), "the system sees the mount");
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
