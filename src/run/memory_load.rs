//! Scripted peers for a load: its clients over a link in memory.

use std::io;
use std::iter;

use netstacks::peer::{Peers, SharedLink};
use platform::{Class, Link, MemoryLink, Network};

use super::server_side::targets;
use crate::error::RunError;
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::sockets::memory::MemorySockets;

/// The clients of a load, each with a thread of its own. Several share the link.
pub(super) fn clients(network: &Network, link: MemoryLink, load: &Load) -> Result<Vec<Client>, RunError> {
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
        let (index, peers) = places.next().ok_or_else(|| {
            let source = io::Error::other("there are more threads than ends of the link");
            platform::Error::new(Class::Failed, "start", "the scripted clients", source)
        })?;
        Ok(MemorySockets::new(peers, protocol, (index, count)))
    })
}
