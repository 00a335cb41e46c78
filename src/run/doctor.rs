//! Finds out what this machine can run and what it lacks: first facts about it, then short runs of every stack, each in
//! a process of its own.

use std::process::Command;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Parser;
use netstacks::{StackConfig, StackKind};
use platform::doctor::{Check, Verdict};
use platform::{Class, Offload};

use super::process::printed;
use super::{Executor, RunError};
use crate::cli::Cli;
use crate::plan::Plan;
use crate::remedy;
use crate::sample::{Environment, Sample, Warning};
use crate::scenario::{Mode, Scenario, Subject};

/// The runs that the doctor tries are the path checks of this matrix: every stack of this build, as reader and as writer,
/// with and without offload if the system has it, over both IP versions, on the default runtime.
const MATRIX: [&str; 6] = ["rust-tun-perf", "matrix", "--runtime", "multi-thread", "--ipv6", "all"];

/// How long another program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// Facts about this machine and this program. Nothing is tried.
pub fn facts() -> Vec<Check> {
    let mut facts = of_environment(&crate::environment());
    facts.push(stacks());
    facts.extend(platform::doctor::examine(StackConfig::default().window).into_iter().map(remedy::advised));
    facts.push(iperf3());
    facts
}

fn of_environment(environment: &Environment) -> Vec<Check> {
    let (machine, program) = (&environment.machine, &environment.program);
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let build = known(&program.build);
    let finding = format!("version {}, commit {}, {build} build", known(&program.version), known(&program.commit));
    let mut checks = vec![Check::new("program", Verdict::Ok, finding)];
    if build == "debug" {
        checks.push(Check::new("build", Verdict::Note, Warning::DebugBuild.to_string()));
    }
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let cpus = known(&machine.cpus.map(|cpus| cpus.to_string()));
    let memory = known(&platform::doctor::memory_bytes().map(|bytes| ByteSize(bytes).to_string()));
    let kernel = machine.kernel.as_deref().unwrap_or("of unknown release");
    let (system, architecture) = (&machine.system, &machine.architecture);
    let finding = format!("{cpus} processors, {cpu}; memory {memory}; {system} {kernel} on {architecture}");
    checks.push(Check::new("machine", Verdict::Ok, finding));
    if machine.virtual_machine == Some(true) {
        checks.push(Check::new("virtual machine", Verdict::Note, Warning::VirtualMachine.to_string()));
    }
    if let Some(name) = &machine.governor {
        checks.push(match Warning::of_governor(name) {
            Some(warning) => Check::new("governor", Verdict::Note, warning.to_string()),
            None => Check::new("governor", Verdict::Ok, name),
        });
    }
    checks
}

fn stacks() -> Check {
    let version = |kind: StackKind| Some(format!("{kind} {}", kind.version()?));
    let stacks: Vec<_> = StackKind::ALL.into_iter().filter_map(version).collect();
    if stacks.is_empty() {
        return Check::new("stacks", Verdict::Missing, "this build has none")
            .remedy("build with --features smoltcp, or another stack");
    }
    Check::new("stacks", Verdict::Ok, stacks.join(", "))
}

/// If it is missing, that is only a note: no run of a stack needs it.
fn iperf3() -> Check {
    let mut command = Command::new("iperf3");
    command.arg("--version");
    match printed(command, VERSION_TIMEOUT).as_deref().and_then(|text| text.lines().next()) {
        Some(version) => Check::new("iperf3", Verdict::Ok, version),
        None => Check::new(
            "iperf3",
            Verdict::Note,
            "is not in PATH, or does not print its version; only forward --generator iperf3 needs it",
        )
        .remedy("install the package iperf3"),
    }
}

/// Reports the facts one by one, and then the results of short runs. Returns whether at least one stack can both read
/// and write here. If many runs lack the same thing, that is reported once, and those runs are not tried.
///
/// # Errors
///
/// [`RunError::Interrupted`], and the errors of `report`.
pub fn doctor<E: From<RunError>>(
    facts: &[Check],
    executor: &impl Executor,
    mut report: impl FnMut(&Check) -> Result<(), E>,
) -> Result<bool, E> {
    facts.iter().try_for_each(&mut report)?;
    let mut trials = Trials { executor, scenarios: scenarios(), told: Vec::new() };
    let mut possible = facts.iter().all(|fact| fact.verdict != Verdict::Missing);
    if possible && let Some(check) = trials.probe("first run", Way::default(), place)? {
        possible = check.verdict == Verdict::Ok;
        report(&check)?;
    }
    if !possible {
        report(&Check::new("runs", Verdict::Note, "not tried: all of them need what is missing"))?;
        return Ok(false);
    }
    let offload = if platform::offload_supported() {
        let finding = |_: &_, _: &_| "super-packets cross the device, with partial checksums".to_owned();
        trials.probe("offload", Way { offload: true, ..Way::default() }, finding)?
    } else {
        Some(Check::new("offload", Verdict::Note, "TUN devices of this system have none"))
    };
    let finding = |_: &_, _: &_| "the device has an IPv6 address".to_owned();
    let ipv6 = trials.probe("IPv6", Way { ipv6: true, ..Way::default() }, finding)?;
    offload.iter().chain(&ipv6).try_for_each(&mut report)?;
    let mut can_run = false;
    for stack in StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()) {
        let mut both = true;
        for mode in [Mode::Reader, Mode::Writer] {
            let (check, delivers) = trials.row(stack, mode)?;
            report(&check)?;
            both &= delivers;
        }
        can_run |= both;
    }
    Ok(can_run)
}

/// One short run of each cell, in the order of the stacks.
fn scenarios() -> Vec<Scenario> {
    // The arguments are constants. Only a mistake in them leaves nothing to try, and that is reported.
    let plan = Cli::try_parse_from(MATRIX).ok().and_then(|cli| Plan::try_from(cli).ok());
    let Some(Plan::Matrix(plan)) = plan else { return Vec::new() };
    let mut scenarios: Vec<_> = plan.scenarios.iter().map(Scenario::path_check).collect();
    // Failures are reported in this order: the simplest run first.
    scenarios.sort_by_key(Way::of);
    scenarios
}

/// The features of a run that not every system has.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    ipv6: bool,
    offload: bool,
}

impl Way {
    fn of(scenario: &Scenario) -> Self {
        Self { ipv6: scenario.ipv6(), offload: scenario.offload == Offload::On }
    }
}

/// The place of the first run.
fn place(scenario: &Scenario, sample: &Sample) -> String {
    let device = sample.measured.device.as_ref().map_or("a device", |device| &device.name);
    let place = if scenario.isolated { " in a network namespace of its own" } else { "" };
    format!("over {device}{place}, which is gone again")
}

/// The runs that are left to try.
struct Trials<'a, X> {
    executor: &'a X,
    scenarios: Vec<Scenario>,
    /// The reasons of failed runs, each with the stack and mode for which it was reported first.
    told: Vec<(String, String)>,
}

/// Why a run did not deliver.
struct Refusal {
    /// Whether the system lacks something; else the run began and failed.
    is_lack: bool,
    reason: String,
}

impl<X: Executor> Trials<'_, X> {
    /// Tries one run of this way. If the system lacks a feature, the runs that need it are not tried. `None` if the run
    /// began and failed: the line of its stack reports that.
    fn probe(
        &mut self,
        name: &str,
        way: Way,
        finding: impl FnOnce(&Scenario, &Sample) -> String,
    ) -> Result<Option<Check>, RunError> {
        let Some(scenario) = self.scenarios.iter().find(|scenario| Way::of(scenario) == way) else { return Ok(None) };
        Ok(match self.run(scenario)? {
            Ok(sample) => Some(Check::new(name, Verdict::Ok, finding(scenario, &sample))),
            Err(Refusal { is_lack: true, reason }) => {
                let needs = |other: Way| other.ipv6 >= way.ipv6 && other.offload >= way.offload;
                self.scenarios.retain(|scenario| !needs(Way::of(scenario)));
                Some(Check::new(name, Verdict::Missing, reason))
            }
            Err(_) => None,
        })
    }

    /// Tries a stack in a mode, in all remaining runs. Also returns whether any of them delivers over IPv4.
    fn row(&mut self, stack: StackKind, mode: Mode) -> Result<(Check, bool), RunError> {
        let mut delivered = Vec::new();
        let mut failures: Vec<(String, Vec<Way>)> = Vec::new();
        let mut remedy = None;
        let is_of_row =
            |scenario: &&Scenario| scenario.subject == Subject::Path(stack) && scenario.workload.mode() == Some(mode);
        for scenario in self.scenarios.iter().filter(is_of_row) {
            let way = Way::of(scenario);
            match self.run(scenario)? {
                Ok(_) => delivered.push(way),
                Err(Refusal { is_lack, reason }) => {
                    let is_new = !is_lack && self.told.iter().all(|(told, _)| *told != reason);
                    remedy = remedy.or_else(|| is_new.then(|| alone(scenario)));
                    match failures.iter_mut().find(|(told, _)| *told == reason) {
                        Some((_, ways)) => ways.push(way),
                        None => failures.push((reason, vec![way])),
                    }
                }
            }
        }
        let delivers = delivered.iter().any(|way| !way.ipv6);
        let name = format!("{stack} {mode}");
        if failures.is_empty() {
            let finding = format!("every byte arrives {}", text_of(&delivered));
            return Ok((Check::new(name, Verdict::Ok, finding), delivers));
        }
        let finding = |(reason, ways): (String, Vec<Way>)| format!("{}: {}", text_of(&ways), self.once(&name, reason));
        let findings: Vec<_> = failures.into_iter().map(finding).collect();
        let check = Check::new(name, Verdict::Failed, findings.join("; "));
        Ok((Check { remedy, ..check }, delivers))
    }

    /// The reason, or a reference to the line that reported it before.
    fn once(&mut self, name: &str, reason: String) -> String {
        if let Some((_, first)) = self.told.iter().find(|(told, first)| *told == reason && first != name) {
            return format!("as {first}");
        }
        self.told.push((reason.clone(), name.to_owned()));
        reason
    }

    /// Makes a run, and once more if it begins and fails: a machine with other work lets a run fail now and then.
    fn run(&self, scenario: &Scenario) -> Result<Result<Sample, Refusal>, RunError> {
        match self.attempt(scenario)? {
            Err(Refusal { is_lack: false, .. }) => self.attempt(scenario),
            result => Ok(result),
        }
    }

    fn attempt(&self, scenario: &Scenario) -> Result<Result<Sample, Refusal>, RunError> {
        Ok(match self.executor.execute(scenario) {
            Err(RunError::Interrupted) => return Err(RunError::Interrupted),
            Err(error) => Err(Refusal { is_lack: error.class() != Class::Failed, reason: error.to_string() }),
            Ok(sample) if sample.is_ok() => Ok(sample),
            Ok(Sample { measured, .. }) => {
                let reason = format!("{}: {}", measured.status, measured.detail.unwrap_or_default());
                Err(Refusal { is_lack: false, reason })
            }
        })
    }
}

/// The remedy for a run that began and failed twice.
fn alone(scenario: &Scenario) -> String {
    let words = scenario.arguments().join(" ");
    format!("see what it says alone: rust-tun-perf {words}; if it fails on an idle machine too, report that")
}

/// The offload settings and IP versions of some runs.
fn text_of(ways: &[Way]) -> String {
    let of = |(version, ipv6): (&'static str, bool)| {
        let how = match [false, true].map(|offload| ways.contains(&Way { ipv6, offload })) {
            [true, true] => "with and without offload",
            [true, false] => "without offload",
            [false, true] => "with offload",
            [false, false] => return None,
        };
        Some((version, how))
    };
    let versions: Vec<_> = [("IPv4", false), ("IPv6", true)].into_iter().filter_map(of).collect();
    match versions[..] {
        [(first, how), (second, same)] if how == same => format!("over {first} and {second}, {how}"),
        _ => versions.iter().map(|(version, how)| format!("over {version} {how}")).collect::<Vec<_>>().join(" and "),
    }
}
