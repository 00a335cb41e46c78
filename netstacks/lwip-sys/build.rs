//! Compiles lwIP 2.2.1d from the package of the crate `lwip`, with the options of `c/lwipopts.h`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use serde_json::Value;

/// The package with lwIP's sources, and its version; see Cargo.toml.
const PACKAGE: (&str, &str) = ("lwip", "0.4.0");

/// A file in the sources. It shows that a folder has them.
const HEADER: &str = "include/lwip/init.h";

/// The files of lwIP that are compiled, relative to its `src`. Files in `c` include others, and have their names.
const LWIP: &[&str] = &[
    "core/def.c",
    "core/inet_chksum.c",
    "core/init.c",
    "core/ip.c",
    "core/mem.c",
    "core/memp.c",
    "core/netif.c",
    "core/pbuf.c",
    "core/ipv4/icmp.c",
    "core/ipv4/ip4_addr.c",
    "core/ipv4/ip4_frag.c",
    "core/ipv6/icmp6.c",
    "core/ipv6/inet6.c",
    "core/ipv6/ip6.c",
    "core/ipv6/ip6_addr.c",
    "core/ipv6/nd6.c",
];

fn main() -> ExitCode {
    match sources().and_then(|sources| {
        // For `tests/assertions.rs`.
        println!("cargo::rustc-env=LWIP_SYS_SOURCES={}", sources.display());
        println!("cargo::rustc-env=LWIP_SYS_FILES={}", LWIP.join(" "));
        compile(&sources)
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn sources() -> Result<PathBuf, String> {
    let (name, version) = PACKAGE;
    // If this package is a dependency itself, the other one is in a folder beside it: with the version in its name if
    // it comes from the registry, without it after `cargo vendor`.
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let beside = [format!("{name}-{version}"), name.to_owned()].map(|folder| here.with_file_name(folder).join("src"));
    if let Some(sources) = beside.into_iter().find(|sources| sources.join(HEADER).is_file()) {
        return Ok(sources);
    }
    let metadata = metadata(&here)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = packages.iter().find(|package| package["name"] == name && package["version"] == version);
    let manifest = package.and_then(|package| package["manifest_path"].as_str()).ok_or_else(|| {
        format!(
            "find lwIP's sources: the dependencies have no package {name} {version}; \
             restore it in netstacks/lwip-sys/Cargo.toml and Cargo.lock"
        )
    })?;
    let sources = Path::new(manifest).with_file_name("src");
    let header = sources.join(HEADER);
    fs::metadata(&header).map_err(|error| {
        format!(
            "open {}: {error}; the package is damaged: remove its folder, and cargo fetches it again",
            header.display()
        )
    })?;
    Ok(sources)
}

/// The metadata of this build's packages, without a platform filter: it would leave out a dependency of no target.
fn metadata(package: &Path) -> Result<Value, String> {
    let cargo = variable("CARGO")?;
    let output = Command::new(&cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(package)
        .output()
        .map_err(|error| format!("run {cargo} metadata: {error}; build with cargo, which sets CARGO"))?;
    if !output.status.success() {
        return Err(format!(
            "run {cargo} metadata --locked: {}: {}; run `cargo fetch` once with a network, which also brings Cargo.lock up to date",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")
        ));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("read the output of {cargo} metadata: {error}; is this cargo 1.91 or later?"))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("read {name}: {error}; build with cargo, which sets it"))
}

fn compile(sources: &Path) -> Result<(), String> {
    for input in ["build.rs", "c"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let build = || {
        let mut build = cc::Build::new();
        // lwIP reads headers through pointers to other types.
        build.include("c").include(sources.join("include")).flag_if_supported("-fno-strict-aliasing");
        build
    };
    let ours = build()
        .files(["c/guard.c", "c/shim.c", "c/pcb.c", "c/memory.c", "c/reorder.c"])
        .warnings(true)
        .extra_warnings(true)
        .try_compile_intermediates()
        .map_err(|error| failed("c/guard.c, c/shim.c, c/pcb.c, c/memory.c or c/reorder.c", &error))?;
    // One archive, because each part calls the other.
    build()
        .include(sources)
        .warnings(false)
        .files(["c/tcp.c", "c/tcp_in.c", "c/tcp_out.c", "c/udp.c", "c/ip4.c"])
        .files(LWIP.iter().map(|file| sources.join(file)))
        .objects(ours)
        .try_compile("lwip")
        .map_err(|error| failed("lwIP", &error))?;
    if env::var_os("CARGO_FEATURE_CHECKSUMS").is_none() {
        return Ok(());
    }
    // The same file is compiled each time, so each object needs its own folder.
    let folder = variable("OUT_DIR")?;
    ["1", "2", "3"].into_iter().try_for_each(|algorithm| {
        build()
            .include(sources)
            .warnings(false)
            .define("LWIP_SYS_ALGORITHM", algorithm)
            .file("c/checksum.c")
            .out_dir(Path::new(&folder).join(algorithm))
            .try_compile(&format!("lwip_checksum_{algorithm}"))
            .map_err(|error| failed("c/checksum.c", &error))
    })
}

fn failed(what: &str, error: &cc::Error) -> String {
    format!("compile {what}: {error}; is a C compiler for {} installed?", env::var("TARGET").unwrap_or_default())
        .replace('\n', " ")
}
