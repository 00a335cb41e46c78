//! Runs conformance cases.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc;
use std::thread;

use conformance::{Case, Layer, Outcome, Ran, Recording, Run};
use netstacks::{StackCongestion, StackKind, Workarounds};
use platform::{Feature, Program};

use super::RunError;
use crate::plan::ConformPlan;
use crate::remedy::WithRemedy;
use crate::sample::Score;
use crate::subject::external;

/// Runs the cases of a plan that have no `earlier` result, and reports each new result as it comes. Returns all results,
/// by stack. Over memory, all stacks run at the same time.
pub fn conform<E: From<RunError>>(
    plan: &ConformPlan,
    earlier: Vec<Score>,
    mut report: impl FnMut(&Score, &Ran, &Recording) -> Result<(), E>,
) -> Result<Vec<Score>, E> {
    // Before this thread leaves the host's network: go may fetch modules.
    let programs = plan.stacks.iter().filter(|stack| stack.is_process()).map(|stack| {
        let command = plan.typed.command.as_deref().filter(|_| *stack == StackKind::External);
        Ok((*stack, external::program(command)?))
    });
    let programs: BTreeMap<_, _> = programs.collect::<Result<_, RunError>>()?;
    let is_alone = |stack: &StackKind| plan.layer_of(*stack) == Layer::Path;
    if plan.stacks.iter().any(is_alone) {
        enter_network()?;
    }
    let key = |score: &Score| (score.netstack, score.workarounds, score.stack_congestion);
    let done: HashSet<_> = earlier.iter().map(|score| (key(score), score.case.clone())).collect();
    let mut scores = earlier;
    // All cases use the same device names, so stacks behind a device run one after another.
    for stacks in plan.stacks.chunk_by(|one, next| !is_alone(one) && !is_alone(next)) {
        thread::scope(|scope| {
            let (send, results) = mpsc::channel();
            for stack in stacks {
                let send = send.clone();
                let (program, done) = (programs.get(stack), &done);
                scope.spawn(move || {
                    for (workarounds, congestion) in plan.choices_of(*stack) {
                        let of = (*stack, workarounds, congestion);
                        let is_left = |case: &&Case| !done.contains(&(of, case.id.to_owned()));
                        let cases: Vec<_> = plan.cases.iter().filter(is_left).collect();
                        of_stack(plan, of, &cases, program, |result| send.send(result).is_ok());
                    }
                });
            }
            drop(send);
            results.into_iter().try_for_each(|(score, ran, recording)| {
                report(&score, &ran, &recording)?;
                scores.push(score);
                Ok::<_, E>(())
            })
        })?;
    }
    // Stable: the cases of a stack came in their order.
    scores.sort_by_key(key);
    Ok(scores)
}

/// Runs the cases on a stack with some choices until `keep` returns false.
fn of_stack(
    plan: &ConformPlan,
    (stack, workarounds, congestion): (StackKind, Workarounds, StackCongestion),
    cases: &[&Case],
    program: Option<&Program>,
    keep: impl Fn((Score, Ran, Recording)) -> bool,
) {
    let (layer, mtu, shards) = (plan.layer_of(stack), plan.typed.mtu, plan.typed.shards);
    let run = |offload, trace| {
        let program = program.cloned();
        Run { stack, program, layer, shards, offload, mtu, workarounds, congestion, trace }
    };
    if let Some(exploration) = plan.exploration.filter(|_| !cases.is_empty()) {
        let run = run(plan.offload.unwrap_or(false), None);
        let results = conformance::explore(exploration, &run).into_iter();
        let mut left = results.filter(|(case, _)| cases.iter().any(|left| left.id == case.id));
        left.all(|(case, ran)| keep((Score::new(&case, &run, &ran), ran, Recording::default())));
        return;
    }
    let is_recorded = plan.typed.pcap.is_some() || plan.typed.issue.is_some();
    // A program that did not start for the first case is not tried again.
    let mut refused = None;
    for (index, case) in cases.iter().enumerate() {
        let offload = plan.offload.or(case.offload).unwrap_or(false);
        let recording = Recording::default();
        let run = run(offload, is_recorded.then(|| recording.clone()));
        let ran = refused.clone().unwrap_or_else(|| conformance::run(case, run.clone()));
        if index == 0 && matches!(ran.outcome, Outcome::Unavailable { .. }) {
            refused = Some(ran.clone());
        }
        if !keep((Score::new(case, &run, &ran), ran, recording)) {
            return;
        }
    }
}

/// Enters a network in which the kernel may forward packets between two devices.
fn enter_network() -> Result<(), RunError> {
    if !platform::netns_supported() {
        let error = platform::Error::unsupported(Feature::Forwarding, "forward packets between", "two devices");
        return Err(error
            .remedy("only Linux has networks of the program's own; leave out --layer path and the stacks that need it")
            .into());
    }
    platform::enter_netns()?;
    Ok(conformance::try_device()?)
}
