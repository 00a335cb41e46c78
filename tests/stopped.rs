//! Signals to a run: it reports that it was stopped, and a closed terminal ends it. The tests need no device and no permissions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rust_tun_perf::sample::{self, Status, Warning};

use crate::processes::PROGRAM;

/// CPU time, in ticks of 10 ms, after which a process is certainly in its timed window.
const UNDER_LOAD: u64 = 30;

const STOPPED: Duration = Duration::from_millis(500);

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// User and system time of a process, the 14th and 15th field of its stat (`proc_pid_stat(5)`).
fn cpu_ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A run that a shell starts after these commands. It is under load.
fn run(before: &str) -> Child {
    let options = "--layer stack --netstack smoltcp --mode reader --warmup 0 --time 3 --json";
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before} exec {PROGRAM} {options}")]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while cpu_ticks(&child) < UNDER_LOAD {
        assert!(begin.elapsed() < Duration::from_mins(1), "the run does not begin");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_closed_terminal_ends_a_run_in_order_unless_nohup_has_started_it() {
    skip_if!(crate::machine::no_hangup());
    for (before, code) in [("", 130), ("trap '' HUP;", 0)] {
        let child = run(before);
        signal(&child, "HUP");
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(code), "{before}");
    }
}

/// A cgroup with a quota of 10 % of a processor. It is removed with this value.
struct Quota(PathBuf);

impl Quota {
    /// With version 1 or 2; `None` if this machine lets nobody make one.
    fn new() -> Option<Self> {
        let versions = [("cpu", "cpu.cfs_quota_us", "10000"), ("", "cpu.max", "10000 100000")];
        versions.into_iter().find_map(|(mount, file, quota)| {
            let folder = Path::new("/sys/fs/cgroup").join(mount).join(format!("rust-tun-perf-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let made = Self(folder);
            fs::write(made.0.join(file), quota).ok().map(|()| made)
        })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _busy = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_run_under_a_quota_of_the_processor_says_how_much_it_took() {
    let quota = Quota::new();
    skip_if!(quota.is_none().then_some("this machine lets nobody make a cgroup with a quota"));
    let child = run(&format!("echo $$ >{}/cgroup.procs;", quota.as_ref().unwrap().0.display()));
    let output = child.wait_with_output().unwrap();
    let sample = sample::parse_line(String::from_utf8_lossy(&output.stdout).trim()).unwrap();
    // How much of its time depends on what else the machine does.
    assert!(sample.measured.throttled.unwrap().periods > 0, "{sample:?}");
    assert!(sample.warnings().iter().any(|warning| matches!(warning, Warning::Throttled(_))), "{sample:?}");
}

#[test]
fn a_run_that_was_stopped_reports_for_how_long() {
    let child = run("");
    signal(&child, "STOP");
    thread::sleep(STOPPED);
    signal(&child, "CONT");
    let output = child.wait_with_output().unwrap();
    let sample = sample::parse_line(String::from_utf8_lossy(&output.stdout).trim()).unwrap();
    assert_eq!(sample.measured.status, Status::Ok, "{sample:?}");
    // The figure is not exact: the watcher may have been about to wake, or may just have gone to sleep.
    let stopped = sample.measured.stopped_seconds.unwrap();
    assert!((0.4..3.0).contains(&stopped), "stopped for {stopped} s");
    assert!(sample.warnings().iter().any(|warning| matches!(warning, Warning::Stopped(_))), "{:?}", sample.warnings());
}
