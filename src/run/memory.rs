//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use std::io;
use std::iter;

use netstacks::peer::{Peers, SharedLink};
use netstacks::{Effective, StackKind};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload};

use super::error::RunError;
use super::path;
use super::prepared::Prepared;
use super::server_side::ServerSide;
use super::stack::{Start, StartedStack};
use crate::load::engine::Client;
use crate::load::meter::LinkMeter;
use crate::load::sockets::memory::MemorySockets;
use crate::load::sockets::worker::Worker;
use crate::load::window::Window;
use crate::load::{Load, share};
use crate::sample::DeviceFacts;
use crate::scenario::Scenario;

/// Stands for the name of the device.
const NAME: &str = "memory";

/// The stack's end of a link.
type Near = Counted<MemoryLink>;

/// Prepares a stack over memory.
pub(super) fn prepare(scenario: &Scenario, network: &Network, kind: StackKind) -> Result<Prepared, RunError> {
    let pair = match scenario.offload {
        Offload::Auto | Offload::On => MemoryLink::offloading_pair,
        Offload::Off => MemoryLink::pair,
    };
    let pairs = iter::repeat_with(|| pair(scenario.mtu.into(), MemoryLink::DEFAULT_DEPTH));
    let links: Vec<(Near, MemoryLink)> =
        pairs.take(scenario.shards.get().into()).map(|(near, far)| (Counted::new(near.moderated()), far)).collect();
    let device = links.first().map(|(link, _)| DeviceFacts {
        name: NAME.to_owned(),
        mtu: link.capabilities().mtu,
        offload: link.capabilities().segmentation.any(),
        tx_queue_len: u32::try_from(MemoryLink::DEFAULT_DEPTH).ok(),
    });
    let load = Load::of(scenario);
    // The link drops nothing, and has no counter for it.
    let traffic: Vec<_> = links.iter().map(|(link, _)| link.traffic()).collect();
    let window = Window::new(load.clients(), LinkMeter::new(traffic, || None));
    let (server, effective, clients) = if scenario.shards_have_threads() {
        shards(scenario, network, &load, links, kind)?
    } else {
        let (link, far) = links.into_iter().next().ok_or_else(too_few)?;
        let StartedStack { server, effective } = Start::new(link, scenario, &load).start(kind)?;
        (server, effective, clients(network, far, &load)?)
    };
    Ok(Prepared { clients, device, effective: Some(effective), ..Prepared::new(load, window, server) })
}

/// Shards that share nothing. The thread of each runs an instance of the stack, its server, and a client of the load.
fn shards(
    scenario: &Scenario,
    network: &Network,
    load: &Load,
    links: Vec<(Near, MemoryLink)>,
    kind: StackKind,
) -> Result<(ServerSide, Effective, Vec<Client>), RunError> {
    let (shards, mut of_one) = (links.len(), None);
    let (mut servers, mut ends) = (Vec::new(), Vec::new());
    for (shard, (link, far)) in links.into_iter().enumerate() {
        let worker = Worker::new()
            .map_err(|source| platform::Error::new(Class::Failed, "start", "the runtime of a shard", source))?;
        let tasks = worker.enter();
        let streams = share(load.streams().len(), shard, shards).len();
        let StartedStack { server, effective } =
            Start::new(link, scenario, load).of_shard(streams, shards).start(kind)?;
        drop(tasks);
        servers.push(server);
        of_one = Some(Effective { shards, ..effective });
        ends.push((far, worker));
    }
    let mut ends = ends.into_iter();
    let clients = load.client_threads(&path::targets(network.peer, load), |protocol, _| {
        let (link, worker) = ends.next().ok_or_else(too_few)?;
        Ok::<_, RunError>(MemorySockets::new(Peers::new(link, network.address), protocol, (0, 1)).with_worker(worker))
    })?;
    Ok((ServerSide::all(servers), of_one.ok_or_else(too_few)?, clients))
}

/// The clients of a load, each with a thread of its own. Several share the link.
fn clients(network: &Network, link: MemoryLink, load: &Load) -> Result<Vec<Client>, RunError> {
    if load.clients() == 1 {
        return clients_of(iter::once(Peers::new(link, network.address)), 1, network, load);
    }
    let ends = SharedLink::split_evenly(link, load.clients());
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
    load.client_threads(&path::targets(network.peer, load), |protocol, _| {
        let (index, peers) = places.next().ok_or_else(too_few)?;
        Ok(MemorySockets::new(peers, protocol, (index, count)))
    })
}

fn too_few() -> RunError {
    let source = io::Error::other("there are more threads than ends of the links");
    platform::Error::new(Class::Failed, "start", "the scripted clients", source).into()
}
