//! The stack alone: over a link in memory, with a scripted peer for a client.
//!
//! There is no kernel in it, no device and no network, so it needs no right and is not isolated.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use netstacks::StackKind;
use netstacks::peer::{self, Peer};
use platform::{Class, Counted, Interrupts, Link, MemoryLink, Offload, TcpStatistics};

use super::RunError;
use super::client::{Cancel, Client, Connection, Connector};
use super::meter::ProcessMeter;
use super::setup::Ran;
use super::stack::{FIRST_PORT, Running, Start, Starter};
use super::supervisor::Supervisor;
use super::transfer::{Lane, StartingGate, TransferError};
use crate::plan::Scenario;
use crate::sample::DeviceFacts;

/// What stands for the device's name.
const NAME: &str = "memory";

/// Where the peer's connection comes from, like one of the kernel's.
const CLIENT_PORT: u16 = 40_000;

/// Runs a stack over memory.
pub(super) async fn run(
    scenario: &Scenario,
    kind: StackKind,
    stack: &impl Starter<Counted<MemoryLink>>,
    interrupts: Interrupts,
) -> Result<Ran, RunError> {
    let pair = match scenario.offload {
        Offload::Auto | Offload::On => MemoryLink::offloading_pair,
        Offload::Off => MemoryLink::pair,
    };
    let (near, far) = pair(scenario.mtu.into(), MemoryLink::DEFAULT_DEPTH);
    let near = near.moderated();
    let facts = DeviceFacts {
        name: NAME.to_owned(),
        mtu: near.capabilities().mtu,
        offload: near.capabilities().segmentation.any(),
        tx_queue_len: u32::try_from(MemoryLink::DEFAULT_DEPTH).ok(),
    };
    let link = Counted::new(near);
    // It loses nothing, and nobody counts.
    let gate = StartingGate::new(1, ProcessMeter::new(link.traffic(), || None));
    let lanes: Arc<[Lane]> = Lane::split(scenario).into();
    let Running { party, effective } = stack.start(kind, Start::new(link, scenario, Arc::clone(&lanes)))?;
    let client = Client::new(connector(scenario, far)?);
    let supervisor = Supervisor::of(scenario, lanes, Arc::new(gate));
    let outcome = supervisor.supervise(party, vec![client], interrupts).await?;
    Ok(Ran { outcome, congestion: None, device: Some(facts), effective: Some(effective) })
}

fn connector(scenario: &Scenario, link: MemoryLink) -> Result<PeerConnector, RunError> {
    let network = &scenario.network;
    let local = SocketAddr::new(network.address, CLIENT_PORT);
    let peer = Peer::new(link, local, SocketAddr::new(network.peer, FIRST_PORT)).map_err(|source| {
        platform::Error::new(Class::Invalid, "start", "the scripted client", source).remedy("raise --mtu")
    })?;
    Ok(PeerConnector(peer::Client::new(peer, scenario.timeout)))
}

/// A peer that is not connected yet.
struct PeerConnector(peer::Client<MemoryLink>);

impl Connector for PeerConnector {
    type Connection = peer::Client<MemoryLink>;

    fn connect(mut self) -> Result<Self::Connection, TransferError> {
        self.0.connect().map_err(TransferError::io("connect"))?;
        Ok(self.0)
    }

    fn canceller(&self) -> Cancel {
        let canceller = self.0.canceller();
        Box::new(move || canceller.cancel())
    }
}

impl Connection for peer::Client<MemoryLink> {
    fn shutdown_write(&mut self) -> io::Result<()> {
        self.shutdown_write()
    }

    /// The kernel knows nothing of it.
    fn statistics(&self) -> TcpStatistics {
        TcpStatistics::default()
    }
}
