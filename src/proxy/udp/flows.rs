//! The UDP flows of a proxy, and which of them gives way to a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netstacks::{FlowKey, FlowMap};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Flow;
use crate::proxy::limits::Charge;

/// How much a flow is worth. A flood of single datagrams displaces none of the flows that are more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The server has not answered.
    Unanswered,
    Answered,
    /// The client has sent again after an answer.
    Conversation,
}

/// A place in the queue of those that give way: by rank and time. The number makes it unique.
type Place = (Rank, Instant, u64);

/// A flow, and the task that carries its answers back.
pub(super) struct Running {
    pub(super) flow: Arc<Flow>,
    pub(super) task: AbortHandle,
    /// Held as long as the flow is in the table.
    pub(super) _memory: Charge,
}

#[derive(Clone, Default)]
pub(in crate::proxy) struct Flows(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    by_key: FlowMap<(Running, Place)>,
    /// Times may be earlier than those of the last use: a datagram does not move its flow.
    queue: BTreeMap<Place, FlowKey>,
    next: u64,
}

impl Flows {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: FlowKey) -> Option<Arc<Flow>> {
        let mut table = self.lock();
        let (Running { flow, .. }, (rank, ..)) = table.by_key.get(&key)?;
        let flow = Arc::clone(flow);
        if *rank == Rank::Answered {
            table.raise(key, Rank::Conversation);
        }
        Some(flow)
    }

    pub(super) fn answered(&self, key: FlowKey) {
        self.lock().raise(key, Rank::Answered);
    }

    /// Removes the flow that is worth least, if there are `most` flows without this one.
    pub(super) fn make_place(&self, key: FlowKey, most: usize) {
        let mut table = self.lock();
        if table.by_key.len() >= most && !table.by_key.contains_key(&key) {
            table.evict(Rank::Conversation);
        }
    }

    /// Removes a flow without an answer. Returns whether there was one.
    pub(super) fn evict_unanswered(&self) -> bool {
        self.lock().evict(Rank::Unanswered)
    }

    /// Adds a flow, or replaces `dead`. Returns the flow in the table: another instance may have made one first.
    pub(super) fn insert(&self, key: FlowKey, running: Running, dead: Option<&Arc<Flow>>) -> Arc<Flow> {
        let mut table = self.lock();
        if let Some((current, _)) = table.by_key.get(&key)
            && dead.is_none_or(|dead| !Arc::ptr_eq(dead, &current.flow))
        {
            running.task.abort();
            return Arc::clone(&current.flow);
        }
        let flow = Arc::clone(&running.flow);
        let place = (Rank::Unanswered, running.flow.used(), table.next);
        table.next += 1;
        table.queue.insert(place, key);
        if let Some((old, place)) = table.by_key.insert(key, (running, place)) {
            old.task.abort();
            table.queue.remove(&place);
        }
        flow
    }

    /// Forgets a flow, unless another has taken its place.
    pub(super) fn remove(&self, key: FlowKey, flow: &Arc<Flow>) {
        let mut table = self.lock();
        if table.by_key.get(&key).is_some_and(|(current, _)| Arc::ptr_eq(&current.flow, flow)) {
            table.remove(key);
        }
    }
}

impl Table {
    fn remove(&mut self, key: FlowKey) -> Option<Running> {
        let (running, place) = self.by_key.remove(&key)?;
        self.queue.remove(&place);
        Some(running)
    }

    fn raise(&mut self, key: FlowKey, rank: Rank) {
        if let Some((running, place)) = self.by_key.get_mut(&key)
            && place.0 < rank
        {
            self.queue.remove(place);
            *place = (rank, running.flow.used(), place.2);
            self.queue.insert(*place, key);
        }
    }

    /// Removes the flow that is worth least, if its rank is at most `highest`. A flow that was used since it took its
    /// place in the queue moves back first. Each step pays for a datagram, so the walk is short.
    fn evict(&mut self, highest: Rank) -> bool {
        while let Some((&place, &key)) = self.queue.first_key_value().filter(|((rank, ..), _)| *rank <= highest) {
            let Some((running, current)) = self.by_key.get_mut(&key) else { return false };
            let used = running.flow.used();
            if used <= place.1 {
                self.remove(key).inspect(|running| running.task.abort());
                return true;
            }
            *current = (place.0, used, place.2);
            let moved = *current;
            self.queue.remove(&place);
            self.queue.insert(moved, key);
        }
        false
    }
}
