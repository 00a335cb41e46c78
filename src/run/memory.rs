//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use std::io;
use std::iter;

use netstacks::peer::{Peers, SharedLink};
use netstacks::{Spread, StackKind};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload};

use super::error::RunError;
use super::path;
use super::prepared::Prepared;
use super::stack::{StackStarter, Start, StartedStack};
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::meter::LinkMeter;
use crate::load::sockets::memory::{MemorySockets, Place};
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
    // Each shard has a link of its own.
    let mtu = scenario.mtu.into();
    let (link, far) = pair(mtu, MemoryLink::DEFAULT_DEPTH);
    let pairs = iter::repeat_with(|| pair(mtu, MemoryLink::DEFAULT_DEPTH));
    let (others, mut fars): (Vec<_>, Vec<_>) = pairs.take(usize::from(scenario.shards.get()) - 1).unzip();
    fars.insert(0, far);
    let counted = |near: MemoryLink| Counted::new(near.moderated());
    let (link, others): (_, Vec<_>) = (counted(link), others.into_iter().map(counted).collect());
    let facts = DeviceFacts {
        name: NAME.to_owned(),
        mtu: link.capabilities().mtu,
        offload: link.capabilities().segmentation.any(),
        tx_queue_len: u32::try_from(MemoryLink::DEFAULT_DEPTH).ok(),
    };
    let load = Load::of(scenario);
    // The link drops nothing, and has no counter for it.
    let traffic = iter::once(&link).chain(&others).map(Counted::traffic);
    let window = Window::new(load.clients(), LinkMeter::new(traffic, || None));
    let spread = Spread::default();
    let start = Start::new(link, scenario, &load).with_shards(others, spread.clone());
    let StartedStack { server, effective } = stack.start(kind, start)?;
    Ok(Prepared {
        clients: clients(network, fars, &spread, &load)?,
        device: Some(facts),
        effective: Some(effective),
        ..Prepared::new(load, window, server)
    })
}

/// The clients of a load. They are dealt to the shards in turn; those of one shard share its link.
fn clients(network: &Network, links: Vec<MemoryLink>, spread: &Spread, load: &Load) -> Result<Vec<Client>, RunError> {
    let shards = links.len();
    let places: Vec<_> =
        (0..load.clients()).map(|client| Place::new(client, load.clients(), shards, network.address, spread)).collect();
    if places.len() == shards {
        let peers = links.into_iter().map(|link| Peers::new(link, network.address));
        return clients_of(places.into_iter().zip(peers), network, load);
    }
    let split = |(shard, link)| {
        let clients = places.iter().filter(|place| place.shard == shard).count();
        SharedLink::split_evenly(link, clients).into_iter()
    };
    let mut ends: Vec<_> = links.into_iter().enumerate().map(split).collect();
    let peers = places.into_iter().filter_map(|place| {
        let peers = Peers::sharing(ends[place.shard].next()?, network.address, place.index, place.count);
        Some((place, peers))
    });
    clients_of(peers, network, load)
}

/// The clients of a load, each over its own peers.
fn clients_of<L: Link>(
    mut peers: impl Iterator<Item = (Place, Peers<L>)>,
    network: &Network,
    load: &Load,
) -> Result<Vec<Client>, RunError> {
    load.client_threads(&path::targets(network.peer, load), |protocol, _| {
        let (place, peers) = peers.next().ok_or_else(|| {
            let source = io::Error::other("there are more threads than ends of the link");
            platform::Error::new(Class::Failed, "start", "the scripted clients", source)
        })?;
        Ok(MemorySockets::new(peers, protocol, place))
    })
}
