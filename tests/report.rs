//! From the command line to what is printed, on fixed samples: no device is touched.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(feature = "smoltcp")]

use std::time::Duration;

use clap::Parser;
use netstacks::Effective;
use platform::{Environment, PacketCounts};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Scenario;
use rust_tun_perf::run::{DeviceFacts, Executor, RunError, Sample, Status};
use rust_tun_perf::{Error, main_with};

/// Answers every scenario with the same facts.
struct Fixed(fn(&mut Sample));

impl Executor for Fixed {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let mut sample = Sample {
            scenario: scenario.clone(),
            status: Status::Ok,
            detail: None,
            bytes: 1_000_000_000,
            elapsed: Duration::from_nanos(1_600_000_001),
            client_cpu: Some(Duration::from_millis(171)),
            stack_cpu: Some(Duration::from_millis(1176)),
            peak_rss_bytes: Some(21_434_368),
            retransmits: Some(0),
            device_drops: Some(0),
            packets: PacketCounts { rx_packets: 700, rx_bytes: 36_400, tx_packets: 684_932, tx_bytes: 1_027_397_280 },
            congestion: Some("cubic".to_owned()),
            device: Some(DeviceFacts { name: "utun8".to_owned(), mtu: 1500, offload: false, tx_queue_len: Some(4308) }),
            effective: Some(Effective {
                stack_version: "1.2.3",
                receive_buffer_bytes: 4 << 20,
                send_buffer_bytes: 4 << 20,
                window_scale: Some(7),
                largest_packet_bytes: 1500,
                congestion: "none",
                checksum_verified: false,
                checksum_computed: true,
            }),
            environment: Environment {
                system: "linux",
                architecture: "x86_64",
                kernel: Some("6.1.0".to_owned()),
                cpu: Some("Fast".to_owned()),
                cpus: Some(2),
                governor: None,
                virtual_machine: Some(false),
            },
        };
        (self.0)(&mut sample);
        Ok(sample)
    }
}

/// What is printed, and the exit code.
fn printed(arguments: &str, change: fn(&mut Sample)) -> String {
    let arguments = format!("rust-tun-perf -n smoltcp {arguments}");
    let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result = main_with(cli, &Fixed(change), &mut out, &mut err);
    let code = result.as_ref().err().map_or(0, Error::exit_code);
    let error = result.err().map(|error| format!("error: {error}\n")).unwrap_or_default();
    // The tests are a debug build, which is said, and is not what is tested.
    let err: String = String::from_utf8(err)
        .unwrap()
        .lines()
        .filter(|line| !line.contains("debug build"))
        .fold(String::new(), |text, line| text + line + "\n");
    format!("exit {code}\n--- stdout\n{}--- stderr\n{err}{error}", String::from_utf8(out).unwrap())
}

#[test]
fn a_good_run() {
    insta::assert_snapshot!(printed("-m reader", |_| {}));
}

#[test]
fn a_run_with_every_warning() {
    insta::assert_snapshot!(printed("-m writer --parallel 3 --window 8MiB --verify off", |sample| {
        sample.elapsed = Duration::from_millis(20);
        sample.retransmits = Some(55);
        sample.device_drops = Some(3);
        sample.congestion = Some("bbr".to_owned());
        sample.environment.governor = Some("powersave".to_owned());
        sample.environment.virtual_machine = Some(true);
    }));
}

#[test]
fn a_system_that_says_nothing() {
    insta::assert_snapshot!(printed("-m writer --verify full", |sample| {
        sample.client_cpu = None;
        sample.stack_cpu = None;
        sample.peak_rss_bytes = None;
        sample.retransmits = None;
        sample.device_drops = None;
        sample.packets = PacketCounts::default();
        sample.congestion = None;
        sample.environment.virtual_machine = None;
    }));
}

#[test]
fn a_failed_run_has_no_figure() {
    insta::assert_snapshot!(printed("-m reader", |sample| {
        sample.status = Status::Stalled;
        sample.detail = Some("nothing arrived for the last 59.0 of 60 seconds, after 12 bytes".to_owned());
        sample.bytes = 12;
    }));
}

#[test]
fn a_sample_in_json() {
    let text = printed("-m reader --current-thread --json", |_| {});
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let mut object: serde_json::Value = serde_json::from_str(object).unwrap();
    // A debug build is a warning here and none in a release build.
    object["warnings"].as_array_mut().unwrap().retain(|warning| !warning.as_str().unwrap().contains("debug build"));
    insta::assert_snapshot!(serde_json::to_string_pretty(&object).unwrap());
}

#[test]
fn a_failed_run_is_an_object_too() {
    let text = printed("-m reader --json", |sample| {
        sample.status = Status::DeviceLost;
        sample.detail = Some("the stack or its device: gone".to_owned());
        sample.elapsed = Duration::ZERO;
        sample.bytes = 0;
    });
    assert!(text.starts_with("exit 1\n"), "{text}");
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["status"], "device-lost");
    assert_eq!(object["gbps"], 0.0);
    assert_eq!(object["detail"], "the stack or its device: gone");
}
