//! The doctor: word for word on fixed facts and answers, and for real in namespaces that lack something.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#![cfg(all(target_os = "linux", feature = "lwip", feature = "ipstack", feature = "smoltcp"))]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use netstacks::StackKind;
use platform::doctor::{Check, Verdict};
use platform::{Class, Offload};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::{ForwardScenario, Mode, Scenario, Subject};
use rust_tun_perf::run::{Executor, ProcessExecutor, RunError};
use rust_tun_perf::sample::{Cell, DeviceFacts, Environment, Facts, Sample, Status};
use rust_tun_perf::{Console, Error, main_with, report, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rust-tun-perf");

/// Answers each scenario by a function of it.
struct Answers<F>(F);

impl<F: Fn(&Scenario) -> Result<(), RunError>> Executor for Answers<F> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let device = DeviceFacts { name: "utun8".to_owned(), mtu: 1500, offload: false, tx_queue_len: None };
        let facts = match (self.0)(scenario) {
            Ok(()) => Facts { status: Status::Ok, device: Some(device), ..Facts::failed(Status::Ok, "") },
            Err(RunError::Process { class: Class::Failed, text }) => Facts::failed(Status::Panicked, text),
            Err(error) => return Err(error),
        };
        Ok(Sample { cell: Cell::planned(scenario), facts, environment: Arc::new(Environment::detect()) })
    }
}

/// A doctor does not ask for forwarders.
impl<F> Executor<ForwardScenario> for Answers<F> {
    fn execute(&self, scenario: &ForwardScenario) -> Result<Sample, RunError> {
        panic!("{} is not to be run", scenario.forwarder)
    }
}

fn unavailable(text: &str) -> Result<(), RunError> {
    Err(RunError::Process { class: Class::Unavailable, text: text.to_owned() })
}

/// A sample that says so.
fn panicked(text: &str) -> Result<(), RunError> {
    Err(RunError::Process { class: Class::Failed, text: text.to_owned() })
}

fn good_facts() -> Vec<Check> {
    vec![
        Check::new("program", Verdict::Ok, "version 1.2.3, commit abc, release build"),
        Check::new("device node", Verdict::Ok, "/dev/net/tun can be opened"),
        Check::new("rights", Verdict::Ok, "root"),
    ]
}

/// What the doctor says, and whether a run can be made.
fn diagnosis(facts: &[Check], answer: impl Fn(&Scenario) -> Result<(), RunError>) -> String {
    let mut out = Vec::new();
    let can_run = run::doctor(facts, &Answers(answer), |check| report::check(check, &mut out).map_err(Error::from));
    format!("{}can run: {}\n", String::from_utf8(out).unwrap(), can_run.unwrap())
}

#[test]
fn all_is_fine() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |_| Ok(())));
}

#[test]
fn notes_change_nothing() {
    let mut facts = good_facts();
    facts.push(Check::new("build", Verdict::Note, "this is a debug build; build with --release"));
    facts.push(Check::new("congestion control", Verdict::Note, "cubic is not loaded, only reno").remedy("load it"));
    facts.push(Check::new("iperf3", Verdict::Note, "is not in PATH").remedy("install the package iperf3"));
    insta::assert_snapshot!(diagnosis(&facts, |_| Ok(())));
}

#[test]
fn what_is_missing_is_said_once_and_nothing_is_tried() {
    let mut facts = good_facts();
    facts[1] = Check::new("device node", Verdict::Missing, "open /dev/net/tun: no such file").remedy("modprobe tun");
    insta::assert_snapshot!(diagnosis(&facts, |_| panic!("a run was tried")));
}

#[test]
fn what_only_the_first_run_finds_missing_is_said_once() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |_| unavailable("create a user namespace: no; run as root")));
}

#[test]
fn a_system_without_offload_and_ipv6_runs_what_is_left() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |scenario| match scenario {
        Scenario { offload: Offload::On, .. } => unavailable("use offload on utun8: this kernel's TUN has none"),
        scenario if scenario.network.address.is_ipv6() => unavailable("set the address of utun8: no IPv6; sysctl"),
        _ => Ok(()),
    }));
}

#[test]
fn a_stack_that_fails_is_told_with_the_ways_in_which_it_does() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |scenario| match scenario.subject {
        Subject::Path(StackKind::Lwip, _) => panicked("the process died of SIGSEGV"),
        Subject::Path(StackKind::Ipstack, Mode::Writer) if scenario.network.address.is_ipv6() =>
            panicked("the server panicked: out of range"),
        Subject::Path(StackKind::Smoltcp, Mode::Writer) if scenario.offload == Offload::On =>
            panicked("the process died of SIGSEGV"),
        _ => Ok(()),
    }));
}

#[test]
fn a_machine_on_which_no_stack_goes_both_ways_cannot_run() {
    let text = diagnosis(&good_facts(), |scenario| match scenario.subject {
        Subject::Path(StackKind::Smoltcp, Mode::Writer) | Subject::Path(StackKind::Lwip, Mode::Reader) => Ok(()),
        _ => panicked("the process died of SIGILL"),
    });
    assert!(text.ends_with("can run: false\n"), "{text}");
    assert_eq!(text.matches("SIGILL").count(), 1, "{text}");
}

#[test]
fn an_interrupt_ends_the_doctor() {
    let cli = Cli::parse_from(["rust-tun-perf", "doctor"]);
    let interrupted = Answers(|_: &Scenario| Err(RunError::Interrupted));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console { out: &mut out, err: &mut err, terminal: false, columns: None };
    let result = main_with(cli, &interrupted, &interrupted, console);
    // Where the machine has no device, there is nothing to interrupt.
    assert!(matches!(result.map_err(|error| error.exit_code()), Err(130 | 3)));
}

#[test]
fn the_runs_are_short_and_check_every_byte() {
    let count = std::cell::Cell::new(0);
    diagnosis(&good_facts(), |scenario| {
        count.set(count.get() + 1);
        assert_eq!(scenario.verify, rust_tun_perf::plan::Verify::Full);
        assert!(scenario.timeout <= Duration::from_secs(15) && scenario.isolated && scenario.warmup_bytes == 0);
        Ok(())
    });
    // Three stacks, two modes, with and without offload, two IP versions; and three to begin with.
    assert_eq!(count.get(), 24 + 3);
}

/// Ends the test where `reason` says why it cannot run. The line goes past the test harness, which
/// would swallow it.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            let _closed = writeln!(std::io::stderr(), "SKIP {}: {reason}", module_path!());
            return;
        }
    };
}

/// Why what a machine lacks cannot be simulated here.
fn no_root() -> Option<String> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {error}"));
    }
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Some("needs root".to_owned());
    }
    match Command::new("unshare").args(["-mn", "true"]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// A shell with `$PROGRAM`, in namespaces that `unshare`'s flags name.
fn shell(unshare: &[&str], script: &str) -> Output {
    Command::new("unshare").args(unshare).args(["sh", "-eu", "-c", script]).env("PROGRAM", PROGRAM).output().unwrap()
}

/// The exit code, and all that was printed. Each line of standard output is a check.
fn said(output: &Output) -> (i32, String) {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    for line in stdout.lines() {
        let verdict = line.split_whitespace().next().unwrap_or_default();
        assert!(["ok", "note", "missing", "failed"].contains(&verdict), "{stdout}");
    }
    (output.status.code().unwrap(), format!("{stdout}{stderr}"))
}

/// The line of a check.
fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find(|line| line.get(9..).is_some_and(|rest| rest.starts_with(name)));
    found.unwrap_or_else(|| panic!("no line of {name}:\n{text}"))
}

const AS_NOBODY: &str = "exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$PROGRAM\" doctor";

#[test]
fn a_machine_that_has_everything() {
    skip_if!(no_root());
    let (code, text) = said(&Command::new(PROGRAM).arg("doctor").output().unwrap());
    assert_eq!(code, 0, "{text}");
    for stack in ["lwip", "ipstack", "smoltcp"] {
        for mode in ["reader", "writer"] {
            let line = line(&text, &format!("{stack} {mode}"));
            assert!(
                line.starts_with("ok ") && line.ends_with("over IPv4 and IPv6, with and without offload"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_missing_device_node_is_said_once_and_not_made() {
    skip_if!(no_root());
    let script =
        "mount -t tmpfs none /dev/net; \"$PROGRAM\" doctor || { code=$?; test ! -e /dev/net/tun; exit $code; }";
    let (code, text) = said(&shell(&["-m"], script));
    assert_eq!(code, 3, "{text}");
    assert!(line(&text, "device node").starts_with("missing "), "{text}");
    assert_eq!(text.matches("modprobe tun").count(), 1, "{text}");
    assert!(text.ends_with("error: this machine cannot make a run; see above what is missing\n"), "{text}");
}

#[test]
fn forbidden_user_namespaces_are_said_once_with_the_remedy() {
    skip_if!(no_root());
    let script = "echo 0 > /proc/sys/user/max_user_namespaces
                  exec setpriv --bounding-set=-all --inh-caps=-all \"$PROGRAM\" doctor";
    let (code, text) = said(&shell(&["-Ur"], script));
    assert_eq!(code, 3, "{text}");
    assert!(line(&text, "first run").contains("create a user namespace: "), "{text}");
    assert_eq!(text.matches("user.max_user_namespaces").count(), 1, "{text}");
    assert!(line(&text, "runs").contains("not tried"), "{text}");
}

#[test]
fn an_ordinary_user_runs_all_or_is_told_of_the_device_node() {
    skip_if!(no_root());
    for (mode, expected) in [("666", 0), ("600", 3)] {
        let script = format!("mount -t tmpfs none /dev/net; mknod -m {mode} /dev/net/tun c 10 200; {AS_NOBODY}");
        let (code, text) = said(&shell(&["-m"], &script));
        assert_eq!(code, expected, "{text}");
        assert!(line(&text, "rights").contains("user 65534"), "{text}");
        assert_eq!(text.contains("chmod 666 /dev/net/tun"), expected == 3, "{text}");
    }
}

/// Runs everything in the network that it finds itself in.
struct Here(ProcessExecutor);

impl Executor for Here {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        self.0.execute(&Scenario { isolated: false, ..scenario.clone() })
    }
}

/// The doctor without namespaces of the runs' own, for the test below.
#[test]
#[ignore = "is for a network that is made for it"]
fn here() {
    let (executor, mut out) = (Here(ProcessExecutor::new(PROGRAM)), std::io::stdout());
    let tell = |check: &Check| report::check(check, &mut out).map_err(Error::from);
    assert!(run::doctor(&[], &executor, tell).unwrap());
}

#[test]
fn a_network_without_ipv6_runs_the_rest() {
    skip_if!(no_root());
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; exec {} --exact here --ignored --nocapture",
        this.display()
    );
    let output = shell(&["-n"], &script);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(line(&text, "IPv6").starts_with("missing ") && text.matches("disable_ipv6").count() == 2, "{text}");
    assert!(line(&text, "lwip writer").ends_with("every byte arrives over IPv4 with and without offload"), "{text}");
}
