//! Runs cases of conformance.

use std::fs::File;
use std::io::BufWriter;
use std::sync::mpsc;
use std::thread;

use conformance::known::{self, Known};
use conformance::{Case, Layer, Run};
use netstacks::StackKind;
use platform::{Class, Feature};

use super::RunError;
use crate::plan::ConformPlan;
use crate::remedy::WithRemedy;
use crate::sample::Score;

/// Runs the cases of a plan, and reports each result as it comes. Returns the results in the order of the plan.
///
/// Over memory, the stacks are run at the same time; each runs one case after another.
///
/// # Errors
///
/// There is no network of the run's own, or no file for the packets; and the errors of `report`.
pub fn conform<E: From<RunError>>(
    plan: &ConformPlan,
    mut report: impl FnMut(&Score) -> Result<(), E>,
) -> Result<Vec<Score>, E> {
    if plan.layer == Layer::Path {
        enter_network()?;
    }
    let mut pcap = plan.pcap.as_ref().map(File::create).transpose().map_err(|source| {
        let path = plan.pcap.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        RunError::from(platform::Error::new(Class::Invalid, "create", path, source))
    })?;
    let mut scores = Vec::new();
    // The devices of a case have the names of those of all others.
    let at_once = if plan.layer == Layer::Path { 1 } else { plan.stacks.len().max(1) };
    for stacks in plan.stacks.chunks(at_once) {
        thread::scope(|scope| {
            let (send, results) = mpsc::channel();
            for stack in stacks {
                let (send, pcap) = (send.clone(), pcap.take());
                scope.spawn(move || of_stack(plan, *stack, pcap, |score| send.send(score).is_ok()));
            }
            drop(send);
            results.into_iter().try_for_each(|score| {
                report(&score)?;
                scores.push(score);
                Ok::<_, E>(())
            })
        })?;
    }
    let place = |score: &Score| plan.stacks.iter().position(|stack| *stack == score.netstack);
    // Stable: the cases of a stack came in their order.
    scores.sort_by_key(place);
    Ok(scores)
}

/// Runs the cases on a stack until `keep` returns false.
fn of_stack(plan: &ConformPlan, stack: StackKind, mut pcap: Option<File>, keep: impl Fn(Score) -> bool) {
    let known = known::of(stack);
    for case in &plan.cases {
        let score = one(plan, stack, case, pcap.take(), &known);
        if !keep(score) {
            return;
        }
    }
}

fn one(plan: &ConformPlan, stack: StackKind, case: &Case, pcap: Option<File>, known: &Known) -> Score {
    let offload = plan.offload.or(case.offload()).unwrap_or(false);
    let trace = pcap.map(|file| Box::new(BufWriter::new(file)) as Box<_>);
    let ran = conformance::run(case, Run { stack, layer: plan.layer, offload, trace });
    Score::new(stack, plan.layer, offload, case, ran, known)
}

/// Enters a network in which the kernel may forward packets.
fn enter_network() -> Result<(), RunError> {
    if !platform::netns_supported() {
        let error = platform::Error::unsupported(Feature::Forwarding, "forward packets between", "two devices");
        return Err(error.remedy("only Linux has networks of the program's own; leave out --layer path").into());
    }
    Ok(platform::enter_netns()?)
}
