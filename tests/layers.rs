//! The layers alone. Without a stack or without a device most of them need no right at all; those that
//! do, over a TUN device in a namespace of its own, say SKIP and why where they cannot run.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rust-tun-perf");

fn run(arguments: &str) -> Output {
    Command::new(PROGRAM).args(arguments.split_whitespace()).output().unwrap()
}

/// The sample of a run that has to succeed.
fn sample(arguments: &str) -> Value {
    good(&run(&format!("{arguments} --json")), arguments)
}

fn good(output: &Output, what: &str) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{what}\n{stderr}");
    let sample: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sample["status"], &sample["verified"]), (&"ok".into(), &"full".into()), "{what}");
    sample
}

/// The delivered bytes are those that were asked for, and the intervals' sum.
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
#[cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
fn every_stack_alone_delivers_every_byte() {
    // One run takes about as long as a tick of the kernel, and so may seem to cost nothing.
    let mut stack_seconds = None;
    for stack in ["lwip", "ipstack", "smoltcp"] {
        for mode in ["reader", "writer"] {
            for offload in ["on", "off"] {
                for version in ["", "--ipv6"] {
                    for runtime in ["", "--current-thread"] {
                        let arguments = format!(
                            "--layer stack -n {stack} -m {mode} --offload {offload} {version} {runtime} {SMALL}"
                        );
                        let sample = sample(&arguments);
                        assert_whole(&sample, Some(8_000_000));
                        assert_eq!(sample["layer"], "stack", "{arguments}");
                        assert_eq!((&sample["netstack"], &sample["mode"]), (&stack.into(), &mode.into()));
                        assert_eq!(sample["offload"], offload == "on", "{arguments}");
                        assert_eq!((&sample["tcp"], &sample["device_drops"]), (&Value::Null, &Value::Null));
                        assert!(sample["packets"]["rx"].as_u64().unwrap() > 0, "{sample}");
                        if let Some(seconds) = sample["cpu"]["stack_seconds"].as_f64() {
                            *stack_seconds.get_or_insert(0.0) += seconds;
                        }
                    }
                }
            }
        }
    }
    assert!(stack_seconds.is_none_or(|seconds| seconds > 0.0));
}

#[test]
#[cfg(all(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
fn every_stack_alone_takes_every_option() {
    for stack in ["lwip", "ipstack", "smoltcp"] {
        for mode in ["reader", "writer"] {
            for options in [
                "--mtu 576 --window 64KiB",
                "--mtu 65535",
                "--mtu 65535 --window 4KiB --timeout 20",
                "--mtu 9000 --ipv6 --buffer 999",
                "--offload off --mtu 9000",
                "--ipv6 --mtu 65535 --offload off",
            ] {
                for length in ["--bytes 2MB --warmup 100KB", "--time 0.1 --warmup 0"] {
                    let arguments = format!("--layer stack -n {stack} -m {mode} {options} {length} --verify full");
                    assert!(sample(&arguments)["bytes"].as_u64().unwrap() > 0, "{arguments}");
                }
            }
        }
    }
}

#[test]
fn the_kernel_against_itself_delivers_every_byte() {
    for mode in ["reader", "writer"] {
        for options in
            ["", "--parallel 4", "--current-thread --parallel 3", "--netns host", "--netns host --parallel 4"]
        {
            for length in [SMALL, BRIEF] {
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
    }
}

#[cfg(target_os = "linux")]
mod on_linux {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Ends the test where `reason` says why it cannot run. The line goes past the test harness, which
    /// would swallow it.
    macro_rules! skip_if {
        ($reason:expr) => {
            if let Some(reason) = $reason {
                let _closed = writeln!(std::io::stderr(), "SKIP {}: {reason}", module_path!());
                return;
            }
        };
    }

    fn is_root() -> bool {
        std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
    }

    /// Why no run over a device is possible here.
    fn no_device() -> Option<String> {
        if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
            return Some(format!("/dev/net/tun: {error}"));
        }
        let flag = if is_root() { "-n" } else { "-rn" };
        match Command::new("unshare").args([flag, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(format!("unshare: {error}")),
        }
    }

    #[test]
    fn the_device_alone_takes_every_byte_back() {
        skip_if!(no_device());
        for offload in ["on", "off"] {
            for version in ["", "--ipv6"] {
                for options in
                    ["", "--current-thread --mtu 9000", "--buffer 700 --window 64KiB --mtu 1280", "--mtu 65535"]
                {
                    for length in [SMALL, BRIEF] {
                        let arguments = format!("--layer device --offload {offload} {version} {options} {length}");
                        let sample = sample(&arguments);
                        assert_whole(&sample, length.contains("--bytes").then_some(8_000_000));
                        assert_eq!(sample["offload"], offload == "on", "{arguments}");
                        assert_eq!((&sample["mode"], &sample["netstack"]), (&Value::Null, &Value::Null));
                        assert_eq!(
                            (&sample["device_drops"], &sample["cpu"]["client_seconds"]),
                            (&0.into(), &0.0.into())
                        );
                        // Every packet is written and read, and the kernel adds little of its own.
                        let [rx, tx] = ["rx", "tx"].map(|way| sample["packets"][way].as_u64().unwrap());
                        assert!(tx > 0 && rx.abs_diff(tx) <= 1000, "{sample}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_super_packets_turn_around_where_the_device_offloads() {
        skip_if!(no_device());
        for version in ["", "--ipv6"] {
            let sample = sample(&format!("--layer device --offload on {version} --bytes 60MB --verify full"));
            for way in ["rx", "tx"] {
                assert!(sample["packets"][way].as_u64().unwrap() < 60_000_000 / 30_000, "{sample}");
            }
        }
    }

    #[test]
    fn the_smallest_network_is_enough_for_the_device() {
        skip_if!(no_device());
        let network = "--tun-addr 10.0.0.1 --tun-dest 10.0.0.2 --tun-mask 255.255.255.252";
        sample(&format!("--layer device {network} {SMALL}"));
    }

    #[test]
    fn the_device_alone_makes_no_router_of_the_host() {
        let output = run("--layer device --netns host");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("the host's network") && stderr.contains("--netns"), "{stderr}");
    }

    /// As a user without any right, where the system gives none.
    #[test]
    #[cfg(feature = "smoltcp")]
    fn a_stack_and_the_loopback_need_no_right() {
        let nobody = |arguments: &str| {
            // The limit is that of the namespace it is set in, and goes with it.
            let script = format!(
                "echo 0 >/proc/sys/user/max_user_namespaces
                 exec setpriv --bounding-set=-all --inh-caps=-all \"$PROGRAM\" {arguments} --json"
            );
            Command::new("unshare").args(["-Ur", "sh", "-euc", &script]).env("PROGRAM", PROGRAM).output().unwrap()
        };
        if !Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| status.success()) {
            skip_if!(Some("needs user namespaces"));
        }
        for arguments in ["--layer stack -m reader -n smoltcp", "--layer loopback -m writer"] {
            good(&nobody(&format!("{arguments} {SMALL}")), arguments);
        }
    }

    #[test]
    #[cfg(feature = "smoltcp")]
    fn the_whole_path_knows_its_connection_and_what_arrived_when() {
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

    #[test]
    fn what_is_said_beside_the_figure_has_its_word_nowhere() {
        let output = run("--layer loopback -m reader --time 1 --warmup 1MB --interval 0.05");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(stdout.matches("Gbps").count(), 1, "{stdout}");
        assert!(stderr.matches("Gbit/s").count() >= 2 && !stderr.contains("Gbps"), "{stderr}");
        assert!(stderr.contains("tcp:       round trip "), "{stderr}");
    }
}
