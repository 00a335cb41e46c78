//! The system calls of a request, counted with `strace`. A test that cannot run prints SKIP with the reason.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use crate::machine::{missing_program, no_root};
use crate::processes::{PROGRAM, folder, stderr};
use crate::safety::cannot_trace;

/// Calls of a busy stack or proxy. A processor that lacks one ignores it. `futex` depends on the scheduler.
const CALLS: &str = "?poll,ppoll,?epoll_wait,epoll_pwait,readv,writev,recvfrom,sendto";

/// Returns how many calls a request costs the threads that write packets to the device. So many `others` send one message
/// for each request.
fn calls_of_a_request(arguments: &str, others: f64, out: &str) -> f64 {
    let out = folder(out).join("calls");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-e", &format!("trace={CALLS}"), "-o"]).arg(&out).arg(PROGRAM);
    let output = strace.args("-m rr --time 1".split(' ')).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    let text = fs::read_to_string(&out).unwrap();
    let mut threads: HashMap<_, HashMap<_, f64>> = HashMap::new();
    // A call that another thread's call interrupts is split into two lines. The first has its name.
    for (thread, call) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some((name, _)) = call.trim_start().split_once('(').filter(|(name, _)| !name.starts_with('<')) {
            *threads.entry(thread).or_default().entry(name).or_default() += 1.0;
        }
    }
    let (stack, load): (Vec<_>, Vec<_>) = threads.values().partition(|calls| calls.contains_key("writev"));
    let sent: f64 = load.iter().filter_map(|calls| calls.get("sendto")).sum();
    let calls: f64 = stack.iter().flat_map(|calls| calls.values()).sum();
    assert!(sent > 0.0, "{arguments}: no request");
    calls / (sent / others)
}

/// The stack waits for a packet, reads it, writes the response, and reads once more, because the device announces a packet
/// only once: epoll, `readv`, `writev`, `readv`.
#[test]
fn a_request_costs_the_stack_four_system_calls() {
    skip_if!(no_root().or_else(|| missing_program(&["strace"])).or_else(cannot_trace));
    for stack in ["lwip", "smoltcp"] {
        for runtime in ["", "--current-thread"] {
            let arguments = format!("-n {stack} {runtime}");
            let calls = calls_of_a_request(&arguments, 1.0, "calls-of-a-stack");
            assert!(calls < 4.4, "{arguments}: {calls:.2} system calls for each request");
        }
    }
}

/// The proxy waits for a packet, reads it, sends to the server, reads once more, and acknowledges the request, because there is
/// no response yet. It waits for the response, looks for packets, receives the response, writes it, and receives once more:
/// a read ends before an urgent byte, and not only at the end of what has come.
#[test]
fn a_request_costs_the_proxy_ten_system_calls() {
    skip_if!(no_root().or_else(|| missing_program(&["strace"])).or_else(cannot_trace));
    for stack in ["lwip", "smoltcp"] {
        let arguments = format!("--program {stack} --current-thread");
        let calls = calls_of_a_request(&arguments, 2.0, "calls-of-a-proxy");
        assert!(calls < 10.7, "{arguments}: {calls:.2} system calls for each request");
    }
}
