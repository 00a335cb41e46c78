//! The stack alone: over a link in memory, with a scripted peer as its client.
//!
//! There is no kernel in it, no device and no network, so it needs no permission and no namespace.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use netstacks::StackKind;
use netstacks::peer::{self, Peer};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload, TcpStatistics};

use super::barrier::StartBarrier;
use super::client::{Cancel, Client, Connection, Connector};
use super::error::RunError;
use super::load::Load;
use super::meter::LinkMeter;
use super::prepared::Prepared;
use super::stack::{FIRST_PORT, StackStarter, Start, StartedStack};
use super::transfer::{Stream, TransferError};
use crate::remedy::WithRemedy;
use crate::sample::DeviceFacts;
use crate::scenario::Scenario;

/// Stands for the name of the device.
const NAME: &str = "memory";

/// The port of the peer's connection, like one of the kernel's.
const CLIENT_PORT: u16 = 40_000;

/// Prepares a stack over memory. It has one stream.
pub(super) fn prepare(
    scenario: &Scenario,
    network: &Network,
    kind: StackKind,
    stack: &impl StackStarter<Counted<MemoryLink>>,
) -> Result<Prepared, RunError> {
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
    let streams = Stream::split(scenario);
    let load = Load::Streams(Arc::clone(&streams));
    // The link drops nothing, and has no counter for it.
    let barrier = StartBarrier::new(streams.len(), LinkMeter::new(link.traffic(), || None));
    let StartedStack { server, effective } = stack.start(kind, Start::new(link, scenario, &load))?;
    let client = Client::new(connector(scenario, network, far)?, &streams, 0);
    Ok(Prepared {
        clients: vec![client],
        device: Some(facts),
        effective: Some(effective),
        ..Prepared::new(load, barrier, server)
    })
}

fn connector(scenario: &Scenario, network: &Network, link: MemoryLink) -> Result<PeerConnector, RunError> {
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

    /// It is not a connection of the kernel.
    fn statistics(&self) -> TcpStatistics {
        TcpStatistics::default()
    }
}
