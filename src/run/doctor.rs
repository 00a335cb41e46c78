//! Finds out what this machine lacks: first what the system says, and then a short run of each stack, in a process of its own.

use netstacks::{StackConfig, StackKind};
use platform::Class;
use platform::doctor::{Check, Verdict};

use super::{Executor, RunError};
use crate::cell::Mode;
use crate::plan::scenario::Scenario;
use crate::remedy;
use crate::sample::{Sample, Status};

/// What the system lacks for runs, or for good figures. Nothing is tried.
pub fn lacks() -> Vec<Check> {
    let checks = platform::doctor::examine(StackConfig::default().window).into_iter();
    let has_stack = StackKind::ALL.into_iter().any(StackKind::compiled_in);
    let none = || Check::new("stacks", Verdict::Missing, "this build has none").remedy("build with --features smoltcp");
    let checks = checks.filter(|check| check.verdict != Verdict::Ok).map(remedy::advised);
    checks.chain((!has_stack).then(none)).collect()
}

/// Reports what the system `lacks`, and then a short run of each stack, both ways. Returns whether a stack can run.
pub fn doctor<E: From<RunError>>(
    lacks: &[Check],
    executor: &impl Executor,
    mut report: impl FnMut(&Check) -> Result<(), E>,
) -> Result<bool, E> {
    lacks.iter().try_for_each(&mut report)?;
    if lacks.iter().any(|check| check.verdict == Verdict::Missing) {
        return Ok(false);
    }
    let mut can_run = false;
    for stack in StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()) {
        // The arguments are constants, of which a plan can be made.
        let Ok(scenario) = Scenario::new(stack, Mode::Both).map(|scenario| scenario.path_check()) else { continue };
        // Once more if it begins and fails: a machine with other work lets a run fail now and then.
        let check = match attempt(executor, &scenario)? {
            check if check.verdict == Verdict::Failed => attempt(executor, &scenario)?,
            check => check,
        };
        report(&check)?;
        if check.verdict == Verdict::Missing {
            break;
        }
        can_run |= check.verdict == Verdict::Ok;
    }
    Ok(can_run)
}

/// Makes a run. [`Verdict::Missing`] means that the system lacks something.
fn attempt(executor: &impl Executor, scenario: &Scenario) -> Result<Check, RunError> {
    let name = scenario.cell.subject().stack().map_or("", StackKind::name);
    let failed = |reason| {
        let remedy = format!("see what it says alone: rust-tun-perf {}", scenario.words.join(" "));
        Check::new(name, Verdict::Failed, reason).remedy(remedy)
    };
    Ok(match executor.execute(scenario) {
        Err(RunError::Interrupted) => return Err(RunError::Interrupted),
        Err(error) if error.class() == Class::Failed => failed(error.to_string()),
        Err(error) => Check::new(name, Verdict::Missing, error.to_string()),
        Ok(Sample { cell, measured, .. }) if measured.status == Status::Ok => {
            let device = measured.device.map_or_else(String::new, |device| format!(" over {}", device.name));
            let offload = if cell.offloads() { "with" } else { "without" };
            Check::new(name, Verdict::Ok, format!("every byte arrives both ways{device}, {offload} offload"))
        }
        Ok(Sample { measured, .. }) => failed(format!("{}: {}", measured.status, measured.detail.unwrap_or_default())),
    })
}
