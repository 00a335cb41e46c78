//! The doctor: its text for fixed facts and results, and real runs in namespaces that lack something.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use netstacks::StackKind;
use platform::doctor::{Check, Verdict};
use platform::{Class, Offload};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Plan;
use rust_tun_perf::run::{Executor, ProcessExecutor, RunError};
use rust_tun_perf::sample::{DeviceFacts, Environment, Measurements, Sample, Status};
use rust_tun_perf::scenario::{Cell, Mode, Scenario, Subject, Verify};
use rust_tun_perf::{Console, Error, main_with, report, run};

use crate::machine::no_root;
use crate::processes::{PROGRAM, shell};

/// Calls a function in place of each run.
struct Answers<F>(F);

impl<F: Fn(&Scenario) -> Result<(), RunError>> Executor for Answers<F> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let device = DeviceFacts { name: "utun8".to_owned(), mtu: 1500, offload: false, tx_queue_len: None };
        let measured = match (self.0)(scenario) {
            Ok(()) => Measurements { status: Status::Ok, device: Some(device), ..Measurements::failed(Status::Ok, "") },
            Err(RunError::Process { class: Class::Failed, text }) => Measurements::failed(Status::Panicked, text),
            Err(error) => return Err(error),
        };
        Ok(Sample { cell: Cell::planned(scenario), measured, environment: Arc::new(Environment::detect()) })
    }
}

fn unavailable(text: &str) -> Result<(), RunError> {
    Err(RunError::Process { class: Class::Unavailable, text: text.to_owned() })
}

/// Stands for a run that panicked.
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

/// Returns the text of the doctor, and whether a run can be made.
fn diagnosis(facts: &[Check], answer: impl Fn(&Scenario) -> Result<(), RunError>) -> String {
    let mut out = Vec::new();
    let can_run = run::doctor(facts, &Answers(answer), |check| report::check(check, &mut out).map_err(Error::from));
    format!("{}can run: {}\n", String::from_utf8(out).unwrap(), can_run.unwrap())
}

#[test]
fn everything_works() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |_| Ok(())));
}

#[test]
fn notes_do_not_prevent_runs() {
    let mut facts = good_facts();
    facts.push(Check::new("build", Verdict::Note, "this is a debug build; build with --release"));
    facts.push(Check::new("congestion control", Verdict::Note, "cubic is not loaded, only reno").remedy("load it"));
    facts.push(Check::new("iperf3", Verdict::Note, "is not in PATH").remedy("install the package iperf3"));
    insta::assert_snapshot!(diagnosis(&facts, |_| Ok(())));
}

#[test]
fn a_missing_device_node_prevents_every_run() {
    let mut facts = good_facts();
    facts[1] = Check::new("device node", Verdict::Missing, "open /dev/net/tun: no such file").remedy("modprobe tun");
    insta::assert_snapshot!(diagnosis(&facts, |_| panic!("a run was tried")));
}

#[test]
fn a_right_that_the_first_run_lacks_is_reported_once() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |_| unavailable("create a user namespace: no; run as root")));
}

#[test]
fn without_offload_and_ipv6_the_other_runs_are_made() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |scenario| match scenario {
        Scenario { offload: Offload::On, .. } => unavailable("use offload on utun8: this kernel's TUN has none"),
        scenario if scenario.ipv6() => unavailable("set the address of utun8: no IPv6; sysctl"),
        _ => Ok(()),
    }));
}

#[test]
fn a_failing_stack_is_reported_with_its_options() {
    insta::assert_snapshot!(diagnosis(&good_facts(), |scenario| match (scenario.subject, scenario.workload.mode()) {
        (Subject::Path(StackKind::Lwip), _) => panicked("the process died of SIGSEGV"),
        (Subject::Path(StackKind::Ipstack), Some(Mode::Writer)) if scenario.ipv6() =>
            panicked("the server panicked: out of range"),
        (Subject::Path(StackKind::Smoltcp), Some(Mode::Writer)) if scenario.offload == Offload::On =>
            panicked("the process died of SIGSEGV"),
        _ => Ok(()),
    }));
}

#[test]
fn a_run_that_fails_once_is_tried_again() {
    let tried = std::cell::RefCell::new(Vec::new());
    let text = diagnosis(&good_facts(), |scenario| {
        let cell = Cell::planned(scenario);
        if tried.borrow().contains(&cell) {
            return Ok(());
        }
        tried.borrow_mut().push(cell);
        panicked("the machine was busy")
    });
    assert!(!text.contains("failed") && text.ends_with("can run: true\n"), "{text}");
}

#[test]
fn a_machine_without_a_stack_for_both_modes_cannot_run() {
    let text = diagnosis(&good_facts(), |scenario| match (scenario.subject, scenario.workload.mode()) {
        (Subject::Path(StackKind::Smoltcp), Some(Mode::Writer))
        | (Subject::Path(StackKind::Lwip), Some(Mode::Reader)) => Ok(()),
        _ => panicked("the process died of SIGILL"),
    });
    assert!(text.ends_with("can run: false\n"), "{text}");
    assert_eq!(text.matches("SIGILL").count(), 1, "{text}");
}

#[test]
fn an_interrupt_ends_the_doctor() {
    let plan = Plan::try_from(Cli::parse_from(["rust-tun-perf", "doctor"])).unwrap();
    let interrupted = || Answers(|_: &Scenario| Err(RunError::Interrupted));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console { out: &mut out, err: &mut err, terminal: false, columns: None };
    let result = main_with(plan, &interrupted(), |_program| interrupted(), console);
    // Without a device, the doctor makes no run that could be interrupted.
    assert!(matches!(result.map_err(|error| error.exit_code()), Err(130 | 3)));
}

#[test]
fn the_runs_are_short_and_check_every_byte() {
    let count = std::cell::Cell::new(0);
    diagnosis(&good_facts(), |scenario| {
        count.set(count.get() + 1);
        assert_eq!(scenario.verify, Verify::Full);
        assert!(scenario.timeout <= Duration::from_secs(15) && scenario.isolated && scenario.warmup_bytes == 0);
        Ok(())
    });
    // For each stack two modes, with and without offload, over two IP versions; and three runs before them.
    let stacks = StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()).count();
    assert_eq!(count.get(), stacks * 8 + 3);
}

/// Returns the exit code and both outputs. Each line of standard output must be a check.
fn said(output: &Output) -> (i32, String) {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    for line in stdout.lines() {
        let verdict = line.split_whitespace().next().unwrap_or_default();
        assert!(["ok", "note", "missing", "failed"].contains(&verdict), "{stdout}");
    }
    (output.status.code().unwrap(), format!("{stdout}{stderr}"))
}

/// Returns the line of a check.
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
fn a_missing_device_node_is_reported_once_and_not_created() {
    skip_if!(no_root());
    let script =
        "mount -t tmpfs none /dev/net; \"$PROGRAM\" doctor || { code=$?; test ! -e /dev/net/tun; exit $code; }";
    let (code, text) = said(&shell(&["-m"], script));
    assert_eq!(code, 3, "{text}");
    assert!(line(&text, "device node").starts_with("missing "), "{text}");
    assert_eq!(text.matches("modprobe tun").count(), 1, "{text}");
    assert!(text.ends_with("error: this machine cannot make a run; the lines above say what is missing\n"), "{text}");
}

#[test]
fn forbidden_user_namespaces_are_reported_once_with_the_remedy() {
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
fn an_ordinary_user_needs_only_the_device_node() {
    skip_if!(no_root());
    for (mode, expected) in [("666", 0), ("600", 3)] {
        let script = format!("mount -t tmpfs none /dev/net; mknod -m {mode} /dev/net/tun c 10 200; {AS_NOBODY}");
        let (code, text) = said(&shell(&["-m"], &script));
        assert_eq!(code, expected, "{text}");
        assert_eq!(text.contains("chmod 666 /dev/net/tun"), expected == 3, "{text}");
    }
}

/// Runs everything in the network of this process.
struct Here(ProcessExecutor);

impl Executor for Here {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        self.0.execute(&Scenario { isolated: false, ..scenario.clone() })
    }
}

/// The doctor with runs that make no namespaces, for the test below.
#[test]
#[ignore = "needs a network that another test makes"]
fn here() {
    let (executor, mut out) = (Here(ProcessExecutor::new(PROGRAM)), std::io::stdout());
    let tell = |check: &Check| report::check(check, &mut out).map_err(Error::from);
    assert!(run::doctor(&[], &executor, tell).unwrap());
}

#[test]
fn without_ipv6_the_runs_over_ipv4_are_made() {
    skip_if!(no_root());
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; exec {} --exact doctor::here --ignored --nocapture",
        this.display()
    );
    let output = shell(&["-n"], &script);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(line(&text, "IPv6").starts_with("missing ") && text.matches("all.disable_ipv6").count() == 1, "{text}");
    assert!(line(&text, "lwip writer").ends_with("every byte arrives over IPv4 with and without offload"), "{text}");
}
