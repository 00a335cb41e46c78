//! The limits of a proxy: how many connections it has, and how much memory connections and flows may take.
//!
//! A connection is *unfinished* until its client and its server are connected. When there is no place for a new one, the
//! oldest unfinished one gives way, so a flood of SYNs does not lock out real clients. Connected ones stay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netstacks::Effective;
use tokio::sync::oneshot;

use super::own::Own;
use super::{Config, relay};

#[derive(Debug)]
pub(super) struct Limits {
    max_connections: usize,
    /// Only half of the connections may be unfinished, so servers that do not reply cannot block the others.
    max_unfinished: usize,
    max_memory: usize,
    /// What a connection may take, in bytes: its windows at the stack, and the buffers of its relay.
    connection_bytes: usize,
    used: Mutex<Used>,
    /// Sockets of the proxy get no place.
    pub(super) own: Own,
}

#[derive(Debug, Default)]
struct Used {
    /// By their age. Dropping a sender tells the connection to end.
    unfinished: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
    connected: usize,
    flow_bytes: usize,
}

impl Limits {
    pub(super) fn new(config: &Config, effective: &Effective) -> Self {
        let windows = effective.receive_buffer_bytes + effective.send_buffer_bytes;
        Self {
            max_connections: config.max_flows,
            max_unfinished: config.max_flows.div_ceil(2),
            max_memory: config.max_memory.unwrap_or(usize::MAX),
            connection_bytes: windows + 2 * relay::BUFFER_BYTES,
            used: Mutex::default(),
            own: Own::new(config),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection. `None` if all places are taken by connected ones.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let mut used = self.lock();
        let fits = |used: &Used| {
            used.unfinished.len() < self.max_unfinished
                && used.unfinished.len() + used.connected < self.max_connections
                && self.memory(used).saturating_add(self.connection_bytes) <= self.max_memory
        };
        if !fits(&used) {
            used.unfinished.pop_first()?;
            if !fits(&used) {
                return None;
            }
        }
        let (keep, evicted) = oneshot::channel();
        let number = used.next;
        used.next += 1;
        used.unfinished.insert(number, keep);
        Some(Place { number, evicted, limits: Arc::clone(self) })
    }

    fn memory(&self, used: &Used) -> usize {
        let connections = used.unfinished.len() + used.connected;
        connections.saturating_mul(self.connection_bytes).saturating_add(used.flow_bytes)
    }

    /// Memory for a UDP flow. `None` if there is not enough.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let mut used = self.lock();
        if self.memory(&used).saturating_add(bytes) > self.max_memory {
            return None;
        }
        used.flow_bytes += bytes;
        Some(Charge { bytes, limits: Arc::clone(self) })
    }
}

#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    evicted: oneshot::Receiver<()>,
    limits: Arc<Limits>,
}

impl Place {
    /// Waits until the connection must give way to another.
    pub(super) async fn evicted(&mut self) {
        let _gone = (&mut self.evicted).await;
    }

    /// The connection is connected now. `None` if it has given way.
    pub(super) fn connected(self) -> Option<Connected> {
        let mut used = self.limits.lock();
        used.unfinished.remove(&self.number)?;
        used.connected += 1;
        drop(used);
        Some(Connected(Arc::clone(&self.limits)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limits.lock().unfinished.remove(&self.number);
    }
}

#[derive(Debug)]
pub(super) struct Connected(Arc<Limits>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.lock().connected -= 1;
    }
}

#[derive(Debug)]
pub(super) struct Charge {
    bytes: usize,
    limits: Arc<Limits>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limits.lock().flow_bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_flows: usize, max_memory: Option<usize>) -> Arc<Limits> {
        let config = Config { max_flows, max_memory, ..Config::new("eth0") };
        let effective = Effective {
            stack_version: "1".into(),
            shards: 1,
            receive_buffer_bytes: 1000,
            send_buffer_bytes: 1000,
            window_scale: None,
            largest_packet_bytes: 1500,
            congestion: "none".into(),
            checksum_verified: false,
            checksum_computed: false,
            workarounds: Vec::new(),
        };
        Arc::new(Limits::new(&config, &effective))
    }

    #[test]
    fn the_oldest_unfinished_connection_gives_way() {
        let limits = limits(4, None);
        let [first, mut second, mut third] = [(); 3].map(|()| limits.place().unwrap());
        assert!(first.connected().is_none(), "only two may be unfinished");
        for place in [&mut second, &mut third] {
            assert!(place.evicted.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        }
        let connected = [second, third].map(|place| place.connected().unwrap());
        let [fourth, fifth] = [(); 2].map(|()| limits.place().unwrap().connected().unwrap());
        assert!(limits.place().is_none(), "connected ones stay");
        drop(fourth);
        assert!(limits.place().is_some());
        drop((connected, fifth));
        let used = limits.lock();
        assert_eq!((used.unfinished.len(), used.connected), (0, 0));
    }

    #[test]
    fn memory_is_shared_by_connections_and_flows() {
        let one = 2000 + 2 * relay::BUFFER_BYTES;
        let limits = limits(100, Some(2 * one));
        let first = limits.place().unwrap().connected().unwrap();
        let flow = limits.charge(one).unwrap();
        assert!(limits.charge(1).is_none() && limits.place().is_none());
        drop(flow);
        let second = limits.place().unwrap();
        let third = limits.place().unwrap();
        assert!(second.connected().is_none(), "an unfinished one gives way");
        drop((first, third));
        assert!(limits.charge(2 * one).is_some());
    }
}
