//! A forwarder between two networks of the run's own, under load.
//!
//! ```text
//!        near network                                             far network
//! client ── kernel TCP ── tun11 ──► forwarder's process ──► tun22 ── kernel TCP ── server
//! ```
//!
//! The networks are namespaces: the near one is the calling thread's from now on, the far one a thread's of its own
//! (`topology`). The forwarder is a process of its own (`program`), this very program or the one in Go, so that
//! its time and memory are its alone. It makes the two devices, and they are set up from here. The load comes
//! from this process (`load`), or from iperf3 (`iperf3`). When the run is over, or this process ends in
//! whatever way, so do the forwarder, its devices and both networks.

mod iperf3;
mod load;
mod profile;
mod program;
mod topology;

use std::sync::Arc;
use std::time::SystemTime;

use forwarders::{Carried, Counts, Offload};
use platform::{Class, Interrupts, PacketCounts, ProcessMeter};
use tokio::runtime::Builder;

use self::profile::Profile;
use self::program::{Program, Talk};
use self::topology::Topology;
use super::RunError;
use super::forwarder::START;
use super::meter::{Meter, Spent, Tally};
use super::setup::{PARTING, tcp, unix_ms};
use super::supervisor::Outcome;
use crate::plan::{Direction, ForwardScenario, Generator, Verify};
use crate::sample::{Cell, CpuTime, DeviceFacts, Environment, Facts, Sample, Status};

/// How often time and memory are looked at.
const EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// What a load has to tell.
struct Loaded {
    outcome: Outcome,
    /// The streams' congestion control.
    congestion: Option<String>,
    /// CPU time of the generator in the timed window, in seconds.
    generator_seconds: Option<f64>,
    verified: Verify,
}

impl Loaded {
    /// The same, which has failed where what was carried is not known.
    fn counted(mut self) -> Self {
        if self.outcome.status == Status::Ok && self.outcome.packets.is_none() {
            self.outcome.status = Status::Stalled;
            self.outcome.detail = Some("the forwarder did not say how much it has carried".to_owned());
        }
        self
    }
}

/// Runs a forwarder.
pub(super) fn execute(scenario: &ForwardScenario) -> Result<Sample, RunError> {
    if !platform::netns_supported() {
        let remedy = "only Linux has namespaces to put them in";
        return Err(platform::Error::unsupported("forward packets between", "two networks", remedy).into());
    }
    let started = SystemTime::now();
    // Before this thread leaves the network that leads outside: it may have to be built.
    let executable = program::executable(scenario.forwarder)?;
    let profile = Profile::of(scenario)?;
    let topology = Topology::new()?;
    let error = |source| platform::Error::new(Class::Failed, "start", "the load's runtime", source);
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(error)?;
    let result = runtime.block_on(async {
        // Before there is anything to be left behind.
        let mut interrupts =
            Interrupts::catch().map_err(|source| platform::Error::new(Class::Failed, "catch", "interrupts", source))?;
        let forwarder = Program::start(&executable, scenario, &topology, profile.as_ref(), &mut interrupts).await?;
        topology.set_up(scenario)?;
        forwarder.talk().tell(START);
        let loaded = match scenario.generator {
            Generator::Own => load::run(scenario, &topology, &forwarder, interrupts).await,
            Generator::Iperf3 => iperf3::run(scenario, &topology, &forwarder, interrupts).await,
        };
        let finished = forwarder.finish().await;
        match loaded {
            Ok(loaded) if loaded.outcome.status == Status::Ok => finished.map(|()| loaded),
            // Of a run that failed the forwarder's end is no news.
            loaded => loaded,
        }
    });
    runtime.shutdown_timeout(PARTING);
    let loaded = result?.counted();
    if let Some(profile) = profile.filter(|_| loaded.outcome.status == Status::Ok) {
        profile.finish(scenario)?;
    }
    Ok(sample(scenario, loaded, started))
}

fn sample(scenario: &ForwardScenario, loaded: Loaded, started: SystemTime) -> Sample {
    let Loaded { outcome, congestion, generator_seconds, verified } = loaded;
    let bidir = scenario.direction == Direction::Bidir;
    let facts = Facts {
        detail: outcome.detail,
        congestion,
        warmup_bytes: if scenario.generator == Generator::Own { scenario.warmup_bytes } else { 0 },
        bytes: outcome.bytes,
        bytes_back: bidir.then_some(outcome.read_bytes.min(outcome.bytes)),
        elapsed: outcome.elapsed,
        verified,
        cpu: CpuTime {
            client_seconds: generator_seconds,
            stack_seconds: None,
            forwarder_seconds: outcome.spent.forwarder_cpu.map(|cpu| cpu.as_secs_f64()),
        },
        peak_rss_bytes: outcome.forwarder_peak_rss_bytes,
        retransmits: outcome.retransmits,
        reordered: outcome.reordered,
        device_drops: outcome.device_drops,
        packets: outcome.packets.unwrap_or_default().into(),
        tcp: outcome.tcp.as_ref().and_then(tcp),
        intervals: outcome.intervals,
        started_unix_ms: unix_ms(started),
        device: Some(DeviceFacts {
            name: format!("{}, {}", scenario.near.name, scenario.far.name),
            mtu: scenario.mtu.into(),
            offload: scenario.forwarder.offload() != Offload::Off,
            tx_queue_len: Some(scenario.queue_packets),
        }),
        ..Facts::failed(outcome.status, "")
    };
    Sample { cell: Cell::planned(scenario), facts, environment: Arc::new(Environment::detect()) }
}

/// Reads what the forwarder spends from outside, and asks it for what it has carried.
struct ForwarderMeter {
    process: ProcessMeter,
    talk: Arc<Talk>,
    drops: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    direction: Direction,
}

impl ForwarderMeter {
    fn new(scenario: &ForwardScenario, topology: &Topology, forwarder: &Program) -> Self {
        Self {
            process: forwarder.meter(),
            talk: forwarder.talk(),
            drops: topology.drops(scenario),
            direction: scenario.direction,
        }
    }

    /// What was carried the way of the payload.
    fn carried(&self, Counts { to_far, to_near }: Counts) -> Carried {
        match self.direction {
            Direction::Forward => to_far,
            Direction::Reverse => to_near,
            Direction::Bidir => sum(to_far, to_near),
        }
    }
}

fn sum(one: Carried, other: Carried) -> Carried {
    Carried {
        read_packets: one.read_packets + other.read_packets,
        read_bytes: one.read_bytes + other.read_bytes,
        written_packets: one.written_packets + other.written_packets,
        written_bytes: one.written_bytes + other.written_bytes,
        lost_packets: one.lost_packets + other.lost_packets,
        reordered: one.reordered.zip(other.reordered).map(|(one, other)| one + other),
    }
}

impl Meter for ForwarderMeter {
    fn spent(&self) -> Spent {
        Spent {
            own_cpu: platform::cpu_of_process(),
            forwarder_cpu: self.process.cpu(),
            forwarder_rss_bytes: self.process.rss_bytes(),
        }
    }

    fn tally(&self) -> Tally {
        let counts = self.talk.report();
        let carried = counts.map(|counts| self.carried(counts));
        let lost = counts.map(|Counts { to_far, to_near }| to_far.lost_packets + to_near.lost_packets);
        let packets = carried.map(|carried| PacketCounts {
            rx_packets: carried.read_packets,
            rx_bytes: carried.read_bytes,
            tx_packets: carried.written_packets,
            tx_bytes: carried.written_bytes,
        });
        Tally {
            packets,
            drops: (self.drops)().zip(lost).map(|(drops, lost)| drops + lost),
            reordered: carried.and_then(|carried| carried.reordered),
            forwarder_peak_rss_bytes: self.process.peak_rss_bytes(),
        }
    }
}
