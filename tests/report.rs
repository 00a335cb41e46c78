//! From the command line to what is printed, on fixed samples: no device is touched.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(feature = "smoltcp")]

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use netstacks::Effective;
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Scenario;
use rust_tun_perf::run::{Executor, RunError};
use rust_tun_perf::sample::{Cell, CpuTime, DeviceFacts, Environment, Facts, Packets, Program, Sample, Status};
use rust_tun_perf::{Console, Error, main_with};

/// Answers every scenario with the same facts.
struct Fixed(fn(&mut Sample));

impl Executor for Fixed {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let facts = Facts {
            status: Status::Ok,
            detail: None,
            congestion: Some("cubic".to_owned()),
            warmup_bytes: scenario.warmup_bytes,
            bytes: 1_000_000_000,
            elapsed: Duration::from_nanos(1_600_000_001),
            verified: scenario.verify,
            cpu: CpuTime { client_seconds: Some(0.171), stack_seconds: Some(1.176) },
            peak_rss_bytes: Some(21_434_368),
            retransmits: Some(0),
            device_drops: Some(0),
            packets: Packets { rx: 700, rx_bytes: 36_400, tx: 684_932, tx_bytes: 1_027_397_280 },
            tcp: None,
            intervals: Vec::new(),
            started_unix_ms: Some(1_700_000_000_000),
            device: Some(DeviceFacts { name: "utun8".to_owned(), mtu: 1500, offload: false, tx_queue_len: Some(4308) }),
            effective: Some(Effective {
                stack_version: "1.2.3".into(),
                receive_buffer_bytes: 4 << 20,
                send_buffer_bytes: 4 << 20,
                window_scale: Some(7),
                largest_packet_bytes: 1500,
                congestion: "none".into(),
                checksum_verified: false,
                checksum_computed: true,
            }),
            round: None,
        };
        let mut environment = Environment {
            machine: platform::Environment {
                system: "linux".to_owned(),
                architecture: "x86_64".to_owned(),
                kernel: Some("6.1.0".to_owned()),
                cpu: Some("Fast".to_owned()),
                cpus: Some(2),
                governor: None,
                virtual_machine: Some(false),
            },
            program: Program::default(),
        };
        environment.program.build = Some("release".to_owned());
        let mut sample = Sample { cell: Cell::of(scenario, false), facts, environment: Arc::new(environment) };
        (self.0)(&mut sample);
        Ok(sample)
    }
}

/// A sample's machine, to be changed.
fn environment(sample: &mut Sample) -> &mut platform::Environment {
    &mut Arc::make_mut(&mut sample.environment).machine
}

/// What is printed, and the exit code.
fn printed(arguments: &str, change: fn(&mut Sample)) -> String {
    let arguments = format!("rust-tun-perf -n smoltcp {arguments}");
    let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result =
        main_with(cli, &Fixed(change), &Fixed(change), Console { out: &mut out, err: &mut err, terminal: false });
    let code = result.as_ref().err().map_or(0, Error::exit_code);
    let error = result.err().map(|error| format!("error: {error}\n")).unwrap_or_default();
    let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
    format!("exit {code}\n--- stdout\n{out}--- stderr\n{err}{error}")
}

#[test]
fn a_good_run() {
    insta::assert_snapshot!(printed("-m reader", |_| {}));
}

#[test]
fn a_run_with_every_warning() {
    insta::assert_snapshot!(printed("-m writer --parallel 3 --window 8MiB --verify off", |sample| {
        sample.facts.elapsed = Duration::from_millis(20);
        sample.facts.retransmits = Some(55);
        sample.facts.device_drops = Some(3);
        sample.facts.congestion = Some("bbr".to_owned());
        environment(sample).governor = Some("powersave".to_owned());
        environment(sample).virtual_machine = Some(true);
    }));
}

#[test]
fn a_system_that_says_nothing() {
    insta::assert_snapshot!(printed("-m writer --verify full", |sample| {
        sample.facts.cpu = CpuTime::default();
        sample.facts.peak_rss_bytes = None;
        sample.facts.retransmits = None;
        sample.facts.device_drops = None;
        sample.facts.packets = Packets::default();
        sample.facts.congestion = None;
        environment(sample).virtual_machine = None;
    }));
}

#[test]
fn a_failed_run_has_no_figure() {
    insta::assert_snapshot!(printed("-m reader", |sample| {
        sample.facts.status = Status::Stalled;
        sample.facts.detail = Some("nothing arrived for the last 59.0 of 60 seconds, after 12 bytes".to_owned());
        sample.facts.bytes = 12;
    }));
}

#[test]
fn a_sample_in_json() {
    let text = printed("-m reader --current-thread --json", |_| {});
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&object).unwrap());
}

#[test]
fn a_failed_run_is_an_object_too() {
    let text = printed("-m reader --json", |sample| {
        sample.facts.status = Status::DeviceLost;
        sample.facts.detail = Some("the stack or its device: gone".to_owned());
        sample.facts.elapsed = Duration::ZERO;
        sample.facts.bytes = 0;
    });
    assert!(text.starts_with("exit 1\n"), "{text}");
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    assert_eq!(object["status"], "device-lost");
    assert_eq!(object["gbps"], 0.0);
    assert_eq!(object["detail"], "the stack or its device: gone");
}
