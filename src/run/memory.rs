//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netstacks::StackKind;
use netstacks::peer::{self, Peer, Peers, SharedLink};
use platform::{Class, Counted, Link, MemoryLink, Network, Offload, TcpStatistics};

use super::barrier::StartBarrier;
use super::client::{Cancel, Client, Connection, Connector};
use super::datagram_client::DatagramSocket;
use super::error::RunError;
use super::load::Load;
use super::meter::LinkMeter;
use super::path;
use super::prepared::Prepared;
use super::sockets::{Sockets, Wake};
use super::stack::{FIRST_PORT, StackStarter, Start, StartedStack};
use super::transfer::{Stream, TransferError};
use super::{datagram_client, requester};
use crate::remedy::WithRemedy;
use crate::sample::DeviceFacts;
use crate::scenario::{Protocol, Scenario};

/// Stands for the name of the device.
const NAME: &str = "memory";

/// The port of the first client, like one of the kernel's; the others follow.
const CLIENT_PORT: u16 = 40_000;

/// How long a client waits for a datagram before it checks for cancellation.
const WAIT: Duration = Duration::from_millis(5);

/// How long sockets wait before they try a full link again.
const SOON: Duration = Duration::from_micros(100);

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
    let barrier = StartBarrier::new(load.clients(), LinkMeter::new(link.traffic(), || None));
    let StartedStack { server, effective } = stack.start(kind, Start::new(link, scenario, &load))?;
    Ok(Prepared {
        clients: clients(scenario, network, far, &load)?,
        device: Some(facts),
        effective: Some(effective),
        ..Prepared::new(load, barrier, server)
    })
}

/// The clients of a load.
fn clients(scenario: &Scenario, network: &Network, link: MemoryLink, load: &Load) -> Result<Vec<Client>, RunError> {
    let mut targets = path::targets(network.peer, load);
    match load {
        Load::Streams(streams) if streams.len() == 1 => of_streams(scenario, network, streams, vec![link]),
        Load::Streams(streams) => {
            let ends = SharedLink::split(link, (CLIENT_PORT..).take(streams.len()));
            of_streams(scenario, network, streams, ends)
        }
        Load::Requests(exchange, _) => {
            let sockets = MemorySockets {
                peers: Peers::new(link, network.address),
                protocol: exchange.protocol(),
                targets: vec![targets[0]; exchange.connections],
                datagrams: vec![VecDeque::new(); exchange.connections],
                waiting: Vec::new(),
                buffer: vec![0; usize::from(u16::MAX)],
            };
            Ok(vec![requester::client(exchange, targets, sockets)])
        }
        Load::Datagrams(flow) => {
            let socket = MemoryDatagrams { peers: Peers::new(link, network.address), target: targets.remove(0) };
            Ok(vec![datagram_client::client(flow, socket)])
        }
        Load::External(_) => Ok(Vec::new()),
    }
}

fn of_streams<L: Link>(
    scenario: &Scenario,
    network: &Network,
    streams: &Arc<[Stream]>,
    links: Vec<L>,
) -> Result<Vec<Client>, RunError> {
    let ports = (CLIENT_PORT..).zip(FIRST_PORT..);
    let clients = links.into_iter().zip(ports).enumerate().map(|(index, (link, (port, target)))| {
        let local = SocketAddr::new(network.address, port);
        let peer = Peer::new(link, local, SocketAddr::new(network.peer, target)).map_err(|source| {
            platform::Error::new(Class::Invalid, "start", "the scripted client", source).remedy("raise --mtu")
        })?;
        Ok(Client::new(PeerConnector(peer::Client::new(peer, scenario.timeout)), streams, index))
    });
    clients.collect()
}

/// A peer that is not connected yet.
struct PeerConnector<L>(peer::Client<L>);

impl<L: Link> Connector for PeerConnector<L> {
    type Connection = peer::Client<L>;

    fn connect(mut self) -> Result<Self::Connection, TransferError> {
        self.0.connect().map_err(TransferError::io("connect"))?;
        Ok(self.0)
    }

    fn canceller(&self) -> Cancel {
        let canceller = self.0.canceller();
        Box::new(move || canceller.cancel())
    }
}

impl<L: Link> Connection for peer::Client<L> {
    fn shutdown_write(&mut self) -> io::Result<()> {
        self.shutdown_write()
    }

    /// It is not a connection of the kernel.
    fn statistics(&self) -> TcpStatistics {
        TcpStatistics::default()
    }
}

/// Peers as sockets.
struct MemorySockets {
    peers: Peers<MemoryLink>,
    protocol: Protocol,
    /// Over UDP: the destination of each socket, and the datagrams that have come for it.
    targets: Vec<SocketAddr>,
    datagrams: Vec<VecDeque<Vec<u8>>>,
    /// UDP sockets that are ready at once: new ones, and those for which the link had no room.
    waiting: Vec<usize>,
    /// Room for a datagram.
    buffer: Vec<u8>,
}

impl MemorySockets {
    /// The port of a UDP socket.
    fn port(index: usize) -> u16 {
        // There are 10,000 connections at most.
        CLIENT_PORT + index as u16
    }
}

impl Sockets for MemorySockets {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        if self.protocol == Protocol::Tcp {
            return self.peers.connect(index, target);
        }
        self.targets[index] = target;
        self.waiting.push(index);
        Ok(())
    }

    fn is_connected(&mut self, index: usize) -> io::Result<bool> {
        if self.protocol == Protocol::Udp || self.peers.is_connected(index) {
            return Ok(true);
        }
        match self.peers.read(index, &mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            result => result.map(|_| true),
        }
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize> {
        if self.protocol == Protocol::Tcp {
            return self.peers.read(index, buffer);
        }
        let datagram = self.datagrams[index].pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let len = datagram.len().min(buffer.len());
        buffer[..len].copy_from_slice(&datagram[..len]);
        Ok(len)
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        if self.protocol == Protocol::Tcp {
            return self.peers.write(index, bytes);
        }
        let sent = self.peers.send_datagram(Self::port(index), self.targets[index], bytes);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.waiting.push(index);
        }
        sent.map(|()| bytes.len())
    }

    fn close(&mut self, index: usize) {
        self.peers.close(index);
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        let longest = due.map_or(end, |due| due.min(end)).saturating_duration_since(Instant::now());
        // A full link soon has room again: it drops nothing.
        self.peers.wait(if self.waiting.is_empty() { longest } else { longest.min(SOON) }, ready)?;
        ready.append(&mut self.waiting);
        while let Some(datagram) = self.peers.receive_datagram(&mut self.buffer) {
            let index = usize::from(datagram.local.port().wrapping_sub(CLIENT_PORT));
            if let Some(queue) = self.datagrams.get_mut(index) {
                queue.push_back(self.buffer[..datagram.len].to_vec());
                ready.push(index);
            }
        }
        Ok(())
    }

    fn wake(&self) -> Wake {
        let waker = self.peers.waker();
        Arc::new(move || waker.wake())
    }
}

/// A UDP socket over memory.
struct MemoryDatagrams {
    peers: Peers<MemoryLink>,
    target: SocketAddr,
}

impl DatagramSocket for MemoryDatagrams {
    fn send(&mut self, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
        let first = &datagrams[..segment_len.min(datagrams.len())];
        self.peers.send_datagram(CLIENT_PORT, self.target, first).map(|()| first.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.peers.wait(Duration::ZERO, &mut Vec::new())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        let mut datagram = self.peers.receive_datagram(buffer);
        if datagram.is_none() {
            self.peers.wait(WAIT, &mut Vec::new())?;
            datagram = self.peers.receive_datagram(buffer);
        }
        datagram.map(|datagram| (datagram.len, datagram.len)).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}
