//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use std::io;

use netstacks::StackKind;
use netstacks::peer::{Peers, SharedLink};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload};

use super::error::RunError;
use super::path;
use super::prepared::Prepared;
use super::stack::{StackStarter, Start, StartedStack};
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::meter::LinkMeter;
use crate::load::sockets::memory::MemorySockets;
use crate::load::window::Window;
use crate::sample::DeviceFacts;
use crate::scenario::Scenario;

/// Stands for the name of the device.
const NAME: &str = "memory";

/// Prepares a stack over memory.
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
    let load = Load::of(scenario);
    // The link drops nothing, and has no counter for it.
    let window = Window::new(load.clients(), LinkMeter::new(link.traffic(), || None));
    let StartedStack { server, effective } = stack.start(kind, Start::new(link, scenario, &load))?;
    Ok(Prepared {
        clients: clients(network, far, &load)?,
        device: Some(facts),
        effective: Some(effective),
        ..Prepared::new(load, window, server)
    })
}

/// The clients of a load. Several threads share the link.
fn clients(network: &Network, link: MemoryLink, load: &Load) -> Result<Vec<Client>, RunError> {
    let count = load.clients();
    if count == 1 {
        return clients_of([Peers::new(link, network.address)], network, load);
    }
    let threads = u16::try_from(count).unwrap_or(u16::MAX);
    let ends = (0..threads).zip(SharedLink::split_evenly(link, count));
    clients_of(ends.map(|(index, end)| Peers::sharing(end, network.address, index, threads)), network, load)
}

/// The clients of a load, each over its own peers.
fn clients_of<L: Link>(
    peers: impl IntoIterator<Item = Peers<L>>,
    network: &Network,
    load: &Load,
) -> Result<Vec<Client>, RunError> {
    let threads = u16::try_from(load.clients()).unwrap_or(u16::MAX);
    let mut peers = (0..threads).zip(peers);
    load.client_threads(&path::targets(network.peer, load), |protocol, _| {
        let (index, peers) = peers.next().ok_or_else(|| {
            let source = io::Error::other("there are more threads than ends of the link");
            platform::Error::new(Class::Failed, "start", "the scripted clients", source)
        })?;
        Ok(MemorySockets::new(peers, protocol, index, threads))
    })
}
