//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use std::io;
use std::iter;

use netstacks::StackKind;
use netstacks::peer::{Peers, SharedLink};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload};

use super::error::RunError;
use super::prepared::Prepared;
use super::stack::{Start, StartedStack, targets};
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::meter::LinkMeter;
use crate::load::sockets::memory::MemorySockets;
use crate::load::window::Window;
use crate::plan::scenario::Scenario;
use crate::sample::DeviceFacts;

/// Stands for the name of the device.
const NAME: &str = "memory";

/// Prepares a stack over memory.
pub(super) fn prepare(
    scenario: &Scenario,
    load: Load,
    network: &Network,
    kind: StackKind,
) -> Result<Prepared, RunError> {
    let pair = match scenario.cell.device_offload() {
        Offload::Auto | Offload::On => MemoryLink::offloading_pair,
        Offload::Off => MemoryLink::pair,
    };
    let (near, far) = pair(scenario.cell.mtu.into(), MemoryLink::DEFAULT_DEPTH);
    let link = Counted::new(near.moderated());
    let device = DeviceFacts {
        name: NAME.to_owned(),
        mtu: link.capabilities().mtu,
        offload: link.capabilities().segmentation.any(),
        tx_queue_len: u32::try_from(MemoryLink::DEFAULT_DEPTH).ok(),
    };
    // The link drops nothing, and has no counter for it.
    let window = Window::new(load.threads(), LinkMeter::new([link.traffic()], || None));
    let StartedStack { server, effective } = Start::new(link, scenario, &load).start(kind)?;
    let clients = clients(network, far, &load)?;
    Ok(Prepared { clients, device: Some(device), effective: Some(effective), ..Prepared::new(load, window, server) })
}

/// The clients of a load, each with a thread of its own. Several share the link.
fn clients(network: &Network, link: MemoryLink, load: &Load) -> Result<Vec<Client>, RunError> {
    if load.threads() == 1 {
        return clients_of(iter::once(Peers::new(link, network.address)), 1, network, load);
    }
    let ends = SharedLink::split_evenly(link, load.threads());
    // There are at most a few hundred clients.
    let count = ends.len() as u16;
    let peers = (0..).zip(ends).map(|(index, end)| Peers::sharing(end, network.address, index, count));
    clients_of(peers, count, network, load)
}

/// The clients of a load, each over its own peers.
fn clients_of<L: Link>(
    peers: impl Iterator<Item = Peers<L>>,
    count: u16,
    network: &Network,
    load: &Load,
) -> Result<Vec<Client>, RunError> {
    let mut places = (0..).zip(peers);
    load.clients(&targets(network.peer, load), |protocol, _| {
        let (index, peers) = places.next().ok_or_else(too_few)?;
        Ok(MemorySockets::new(peers, protocol, (index, count)))
    })
}

fn too_few() -> RunError {
    let source = io::Error::other("there are more threads than ends of the link");
    platform::Error::new(Class::Failed, "start", "the scripted clients", source).into()
}
