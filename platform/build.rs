//! On Windows, copies Wintun's library to the folder of the executable. Does nothing elsewhere.
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

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "windows")
        && let Err(error) = copy_library()
    {
        println!("cargo::warning=copy {LIBRARY} beside the executable: {error}; do it by hand before a run");
    }
}

fn copy_library() -> Result<(), Box<dyn Error>> {
    let architecture = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("Wintun is not packaged for {other}").into()),
    };
    let library = package()?.join("wintun").join("bin").join(architecture).join(LIBRARY);
    println!("cargo::rerun-if-changed={}", library.display());
    // OUT_DIR is <profile>/build/<package>/out; tests run in <profile>/deps.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR lies in no profile's folder")?;
    for folder in [profile.to_owned(), profile.join("deps"), profile.join("examples")] {
        fs::create_dir_all(&folder)?;
        fs::copy(&library, folder.join(LIBRARY))?;
    }
    Ok(())
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
