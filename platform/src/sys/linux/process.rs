//! The life, CPU time and memory of processes.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, getpid, getppid, gettid, sysconf};

use crate::{ProcessCondition, Switches};

/// The flag of a process that is about to end (`include/linux/sched.h`).
const PF_EXITING: u64 = 0x4;

/// `PR_SET_PDEATHSIG` (`prctl(2)`) covers only an end that comes later, so the parent is checked after it. If the real
/// parent is another process, a program may be between the two, so it is enough that `parent` is alive.
pub(super) fn end_with_parent(parent: u32) -> bool {
    // If the kernel refuses, this process behaves as on other systems.
    let _alone = set_pdeathsig(Signal::SIGKILL);
    pid(parent) == Some(getppid()) || is_alive(parent)
}

/// Whether a process exists, is not a zombie, and is not about to end (`proc_pid_stat(5)`). A process that ends loses
/// its children to another parent before it becomes a zombie.
pub(crate) fn is_alive(process: u32) -> bool {
    is_alive_by(&fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default())
}

/// The name of the process, in parentheses, is chosen by its program, and may have any characters.
pub(crate) fn is_alive_by(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok());
    !fields.starts_with(['Z', 'X']) && flags.is_some_and(|flags| flags & PF_EXITING == 0)
}

/// The same, set up by the parent. The kernel sends the signal when the thread ends, not only the process.
pub(super) fn end_with_this_thread(command: &mut Command) {
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

/// Binds files and folders to other paths (`mount(2)`) in a mount namespace of the process's own.
pub(super) fn with_mounts(command: &mut Command, mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
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

pub(super) fn folder_of_thread() -> PathBuf {
    format!("/proc/{}/task/{}", getpid(), gettid()).into()
}

/// Sends a signal. The process may have ended.
pub(super) fn signal(process: u32, signal: Signal) {
    let _gone = pid(process).map(|process| kill(process, signal));
}

/// The processes, other than this one, whose main thread is in the network of the thread with this folder under `/proc`.
pub(super) fn processes_in(thread: &Path) -> Vec<u32> {
    // A namespace is a file of its own file system (`namespaces(7)`).
    let network = |folder: &Path| fs::metadata(folder.join("ns/net")).map(|file| (file.dev(), file.ino())).ok();
    let (Some(wanted), Ok(entries)) = (network(thread), fs::read_dir("/proc")) else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_inside = |process: &u32| network(Path::new(&format!("/proc/{process}"))) == Some(wanted);
    numbers.filter(|process| *process != std::process::id()).filter(is_inside).collect()
}

/// The proportional set size of `/proc/PID/smaps_rollup`, the open files of `/proc/PID/fd`, and the context switches of
/// all threads (`proc_pid_status(5)`).
pub(super) fn condition_of(process: u32) -> Option<ProcessCondition> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let pss = fs::read_to_string(folder.join("smaps_rollup")).ok().and_then(|text| number(&text, "Pss"));
    let mut condition = ProcessCondition {
        pss_bytes: pss.map(|kibibytes| kibibytes * 1024),
        open_files: fs::read_dir(folder.join("fd")).ok().map(|files| files.count() as u64),
        ..ProcessCondition::default()
    };
    for status in thread_statuses(&folder)? {
        condition.threads += 1;
        condition.switches = condition.switches + switches_in(&status);
    }
    Some(condition)
}

/// The context switches of all threads that have not ended.
pub(super) fn switches_of(process: u32) -> Option<Switches> {
    Some(thread_statuses(Path::new(&format!("/proc/{process}")))?.map(|status| switches_in(&status)).sum())
}

/// The context switches in the status of a thread.
fn switches_in(status: &str) -> Switches {
    let count = |name| number(status, name).unwrap_or_default();
    Switches { waits: count("voluntary_ctxt_switches"), preemptions: count("nonvoluntary_ctxt_switches") }
}

/// The number in a line of `/proc`, with this name and a colon before it.
fn number(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

/// Whether a thread runs or is ready to (R), or waits without interruption (D).
pub(super) fn is_busy(process: u32) -> bool {
    let is_one = |status: String| ["State:\tR", "State:\tD"].iter().any(|state| status.contains(state));
    thread_statuses(Path::new(&format!("/proc/{process}"))).is_some_and(|mut statuses| statuses.any(is_one))
}

/// The status of each thread of the process with this folder; a thread may end meanwhile. `None` without such a process.
fn thread_statuses(process: &Path) -> Option<impl Iterator<Item = String> + use<>> {
    let threads = fs::read_dir(process.join("task")).ok()?;
    Some(threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok()))
}

/// `sched_getaffinity(2)`: the processors that the calling thread may use.
pub(super) fn processors() -> Option<Vec<u16>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    Some((0..1024).filter(|number| allowed.is_set((*number).into()) == Ok(true)).collect())
}

/// `sched_setaffinity(2)` of the calling thread.
pub(super) fn pin_thread(processor: u16) -> io::Result<()> {
    let mut allowed = CpuSet::new();
    allowed.set(processor.into())?;
    Ok(sched_setaffinity(Pid::from_raw(0), &allowed)?)
}

/// Uses the CPU clock of the process, because `/proc/PID/stat` counts in ticks of 10 ms. Only there are the children that have
/// ended: without them the time of a program with a process for each connection would fall.
pub(super) fn cpu_of(process: u32) -> Option<Duration> {
    let own: Duration = clock_getcpuclockid(pid(process)?).and_then(clock_gettime).ok()?.into();
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    Some(own + parse_children(&stat, ticks_per_second()?).unwrap_or_default())
}

/// The 16th and the 17th number of `/proc/PID/stat` are the ticks of the children that the process has waited for, and of
/// theirs (`proc_pid_stat(5)`). The third comes behind the name.
pub(crate) fn parse_children(stat: &str, hertz: u64) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').skip(13).take(2).map(|ticks| ticks.parse().unwrap_or(0)).sum();
    Some(Duration::from_nanos(ticks.checked_mul(1_000_000_000_u64.checked_div(hertz)?)?))
}

fn ticks_per_second() -> Option<u64> {
    u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()
}

/// The second number of `/proc/PID/statm`, in pages.
pub(super) fn rss_bytes_of(process: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * u64::try_from(page).ok()?)
}

/// `VmHWM` of `/proc/PID/status`. The peak of getrusage(2) includes the program that ran before exec, for example
/// `cargo run`.
pub(super) fn peak_rss_bytes_of(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

/// The steal column of `/proc/stat`.
pub(super) fn stolen_time() -> Option<Duration> {
    parse_stolen(&fs::read_to_string("/proc/stat").ok()?, ticks_per_second()?)
}

/// The eighth number of the line `cpu` is the ticks of all processors. It is divided by the number of lines `cpuN`
/// (`Documentation/filesystems/proc.rst`, 1.7).
pub(crate) fn parse_stolen(stat: &str, hertz: u64) -> Option<Duration> {
    let cpus = u32::try_from(stat.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)?).ok()?;
    let ticks: u64 = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    Duration::from_nanos(ticks.checked_mul(1_000_000_000_u64.checked_div(hertz)?)?).checked_div(cpus)
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

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
}
