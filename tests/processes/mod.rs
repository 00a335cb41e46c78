//! What tests of other processes have in common.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a program that is this shell script.
pub(crate) fn write_script(path: &Path, script: &str) {
    // Written by another process: a file that this one has open for writing, and so every process that
    // another test is starting just now, could not be executed.
    let mut install = Command::new("install");
    let mut install = install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// What the kernel says of a process, unless it is dead. One that nobody has waited for yet is dead all the same.
#[cfg(target_os = "linux")]
pub(crate) fn living(process: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, state) = stat.rsplit_once(')')?;
    (!state.trim_start().starts_with(['Z', 'X'])).then_some(stat)
}
