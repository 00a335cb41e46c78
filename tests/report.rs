//! From the command line to what is printed, on fixed samples: no device is touched.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(feature = "smoltcp")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use netstacks::{Effective, StackKind};
use platform::Class;
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::{ForwardScenario, Mode, Scenario};
use rust_tun_perf::run::{Executor, RunError};
use rust_tun_perf::sample::{
    Cell, CpuTime, DeviceFacts, Environment, Facts, Interval, Packets, Program, Sample, StackCell, Status,
};
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
            bytes_back: None,
            elapsed: Duration::from_nanos(1_600_000_001),
            verified: scenario.verify,
            cpu: CpuTime { client_seconds: Some(0.171), stack_seconds: Some(1.176), ..CpuTime::default() },
            peak_rss_bytes: Some(21_434_368),
            retransmits: Some(0),
            reordered: None,
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
        let mut sample =
            Sample { cell: StackCell::of(scenario, false).into(), facts, environment: Arc::new(environment) };
        (self.0)(&mut sample);
        Ok(sample)
    }
}

/// The same of a forwarder that took two seconds of a processor and 9 MB.
impl Executor<ForwardScenario> for Fixed {
    fn execute(&self, scenario: &ForwardScenario) -> Result<Sample, RunError> {
        let mut sample = Fixed(|_| {}).execute(&Scenario::new(StackKind::Smoltcp, Mode::Writer).unwrap())?;
        sample.cell = Cell::planned(scenario);
        let facts = &mut sample.facts;
        facts.cpu = CpuTime { client_seconds: Some(0.5), stack_seconds: None, forwarder_seconds: Some(1.2) };
        facts.reordered = Some(0);
        facts.effective = None;
        facts.intervals = vec![Interval {
            end: facts.elapsed,
            bytes: facts.bytes,
            cpu_seconds: Some(1.2),
            rss_bytes: Some(9_000_000),
        }];
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
    let result = main_with(
        cli,
        &Fixed(change),
        &Fixed(change),
        Console { out: &mut out, err: &mut err, terminal: false, columns: None },
    );
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

/// The rate of a cell in a round: each has its own, and they scatter a little.
fn rate(sample: &Sample, call: u64) -> f64 {
    let of = sample.cell.stack().unwrap();
    let stack = of.netstack.map_or(5, |stack| stack as u64 + 1);
    let base = if of.offload == Some(true) { 40.0 } else { 4.0 };
    base / stack as f64 * if of.mode == Some(Mode::Reader) { 0.8 } else { 1.0 } + (call * 7 % 5) as f64 / 10.0
}

/// Makes each sample that of its cell's rate; calls the first a check and the second a run, and so on.
struct Rates(AtomicU64, fn(&Scenario, u64) -> Result<Option<Status>, RunError>);

impl Executor for Rates {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let call = self.0.fetch_add(1, Ordering::Relaxed);
        let failure = (self.1)(scenario, call)?;
        let mut sample = Fixed(|_| {}).execute(scenario)?;
        sample.cell = Cell::planned(scenario);
        sample.facts.elapsed = Duration::from_secs(1);
        sample.facts.bytes = (rate(&sample, call) * 1e9 / 8.0) as u64;
        if let Some(status) = failure {
            sample.facts = Facts::failed(status, "the device went away");
        }
        Ok(sample)
    }
}

/// Forwarders are as fast as their rows are far down in the table.
impl Executor<ForwardScenario> for Rates {
    fn execute(&self, scenario: &ForwardScenario) -> Result<Sample, RunError> {
        let row = scenario.forwarder.row().unwrap();
        if row == 15 {
            let text = "start go: no such file; install it".to_owned();
            return Err(RunError::Process { class: Class::Unavailable, text });
        }
        let call = self.0.fetch_add(1, Ordering::Relaxed);
        let mut sample = Fixed(|_| {}).execute(scenario)?;
        sample.facts.elapsed = Duration::from_secs(1);
        sample.facts.bytes = ((row as f64 + (call % 3) as f64 / 10.0) * 1e9 / 8.0) as u64;
        sample.facts.intervals[0].end = sample.facts.elapsed;
        sample.facts.intervals[0].bytes = sample.facts.bytes;
        Ok(sample)
    }
}

/// What a matrix prints, and the exit code.
fn matrix(arguments: &str, fate: fn(&Scenario, u64) -> Result<Option<Status>, RunError>) -> String {
    table(&format!("matrix {arguments}"), fate)
}

fn table(arguments: &str, fate: fn(&Scenario, u64) -> Result<Option<Status>, RunError>) -> String {
    let arguments = format!("rust-tun-perf {arguments} --seed 3");
    let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let rates = Rates(AtomicU64::new(0), fate);
    let result = main_with(
        cli,
        &Fixed(|_| {}),
        &rates,
        Console { out: &mut out, err: &mut err, terminal: false, columns: None },
    );
    let code = result.as_ref().err().map_or(0, Error::exit_code);
    let error = result.err().map(|error| format!("error: {error}\n")).unwrap_or_default();
    let [out, err] = [out, err].map(|bytes| of_any_machine(&String::from_utf8(bytes).unwrap()));
    format!("exit {code}\n--- stdout\n{out}--- stderr\n{err}{error}")
}

/// Without what is so on this machine, and by this build.
fn of_any_machine(text: &str) -> String {
    let warnings = ["this is a debug build", "this is a virtual machine", "the frequency governor is"];
    let of_machine = |line: &str| {
        let said = line.strip_prefix("warning: ").or_else(|| line.strip_prefix("- "));
        line.starts_with("In every run:")
            || said.is_some_and(|said| warnings.iter().any(|begin| said.starts_with(begin)))
    };
    text.split_inclusive('\n').filter(|line| !of_machine(line)).collect()
}

fn unavailable() -> RunError {
    let text = "open /dev/net/tun: permission denied; run as root".to_owned();
    RunError::Process { class: Class::Unavailable, text }
}

#[test]
#[cfg(all(feature = "lwip", feature = "ipstack"))]
fn a_matrix_and_its_ladder() {
    insta::assert_snapshot!(matrix("--runtime current-thread --offload on,off --baseline --runs 3", |_, _| Ok(None)));
}

#[test]
fn a_matrix_goes_on_after_a_failure() {
    let two = "--netstack smoltcp --runtime current-thread --offload off --runs 3";
    insta::assert_snapshot!(matrix(two, |scenario, call| {
        let reader = scenario.subject.mode() == Some(Mode::Reader);
        Ok((reader && call % 2 == 1).then_some(Status::DeviceLost))
    }));
}

#[test]
fn a_cell_that_cannot_be_had_is_a_row_and_the_others_go_on() {
    let two = "--netstack smoltcp --mode reader --runtime current-thread --offload on,off --runs 2";
    insta::assert_snapshot!(matrix(two, |scenario, _| match scenario.offload {
        platform::Offload::On => Err(unavailable()),
        _ => Ok(None),
    }));
}

#[test]
fn a_matrix_of_which_nothing_can_be_run_ends_after_its_first_round() {
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nothing.jsonl");
    let _absent = std::fs::remove_file(&out);
    let arguments = format!("--netstack smoltcp --runtime current-thread --offload off --out {}", out.display());
    insta::assert_snapshot!(matrix(&arguments, |_, _| Err(unavailable())));
    let file = std::fs::read_to_string(&out).unwrap();
    assert_eq!(file.lines().count(), 1, "the head alone: what is missing may be there the next time\n{file}");
}

#[test]
fn combinations_that_cannot_be_are_left_out_by_name() {
    let text =
        matrix("--netstack smoltcp --mode reader --mtu 600,1500 --ipv6 all --offload off --runs 1", |_, _| Ok(None));
    assert_eq!(text.lines().filter(|line| line.starts_with("left out: ")).count(), 2, "{text}");
    assert!(text.contains("MTU 600, IPv6: --mtu: 600 bytes; IPv6 wants at least 1280"), "{text}");
    let nothing = matrix("--netstack smoltcp --mtu 600 --ipv6 on", |_, _| Ok(None));
    assert!(nothing.starts_with("exit 2") && nothing.contains("--mtu: 600 bytes"), "{nothing}");
}

#[test]
fn rows_of_forwarders_are_a_table_in_which_one_may_be_missing() {
    insta::assert_snapshot!(table("forward --row 18,15,12,10 --runs 2", |_, _| Ok(None)));
}

#[test]
fn one_forwarder_is_a_line() {
    let cli = Cli::try_parse_from("rust-tun-perf forward --workers 2 --bidir".split(' ')).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console { out: &mut out, err: &mut err, terminal: false, columns: None };
    main_with(cli, &Fixed(|sample| sample.facts.bytes_back = Some(400_000_000)), &Fixed(|_| {}), console).unwrap();
    let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
    insta::assert_snapshot!(format!("--- stdout\n{out}--- stderr\n{err}"));
}
