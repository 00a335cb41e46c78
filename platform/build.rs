//! On Windows, finds Wintun's library, which the program then contains. Does nothing elsewhere.
//!
//! The package of the `wintun` crate has the signed library. A failure is a warning: the program reports it later.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const LIBRARY: &str = "wintun.dll";

/// The crate that contains the library, and its version; see Cargo.toml.
const PACKAGE: (&str, &str) = ("wintun", "0.5.1");

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS")? == "windows" {
        let library = library().unwrap_or_else(|error| {
            println!("cargo::warning=the program does not contain {LIBRARY}: {error}; put it beside the program");
            Vec::new()
        });
        fs::write(PathBuf::from(env::var("OUT_DIR")?).join(LIBRARY), library)?;
    }
    Ok(())
}

fn library() -> Result<Vec<u8>, Box<dyn Error>> {
    let architecture = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("Wintun is not packaged for {other}").into()),
    };
    let library = package()?.join("wintun").join("bin").join(architecture).join(LIBRARY);
    println!("cargo::rerun-if-changed={}", library.display());
    Ok(fs::read(library)?)
}

/// The folder of the crate's sources.
fn package() -> Result<PathBuf, Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (name, version) = PACKAGE;
    // If this package is a dependency, the other is beside it. `cargo vendor` leaves out the version in its name.
    let beside = [format!("{name}-{version}"), name.to_owned()].map(|folder| here.with_file_name(folder));
    if let Some(package) = beside.into_iter().find(|package| package.join("wintun").is_dir()) {
        return Ok(package);
    }
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform"])
        .arg(env::var("TARGET")?)
        .current_dir(here)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let package = packages.iter().find(|package| package["name"] == name).ok_or("cargo metadata lacks the package")?;
    let manifest = package["manifest_path"].as_str().ok_or("cargo metadata gives the package no path")?;
    Ok(Path::new(manifest).parent().ok_or("a manifest lies in no folder")?.to_owned())
}
