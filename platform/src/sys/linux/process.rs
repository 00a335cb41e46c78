//! Processes and threads: their life, CPU time, memory and limits.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::sys::prctl::{set_pdeathsig, set_timerslack};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, getpid, getppid, gettid, sysconf};

use crate::sys::SharpTimers;
use crate::sys::unix::page_bytes;
use crate::{ProcessCondition, ProcessMeter, Switches};

/// The flag of a process that is about to end (`include/linux/sched.h`).
const PF_EXITING: u64 = 0x4;

/// glibc's default.
#[cfg(target_env = "gnu")]
const LARGE_BUFFER_BYTES: libc::c_int = 128 << 10;

impl ProcessMeter {
    fn pid(self) -> Option<Pid> {
        i32::try_from(self.pid).ok().map(Pid::from_raw)
    }

    fn file(self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }

    fn read(self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok()
    }

    /// CPU time, on Linux with that of children it has waited for: the time of a forking program never falls.
    pub fn cpu(self) -> Option<Duration> {
        // `/proc/PID/stat` counts in ticks of 10 ms, but only there are the children.
        let own: Duration = clock_getcpuclockid(self.pid()?).and_then(clock_gettime).ok()?.into();
        let children = parse_children(&self.read("stat").unwrap_or_default(), ticks_per_second()?);
        Some(own + children.unwrap_or_default())
    }

    /// Its resident set now, in bytes.
    pub fn rss_bytes(self) -> Option<u64> {
        let pages: u64 = self.read("statm")?.split(' ').nth(1)?.parse().ok()?;
        Some(pages * page_bytes()?)
    }

    /// Its largest resident set so far, in bytes.
    pub fn peak_rss_bytes(self) -> Option<u64> {
        Some(number(&self.read("status")?, "VmHWM")? * 1024)
    }

    /// Its memory, threads, files and context switches now. `None` if it has ended.
    pub fn condition(self) -> Option<ProcessCondition> {
        let pss = self.read("smaps_rollup").and_then(|text| number(&text, "Pss"));
        let mut condition = ProcessCondition {
            pss_bytes: pss.map(|kibibytes| kibibytes * 1024),
            open_files: fs::read_dir(self.file("fd")).ok().map(|files| files.count() as u64),
            ..ProcessCondition::default()
        };
        for status in self.thread_statuses()? {
            condition.threads += 1;
            condition.switches = condition.switches + switches_in(&status);
        }
        Some(condition)
    }

    /// The context switches of those of its threads that have not ended.
    pub fn switches(self) -> Option<Switches> {
        Some(self.thread_statuses()?.map(|status| switches_in(&status)).sum())
    }

    /// Whether any of its threads runs, is ready to (R), or is within a call that nothing interrupts (D).
    pub fn is_busy(self) -> bool {
        let is_one = |status: String| ["State:\tR", "State:\tD"].iter().any(|state| status.contains(state));
        self.thread_statuses().is_some_and(|mut statuses| statuses.any(is_one))
    }

    /// The status of each thread (`proc_pid_status(5)`), which may end meanwhile. `None` without the process.
    fn thread_statuses(self) -> Option<impl Iterator<Item = String>> {
        let threads = fs::read_dir(self.file("task")).ok()?;
        Some(threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok()))
    }

    /// Lets it open no more files than this; those that are open stay.
    pub fn limit_open_files(self, most: u64) -> io::Result<()> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?.as_raw();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call only writes the present limits, into a value of their type.
        if unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, ptr::null(), &raw mut limit) } == -1 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = most.min(limit.rlim_max);
        // SAFETY: the call only reads the new limits, of which the hard one stays.
        match unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, ptr::null_mut()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Asks it to end, as `kill` does (SIGTERM). A system without such a request does nothing.
    pub fn terminate(self) {
        self.signal(Signal::SIGTERM);
    }

    /// Kills it.
    pub fn kill(self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(self, signal: Signal) {
        let _gone = self.pid().map(|pid| kill(pid, signal));
    }
}

fn switches_in(status: &str) -> Switches {
    let count = |name| number(status, name).unwrap_or_default();
    Switches { waits: count("voluntary_ctxt_switches"), preemptions: count("nonvoluntary_ctxt_switches") }
}

pub(super) fn number(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

/// The 16th and the 17th number are the ticks of children (`proc_pid_stat(5)`). The third comes behind the name.
fn parse_children(stat: &str, hertz: u64) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').skip(13).take(2).map(|ticks| ticks.parse().unwrap_or(0)).sum();
    time_of(ticks, hertz)
}

fn time_of(ticks: u64, hertz: u64) -> Option<Duration> {
    Some(Duration::from_nanos(ticks.checked_mul(1_000_000_000_u64.checked_div(hertz)?)?))
}

fn ticks_per_second() -> Option<u64> {
    u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()
}

/// The calling thread's folder under `/proc`. Empty on systems other than Linux.
pub fn folder_of_thread() -> PathBuf {
    format!("/proc/{}/task/{}", getpid(), gettid()).into()
}

/// The processes, other than this one, in the network of the thread with this folder under `/proc`.
pub fn processes_in(thread: &Path) -> Vec<ProcessMeter> {
    // A namespace is a file of its own file system (`namespaces(7)`). A process is in that of its main thread.
    let network = |folder: &Path| fs::metadata(folder.join("ns/net")).map(|file| (file.dev(), file.ino())).ok();
    let (Some(wanted), Ok(entries)) = (network(thread), fs::read_dir("/proc")) else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|process| *process != std::process::id()).map(ProcessMeter::of);
    others.filter(|process| network(&process.file("")) == Some(wanted)).collect()
}

/// The path that starts this program again, even if its file was replaced since (`proc_pid_exe(5)`).
pub fn this_program() -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { own } else { crate::process::program_on_disk() }
}

/// Makes the system kill this process when `parent` ends, which ordered its start. Returns `false` if it has ended.
pub(crate) fn end_with_parent(parent: u32) -> bool {
    // If the kernel refuses, this process behaves as on other systems.
    let _alone = set_pdeathsig(Signal::SIGKILL);
    // That covers only an end that comes later. If the real parent is another process, a program may be between the two, so
    // it is enough that `parent` is alive.
    ProcessMeter::of(parent).pid() == Some(getppid()) || is_alive(parent)
}

/// Whether a process exists, is not a zombie, and is not about to end: then its children lose it before.
fn is_alive(process: u32) -> bool {
    is_alive_by(&ProcessMeter::of(process).read("stat").unwrap_or_default())
}

/// The name of the process, in parentheses, is chosen by its program, and may have any characters.
pub(crate) fn is_alive_by(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok());
    !fields.starts_with(['Z', 'X']) && flags.is_some_and(|flags| flags & PF_EXITING == 0)
}

/// Kills the process of this command when the thread that starts it ends. Interrupts of the terminal do not reach it.
pub fn end_with_this_thread(command: &mut Command) {
    let parent = getpid();
    let bind = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended before.
        if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(bind) };
    // An interrupt from the terminal should reach only this process. It then ends the other one in order.
    command.process_group(0);
}

/// Binds each first path, a file or a folder, to the second in the process's own view of the files (`mount(2)`).
pub fn with_mounts(command: &mut Command, mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    let text = |path: &PathBuf| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let mounts = mounts.iter().map(|(from, to)| Ok((text(from)?, text(to)?))).collect::<io::Result<Vec<_>>>()?;
    let bind = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        // What is mounted from here on must not appear in the system's own namespace.
        let nothing = None::<&CStr>;
        mount(nothing, c"/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
        for (from, to) in &mounts {
            mount(Some(from.as_c_str()), to.as_c_str(), nothing, MsFlags::MS_BIND, nothing)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls with paths that exist already, and neither allocates nor locks.
    unsafe { command.pre_exec(bind) };
    Ok(())
}

/// Makes glibc map buffers of 128 KiB and more by themselves, so that free ones are the system's again (`mallopt(3)`).
pub fn return_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes two numbers. A refusal leaves everything as it was.
    let _accepted = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) };
}

/// Gives the memory of an anonymous private mapping back to the system. Returns whether it did so; only Linux does.
///
/// # Safety
///
/// This writes to the memory, which must be whole pages.
pub unsafe fn discard(memory: *mut [u8]) -> bool {
    // SAFETY: the caller owns the memory, and wants none of its bytes.
    unsafe { libc::madvise(memory.cast(), memory.len(), libc::MADV_DONTNEED) == 0 }
}

/// Makes sleeps of the calling thread end on time. On Linux they are up to 50 microseconds late, on Windows those of all
/// threads up to 15.6 milliseconds.
pub fn sharpen_timers() -> SharpTimers {
    let _as_they_are = set_timerslack(1);
    SharpTimers(())
}

/// The processors that the calling thread may use (`sched_getaffinity(2)`).
pub fn processors() -> Option<Vec<u16>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    Some((0..1024).filter(|number| allowed.is_set((*number).into()) == Ok(true)).collect())
}

pub(crate) fn set_processor(processor: u16) -> io::Result<()> {
    Ok(sched_setaffinity(Pid::from_raw(0), &set_of(&[processor])?)?)
}

/// Keeps the process of this command on these processors, and all that it starts (`sched_setaffinity(2)`).
pub fn keep_on(command: &mut Command, processors: &[u16]) -> io::Result<()> {
    let allowed = set_of(processors)?;
    let keep = move || Ok(sched_setaffinity(Pid::from_raw(0), &allowed)?);
    // SAFETY: between fork and exec it makes a system call with a set that exists already, and neither allocates nor locks.
    unsafe { command.pre_exec(keep) };
    Ok(())
}

fn set_of(processors: &[u16]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    processors.iter().try_for_each(|processor| set.set((*processor).into()))?;
    Ok(set)
}

fn switches(who: UsageWho) -> Option<Switches> {
    let usage = getrusage(who).ok()?;
    let [waits, preemptions] = [usage.voluntary_context_switches(), usage.involuntary_context_switches()];
    Some(Switches { waits: waits.try_into().ok()?, preemptions: preemptions.try_into().ok()? })
}

/// The context switches of all threads of this process so far. `None` if the system does not tell both kinds apart: macOS
/// counts only sleeps of its BSD part as voluntary, and all others as involuntary (`calcru`, `bsd/kern/kern_resource.c`).
pub fn switches_of_process() -> Option<Switches> {
    switches(UsageWho::RUSAGE_SELF)
}

/// The context switches of the calling thread so far. `None` if the system does not report them; only Linux does.
pub fn switches_of_thread() -> Option<Switches> {
    switches(UsageWho::RUSAGE_THREAD)
}

/// The largest resident set of this process so far, in bytes. `None` if the system does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    // The peak of getrusage(2) includes the program that ran before exec, for example `cargo run`.
    ProcessMeter::of(std::process::id()).peak_rss_bytes()
}

/// How long the host has taken the processors since the start (steal time), as the mean of all processors.
pub fn stolen_time() -> Option<Duration> {
    parse_stolen(&fs::read_to_string("/proc/stat").ok()?, ticks_per_second()?)
}

/// The eighth number of the line `cpu` is the ticks of all processors (`Documentation/filesystems/proc.rst`, 1.7).
pub(crate) fn parse_stolen(stat: &str, hertz: u64) -> Option<Duration> {
    let cpus = u32::try_from(stat.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)?).ok()?;
    let ticks: u64 = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    time_of(ticks, hertz)?.checked_div(cpus)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{self, Stdio};
    use std::thread;

    use super::*;
    use crate::{ProcessEnd, switches_of_process};

    /// The proxy has two buffers of 256 KiB for each connection.
    #[cfg(target_env = "gnu")]
    #[test]
    fn buffers_of_connections_do_not_stay_in_the_heap() {
        const COUNT: usize = 200;
        let mapped = || {
            // SAFETY: the call takes nothing and returns numbers.
            unsafe { libc::mallinfo2() }.hblks
        };
        let buffers = || -> Vec<Vec<u8>> { (0..COUNT).map(|_| vec![0; 256 << 10]).collect() };
        return_large_buffers();
        // glibc raises its threshold when such buffers are freed.
        drop(buffers());
        let before = mapped();
        let held = buffers();
        let more = mapped().saturating_sub(before);
        // Other tests of this process have some, too.
        assert!(more > COUNT / 2, "{more} of {} buffers are the system's", held.len());
    }

    #[test]
    fn the_time_of_children_is_behind_any_name() {
        let stat = "7 (a) S 1 (b) S 1 7 7 0 -1 4194304 95 200 0 0 3 4 250 150 20 0 1 0 999 2 3";
        assert_eq!(parse_children(stat, 100), Some(Duration::from_secs(4)));
        assert_eq!((parse_children("", 100), parse_children("7 (a) S 1", 100)), (None, Some(Duration::ZERO)));
    }

    #[test]
    fn stolen_time_is_the_mean_of_all_processors() {
        let stat = "cpu  224246 37 43048 221228 2722 0 457 112 0 0\n\
                    cpu0 108985 20 19648 116316 786 0 120 53 0 0\n\
                    cpu1 115260 17 23400 104911 1936 0 337 59 0 0\nintr 1 2 3\nctxt 5\n";
        assert_eq!(parse_stolen(stat, 100), Some(Duration::from_millis(560)));
        // Kernels before 2.6.11 have no such column.
        assert_eq!(parse_stolen("cpu  224246 37 43048 221228 2722 0 457\ncpu0 1\n", 100), None);
        assert_eq!(parse_stolen("", 100), None);
        assert!(stolen_time().is_some());
    }

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
        let found = processes_in(&folder_of_thread());
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
        let gone = |parent: u32| !is_alive(parent);
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

    #[test]
    fn a_thread_that_sleeps_is_switched_and_so_is_its_process() {
        let (process, thread) = (switches_of_process().unwrap(), switches_of_thread().unwrap());
        (0..3).for_each(|_| thread::sleep(Duration::from_millis(1)));
        assert!(switches_of_thread().unwrap().since(thread).waits >= 3);
        assert!(switches_of_process().unwrap().since(process).waits >= 3);
        assert_eq!(process.since(process), Switches::default());
    }
}
