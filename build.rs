//! Passes the commit and the version of tokio to the program. If one of them is unknown, the program says so. Tests of a build
//! with all stacks have a `cfg` of their own.

use std::env;
use std::hash::Hasher;
use std::path::Path;
use std::process::Command;

use fnv::FnvHasher;
use toml::{Table, Value};

/// A change in any of these changes the program.
const SOURCES: [&str; 9] =
    ["Cargo.toml", "Cargo.lock", "build.rs", "src", "conformance", "results", "forwarders", "netstacks", "platform"];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rustc-check-cfg=cfg(all_stacks)");
    let stacks = ["LWIP", "IPSTACK", "SMOLTCP", "TCP_IP", "NETSTACK_SMOLTCP"];
    if stacks.iter().all(|stack| env::var_os(format!("CARGO_FEATURE_{stack}")).is_some()) {
        println!("cargo::rustc-cfg=all_stacks");
    }
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=RUST_TUN_PERF_COMMIT={commit}");
    }
    if let Some(version) = version_of("tokio") {
        println!("cargo::rustc-env=RUST_TUN_PERF_TOKIO={version}");
    }
}

/// The commit of the working tree. If tracked files differ from it, `-dirty.` and a hash of the difference follow,
/// to tell apart two builds of one commit.
fn commit() -> Option<String> {
    for file in ["HEAD", "index"] {
        println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", file])?);
    }
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        let file = git(&["rev-parse", "--git-path", &branch])?;
        // A packed reference has no file, and cargo runs this script on every build if a file is missing.
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    if changes.is_empty() {
        return Some(commit);
    }
    let mut hasher = FnvHasher::default();
    hasher.write(&output(&["diff", "--no-ext-diff", "--no-color", "--binary", "HEAD"])?);
    // Six digits are enough: a commit has few builds.
    Some(format!("{commit}-dirty.{:06x}", hasher.finish() & 0xff_ffff))
}

/// The output of git; `None` if git fails or is not installed.
fn git(arguments: &[&str]) -> Option<String> {
    Some(String::from_utf8_lossy(&output(arguments)?).trim().to_owned())
}

fn output(arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then_some(output.stdout)
}

fn version_of(name: &str) -> Option<String> {
    let lock: Table = std::fs::read_to_string("Cargo.lock").ok()?.parse().ok()?;
    let packages = lock.get("package")?.as_array()?;
    let package = packages.iter().find(|package| package.get("name").and_then(Value::as_str) == Some(name))?;
    package.get("version")?.as_str().map(str::to_owned)
}
