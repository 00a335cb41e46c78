//! The threads of a run: workers of the runtime, instances of the stack, and clients.

use std::num::{NonZeroU16, NonZeroUsize};

use super::PlanError;
use crate::cli::Axes;
use crate::cli::list::One;
use crate::scenario::{Layer, Mode, RuntimeKind, RuntimeName, Scenario, Workload, plural};

/// The runtime of the stack.
pub(super) fn runtime(axes: &Axes) -> RuntimeKind {
    if axes.runtimes().one() == Some(RuntimeName::CurrentThread) {
        return RuntimeKind::CurrentThread;
    }
    let workers = axes.worker_threads.one().map(usize::from);
    RuntimeKind::MultiThread(workers.and_then(NonZeroUsize::new))
}

/// The clients' sockets.
fn sockets(workload: Workload, parallel: NonZeroU16) -> u16 {
    if workload.mode() == Some(Mode::Both) { 2 * parallel.get() } else { parallel.get() }
}

/// The instances of the stack. One that would have no socket is refused, or none for one of the directions.
pub(super) fn shards(axes: &Axes, parallel: NonZeroU16) -> Result<NonZeroU16, PlanError> {
    // The command line refuses 0.
    let shards = axes.shards.one().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN);
    // The kernel's clients share the device, whatever their number.
    if axes.layer() == Layer::Stack && shards > parallel {
        let reason = format!("{shards} shards for {}; raise --parallel", plural(parallel, "connection"));
        return Err(PlanError::new("--shards", reason));
    }
    Ok(shards)
}

/// The threads of the clients; 0 if they run on the thread of their stack. One that would have no socket is refused.
pub(super) fn client_threads(axes: &Axes, workload: Workload, parallel: NonZeroU16) -> Result<Option<u16>, PlanError> {
    let sockets = sockets(workload, parallel);
    let refuse = |reason| Err(PlanError::new("--client-threads", reason));
    match axes.client_threads.one() {
        Some(0) if axes.layer() != Layer::Stack => {
            refuse("only with --layer stack can a thread have both a stack and its clients; give 1 or more".to_owned())
        }
        Some(threads) if threads > sockets => refuse(format!("{threads} threads for {}", plural(sockets, "socket"))),
        threads => Ok(threads),
    }
}

/// The queues of the device: one, or one for each shard.
pub(super) fn queues(axes: &Axes, shards: NonZeroU16, fd: Option<i32>) -> Result<Option<NonZeroU16>, PlanError> {
    let queues = axes.queues.one();
    check_queues(queues, shards.get())?;
    if queues.is_some_and(|queues| queues > 1) && fd.is_some() {
        return Err(PlanError::new("--queues", "the device of --tun-fd has one; leave it out, or give 1"));
    }
    Ok(queues.and_then(NonZeroU16::new))
}

/// Refuses a number of queues that is neither 1 nor the number of shards.
pub(super) fn check_queues(queues: Option<u16>, shards: u16) -> Result<(), PlanError> {
    match queues {
        Some(queues) if queues > 1 && queues != shards => {
            let reason = format!("{queues} queues for {}; there is one for each, or 1", plural(shards, "shard"));
            Err(PlanError::new("--queues", reason))
        }
        _ => Ok(()),
    }
}

/// Refuses options that ask for other threads than one for each shard.
pub(super) fn check_shards(scenario: &Scenario) -> Result<(), PlanError> {
    if !scenario.shards_have_threads() {
        return Ok(());
    }
    let shards = scenario.shards.get();
    let workers = scenario.runtime.workers().map(NonZeroUsize::get);
    let threads = scenario.client_threads.filter(|threads| *threads > 0);
    let refuse = |option, reason: String| Err(PlanError::new(option, reason));
    let each = "each shard over memory has one thread, also for its clients";
    match (workers.filter(|workers| *workers != usize::from(shards)), threads) {
        (Some(_), _) => refuse("--worker-threads", format!("{each}; leave it out, or give {shards}")),
        (None, Some(_)) => refuse("--client-threads", format!("{each}; leave it out, or give 0")),
        (None, None) if scenario.background.is_some() => {
            refuse("--background", format!("{each}, and a stream beside the requests needs another; give no --shards"))
        }
        (None, None) => Ok(()),
    }
}
