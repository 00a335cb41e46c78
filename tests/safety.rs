//! The promises of SECURITY.md about the system calls of a run. A test that cannot run prints SKIP with the reason.

use std::fs;
use std::process::Command;

use crate::machine::{missing_program, no_root};
use crate::processes::{PROGRAM, folder, stderr};

/// Calls that make a descriptor or leave the host's network.
const CALLS: &str = "open,openat,openat2,creat,socket,socketpair,accept,accept4,pipe,pipe2,epoll_create,epoll_create1,\
                     eventfd,eventfd2,dup,memfd_create,inotify_init,inotify_init1,timerfd_create,signalfd,signalfd4,\
                     unshare,setns";

/// Returns the calls of a run, as `strace` writes them, for all its processes and threads.
fn calls(arguments: &str, out: &str) -> Vec<String> {
    let out = folder("safety").join(out);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-e", &format!("trace={CALLS}"), "-o"]).arg(&out);
    let output = strace.arg(PROGRAM).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    let text = fs::read_to_string(&out).unwrap();
    // A call that another thread's call interrupts is split into two lines. The first has the arguments.
    let calls = text.lines().filter_map(|line| line.split_once(' ')).map(|(_process, call)| call.trim_start());
    calls.filter(|call| !call.starts_with('<') && !call.contains("= -1 ")).map(ToOwned::to_owned).collect()
}

#[test]
fn a_run_leaves_the_host_s_network_first_and_closes_all_on_exec() {
    skip_if!(no_root().or_else(|| missing_program(&["strace"])).or_else(cannot_trace));
    let runs = [
        "-m reader -n ipstack",
        "-m rr -n lwip --current-thread",
        "-m writer -n smoltcp --loss 1 --offload off",
        "-m writer -n lwip --protocol udp --bitrate 1M",
        "-m rr  --program smoltcp",
        "-m reader --layer loopback",
    ];
    for arguments in runs {
        let calls = calls(&format!("{arguments} --time 0.1"), "calls");
        let leaves = |call: &&String| call.contains("CLONE_NEWNET");
        let opens = |call: &&String| call.starts_with("socket(") || call.contains("/dev/net/tun");
        let first = calls.iter().find(|call| leaves(call) || opens(call)).unwrap();
        assert!(leaves(&first), "{arguments}: {first}");
        assert!(calls.iter().any(|call| opens(&call)), "{arguments}: {calls:?}");
        for call in calls.iter().filter(|call| !call.contains("CLONE_NEW")) {
            assert!(call.contains("CLOEXEC"), "{arguments}: {call}");
            let writes = ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| call.contains(flag));
            let own = call.contains("/dev/net/tun") || call.contains("\"/proc/");
            assert!(!writes || own, "{arguments}: {call}");
        }
    }
}

/// Returns a reason if `strace` cannot follow a process here.
pub(crate) fn cannot_trace() -> Option<String> {
    let output = Command::new("strace").args(["-qq", "-e", "trace=none", "true"]).output().unwrap();
    (!output.status.success()).then(|| format!("strace: {}", stderr(&output)))
}
