//! A forwarder between two TUN devices.

use std::cmp::Ordering;
use std::fmt;

use forwarders::Offload;
use serde::{Deserialize, Serialize};

use crate::cli::DEFAULT_MTU;
use crate::plan::{Direction, ForwardScenario, Forwarder, Generator};

/// What a run of a forwarder was of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForwardCell {
    /// What carries the packets.
    #[serde(flatten)]
    pub forwarder: Forwarder,
    /// Which way the payload goes.
    pub direction: Direction,
    /// Who makes the load.
    pub generator: Generator,
    /// MTU of both devices, in bytes.
    pub mtu: usize,
    /// Streams at once, in each direction that has payload.
    pub parallel: u16,
    /// Over IPv6.
    pub ipv6: bool,
    /// Size of one read or write of the generator, in bytes.
    pub buffer_bytes: usize,
    /// How many packets may wait in each device before the kernel drops.
    pub queue_packets: u32,
}

impl ForwardCell {
    /// The cell of a run.
    pub fn of(scenario: &ForwardScenario) -> Self {
        Self {
            forwarder: scenario.forwarder,
            direction: scenario.direction,
            generator: scenario.generator,
            mtu: scenario.mtu.into(),
            parallel: scenario.parallel.get(),
            ipv6: scenario.ipv6(),
            buffer_bytes: scenario.buffer_bytes.get(),
            queue_packets: scenario.queue_packets,
        }
    }

    /// Whether the other does the same work: differs in the forwarder at most.
    pub fn same_work(&self, other: &Self) -> bool {
        Self { forwarder: other.forwarder, ..self.clone() } == *other
    }

    /// Checks that there is such a forwarder, as far as its kind says.
    ///
    /// # Errors
    ///
    /// What it has and cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.forwarder {
            Forwarder::Go { offload: Offload::Whole, .. } => {
                Err("the forwarder go with offload whole, which it does not know".to_owned())
            }
            Forwarder::Rust(way) => way.check().map_err(|illegal| illegal.to_string()),
            Forwarder::Go { .. } => Ok(()),
        }
    }
}

/// First the rows of the published table in its order, then the other forwarders by their axes.
impl Ord for ForwardCell {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |cell: &Self| {
            let Self { forwarder, direction, generator, mtu, parallel, ipv6, buffer_bytes, queue_packets } = *cell;
            let row = forwarder.row().unwrap_or(usize::MAX);
            (row, forwarder, direction, generator, mtu, parallel, ipv6, buffer_bytes, queue_packets)
        };
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for ForwardCell {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All of it in a line, what is as by default left out.
impl fmt::Display for ForwardCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = vec![self.forwarder.to_string()];
        match self.direction {
            Direction::Forward => {}
            Direction::Reverse => words.push("reverse".to_owned()),
            Direction::Bidir => words.push("both ways".to_owned()),
        }
        if self.generator == Generator::Iperf3 {
            words.push("by iperf3".to_owned());
        }
        if self.mtu != usize::from(DEFAULT_MTU) {
            words.push(format!("MTU {}", self.mtu));
        }
        if self.parallel != 1 {
            words.push(format!("{} streams", self.parallel));
        }
        if self.ipv6 {
            words.push("IPv6".to_owned());
        }
        f.pad(&words.join(", "))
    }
}
