//! What is read at both ends of the timed window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use platform::{PacketCounts, Traffic};

/// Someone who says what has been spent.
pub(super) trait Meter: Send + Sync + 'static {
    /// What costs next to nothing to read.
    fn spent(&self) -> Spent;

    /// What may take a while.
    fn tally(&self) -> Tally;
}

/// What a process had spent by a moment. `None` is what the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// CPU time of this process, in which the load is made.
    pub(super) own_cpu: Option<Duration>,
    /// CPU time of the forwarder, where that is another process.
    pub(super) forwarder_cpu: Option<Duration>,
    /// The forwarder's resident set then, in bytes.
    pub(super) forwarder_rss_bytes: Option<u64>,
}

impl Spent {
    /// What was spent since `then`; of memory, what is held now.
    pub(super) fn since(self, then: Self) -> Self {
        Self {
            own_cpu: difference(self.own_cpu, then.own_cpu),
            forwarder_cpu: difference(self.forwarder_cpu, then.forwarder_cpu),
            ..self
        }
    }
}

/// What was added between two readings of a clock, where both are known.
pub(super) fn difference(now: Option<Duration>, then: Option<Duration>) -> Option<Duration> {
    Some(now?.saturating_sub(then?))
}

/// What had been carried by a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) packets: Option<PacketCounts>,
    pub(super) drops: Option<u64>,
    /// Packets that the forwarder has written after a later one.
    pub(super) reordered: Option<u64>,
    /// The forwarder's largest resident set so far, in bytes.
    pub(super) forwarder_peak_rss_bytes: Option<u64>,
}

impl Tally {
    /// What was carried since `then`; of memory, the most there ever was.
    pub(super) fn since(self, then: Self) -> Self {
        let counted = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            packets: self.packets.zip(then.packets).map(|(now, then)| now.since(then)),
            drops: counted(self.drops, then.drops),
            reordered: counted(self.reordered, then.reordered),
            ..self
        }
    }
}

/// Both, and when it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) spent: Spent,
    pub(super) tally: Tally,
}

/// Of a run within this process: what crossed its link, and what its device dropped.
pub(super) struct ProcessMeter<D> {
    traffic: Arc<Traffic>,
    drops: D,
}

impl<D: Fn() -> Option<u64> + Send + Sync + 'static> ProcessMeter<D> {
    pub(super) fn new(traffic: Arc<Traffic>, drops: D) -> Self {
        Self { traffic, drops }
    }
}

impl<D: Fn() -> Option<u64> + Send + Sync + 'static> Meter for ProcessMeter<D> {
    fn spent(&self) -> Spent {
        Spent { own_cpu: platform::cpu_of_process(), ..Spent::default() }
    }

    fn tally(&self) -> Tally {
        Tally { packets: Some(self.traffic.counts()), drops: (self.drops)(), ..Tally::default() }
    }
}
