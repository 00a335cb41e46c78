//! The readings at both ends of the timed window.

use std::ops::Add;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netstacks::PassedOn;
use platform::{FaultCounter, FaultCounts, PacketCounts, SocketCount, Switches, Throttled, Traffic};

use crate::sample::QueueFacts;

/// Reads the cost of a run and its counters.
pub(crate) trait Meter: Send + Sync + 'static {
    /// Readings that cost next to nothing.
    fn usage(&self) -> Usage;

    /// Readings that may take a while.
    fn counters(&self) -> Counters;

    /// The sockets in the network in which the subject has its own, if it is a program.
    fn sockets(&self) -> Option<SocketCount> {
        None
    }
}

/// CPU time and context switches of threads, up to a moment or in a time. `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) cpu: Option<Duration>,
    pub(crate) switches: Option<Switches>,
}

impl Cost {
    /// Of all threads of this process so far.
    pub(crate) fn of_process() -> Self {
        Self { cpu: platform::cpu_of_process(), switches: platform::switches_of_process() }
    }

    /// Of the calling thread so far.
    pub(crate) fn of_thread() -> Self {
        Self { cpu: platform::cpu_of_thread(), switches: platform::switches_of_thread() }
    }

    /// The part of it since `then`, or without the threads that cost `then`.
    pub(crate) fn since(self, then: Self) -> Self {
        let switches = self.switches.zip(then.switches).map(|(now, then)| now.since(then));
        Self { cpu: difference(self.cpu, then.cpu), switches }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.zip(other.cpu).map(|(one, other)| one + other),
            switches: self.switches.zip(other.switches).map(|(one, other)| one + other),
        }
    }
}

/// CPU time, context switches and memory at a moment. `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) own: Cost,
    /// CPU time of the carrier, if another process carries the bytes.
    pub(crate) carrier_cpu: Option<Duration>,
    /// The carrier's resident set at that moment, in bytes.
    pub(crate) carrier_rss_bytes: Option<u64>,
}

impl Usage {
    /// The cost since `then`, and the current memory.
    pub(crate) fn since(self, then: Self) -> Self {
        Self { own: self.own.since(then.own), carrier_cpu: difference(self.carrier_cpu, then.carrier_cpu), ..self }
    }
}

/// The time between two readings of a clock, if both are known.
pub(crate) fn difference(now: Option<Duration>, then: Option<Duration>) -> Option<Duration> {
    Some(now?.saturating_sub(then?))
}

/// Packets up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) packets: Option<PacketCounts>,
    pub(crate) drops: Option<u64>,
    /// Packets that the carrier wrote after a later one of their flow.
    pub(crate) reordered: Option<u64>,
    pub(crate) faults: Option<FaultCounts>,
    /// Of a device with several shards.
    pub(crate) queues: Option<QueueFacts>,
    /// The carrier's largest resident set so far, in bytes.
    pub(crate) carrier_peak_rss_bytes: Option<u64>,
    /// Context switches of the carrier. It takes a file for each thread to read them.
    pub(crate) carrier_switches: Option<Switches>,
    /// CPU time of the SOCKS5 server, or of the far end of a tunnel.
    pub(crate) far_cpu: Option<Duration>,
}

impl Counters {
    /// The packets and CPU time since `then`, and the largest memory ever.
    pub(crate) fn since(self, then: Self) -> Self {
        let counted = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            packets: self.packets.zip(then.packets).map(|(now, then)| now.since(then)),
            drops: counted(self.drops, then.drops),
            reordered: counted(self.reordered, then.reordered),
            faults: self.faults.zip(then.faults).map(|(now, then)| now.since(then)),
            queues: self.queues.zip(then.queues).map(|(now, then)| now.since(then)),
            carrier_switches: self.carrier_switches.zip(then.carrier_switches).map(|(now, then)| now.since(then)),
            far_cpu: difference(self.far_cpu, then.far_cpu),
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) usage: Usage,
    pub(crate) counters: Counters,
    pub(crate) withheld: Withheld,
}

/// Time of the processors that others took, up to a moment. `None` is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Withheld {
    /// By the host of this virtual machine.
    pub(crate) stolen: Option<Duration>,
    /// By quotas of the processor.
    pub(crate) throttled: Option<Throttled>,
}

impl Withheld {
    pub(crate) fn so_far() -> Self {
        Self { stolen: platform::stolen_time(), throttled: platform::throttled() }
    }
}

/// The meter of a run within this process. It counts the packets on the link, and those that the device dropped.
pub(crate) struct LinkMeter<D> {
    /// The counts of each link of the stack.
    traffic: Vec<Arc<Traffic>>,
    drops: D,
    faults: Option<Arc<FaultCounter>>,
    /// The queues of a device with several shards.
    queues: Option<(u16, PassedOn)>,
}

impl<D: Fn() -> Option<u64> + Send + Sync + 'static> LinkMeter<D> {
    pub(crate) fn new(traffic: impl IntoIterator<Item = Arc<Traffic>>, drops: D) -> Self {
        Self { traffic: traffic.into_iter().collect(), drops, faults: None, queues: None }
    }

    pub(crate) fn with_faults(self, faults: Arc<FaultCounter>) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// Adds the number of queues, if there are several links.
    pub(crate) fn with_queues(self, queues: usize, passed_on: PassedOn) -> Self {
        Self { queues: (self.traffic.len() > 1).then_some((queues as u16, passed_on)), ..self }
    }
}

impl<D: Fn() -> Option<u64> + Send + Sync + 'static> Meter for LinkMeter<D> {
    fn usage(&self) -> Usage {
        Usage { own: Cost::of_process(), ..Usage::default() }
    }

    fn counters(&self) -> Counters {
        let faults = self.faults.as_ref().map(|faults| faults.counts());
        let facts =
            |(queues, passed_on): &(u16, PassedOn)| QueueFacts { queues: *queues, passed_on: passed_on.count() };
        let queues = self.queues.as_ref().map(facts);
        let packets = self.traffic.iter().map(|traffic| traffic.counts()).sum();
        Counters { packets: Some(packets), drops: (self.drops)(), faults, queues, ..Counters::default() }
    }
}
