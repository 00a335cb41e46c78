//! Finds out what this machine can run and what it lacks: first facts about it, then short runs of every stack, each in
//! a process of its own.

use std::process::Command;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Parser;
use netstacks::{StackConfig, StackKind};
use platform::doctor::{Check, Verdict};
use platform::{Class, Offload, ProcessEnd};

use super::process::output;
use super::{Executor, RunError};
use crate::cli::{self, Cli};
use crate::plan::MatrixPlan;
use crate::remedy;
use crate::sample::{Environment, Sample, Status, Warning};
use crate::scenario::{Mode, Scenario, Subject};

/// The runs that the doctor tries: every stack of this build, as reader and as writer, with and without offload if the
/// system has it, over both IP versions, on the default runtime.
const MATRIX: [&str; 6] = ["rust-tun-perf", "matrix", "--runtime", "multi-thread", "--ipv6", "all"];

/// How long another program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// Facts about this machine and this program. Nothing is tried.
pub fn facts() -> Vec<Check> {
    let mut facts = of_environment(&Environment::detect());
    facts.push(stacks());
    facts.extend(platform::doctor::examine(StackConfig::default().window).into_iter().map(remedy::advised));
    facts.push(iperf3());
    facts
}

fn of_environment(environment: &Environment) -> Vec<Check> {
    let (machine, program) = (&environment.machine, &environment.program);
    let unknown = || "unknown".to_owned();
    let build = program.build.clone().unwrap_or_else(unknown);
    let mut checks = vec![Check::new(
        "program",
        Verdict::Ok,
        format!(
            "version {}, commit {}, {build} build",
            program.version.clone().unwrap_or_else(unknown),
            program.commit.clone().unwrap_or_else(unknown)
        ),
    )];
    if build == "debug" {
        checks.push(Check::new("build", Verdict::Note, Warning::DebugBuild.to_string()));
    }
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let cpus = machine.cpus.map_or_else(unknown, |cpus| cpus.to_string());
    let memory = platform::doctor::memory_bytes().map_or_else(unknown, |bytes| ByteSize(bytes).to_string());
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
    match version_of(Command::new("iperf3"), VERSION_TIMEOUT).as_deref().and_then(|text| text.lines().next()) {
        Some(version) => Check::new("iperf3", Verdict::Ok, version),
        None => Check::new(
            "iperf3",
            Verdict::Note,
            "is not in PATH, or does not print its version; only forward --generator iperf3 needs it",
        )
        .remedy("install the package iperf3"),
    }
}

/// The output of a program for `--version`; `None` if it fails or does not end in time.
fn version_of(mut command: Command, patience: Duration) -> Option<String> {
    command.arg("--version");
    let end = output(command, patience).ok().filter(|end| end.by == ProcessEnd::Exited(0))?;
    String::from_utf8(end.stdout.clone()).ok()
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
    if possible && let Some(check) = trials.first()? {
        possible = check.verdict == Verdict::Ok;
        report(&check)?;
    }
    if !possible {
        report(&Check::new("runs", Verdict::Note, "not tried: all of them need what is missing"))?;
        return Ok(false);
    }
    for check in [trials.offload()?, trials.ipv6()?].into_iter().flatten() {
        report(&check)?;
    }
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
    let Ok(Cli { command: Some(cli::Command::Matrix(matrix)), .. }) = Cli::try_parse_from(MATRIX) else {
        return Vec::new();
    };
    let Ok(plan) = MatrixPlan::try_from(*matrix) else { return Vec::new() };
    let mut scenarios: Vec<_> = plan.scenarios.iter().map(Scenario::path_check).collect();
    // Failures are reported in this order: the simplest run first.
    scenarios.sort_by_key(|scenario| (scenario.ipv6(), is_offloaded(scenario)));
    scenarios
}

/// The runs that are left to try.
struct Trials<'a, X> {
    executor: &'a X,
    scenarios: Vec<Scenario>,
    /// The reasons of failed runs, each with the stack and mode for which it was reported first.
    told: Vec<(String, String)>,
}

/// Why a run did not deliver.
enum Refusal {
    /// The system lacks something.
    Unavailable(String),
    /// It began, and failed.
    Failed(String),
}

impl<X: Executor> Trials<'_, X> {
    /// Checks whether any run can begin. `None` if a run began and failed: the line of its stack reports that.
    fn first(&self) -> Result<Option<Check>, RunError> {
        let name = "first run";
        let plain = |scenario: &&Scenario| !is_offloaded(scenario) && !scenario.ipv6();
        let Some(scenario) = self.scenarios.iter().find(plain) else {
            return Ok(Some(Check::new(name, Verdict::Missing, "there is no scenario to try")));
        };
        Ok(match self.run(scenario)? {
            Ok(sample) => {
                let device = sample.measured.device.map_or_else(|| "a device".to_owned(), |device| device.name);
                let place = if scenario.isolated { " in a network namespace of its own" } else { "" };
                Some(Check::new(name, Verdict::Ok, format!("over {device}{place}, which is gone again")))
            }
            Err(Refusal::Unavailable(reason)) => Some(Check::new(name, Verdict::Missing, reason)),
            Err(Refusal::Failed(_)) => None,
        })
    }

    fn offload(&mut self) -> Result<Option<Check>, RunError> {
        if !platform::offload_supported() {
            return Ok(Some(Check::new("offload", Verdict::Note, "TUN devices of this system have none")));
        }
        let one = |scenario: &Scenario| is_offloaded(scenario) && !scenario.ipv6();
        self.axis("offload", "super-packets cross the device, with partial checksums", one, is_offloaded)
    }

    fn ipv6(&mut self) -> Result<Option<Check>, RunError> {
        let one = |scenario: &Scenario| scenario.ipv6() && !is_offloaded(scenario);
        self.axis("IPv6", "the device has an IPv6 address", one, Scenario::ipv6)
    }

    /// Tries one run with a feature that not every system has. If the feature is missing, the runs that need it are not
    /// tried.
    fn axis(
        &mut self,
        name: &str,
        finding: &str,
        one: impl Fn(&Scenario) -> bool,
        all: impl Fn(&Scenario) -> bool,
    ) -> Result<Option<Check>, RunError> {
        let Some(scenario) = self.scenarios.iter().find(|scenario| one(scenario)) else { return Ok(None) };
        Ok(match self.run(scenario)? {
            Ok(_) => Some(Check::new(name, Verdict::Ok, finding)),
            Err(Refusal::Unavailable(reason)) => {
                self.scenarios.retain(|scenario| !all(scenario));
                Some(Check::new(name, Verdict::Missing, reason))
            }
            Err(Refusal::Failed(_)) => None,
        })
    }

    /// Tries a stack in a mode, in all remaining runs. Also returns whether any of them delivers over IPv4.
    fn row(&mut self, stack: StackKind, mode: Mode) -> Result<(Check, bool), RunError> {
        let mut delivered = Vec::new();
        let mut failures: Vec<(String, Vec<&Scenario>)> = Vec::new();
        let is_of_row =
            |scenario: &&Scenario| scenario.subject == Subject::Path(stack) && scenario.workload.mode() == Some(mode);
        for scenario in self.scenarios.iter().filter(is_of_row) {
            match self.run(scenario)? {
                Ok(_) => delivered.push(scenario),
                Err(Refusal::Unavailable(reason) | Refusal::Failed(reason)) => {
                    match failures.iter_mut().find(|(told, _)| *told == reason) {
                        Some((_, scenarios)) => scenarios.push(scenario),
                        None => failures.push((reason, vec![scenario])),
                    }
                }
            }
        }
        let delivers = delivered.iter().any(|scenario| !scenario.ipv6());
        let failures: Vec<_> = failures.into_iter().map(|(reason, of)| (ways(&of), reason)).collect();
        let name = format!("{stack} {mode}");
        if failures.is_empty() {
            return Ok((Check::new(name, Verdict::Ok, format!("every byte arrives {}", ways(&delivered))), delivers));
        }
        let findings = failures.into_iter().map(|(ways, reason)| format!("{ways}: {}", self.once(&name, reason)));
        let findings: Vec<_> = findings.collect();
        Ok((Check::new(name, Verdict::Failed, findings.join("; ")), delivers))
    }

    /// The reason, or a reference to the line that reported it before.
    fn once(&mut self, name: &str, reason: String) -> String {
        if let Some((_, first)) = self.told.iter().find(|(told, first)| *told == reason && first != name) {
            return format!("as {first}");
        }
        self.told.push((reason.clone(), name.to_owned()));
        reason
    }

    /// Makes a run.
    fn run(&self, scenario: &Scenario) -> Result<Result<Sample, Refusal>, RunError> {
        match self.executor.execute(scenario) {
            Err(RunError::Interrupted) => Err(RunError::Interrupted),
            Err(error) if error.class() == Class::Failed => Ok(Err(Refusal::Failed(error.to_string()))),
            Err(error) => Ok(Err(Refusal::Unavailable(error.to_string()))),
            Ok(sample) if sample.measured.status == Status::Ok => Ok(Ok(sample)),
            Ok(Sample { measured, .. }) => {
                Ok(Err(Refusal::Failed(format!("{}: {}", measured.status, measured.detail.unwrap_or_default()))))
            }
        }
    }
}

fn is_offloaded(scenario: &Scenario) -> bool {
    scenario.offload == Offload::On
}

/// The offload settings and IP versions of some runs.
fn ways(scenarios: &[&Scenario]) -> String {
    let has = |ipv6: bool, offload: bool| {
        scenarios.iter().any(|scenario| scenario.ipv6() == ipv6 && is_offloaded(scenario) == offload)
    };
    let versions = [("IPv4", has(false, false), has(false, true)), ("IPv6", has(true, false), has(true, true))];
    let of = |(plain, offloaded)| match (plain, offloaded) {
        (true, true) => Some("with and without offload"),
        (true, false) => Some("without offload"),
        (false, true) => Some("with offload"),
        (false, false) => None,
    };
    let ways: Vec<_> = versions
        .into_iter()
        .filter_map(|(version, plain, offloaded)| Some((version, of((plain, offloaded))?)))
        .collect();
    match ways[..] {
        [(first, how), (second, same)] if how == same => format!("over {first} and {second}, {how}"),
        _ => ways.iter().map(|(version, how)| format!("over {version} {how}")).collect::<Vec<_>>().join(" and "),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_mins(1);

    #[test]
    fn the_version_of_a_program_is_its_output_or_none() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(version_of(shell("echo 1.2; echo 3"), DEADLINE), Some("1.2\n3\n".to_owned()));
        assert_eq!(version_of(shell("echo 1.2; exit 1"), DEADLINE), None);
        assert_eq!(version_of(Command::new("/nowhere/iperf3"), DEADLINE), None);
        // It prints without end, and is killed.
        assert_eq!(version_of(shell("exec yes"), DEADLINE), None);
        // It never ends.
        assert_eq!(version_of(shell("echo 1.2; exec sleep 1000"), Duration::from_millis(50)), None);
    }
}
