//! Tells the program what it is made of: the commit, and tokio's version. Where either cannot be known,
//! the program says so.

use std::path::Path;
use std::process::Command;

use cargo_lock::Lockfile;

/// What a change of makes another program.
const SOURCES: [&str; 4] = ["Cargo.lock", "src", "netstacks", "platform"];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=RUST_TUN_PERF_COMMIT={commit}");
    }
    if let Some(version) = version_of("tokio") {
        println!("cargo::rustc-env=RUST_TUN_PERF_TOKIO={version}");
    }
}

/// The commit of the working tree, `-dirty` where tracked files differ from it.
fn commit() -> Option<String> {
    for file in ["HEAD", "index"] {
        println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", file])?);
    }
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        let file = git(&["rev-parse", "--git-path", &branch])?;
        // A packed reference has no file of its own, and a missing one would build each time.
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// What git answers, or `None` where it fails or there is none.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn version_of(name: &str) -> Option<String> {
    let packages = Lockfile::load("Cargo.lock").ok()?.packages;
    packages.iter().find(|package| package.name.as_str() == name).map(|package| package.version.to_string())
}
