//! The doctor: its text for fixed results, and real runs in namespaces that lack something.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use netstacks::StackKind;
use platform::Class;
use platform::doctor::{Check, Verdict};
use rust_tun_perf::cell::{Mode, Subject, Verify};
use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::run::{Executor, RunError};
use rust_tun_perf::sample::{DeviceFacts, Environment, Measurements, Sample, Status};
use rust_tun_perf::{Error, report, run};

use crate::machine::no_root;
use crate::processes::{PROGRAM, shell};

/// Calls a function in place of each run.
struct Answers<F>(F);

impl<F: Fn(&Scenario) -> Result<(), RunError>> Executor for Answers<F> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let device =
            DeviceFacts { name: "utun8".to_owned(), mtu: 1500, offload: false, tx_queue_len: None, qdisc: None };
        let measured = match (self.0)(scenario) {
            Ok(()) => Measurements { status: Status::Ok, device: Some(device), ..Measurements::failed(Status::Ok, "") },
            Err(RunError::Process { class: Class::Failed, text }) => Measurements::failed(Status::Panicked, text),
            Err(error) => return Err(error),
        };
        Ok(Sample { cell: scenario.planned(), measured, environment: Arc::new(Environment::detect()) })
    }
}

fn unavailable(text: &str) -> Result<(), RunError> {
    Err(RunError::Process { class: Class::Unavailable, text: text.to_owned() })
}

/// Stands for a run that panicked.
fn panicked(text: &str) -> Result<(), RunError> {
    Err(RunError::Process { class: Class::Failed, text: text.to_owned() })
}

/// What the doctor says, and whether a run can be made.
fn diagnosis(lacks: &[Check], answer: impl Fn(&Scenario) -> Result<(), RunError>) -> String {
    let mut out = Vec::new();
    let can_run = run::doctor(lacks, &Answers(answer), |check| report::check(check, &mut out).map_err(Error::from));
    format!("{}can run: {}\n", String::from_utf8(out).unwrap(), can_run.unwrap())
}

#[test]
fn a_note_prevents_no_run_and_a_stack_that_fails_no_other() {
    let note = Check::new("congestion control", Verdict::Note, "cubic is not loaded, only reno").remedy("load it");
    insta::assert_snapshot!(diagnosis(&[note], |scenario| match scenario.cell.subject() {
        Subject::Path(StackKind::Lwip) => panicked("the process died of SIGSEGV"),
        _ => Ok(()),
    }));
}

#[test]
fn what_every_run_needs_is_reported_once() {
    let node = Check::new("device node", Verdict::Missing, "open /dev/net/tun: no such file").remedy("modprobe tun");
    let text = diagnosis(&[node], |_| panic!("a run was tried"));
    assert_eq!(text, "missing  device node        open /dev/net/tun: no such file; modprobe tun\ncan run: false\n");
    let text = diagnosis(&[], |_| unavailable("create a user namespace: no; run as root"));
    assert_eq!(text, "missing  lwip               create a user namespace: no; run as root\ncan run: false\n");
}

#[test]
fn a_run_that_fails_once_is_tried_again() {
    let tried = std::cell::RefCell::new(Vec::new());
    let text = diagnosis(&[], |scenario| {
        assert!(scenario.verify == Verify::Full && scenario.isolated && scenario.warmup_bytes == 0);
        assert!(scenario.timeout <= Duration::from_secs(15) && scenario.cell.mode == Some(Mode::Both));
        let cell = scenario.planned();
        if tried.borrow().contains(&cell) {
            return Ok(());
        }
        tried.borrow_mut().push(cell);
        panicked("the machine was busy")
    });
    assert!(!text.contains("failed") && text.ends_with("can run: true\n"), "{text}");
    assert!(diagnosis(&[], |_| panicked("it died")).ends_with("can run: false\n"));
}

#[test]
fn an_interrupt_ends_the_doctor() {
    let interrupted = Answers(|_: &Scenario| Err(RunError::Interrupted));
    let result = run::doctor(&[], &interrupted, |_| Ok::<_, Error>(()));
    assert_eq!(result.map_err(|error| error.exit_code()), Err(130));
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
        let line = line(&text, stack);
        assert!(line.starts_with("ok ") && line.contains("every byte arrives both ways over utun8"), "{text}");
    }
}

/// No device node, no user namespaces, and a container: in a chroot nobody may create a user namespace, and without the right of
/// an administrator no other one. Each is reported once, with its remedy.
#[test]
fn what_this_machine_lacks_has_a_remedy() {
    skip_if!(no_root());
    for (flags, script, check, words, remedy) in [
        (
            "-m",
            "mount -t tmpfs none /dev/net; \"$PROGRAM\" doctor || { code=$?; test ! -e /dev/net/tun; exit $code; }",
            "device node",
            "open /dev/net/tun: ",
            "modprobe tun",
        ),
        (
            "-Ur",
            "echo 0 > /proc/sys/user/max_user_namespaces
             exec setpriv --bounding-set=-all --inh-caps=-all \"$PROGRAM\" doctor",
            "lwip",
            "create a user namespace: ",
            "user.max_user_namespaces",
        ),
        (
            "-m",
            "mount --rbind / /mnt
             exec chroot /mnt setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$PROGRAM\" doctor",
            "lwip",
            "create a network namespace: ",
            "or use --netns host",
        ),
    ] {
        let (code, text) = said(&shell(&[flags], script));
        assert_eq!(code, 3, "{text}");
        assert!(line(&text, check).starts_with("missing ") && line(&text, check).contains(words), "{text}");
        assert_eq!(text.matches(remedy).count(), 1, "{text}");
        assert!(
            text.ends_with("error: this machine cannot make a run; the lines above say what is missing\n"),
            "{text}"
        );
    }
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
