//! Runs in child processes that succeed, fail, crash, print too much or never end. Most of them are fake programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::run::{Executor, ProcessExecutor, RunError};
use rust_tun_perf::sample::{self, Environment, Measurements, Sample, Status};

use crate::processes::{PROGRAM, write_script};

fn scenario(arguments: &str) -> Scenario {
    let words = format!("-m reader -n smoltcp {arguments}");
    Scenario::of_words(words.split_whitespace().map(str::to_owned).collect()).unwrap()
}

/// Returns a shell command that prints a sample of this status, as the program does.
fn print(status: Status) -> String {
    let measured =
        Measurements { bytes: 1000, elapsed: Duration::from_micros(1), ..Measurements::failed(status, "in a test") };
    let sample = Sample { cell: scenario("").planned(), measured, environment: Arc::new(Environment::detect()) };
    format!("cat <<'end'\n{}\nend\n", sample::line_of_its_own(&sample))
}

/// Writes a shell script as a program, and returns its path.
fn program(name: &str, script: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("process-{name}"));
    write_script(&path, script);
    path
}

/// Runs a script as the child process, and returns the result.
fn executed(name: &str, script: &str) -> Result<Sample, RunError> {
    let executor = ProcessExecutor::new(program(name, script)).grace(Duration::from_millis(300));
    executor.execute(&scenario("--timeout 10"))
}

/// Runs a script that prints no sample. Returns the status and the reason in the sample that replaces it.
fn failure(name: &str, script: &str) -> (Status, String) {
    let sample = executed(name, script).unwrap();
    assert_eq!(sample.cell, scenario("").planned());
    (sample.measured.status, sample.measured.detail.unwrap())
}

#[test]
fn a_sample_is_read_as_it_was_printed() {
    let print = print(Status::Ok);
    let sample = executed("good", &print).unwrap();
    assert!(sample.is_ok());
    assert!(print.contains(&format!("\n{}\n", sample::line_of_its_own(&sample))), "{print}");
}

#[test]
fn a_run_that_failed_is_its_own_sample() {
    let sample = executed("failed", &format!("{}echo error: it failed >&2; exit 1", print(Status::Reset))).unwrap();
    assert_eq!((sample.measured.status, sample.measured.detail.as_deref()), (Status::Reset, Some("in a test")));
}

#[test]
fn a_bad_end_has_its_cause_and_the_last_words() {
    skip_if!(crate::machine::no_hangup());
    let good = print(Status::Ok);
    let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
    let nothing = "and no sample: it printed nothing";
    for (script, expected) in [
        (
            "echo \"$*\" >&2; exit 9".to_owned(),
            format!(
                "the process ended with exit code 9 {nothing}; its last words: -m reader -n smoltcp --timeout 10 --json"
            ),
        ),
        (
            "echo \"Assertion failed\" >&2; kill -SEGV $$".to_owned(),
            "the process died of SIGSEGV; its last words: Assertion failed".to_owned(),
        ),
        ("kill -KILL $$".to_owned(), "the process died of SIGKILL".to_owned()),
        (format!("{good}kill -ABRT $$"), "after its result the process died of SIGABRT".to_owned()),
        (
            format!("echo 'out of range\n{note}' >&2; exit 101"),
            format!("the process ended with exit code 101 {nothing}; its last words: out of range"),
        ),
        (format!("{good}exit 130"), "after its result the process alone was interrupted".to_owned()),
        ("exit 130".to_owned(), format!("the process alone was interrupted {nothing}")),
        ("kill -INT $$".to_owned(), "the process alone was interrupted".to_owned()),
        ("kill -HUP $$".to_owned(), "the process alone was interrupted".to_owned()),
        (
            format!("{good}echo 'error: write the result: closed' >&2; exit 1"),
            "after its result the process ended with exit code 1; its last words: error: write the result: closed"
                .to_owned(),
        ),
    ] {
        assert_eq!(failure("bad-end", &script), (Status::Panicked, expected), "{script}");
    }
}

#[test]
fn output_that_is_no_sample_is_reported() {
    for (script, reason) in [
        ("echo 44.6 Gbps", "not JSON"),
        ("echo 44.6", "not a JSON object"),
        ("echo '{\"kind\":\"sample\"'", "not JSON"),
        ("printf '\\377'", "its output is not text"),
        ("echo '{\"kind\":\"sample\",\"schema\":99}'", "schema 99"),
    ] {
        let (status, detail) = failure("garbage", script);
        assert_eq!(status, Status::Panicked, "{script}");
        assert!(detail.starts_with("the process ended with exit code 0 and no sample: "), "{script}: {detail}");
        assert!(detail.contains(reason), "{script}: {detail}");
    }
}

#[test]
fn an_error_of_the_process_keeps_its_text_and_its_exit_code() {
    for (code, said) in [
        (3, "open /dev/net/tun: no such file; load the module"),
        (2, "--mtu: too small"),
        (1, "start the runtime: no threads"),
    ] {
        let error = executed("error", &format!("echo note >&2; echo 'error: {said}' >&2; exit {code}")).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (code, said));
    }
}

#[test]
fn a_process_that_does_not_end_is_killed() {
    // `ps` shows the script's name, which is an argument of the shell and then of `tail`.
    let program = program("hanging", "exec tail -f \"$0\"");
    let executor = ProcessExecutor::new(&program).grace(Duration::from_millis(300));
    let sample = executor.execute(&scenario("--timeout 0.2")).unwrap();
    assert_eq!(sample.measured.status, Status::Stalled);
    assert!(sample.measured.detail.unwrap().contains("0.3 seconds"));
    let processes = Command::new("ps").args(["-A", "-o", "args="]).output().unwrap();
    assert!(processes.status.success());
    let processes = String::from_utf8_lossy(&processes.stdout).into_owned();
    assert!(!processes.contains(program.to_str().unwrap()), "it is still there: {processes}");
}

#[test]
fn a_program_that_does_not_say_what_it_is_is_named() {
    let program = program("mute", "exec sleep 60");
    let error = ProcessExecutor::new(&program).grace(Duration::from_millis(300)).hello().unwrap_err().to_string();
    assert!(
        error.contains(program.to_str().unwrap()) && error.ends_with("did not say what it is within 0.3 s"),
        "{error}"
    );
}

#[test]
fn a_missing_program_is_reported() {
    let error = ProcessExecutor::new("/nowhere/rust-tun-perf").execute(&scenario("")).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().starts_with("start /nowhere/rust-tun-perf: "), "{error}");
}

/// Runs the real program over a real device.
#[test]
fn a_real_run_in_a_process_of_its_own() {
    let executor = ProcessExecutor::new(PROGRAM);
    let result = executor.execute(&scenario("--bytes 6MB --warmup 1MB --verify full"));
    skip_if!(result.as_ref().err().filter(|error| error.exit_code() == 3));
    let sample = result.unwrap();
    assert_eq!((sample.measured.status, sample.measured.bytes), (Status::Ok, 6_000_000), "{sample:?}");
    // This is the peak of the child process, not of this one.
    assert!(sample.measured.peak_rss_bytes.unwrap() > 1 << 20);
}
