//! Stacks in other processes: the example, gVisor, and faulty programs.
//!
//! They need root, `/dev/net/tun` and python3, or go for gVisor. A test that cannot run prints SKIP with the reason.

use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use conformance::known::{self, Expected, How};
use conformance::{Case, Outcome};
use netstacks::StackKind;
use rust_tun_perf::sample::Score;
use serde_json::Value;

use crate::machine::{missing_program, no_root};
use crate::processes::{PROGRAM, assert_said, at_once, printed, stderr};

/// Runs the example, changed by these lines of Python. Returns the sample.
fn example(change: &str, arguments: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let script =
        format!("import os, sys\nsys.path.insert(0, '{folder}')\nimport external\nclass Stack(external.Stack):\n");
    let script = format!("{script}    pass\n{change}\nexternal.main(Stack)\n");
    let command = format!("python3 -B -c \"{script}\"");
    printed(&run(&format!("--netstack=external {arguments}"), Some(&command)))
}

fn run(arguments: &str, command: Option<&str>) -> Output {
    let mut run = Command::new(PROGRAM);
    run.args(arguments.split_whitespace()).arg("--json");
    if let Some(command) = command {
        run.arg(format!("--command={command}"));
    }
    run.output().unwrap()
}

fn lacks(tool: &'static str) -> Option<String> {
    no_root().or_else(|| missing_program(&[tool]))
}

#[test]
fn the_example_serves_requests() {
    skip_if!(lacks("python3"));
    for mode in ["--mode=rr --parallel=20", "--mode=crr", "--mode=rr --request=10 --response=5000"] {
        let sample = example("", &format!("{mode} --time=0.2"));
        assert_eq!(sample["status"], "ok", "{sample}");
        assert!(sample["requests"]["answered"].as_u64().unwrap() > 10, "{sample}");
        // The kernel counts these, not the program.
        assert!(sample["packets"]["rx"].as_u64().unwrap() > 10, "{sample}");
        assert_eq!(sample["device"]["offload"], false);
    }
}

/// Each fault becomes a status within the timeout, with a text that names it.
#[test]
fn a_bad_stack_is_a_status() {
    skip_if!(lacks("python3"));
    let later = |line: &str| {
        format!(
            "def receive(self, packet):\n    if self.received > 50:\n        {line}\n    \
             external.Stack.receive(self, packet)\nStack.receive = receive"
        )
    };
    let lies = "Stack.report = lambda self: dict(received_bytes=self.received, sent_bytes=self.sent + 100000)";
    // It counts bytes after they have arrived.
    let late = "tries = []\ndef report(self):\n    tries.append(0)\n    \
                return dict(received_bytes=self.received, sent_bytes=self.sent if len(tries) > 1 else 0)\n\
                Stack.report = report";
    let sample = example(late, "--mode=rr --verify=full --time=0.2");
    assert_eq!(sample["status"], "ok", "{sample}");
    let rows = [
        (later("while True: pass"), "stalled", "nothing arrived"),
        (later("return"), "stalled", "nothing arrived"),
        (later("raise RuntimeError('out of order')"), "panicked", "out of order"),
        (
            later("self.hoard = getattr(self, 'hoard', []) + [b'x' * (1 << 24)]"),
            "panicked",
            "more than 2 GiB of memory",
        ),
        (lies.to_owned(), "corrupt", "says that it sent"),
        ("Stack.report = lambda self: dict(nothing=1)".to_owned(), "stalled", "did not report"),
        (later("self.response = bytes(len(self.response))"), "corrupt", "differs"),
    ];
    at_once(rows, |(change, status, detail)| {
        // A leak needs more time.
        let time = if detail.contains("memory") { "--time=20 --timeout=30" } else { "--time=0.2 --timeout=2" };
        let sample = example(&change, &format!("--mode=rr --verify=full {time}"));
        assert_eq!(sample["status"], status, "{change}: {sample}");
        assert!(sample["detail"].as_str().unwrap().contains(detail), "{change}: {sample}");
    });
}

/// The example counts the datagrams of the last trial, and changes the count before it reports it.
#[test]
fn a_bad_count_of_datagrams_is_a_status() {
    skip_if!(lacks("python3"));
    let counts = "import fcntl, struct, time
def __init__(self, task):
    external.Stack.__init__(self, dict(task, requests=dict(protocol='tcp', seed=0, response_bytes=1)))
    self.task, self.last, self.count = task['datagrams'], 0, 0
def receive(self, packet):
    if packet[0] == 0x45 and packet[9] == 17:
        trial = struct.unpack('!I', packet[28:32])[0]
        self.last, self.count = max(trial, self.last), self.count + 1 if trial == self.last else 1
def report(self):
    self.counts = dict(trial=self.last, arrived=self.count, greeted=True, sent=0)
    CHANGE
    return dict(received_bytes=0, sent_bytes=0, datagrams=self.counts)
Stack.__init__, Stack.receive, Stack.report = __init__, receive, report";
    let rows = [
        ("writer", "pass", "ok", ""),
        ("writer", "self.counts['arrived'] = 1 << 60", "corrupt", "datagrams were received"),
        ("writer", "self.counts['arrived'] = 0", "stalled", "datagrams arrived"),
        ("writer", "return dict(received_bytes=0, sent_bytes=0)", "stalled", "did not report its datagrams"),
        ("writer", "if self.last > 0: time.sleep(60)", "stalled", "nothing arrived"),
        ("writer", "if self.last > 0: raise RuntimeError('out of order')", "panicked", "out of order"),
        ("reader", "pass", "stalled", "nothing arrived"),
        ("reader", "self.counts['greeted'] = False", "stalled", "learns where the client is"),
    ];
    at_once(rows, |(mode, change, status, detail)| {
        let timeout = if detail.contains("learns") { 8 } else { 2 };
        let arguments = format!("--protocol=udp --bitrate=500k --time=0.2 --timeout={timeout}");
        let sample = example(&counts.replace("CHANGE", change), &format!("--mode={mode} {arguments}"));
        assert_eq!(sample["status"], status, "{mode} {change}: {sample}");
        assert!(sample["detail"].as_str().unwrap_or_default().contains(detail), "{change}: {sample}");
        if status == "ok" {
            assert_eq!(sample["datagrams"]["sent"], sample["datagrams"]["arrived"], "{sample}");
        }
    });
}

#[test]
fn a_run_that_is_not_possible_is_refused_with_the_reason() {
    skip_if!(lacks("python3"));
    for (arguments, command, reason) in [
        ("-n external -m rr", Some("true 'false"), "a quotation mark is not closed"),
        ("-n external -m rr", Some(" "), "no program is named"),
        ("-n external -m reader --protocol udp", Some("python3 examples/external.py"), "requests over TCP alone"),
        ("-n external -m rr", Some("true"), "exit code 0"),
        ("-n external -m rr", Some("sh -c 'echo error: no luck >&2; exit 3'"), "no luck"),
        ("-n external -m reader", Some("python3 examples/external.py"), "requests over TCP alone"),
    ] {
        let output = run(arguments, command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(reason), "{arguments}: {stderr}");
    }
}

/// The program gets its arguments unchanged: no shell expands variables or patterns, or starts a second command. It
/// inherits none of the devices, namespaces and sockets that the run has opened.
#[test]
fn no_shell_reads_a_command_and_no_descriptor_is_inherited() {
    skip_if!(lacks("python3"));
    let script = "import os, sys; fds = sorted(map(int, os.listdir('/proc/self/fd'))); \
                  print('error:', sys.argv[1:], fds, file=sys.stderr); sys.exit(1)";
    let words = ["$HOME", "*", "`id`", ";", "true", ">", "/dev/null"];
    let expected = Command::new("python3").args(["-c", script]).args(words).stdin(Stdio::null()).output().unwrap();
    let expected = String::from_utf8(expected.stderr).unwrap();
    for link in ["", "--loss 1"] {
        let command = format!("python3 -c \"{script}\" {}", words.join(" "));
        let output = run(&format!("-n external -m rr {link}"), Some(&command));
        assert!(stderr(&output).contains(expected.trim()), "{link}: {} and not {expected}", stderr(&output));
    }
}

#[test]
fn gvisor_runs_every_workload() {
    skip_if!(lacks("go"));
    let first = run("-n gvisor -m rr --time=0.2", None);
    let stderr = String::from_utf8_lossy(&first.stderr);
    skip_if!(stderr.contains("fetch its modules").then(|| stderr.into_owned()));
    for arguments in [
        "-m reader --offload on",
        "-m reader --offload off --bytes=1MB",
        "-m writer --offload on --bytes=1MB",
        "-m writer --offload off --ipv6",
        "-m both --parallel 3",
        "-m rr --parallel 10 --background both",
        "-m crr --ipv6 --current-thread",
        "-m rr --protocol udp",
        "-m rr --protocol udp --duplicate 20",
        "-m idle --parallel 10",
        "-m writer --loss 1 --offload off",
        "-m rr --delay 1ms --ipv6",
        "-m reader --protocol udp --bitrate 20M --offload on",
        "-m reader --protocol udp --ipv6 --bitrate 20M --delay 5ms --current-thread",
        "-m writer --protocol udp --bitrate 20M --offload off --interval 0.05",
        "-m writer --protocol udp --ipv6",
    ] {
        let time = if arguments.contains("--bytes") { "" } else { "--time=0.2" };
        // Go's runtime and the tests beside this one share a few processors, and a search runs many trials.
        let sample = printed(&run(&format!("-n gvisor --verify=full --timeout=60 {time} {arguments}"), None));
        let may_be_lossy = arguments.ends_with("--protocol udp --ipv6") && sample["status"] == "lossy";
        assert!(sample["status"] == "ok" || may_be_lossy, "{arguments}: {sample}");
        assert_eq!(sample["netstack"], "gvisor");
        assert!(sample["cpu"]["subject_seconds"].is_number() && sample["peak_rss_bytes"].is_number(), "{sample}");
    }
    let chosen = "-n gvisor -m reader --time=0.2 --stack-congestion=cubic --stack-recovery=sack";
    let sample = printed(&run(chosen, None));
    assert_eq!((&sample["status"], &sample["effective"]["congestion"]), (&"ok".into(), &"cubic".into()), "{sample}");
    for (workarounds, expected) in
        [("-joins-arrivals", vec!["joins-departures"]), ("joins-arrivals", vec!["joins-arrivals"])]
    {
        let sample =
            printed(&run(&format!("-n gvisor -m reader --time=0.2 --offload on --workarounds={workarounds}"), None));
        assert_eq!(
            (&sample["status"], &sample["effective"]["workarounds"]),
            (&"ok".into(), &expected.into()),
            "{sample}"
        );
    }
}

#[test]
fn a_program_that_does_not_start_is_unavailable_and_says_why() {
    skip_if!(no_root());
    for (command, cause) in [
        (
            "sh -c 'echo error: unlucky >&2; exit 3'",
            "it ended with exit code 3 before it was ready; its last words: error: unlucky",
        ),
        ("sh -c 'echo hello; exec sleep 60'", "it printed \"hello\" before it was ready"),
        ("sh -c 'kill -9 $$'", "it died of SIGKILL before it was ready"),
        ("/nowhere/stack", "start /nowhere/stack: No such file or directory"),
    ] {
        let output = run("conform -n external --case handshake,half-close", Some(command));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(3) && stderr(&output).contains(cause), "{command}: {output:?}");
        assert_eq!(said.matches("\"outcome\":\"unavailable\"").count(), 2, "{command}: {said}");
    }
    let output = run("conform -n external --explore 3", Some("/nowhere/stack"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(3) && stderr(&output).contains("start /nowhere/stack: "), "{output:?}");
    let unavailable = said.matches("\"outcome\":\"unavailable\"").count();
    assert_eq!(unavailable, conformance::invariants().count(), "{said}");
}

#[test]
fn a_program_that_does_not_get_ready_is_told_the_cause() {
    skip_if!(no_root());
    let cause = "it was not ready within 10 s, and was killed";
    assert_said(&run("-m rr -n external --time 0.1", Some("sleep 60")), 1, &[cause]);
    let cause = "start the stack's process (/nowhere/stack): No such file or directory";
    assert_said(&run("-m rr -n external --time 0.1", Some("/nowhere/stack")), 3, &[cause]);
}

/// Each case has one result, and each result is the known one, by the rules of `conformance/tests/scorecard.rs`.
#[test]
fn gvisor_has_its_known_failures_and_no_others() {
    skip_if!(no_root().or_else(|| missing_program(&["go"])));
    // The first run builds it.
    let output = run("conform --netstack gvisor --case handshake", None);
    skip_if!(Some(stderr(&output)).filter(|text| text.contains("fetch its modules")));
    let (cases, scores) = (Case::all().map(|case| case.id).collect::<Vec<_>>(), Mutex::new(Vec::new()));
    // Cases wait most of the time.
    at_once(cases.chunks(cases.len().div_ceil(4)), |cases| {
        let output = run(&format!("conform --netstack gvisor --case {}", cases.join(",")), None);
        let results = self::scores(&output);
        assert_eq!(results.iter().map(|score| &score.case).collect::<Vec<_>>(), cases, "{}", stderr(&output));
        scores.lock().unwrap().extend(results);
    });
    let known = known::of(StackKind::Gvisor);
    let changed = scores.into_inner().unwrap().into_iter().filter_map(|Score { case, offload, outcome, .. }| {
        let again = || once_more(&case);
        let outcome = Expected::of(known, &case, How { offload, ..How::default() }).judge(outcome, again)?;
        Some((case, outcome))
    });
    let changed: Vec<_> = changed.collect();
    assert!(changed.is_empty(), "other results than known: {changed:#?}");
}

/// Returns the results that `conform` has printed.
fn scores(output: &Output) -> Vec<Score> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line["kind"] == "score").map(|line| serde_json::from_value(line).unwrap()).collect()
}

fn once_more(case: &str) -> Outcome {
    std::thread::sleep(known::PAUSE);
    let output = run(&format!("conform --netstack gvisor --case {case}"), None);
    let outcome = scores(&output).pop().map(|score| score.outcome);
    println!("gvisor {case} once more: {outcome:?}");
    outcome.unwrap_or_else(|| panic!("{case}: {}", stderr(&output)))
}
