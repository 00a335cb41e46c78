//! The threads of a run: workers of the runtime, instances of the stack, and clients.

use std::num::{NonZeroU16, NonZeroUsize};

use super::PlanError;
use crate::cli::Axes;
use crate::cli::list::One;
use crate::scenario::{Mode, RuntimeKind, RuntimeName, Workload, plural};

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

/// The instances of the stack.
pub(super) fn shards(axes: &Axes) -> NonZeroU16 {
    // The command line refuses 0.
    axes.shards.one().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN)
}

/// The threads of the clients. One that would have no socket is refused.
pub(super) fn client_threads(axes: &Axes, workload: Workload, parallel: NonZeroU16) -> Result<Option<u16>, PlanError> {
    let sockets = sockets(workload, parallel);
    match axes.client_threads.one() {
        Some(threads) if threads > sockets => {
            let reason = format!("{threads} threads for {}", plural(sockets, "socket"));
            Err(PlanError::new("--client-threads", reason))
        }
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
