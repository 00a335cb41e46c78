//! The program under test and other programs, and the files that they need.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

/// All stacks of a default build.
pub(crate) const STACKS: [&str; 5] = ["lwip", "ipstack", "smoltcp", "tcp_ip", "netstack-smoltcp"];

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_rust-tun-perf");

/// Runs the program with arguments that are separated by spaces.
pub(crate) fn run(arguments: &str) -> Output {
    Command::new(PROGRAM).args(arguments.split_whitespace()).output().unwrap()
}

/// Returns the sample that a run has printed.
pub(crate) fn printed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Returns the sample of a run, which may have failed.
pub(crate) fn sample(arguments: &str) -> Value {
    printed(&run(&format!("{arguments} --json")))
}

/// Returns the sample of a run, which must succeed.
pub(crate) fn success(arguments: &str) -> Value {
    let sample = sample(arguments);
    assert_eq!(sample["status"], "ok", "{arguments}\n{sample}");
    sample
}

/// A value of a sample that is a number.
pub(crate) fn count(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks that the program has ended with this code, and that standard error has each of these words.
pub(crate) fn assert_said(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
}

/// Runs a shell with `$PROGRAM` set, in the namespaces that these flags of `unshare` name.
pub(crate) fn shell(unshare: &[&str], script: &str) -> Output {
    Command::new("unshare").args(unshare).args(["sh", "-eu", "-c", script]).env("PROGRAM", PROGRAM).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks all rows at the same time: for runs that mostly wait.
pub(crate) fn at_once<T: Send>(rows: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    let check = &check;
    thread::scope(|scope| rows.into_iter().for_each(|row| drop(scope.spawn(move || check(row)))));
}

/// Makes an empty folder of this name, which must be unique among all tests.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a shell script as a program.
pub(crate) fn write_script(path: &Path, script: &str) {
    // Another process writes the file. If this process did, a process that another test starts at the same time would
    // inherit the open file, and the kernel executes no file that is open for writing.
    let mut install = Command::new("install");
    let mut install = install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// Returns the line of `/proc/PID/stat` while a process is alive. A zombie counts as dead.
#[cfg(target_os = "linux")]
pub(crate) fn living(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, state) = stat.rsplit_once(')')?;
    (!state.trim_start().starts_with(['Z', 'X'])).then_some(stat)
}
