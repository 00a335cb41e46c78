//! Runs of one layer alone. Most of them need no permissions. A test that needs a TUN device in its own namespace, and
//! cannot have it, prints SKIP with the reason.

use std::process::Output;

use serde_json::Value;

use crate::pairs::pairwise;
use crate::processes::{printed, run};

const MODES: [&str; 2] = ["reader", "writer"];

/// Returns the sample of a run, which must succeed and check every byte.
fn sample(arguments: &str) -> Value {
    good(&run(&format!("{arguments} --json")))
}

fn good(output: &Output) -> Value {
    let sample = printed(output);
    assert_eq!((&sample["status"], &sample["verified"]), (&"ok".into(), &"full".into()), "{output:?}");
    sample
}

/// Checks that all planned bytes were delivered, and that the intervals add up to them.
fn assert_whole(sample: &Value, bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        assert_eq!(sample["bytes"], bytes, "{sample}");
    }
    assert!(sample["bytes"].as_u64().unwrap() > 0, "{sample}");
    let intervals = sample["intervals"].as_array().unwrap();
    assert!(!intervals.is_empty(), "{sample}");
    assert_eq!(intervals.iter().map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>(), sample["bytes"], "{sample}");
    assert_eq!(intervals.last().unwrap()["end_ns"], sample["elapsed_ns"], "{sample}");
    assert!(sample["started_unix_ms"].as_u64().unwrap() > 1_700_000_000_000, "{sample}");
}

const SMALL: &str = "--bytes 8MB --warmup 1MB --verify full --interval 0.01";
const BRIEF: &str = "--time 0.1 --warmup 1MB --verify full --interval 0.02";

#[test]
#[cfg(all_stacks)]
fn every_stack_alone_delivers_every_byte() {
    // One run takes about as long as a tick of the kernel's clock, so its CPU time may be zero.
    let mut subject_seconds = None;
    let axes = [&crate::processes::STACKS[..], &MODES, &["on", "off"], &["", "--ipv6"], &["", "--current-thread"]];
    for [stack, mode, offload, version, runtime] in pairwise(axes) {
        let arguments = format!("--layer stack -n {stack} -m {mode} --offload {offload} {version} {runtime} {SMALL}");
        let sample = sample(&arguments);
        assert_whole(&sample, Some(8_000_000));
        assert_eq!(sample["layer"], "stack", "{arguments}");
        assert_eq!((&sample["netstack"], &sample["mode"]), (&stack.into(), &mode.into()));
        assert_eq!(sample["offload"], offload, "{arguments}");
        assert_eq!((&sample["tcp"], &sample["device_drops"]), (&Value::Null, &Value::Null));
        assert!(sample["packets"]["rx"].as_u64().unwrap() > 0, "{sample}");
        if let Some(seconds) = sample["cpu"]["subject_seconds"].as_f64() {
            *subject_seconds.get_or_insert(0.0) += seconds;
        }
    }
    assert!(subject_seconds.is_none_or(|seconds| seconds > 0.0));
}

#[test]
#[cfg(all_stacks)]
fn every_stack_alone_takes_every_option() {
    let options = [
        "--mtu 576 --window 64KiB",
        "--mtu 65535",
        "--mtu 65535 --window 4KiB --timeout 20",
        "--mtu 9000 --ipv6 --buffer 999",
        "--offload off --mtu 9000",
        "--ipv6 --mtu 65535 --offload off",
    ];
    let lengths = ["--bytes 2MB --warmup 100KB", "--time 0.1 --warmup 0"];
    for [stack, mode, options, length] in pairwise([&crate::processes::STACKS[..], &MODES, &options, &lengths]) {
        let arguments = format!("--layer stack -n {stack} -m {mode} {options} {length} --verify full");
        assert!(sample(&arguments)["bytes"].as_u64().unwrap() > 0, "{arguments}");
    }
}

#[test]
fn the_kernel_against_itself_delivers_every_byte() {
    let options = ["", "--parallel 4", "--current-thread --parallel 3", "--netns host", "--netns host --parallel 4"];
    for [mode, options, length] in pairwise([&MODES, &options, &[SMALL, BRIEF]]) {
        let sample = sample(&format!("--layer loopback -m {mode} {options} {length}"));
        assert_whole(&sample, length.contains("--bytes").then_some(8_000_000));
        assert_eq!((&sample["layer"], &sample["netstack"]), (&"loopback".into(), &Value::Null));
        assert_eq!((&sample["mtu"], &sample["window_bytes"]), (&Value::Null, &Value::Null));
        assert_eq!(sample["packets"]["rx"], 0, "{sample}");
        if cfg!(target_os = "linux") && options.contains("--netns host") {
            assert_eq!(sample["device"]["name"], "lo (host)", "{sample}");
        }
    }
}

#[cfg(target_os = "linux")]
mod on_linux {

    use super::*;
    use crate::machine::no_setting;

    /// Returns a reason if no run of the device alone is possible here. The run makes its namespace a router.
    fn no_device() -> Option<String> {
        no_setting("ip_forward")
    }

    #[test]
    fn the_device_alone_returns_every_byte() {
        skip_if!(no_device());
        let options = ["", "--current-thread --mtu 9000", "--buffer 700 --window 64KiB --mtu 1280", "--mtu 65535"];
        let axes = [&["on", "off"][..], &["", "--ipv6"], &options, &[SMALL, BRIEF]];
        for [offload, version, options, length] in pairwise(axes) {
            let arguments = format!("--layer device --offload {offload} {version} {options} {length}");
            let sample = sample(&arguments);
            assert_whole(&sample, length.contains("--bytes").then_some(8_000_000));
            assert_eq!(sample["offload"], offload, "{arguments}");
            assert_eq!((&sample["mode"], &sample["netstack"]), (&Value::Null, &Value::Null));
            assert_eq!((&sample["device_drops"], &sample["cpu"]["client_seconds"]), (&0.into(), &0.0.into()));
            // Every packet is written and read, and the kernel adds only a few.
            let [rx, tx] = ["rx", "tx"].map(|way| sample["packets"][way].as_u64().unwrap());
            assert!(tx > 0 && rx.abs_diff(tx) <= 1000, "{sample}");
        }
    }

    #[test]
    fn super_packets_return_through_a_device_with_offload() {
        skip_if!(no_device());
        for version in ["", "--ipv6"] {
            let sample = sample(&format!("--layer device --offload on {version} --bytes 60MB --verify full"));
            for way in ["rx", "tx"] {
                assert!(sample["packets"][way].as_u64().unwrap() < 60_000_000 / 30_000, "{sample}");
            }
        }
    }

    #[test]
    fn the_device_alone_refuses_the_network_of_the_host() {
        crate::processes::assert_said(&run("--layer device --netns host"), 3, &["the host's network", "--netns"]);
    }

    /// Runs as a user without any privileges, and without user namespaces.
    #[test]
    #[cfg(feature = "smoltcp")]
    fn a_stack_and_the_loopback_need_no_right() {
        skip_if!(crate::machine::no_namespace(&["-Ur", "true"]));
        let without_rights = |arguments: &str| {
            // The limit belongs to the namespace in which it is set, and ends with it.
            let script = format!(
                "echo 0 >/proc/sys/user/max_user_namespaces
                 exec setpriv --bounding-set=-all --inh-caps=-all \"$PROGRAM\" {arguments} --json"
            );
            crate::processes::shell(&["-Ur"], &script)
        };
        for arguments in ["--layer stack -m reader -n smoltcp", "--layer loopback -m writer"] {
            good(&without_rights(&format!("{arguments} {SMALL}")));
        }
    }

    #[test]
    #[cfg(feature = "smoltcp")]
    fn the_whole_path_reports_its_connection_and_its_intervals() {
        skip_if!(no_device());
        for mode in ["reader", "writer"] {
            for length in [SMALL, BRIEF] {
                let sample = sample(&format!("-m {mode} -n smoltcp {length}"));
                assert_whole(&sample, length.contains("--bytes").then_some(8_000_000));
                assert!(sample["tcp"]["rtt_us"].as_u64().unwrap() > 0, "{sample}");
                assert!(sample["tcp"]["congestion_window_bytes"].as_u64().unwrap() > 1000, "{sample}");
            }
        }
    }
}
