//! The integration tests, as one program.
//!
//! They run as threads of one process: a test must not change the environment, the working directory or a limit that
//! another test relies on, and files that it leaves in `CARGO_TARGET_TMPDIR` need unique names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
// If a system or a feature leaves tests out, some of their helpers are unused.
#![cfg_attr(
    not(all(target_os = "linux", all_stacks)),
    allow(dead_code, unused_macros, reason = "the tests that use it are left out")
)]

/// Ends the test if there is a reason why it cannot run, and prints the reason. The line bypasses the test harness,
/// which would hide it.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            let test = std::any::type_name_of_val(&|| ()).trim_end_matches("::{{closure}}");
            let _closed = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIP {test}: {reason}\n"));
            return;
        }
    };
}

mod fixture;
#[cfg(unix)]
mod machine;
mod pairs;
mod processes;

mod browser;
#[cfg(all(target_os = "linux", feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod calls;
// The snapshots name the program, which has another name on Windows.
#[cfg(not(windows))]
mod cli;
// The snapshots contain error messages of the system.
#[cfg(unix)]
mod compare;
#[cfg(feature = "smoltcp")]
mod conform;
#[cfg(all(target_os = "linux", feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod doctor;
#[cfg(unix)]
mod documents;
#[cfg(target_os = "linux")]
mod external;
#[cfg(target_os = "linux")]
mod forward;
#[cfg(feature = "smoltcp")]
mod fuzz;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod json;
mod layers;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod leftovers;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod manners;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod matrix;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod misbehave;
mod pages;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod pcap;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod pin;
#[cfg(all(unix, feature = "smoltcp"))]
mod process;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod program;
#[cfg(all(target_os = "linux", any(feature = "lwip", feature = "ipstack", feature = "smoltcp")))]
mod proxy;
#[cfg(all(target_os = "linux", feature = "smoltcp", feature = "quic"))]
mod quic;
#[cfg(all(target_os = "linux", feature = "lwip", feature = "smoltcp"))]
mod readme;
#[cfg(feature = "smoltcp")]
mod report;
#[cfg(all(target_os = "linux", feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod safety;
#[cfg(all(target_os = "linux", feature = "lwip", feature = "smoltcp"))]
mod settings;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod stopped;
#[cfg(all(target_os = "linux", all_stacks))]
mod tun;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod tunnel;
#[cfg(all(target_os = "linux", feature = "smoltcp"))]
mod upstreams;
#[cfg(all(target_os = "linux", all_stacks))]
mod workloads;
