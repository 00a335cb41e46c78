//! From the command line to the output, with fixed samples and without a device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Parser;
use netstacks::Effective;
use platform::{Class, Switches};
use portable_atomic::AtomicU64;
use rust_tun_perf::cell::{Cell, Forwarder, Mode, Offload};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Plan;
use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::run::{Executor, RunError};
use rust_tun_perf::sample::{
    CpuTime, DeviceFacts, Environment, Interval, Measurements, Packets, Program, Sample, Status, SwitchFacts,
};
use rust_tun_perf::{Console, Error, main_with};

use crate::fixture;

/// Returns the same measurements for every scenario.
struct Fixed(fn(&mut Sample));

impl Executor for Fixed {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        let measured = Measurements {
            detail: None,
            congestion: Some("cubic".to_owned()),
            warmup_bytes: scenario.warmup_bytes,
            bytes: 1_000_000_000,
            elapsed: Duration::from_nanos(1_600_000_001),
            verified: scenario.verify,
            cpu: CpuTime { client_seconds: Some(0.171), subject_seconds: Some(1.176) },
            switches: SwitchFacts {
                client: Some(Switches { waits: 19_752, preemptions: 10 }),
                subject: Some(Switches { waits: 37_530, preemptions: 125 }),
            },
            stolen_share: Some(0.0),
            stopped_seconds: Some(0.0),
            peak_rss_bytes: Some(21_434_368),
            retransmits: Some(0),
            device_drops: Some(0),
            packets: Packets { rx: 700, rx_bytes: 36_400, tx: 684_932, tx_bytes: 1_027_397_280 },
            started_unix_ms: Some(1_700_000_000_000),
            device: Some(DeviceFacts {
                name: "utun8".to_owned(),
                mtu: 1500,
                offload: false,
                tx_queue_len: Some(4308),
                qdisc: None,
            }),
            effective: Some(Effective { checksum_computed: true, ..fixture::effective("1.2.3".to_owned(), 1500) }),
            ..Measurements::failed(Status::Ok, "")
        };
        let mut environment = Environment { machine: fixture::machine(), program: Program::default() };
        environment.program.build = Some("release".to_owned());
        let mut sample = Sample { cell: scenario.planned(), measured, environment: Arc::new(environment) };
        if sample.cell.forwarder().is_some() {
            load(&mut sample.measured);
        }
        (self.0)(&mut sample);
        Ok(sample)
    }
}

/// Sets the load of a forwarder: 1.2 seconds of CPU time and 9 MB.
fn load(measured: &mut Measurements) {
    measured.cpu = CpuTime { client_seconds: Some(0.5), subject_seconds: Some(1.2) };
    measured.reordered = Some(0);
    measured.effective = None;
    measured.intervals = vec![Interval {
        end: measured.elapsed,
        bytes: measured.bytes,
        cpu_seconds: Some(1.2),
        rss_bytes: Some(9_000_000),
    }];
}

/// Returns the machine of a sample, to change it.
fn environment(sample: &mut Sample) -> &mut platform::Environment {
    &mut Arc::make_mut(&mut sample.environment).machine
}

/// Returns the output of a run, and its exit code.
fn printed(arguments: &str, change: fn(&mut Sample)) -> String {
    main(&format!("-n smoltcp {arguments}"), &Fixed(change), |_, _| Ok(None)).to_string()
}

/// The result of the program.
struct Printed {
    code: u8,
    out: String,
    err: String,
}

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.out, self.err)
    }
}

/// Runs the program with fixed rates instead of other processes.
fn main(arguments: &str, within: &Fixed, fate: Fate) -> Printed {
    let cli = Cli::try_parse_from(["rust-tun-perf"].into_iter().chain(arguments.split_whitespace())).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let console = Console { out: &mut out, err: &mut err, terminal: false, columns: None };
    let plan = Plan::try_from(cli).map_err(Error::from);
    let result = plan.and_then(|plan| main_with(plan, within, |_| Rates(AtomicU64::new(0), fate), console));
    let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
    let code = result.as_ref().err().map_or(0, Error::exit_code);
    let error = result.err().map(|error| format!("error: {error}\n")).unwrap_or_default();
    Printed { code, out, err: err + &error }
}

#[test]
fn a_good_run() {
    insta::assert_snapshot!(printed("-m reader", |_| {}));
}

#[test]
fn another_unit_of_the_device_is_said_unless_the_user_chose_it() {
    let run =
        |arguments| printed(arguments, |sample| sample.measured.device.as_mut().unwrap().name = "utun9".to_owned());
    let note = "note: utun8 is taken, so the device is utun9\n";
    assert!(run("-m reader").contains(note));
    assert!(!run("-m reader --tun-name utun8").contains(note) && !run("-m reader --tun-fd 7").contains(note));
}

#[test]
fn a_run_with_every_warning() {
    insta::assert_snapshot!(printed("-m writer --parallel 3 --window 8MiB --verify off", |sample| {
        sample.measured.elapsed = Duration::from_millis(20);
        sample.measured.retransmits = Some(55);
        sample.measured.device_drops = Some(3);
        sample.measured.congestion = Some("bbr".to_owned());
        environment(sample).governor = Some("powersave".to_owned());
        environment(sample).virtual_machine = Some(true);
    }));
}

#[test]
fn a_system_that_measures_little() {
    insta::assert_snapshot!(printed("-m writer --verify full", |sample| {
        sample.measured.cpu = CpuTime::default();
        sample.measured.switches = SwitchFacts::default();
        sample.measured.peak_rss_bytes = None;
        sample.measured.retransmits = None;
        sample.measured.device_drops = None;
        sample.measured.packets = Packets::default();
        sample.measured.congestion = None;
        environment(sample).virtual_machine = None;
    }));
}

#[test]
fn a_failed_run_has_no_figure() {
    insta::assert_snapshot!(printed("-m reader", |sample| {
        sample.measured.status = Status::Stalled;
        sample.measured.detail = Some("nothing arrived for the last 59.0 of 60 seconds, after 12 bytes".to_owned());
        sample.measured.bytes = 12;
    }));
}

#[test]
fn a_sample_in_json() {
    let text = printed("-m reader --current-thread --json", |_| {});
    let object = text.lines().find(|line| line.starts_with('{')).unwrap();
    let object: serde_json::Value = serde_json::from_str(object).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&object).unwrap());
}

/// Returns the rate of a cell. Each cell has its own rate, with a little noise. Forwarders get faster from row to row.
fn rate(of: &Cell, call: u64) -> f64 {
    if let Some(row) = of.forwarder().and_then(Forwarder::row) {
        return row as f64 + (call % 3) as f64 / 10.0;
    }
    let stack = of.stack().map_or(5, |stack| stack as u64 + 1);
    let base = if of.offload == Offload::On { 40.0 } else { 4.0 };
    base / stack as f64 * if of.mode == Some(Mode::Reader) { 0.8 } else { 1.0 } + (call * 7 % 5) as f64 / 10.0
}

/// Makes each sample with the rate of its cell. The first call is a check, the second a run, and so on.
struct Rates(AtomicU64, Fate);

/// Returns how a run fails, if it does, by its scenario and the number of the call.
type Fate = fn(&Scenario, u64) -> Result<Option<Status>, RunError>;

impl Executor for Rates {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        if scenario.cell.forwarder().and_then(Forwarder::row) == Some(15) {
            let text = "start go: no such file; install it".to_owned();
            return Err(RunError::Process { class: Class::Unavailable, text });
        }
        let call = self.0.fetch_add(1, Ordering::Relaxed);
        let failure = (self.1)(scenario, call)?;
        let mut sample = Fixed(|_| {}).execute(scenario)?;
        sample.cell = scenario.planned();
        let measured = &mut sample.measured;
        measured.elapsed = Duration::from_secs(1);
        measured.bytes = (rate(&sample.cell, call) * 1e9 / 8.0) as u64;
        for interval in &mut measured.intervals {
            (interval.end, interval.bytes) = (measured.elapsed, measured.bytes);
        }
        if let Some(status) = failure {
            *measured = Measurements::failed(status, "the device went away");
        }
        Ok(sample)
    }
}

/// Returns the output of a matrix, and its exit code.
fn matrix(arguments: &str, fate: Fate) -> String {
    table(&format!("matrix {arguments}"), fate)
}

fn table(arguments: &str, fate: Fate) -> String {
    let Printed { code, out, err } = main(&format!("{arguments} --seed 3"), &Fixed(|_| {}), fate);
    let [out, err] = [out, err].map(|text| of_any_machine(&text));
    Printed { code, out, err }.to_string()
}

/// Returns the text without lines about this machine and this build.
fn of_any_machine(text: &str) -> String {
    let warnings = ["this is a debug build", "this is a virtual machine", "the frequency governor is"];
    let of_machine = |line: &str| {
        let said = line.strip_prefix("warning: ").or(line.strip_prefix("- ")).or(line.strip_prefix("  "));
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
fn a_matrix_with_its_layers() {
    insta::assert_snapshot!(matrix("--runtime current-thread --offload on,off --baseline --runs 3", |_, _| Ok(None)));
}

#[test]
fn a_matrix_goes_on_after_a_failure() {
    let two = "--netstack smoltcp --runtime current-thread --offload off --runs 3";
    insta::assert_snapshot!(matrix(two, |scenario, call| {
        let reader = scenario.cell.mode == Some(Mode::Reader);
        Ok((reader && call % 2 == 1).then_some(Status::DeviceLost))
    }));
}

#[test]
fn an_unavailable_cell_is_a_row_and_the_others_go_on() {
    let two = "--netstack smoltcp --mode reader --runtime current-thread --offload on,off --runs 2";
    insta::assert_snapshot!(matrix(two, |scenario, _| match scenario.cell.offload {
        Offload::On => Err(unavailable()),
        _ => Ok(None),
    }));
}

#[test]
fn a_matrix_without_available_cells_ends_after_its_first_round() {
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nothing.jsonl");
    let _absent = std::fs::remove_file(&out);
    let arguments = format!("--netstack smoltcp --runtime current-thread --offload off --out {}", out.display());
    insta::assert_snapshot!(matrix(&arguments, |_, _| Err(unavailable())));
    let file = std::fs::read_to_string(&out).unwrap();
    assert_eq!(file.lines().count(), 1, "only the head: a missing device may be there the next time\n{file}");
}

#[test]
fn impossible_combinations_are_left_out_by_name() {
    let text =
        matrix("--netstack smoltcp --mode reader --mtu 600,1500 --ipv6 all --offload off --runs 1", |_, _| Ok(None));
    assert_eq!(text.lines().filter(|line| line.starts_with("left out: ")).count(), 2, "{text}");
    assert!(text.contains("--mtu=600 --ipv6=on --time=1: --mtu: 600 bytes; IPv6 needs at least 1280"), "{text}");
    let nothing = matrix("--netstack smoltcp --mtu 600 --ipv6 on", |_, _| Ok(None));
    assert!(nothing.starts_with("exit 2") && nothing.contains("--mtu: 600 bytes"), "{nothing}");
}

#[test]
fn rows_of_forwarders_are_a_table_in_which_one_may_be_missing() {
    insta::assert_snapshot!(table("forward --row 18,15,12,10 --runs 2", |_, _| Ok(None)));
}
