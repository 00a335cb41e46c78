//! The connections of an engine: their owners, due work and timers. No operation looks at all connections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem;
use std::ops::{Index, IndexMut};

use slab::Slab;
use tokio::time::Instant;

use super::engine::{Accepted, FlowId};
use crate::{FlowKey, FlowMap, StackConfig};

/// Largest number of half-open connections. Beyond it the oldest is forgotten, so a flood of SYNs cannot keep others
/// out (RFC 4987, 3.4). Its client gets a RST, so there are as many as may wait for [`crate::Listener::accept`].
pub(crate) fn most_half_open(config: &StackConfig) -> usize {
    config.backlog.max(config.connections / 16).min(config.connections)
}

/// Largest number of connections in TIME-WAIT without a stream. Beyond it the oldest is forgotten.
const MAX_TIME_WAIT: usize = 64;

/// Obsolete timers are removed when there are more timers than twice the connections and this number.
const MIN_TIMERS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Handshake,
    /// It waits for `accept`.
    Ready,
    /// It has a stream.
    Accepted,
    /// Its stream was dropped. The stack sends the rest and closes it.
    Orphaned,
    /// An orphan in TIME-WAIT: both FINs are sent and acknowledged.
    TimeWait,
}

/// The connections of an engine. `C` is the engine's own state of one.
pub struct Table<C> {
    entries: Slab<Entry<C>>,
    by_key: FlowMap<FlowId>,
    accept_queue: VecDeque<FlowId>,
    backlog: usize,
    most_half_open: usize,
    /// The most connections, in any state.
    most: usize,
    /// Connections in the handshake by their serial numbers, so the oldest is the first.
    half_open: BTreeMap<u64, FlowId>,
    serial: u64,
    is_listening: bool,
    /// Connections in TIME-WAIT, the oldest first. Some may be gone.
    time_wait: VecDeque<FlowId>,
    time_wait_count: usize,
    due: VecDeque<FlowId>,
    changed: Vec<FlowId>,
    timers: BinaryHeap<Reverse<(Instant, FlowId)>>,
}

struct Entry<C> {
    key: FlowKey,
    stage: Stage,
    serial: u64,
    is_due: bool,
    has_changed: bool,
    /// The earliest timer of this connection in the queue. Its other timers there are obsolete.
    timer: Option<Instant>,
    connection: C,
}

impl<C> Table<C> {
    pub(crate) fn new(config: &StackConfig) -> Self {
        Self {
            entries: Slab::new(),
            by_key: FlowMap::default(),
            accept_queue: VecDeque::new(),
            backlog: config.backlog,
            most_half_open: most_half_open(config),
            most: config.connections,
            half_open: BTreeMap::new(),
            serial: 0,
            is_listening: true,
            time_wait: VecDeque::new(),
            time_wait_count: 0,
            due: VecDeque::new(),
            changed: Vec::new(),
            timers: BinaryHeap::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// How many more connections the accept queue takes. While it is 0, none may open or become established.
    pub(crate) fn room(&self) -> usize {
        if !self.is_listening || (self.is_full() && self.half_open.is_empty()) {
            return 0;
        }
        self.backlog.saturating_sub(self.accept_queue.len())
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.most
    }

    /// The half-open connection that the caller has to forget before it opens another, if any. Its peer gets no RST.
    pub(crate) fn oldest_half_open(&self) -> Option<FlowId> {
        let (_, oldest) = self.half_open.first_key_value()?;
        (self.half_open.len() >= self.most_half_open || self.is_full()).then_some(*oldest)
    }

    pub(crate) fn find(&self, key: &FlowKey) -> Option<FlowId> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn stage(&self, flow: FlowId) -> Option<Stage> {
        Some(self.entries.get(flow.0)?.stage)
    }

    pub(crate) fn key(&self, flow: FlowId) -> &FlowKey {
        &self.entries[flow.0].key
    }

    pub(crate) fn get(&self, flow: FlowId) -> Option<&C> {
        Some(&self.entries.get(flow.0)?.connection)
    }

    pub(crate) fn flows(&self) -> Vec<FlowId> {
        self.entries.iter().map(|(index, _)| FlowId(index)).collect()
    }

    pub(crate) fn get_mut(&mut self, flow: FlowId) -> Option<&mut C> {
        Some(&mut self.entries.get_mut(flow.0)?.connection)
    }

    /// Adds a connection after its SYN.
    pub(crate) fn open(&mut self, key: FlowKey, connection: C) -> FlowId {
        let (stage, serial) = (Stage::Handshake, self.serial);
        let entry = Entry { key, stage, serial, is_due: false, has_changed: false, timer: None, connection };
        let flow = FlowId(self.entries.insert(entry));
        self.by_key.insert(key, flow);
        self.half_open.insert(serial, flow);
        self.serial += 1;
        flow
    }

    pub(crate) fn established(&mut self, flow: FlowId) {
        let entry = &mut self.entries[flow.0];
        entry.stage = Stage::Ready;
        self.half_open.remove(&entry.serial);
        self.accept_queue.push_back(flow);
    }

    pub(crate) fn can_accept(&self) -> bool {
        !self.accept_queue.is_empty()
    }

    pub(crate) fn accept(&mut self) -> Option<Accepted> {
        let flow = self.accept_queue.pop_front()?;
        let entry = &mut self.entries[flow.0];
        entry.stage = Stage::Accepted;
        Some(Accepted { flow, local: entry.key.local, peer: entry.key.peer })
    }

    /// Opens no more connections. Returns those that were not accepted: they are orphans now.
    pub(crate) fn close_listener(&mut self) -> Vec<FlowId> {
        self.is_listening = false;
        self.accept_queue.clear();
        self.half_open.clear();
        let unaccepted = |(index, entry): (usize, &mut Entry<C>)| {
            matches!(entry.stage, Stage::Handshake | Stage::Ready).then(|| {
                entry.stage = Stage::Orphaned;
                FlowId(index)
            })
        };
        self.entries.iter_mut().filter_map(unaccepted).collect()
    }

    pub(crate) fn orphan(&mut self, flow: FlowId) {
        self.entries[flow.0].stage = Stage::Orphaned;
    }

    /// An orphan is now in TIME-WAIT. Returns the connection that the caller has to forget for it, if any.
    pub(crate) fn wait(&mut self, flow: FlowId) -> Option<FlowId> {
        self.entries[flow.0].stage = Stage::TimeWait;
        self.time_wait.push_back(flow);
        self.time_wait_count += 1;
        while let Some(&oldest) = self.time_wait.front() {
            let is_gone = self.stage(oldest) != Some(Stage::TimeWait);
            if !is_gone && self.time_wait_count <= MAX_TIME_WAIT {
                return None;
            }
            self.time_wait.pop_front();
            if !is_gone {
                return Some(oldest);
            }
        }
        None
    }

    /// Makes room for another connection with the same addresses. Packets no longer reach this one.
    pub(crate) fn detach(&mut self, flow: FlowId) {
        let key = self.entries[flow.0].key;
        if self.by_key.get(&key) == Some(&flow) {
            self.by_key.remove(&key);
        }
    }

    pub(crate) fn remove(&mut self, flow: FlowId) -> C {
        self.detach(flow);
        let entry = self.entries.remove(flow.0);
        match entry.stage {
            Stage::Handshake => drop(self.half_open.remove(&entry.serial)),
            Stage::TimeWait => self.time_wait_count -= 1,
            Stage::Ready | Stage::Accepted | Stage::Orphaned => {}
        }
        entry.connection
    }

    /// Notes that the connection may have something to send.
    pub(crate) fn set_due(&mut self, flow: FlowId) {
        if let Some(entry) = self.entries.get_mut(flow.0)
            && !mem::replace(&mut entry.is_due, true)
        {
            self.due.push_back(flow);
        }
    }

    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The due queue, which may include removed connections.
    pub(crate) fn all_due(&self) -> impl Iterator<Item = FlowId> {
        self.due.iter().copied()
    }

    pub(crate) fn next_due(&mut self) -> Option<FlowId> {
        while let Some(flow) = self.due.pop_front() {
            if let Some(entry) = self.entries.get_mut(flow.0)
                && mem::take(&mut entry.is_due)
            {
                return Some(flow);
            }
        }
        None
    }

    /// Notes that a connection has changed, so that the tasks that wait for it are woken.
    pub(crate) fn set_changed(&mut self, flow: FlowId) {
        if let Some(entry) = self.entries.get_mut(flow.0)
            && entry.stage == Stage::Accepted
            && !mem::replace(&mut entry.has_changed, true)
        {
            self.changed.push(flow);
        }
    }

    pub(crate) fn next_changed(&mut self) -> Option<FlowId> {
        let flow = self.changed.pop()?;
        if let Some(entry) = self.entries.get_mut(flow.0) {
            entry.has_changed = false;
        }
        Some(flow)
    }

    /// Makes the connection due at a time. An earlier timer stays.
    pub(crate) fn set_timer(&mut self, flow: FlowId, at: Instant) {
        let entry = &mut self.entries[flow.0];
        if entry.timer.is_none_or(|timer| at < timer) {
            entry.timer = Some(at);
            self.timers.push(Reverse((at, flow)));
            if self.timers.len() > 2 * self.entries.len() + MIN_TIMERS {
                let entries = &self.entries;
                self.timers
                    .retain(|Reverse((at, flow))| entries.get(flow.0).is_some_and(|entry| entry.timer == Some(*at)));
            }
        }
    }

    /// Makes connections with an expired timer due, and removes these timers.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((at, flow))) = self.timers.peek() {
            let entry = self.entries.get_mut(flow.0).filter(|entry| entry.timer == Some(at));
            if let Some(entry) = entry {
                if at > now {
                    return;
                }
                entry.timer = None;
                self.set_due(flow);
            }
            self.timers.pop();
        }
    }

    /// When the next timer expires. It may be an obsolete one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }
}

impl<C> Index<FlowId> for Table<C> {
    type Output = C;

    fn index(&self, flow: FlowId) -> &C {
        &self.entries[flow.0].connection
    }
}

impl<C> IndexMut<FlowId> for Table<C> {
    fn index_mut(&mut self, flow: FlowId) -> &mut C {
        &mut self.entries[flow.0].connection
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    impl<C> Table<C> {
        /// The memory of a connection here, in bytes.
        pub(crate) const fn entry_len() -> usize {
            // In the map there may be as many free places as keys.
            let in_maps = 2 * (size_of::<FlowKey>() + size_of::<FlowId>() + 1) + 2 * size_of::<(u64, FlowId)>();
            size_of::<Entry<C>>() + in_maps
        }

        pub(crate) fn len(&self) -> usize {
            self.entries.len()
        }
    }

    /// The limit of the default configuration.
    const HALF_OPEN: usize = 4096;

    fn key(port: u16) -> FlowKey {
        FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: ([10, 0, 0, 1], port).into() }
    }

    fn table(backlog: usize) -> Table<()> {
        Table::new(&StackConfig { backlog, ..StackConfig::default() })
    }

    fn accepted(table: &mut Table<()>, port: u16) -> FlowId {
        let flow = table.open(key(port), ());
        table.established(flow);
        assert_eq!(table.accept().map(|accepted| accepted.flow), Some(flow));
        flow
    }

    #[test]
    fn the_backlog_counts_established_connections_that_are_not_accepted() {
        let mut table = table(2);
        let flows = [1, 2, 3].map(|port| table.open(key(port), ()));
        assert_eq!(table.room(), 2);
        table.established(flows[0]);
        table.remove(flows[2]);
        assert_eq!(table.room(), 1);
        table.established(flows[1]);
        assert_eq!((table.room(), table.half_open.len()), (0, 0));
        table.accept().unwrap();
        assert_eq!(table.room(), 1);
    }

    #[test]
    fn the_oldest_half_open_connection_gives_way() {
        let mut table = table(9);
        let flows: Vec<_> = (0..HALF_OPEN as u16).map(|port| table.open(key(port), ())).collect();
        assert_eq!(table.oldest_half_open(), Some(flows[0]));
        table.established(flows[0]);
        assert_eq!(table.oldest_half_open(), None);
        table.remove(flows[2]);
        // This one has the number of the removed one, and is the youngest.
        assert_eq!(table.open(key(1), ()), flows[2]);
        for oldest in [&flows[1..2], &flows[3..]].concat() {
            table.open(key(2), ());
            assert_eq!(table.oldest_half_open(), Some(oldest));
            table.remove(oldest);
        }
        assert_eq!(table.oldest_half_open(), None);
        table.open(key(3), ());
        assert_eq!(table.oldest_half_open(), Some(flows[2]));
        assert_eq!((table.half_open.len(), table.room()), (HALF_OPEN, 8));
    }

    /// So many clients may connect at once: no half-open connection gives way before the accept queue is full.
    #[test]
    fn a_large_backlog_has_as_many_half_open_connections() {
        let mut table = table(10_000);
        for port in 0..10_000 {
            assert_eq!(table.oldest_half_open(), None);
            table.open(key(port), ());
        }
        assert!(table.oldest_half_open().is_some());
    }

    /// So a share of the limit for all shards holds, however small it is.
    #[test]
    fn no_more_connections_open_than_the_limit() {
        let mut table = Table::new(&StackConfig { connections: 3, ..StackConfig::default() });
        let first = table.open(key(1), ());
        for port in 2..4 {
            table.open(key(port), ());
        }
        assert_eq!(table.oldest_half_open(), Some(first));
        for _ in 1..4 {
            let oldest = table.half_open.values().next().copied().unwrap();
            table.established(oldest);
        }
        assert_eq!(table.room(), 0);
        let shard = StackConfig { backlog: 1, connections: (1 << 16) / 4, ..StackConfig::default() };
        assert_eq!(most_half_open(&shard), HALF_OPEN / 4);
    }

    #[test]
    fn a_closed_listener_orphans_connections_that_are_not_accepted() {
        let mut table = table(9);
        let held = accepted(&mut table, 1);
        let half_open = table.open(key(2), ());
        let ready = table.open(key(3), ());
        table.established(ready);
        assert_eq!(table.close_listener(), [half_open, ready]);
        assert!(table.room() == 0 && !table.can_accept());
        assert_eq!(table.stage(held), Some(Stage::Accepted));
        table.remove(half_open);
    }

    #[test]
    fn the_oldest_in_time_wait_makes_room() {
        let mut table = table(9);
        let mut evicted = Vec::new();
        let flows: Vec<_> = (0..MAX_TIME_WAIT as u16 + 3).map(|port| accepted(&mut table, port)).collect();
        for &flow in &flows {
            table.orphan(flow);
            // The second one ends early.
            if flow == flows[5] {
                table.remove(flows[1]);
            }
            if let Some(flow) = table.wait(flow) {
                table.remove(flow);
                evicted.push(flow);
            }
        }
        assert_eq!(evicted, [flows[0], flows[2]]);
    }

    #[test]
    fn a_new_connection_takes_the_addresses_of_one_that_is_detached() {
        let mut table = table(9);
        let old = accepted(&mut table, 1);
        table.detach(old);
        let new = table.open(key(1), ());
        table.remove(old);
        assert_eq!(table.find(&key(1)), Some(new));
    }

    #[test]
    fn timers_of_removed_connections_do_not_pile_up() {
        let mut table = table(9);
        let start = Instant::now() + Duration::from_secs(100);
        for index in 0..10_000 {
            let flow = table.open(key(1), ());
            table.set_timer(flow, start + Duration::from_micros(index));
            table.remove(flow);
        }
        assert!(table.timers.len() <= 2 * MIN_TIMERS, "{} timers", table.timers.len());
    }

    #[test]
    fn a_connection_is_due_once_and_at_its_earliest_time() {
        let mut table = table(9);
        let [first, second] = [1, 2].map(|port| table.open(key(port), ()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        table.set_timer(first, at(5));
        table.set_timer(first, at(3));
        table.set_timer(first, at(9));
        table.set_timer(second, at(4));
        assert_eq!(table.deadline(), Some(at(3)));
        table.expire(at(2));
        assert!(!table.has_due());
        table.set_due(second);
        table.expire(at(6));
        assert_eq!([table.next_due(), table.next_due(), table.next_due()], [Some(second), Some(first), None]);
        assert_eq!(table.deadline(), None);
    }
}
