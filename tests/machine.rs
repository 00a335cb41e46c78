//! Whether a test can run on this machine.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Returns a reason if no run over a device is possible here.
pub(crate) fn no_device() -> Option<String> {
    no_device_node().or_else(|| no_namespace(if is_root() { &["-n", "true"] } else { &["-rn", "true"] }))
}

/// Returns a reason if no run that writes this setting of its network is possible here.
pub(crate) fn no_setting(name: &str) -> Option<String> {
    let (flag, write) = (if is_root() { "-n" } else { "-rn" }, format!("echo 0 >/proc/sys/net/ipv4/{name}"));
    no_device_node().or_else(|| no_namespace(&[flag, "sh", "-c", &write]))
}

/// Returns a reason if a test that needs root cannot run here.
pub(crate) fn no_root() -> Option<String> {
    if !is_root() {
        return Some("needs root".to_owned());
    }
    no_device_node().or_else(|| no_namespace(&["-mn", "true"]))
}

/// Returns a reason if a program that is started here does not get SIGHUP: bit 0 of what is ignored (`proc_pid_status(5)`).
pub(crate) fn no_hangup() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let is_ignored = u64::from_str_radix(ignored.trim(), 16).ok()? & 1 == 1;
    is_ignored.then(|| "SIGHUP is ignored, as nohup has it".to_owned())
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

pub(crate) fn no_device_node() -> Option<String> {
    let error = OpenOptions::new().read(true).write(true).open("/dev/net/tun").err()?;
    Some(format!("/dev/net/tun: {error}"))
}

/// Returns the error of `unshare` with these arguments, if it fails.
pub(crate) fn no_namespace(arguments: &[&str]) -> Option<String> {
    match Command::new("unshare").args(arguments).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Returns a reason if a test that calls these programs cannot run here.
pub(crate) fn missing_program(names: &[&str]) -> Option<String> {
    let missing = names.iter().find(|name| !is_installed(name))?;
    Some(format!("there is no {missing}; install it"))
}

fn is_installed(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}
