//! Signals to a run: it reports that it was stopped, and a closed terminal ends it. The tests need no device and no permissions.

use std::fs;
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
