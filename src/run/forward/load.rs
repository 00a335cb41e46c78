//! This program's own load: kernel sockets in both networks.

use std::sync::Arc;

use platform::Interrupts;

use super::program::Program;
use super::topology::Topology;
use super::{EVERY, ForwarderMeter, Loaded};
use crate::plan::{Amount, Direction, ForwardScenario, Mode};
use crate::run::loopback::{self, Served};
use crate::run::setup::verified;
use crate::run::supervisor::Supervisor;
use crate::run::transfer::{Lane, Payload, StartingGate};
use crate::run::{RunError, path};

/// Loads the forwarder, and sees what it takes.
pub(super) async fn run(
    scenario: &ForwardScenario,
    topology: &Topology,
    forwarder: &Program,
    interrupts: Interrupts,
) -> Result<Loaded, RunError> {
    let lanes: Arc<[Lane]> = lanes(scenario).into();
    let (address, streams, congestion) = (scenario.far.address, lanes.len(), scenario.congestion.clone());
    let listeners = topology.far().run(move || loopback::listeners(address, streams, congestion.as_deref()))??;
    let Served { party, targets } = loopback::serve(listeners, forwarder.end(), Arc::clone(&lanes))?;
    let gate = StartingGate::new(lanes.len(), ForwarderMeter::new(scenario, topology, forwarder));
    let (clients, congestion) = path::clients(scenario.congestion.as_deref(), scenario.timeout, &targets)?;
    let supervisor = Supervisor::new(scenario.timeout, Some(EVERY), lanes, Arc::new(gate));
    let outcome = supervisor.supervise(party, clients, interrupts).await?;
    Ok(Loaded {
        generator_seconds: outcome.spent.own_cpu.map(|cpu| cpu.as_secs_f64()),
        outcome,
        congestion,
        verified: verified(scenario.verify, scenario.warmup_bytes),
    })
}

/// A lane for each stream. Clients connect from the near network: what they write goes forward.
fn lanes(scenario: &ForwardScenario) -> Vec<Lane> {
    let modes: &[Mode] = match scenario.direction {
        Direction::Forward => &[Mode::Writer],
        Direction::Reverse => &[Mode::Reader],
        Direction::Bidir => &[Mode::Writer, Mode::Reader],
    };
    let shares = modes.iter().flat_map(|mode| {
        Lane::shares(&Payload {
            mode: *mode,
            streams: scenario.parallel.get(),
            amount: Amount::Time(scenario.time),
            warmup_bytes: scenario.warmup_bytes,
            buffer_bytes: scenario.buffer_bytes.get(),
            verify: scenario.verify,
        })
    });
    shares.collect()
}
