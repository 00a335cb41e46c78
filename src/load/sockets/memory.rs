//! Scripted peers as sockets, over a link in memory.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netstacks::peer::Peers;
use platform::{Link, TcpStatistics};

use super::{Cancel, Sockets};
use crate::cell::Protocol;

/// How long sockets wait before they try a full link again.
const SOON: Duration = Duration::from_micros(100);

const FIRST_PORT: u16 = 1024;

/// Most datagrams that wait in a socket; further ones are dropped.
const MAX_WAITING: usize = 4096;

pub(crate) struct MemorySockets<L> {
    peers: Peers<L>,
    protocol: Protocol,
    /// Over UDP: the sockets, by number, and the number of each local port.
    datagrams: Vec<Option<UdpSocket>>,
    ports: Vec<Option<usize>>,
    /// The next local port, and how far its ports are apart: threads that share a link have different ones.
    next_port: u16,
    step: u16,
    /// UDP sockets that are ready at once: new ones, and those for which the link had no room.
    waiting: Vec<usize>,
    /// Room for the numbers of sockets that are ready, and for a datagram.
    listed: Vec<usize>,
    buffer: Vec<u8>,
}

struct UdpSocket {
    port: u16,
    target: SocketAddr,
    arrived: VecDeque<Vec<u8>>,
}

impl<L: Link> MemorySockets<L> {
    /// Sockets over these peers, which are number `index` of `count` on their link.
    pub(crate) fn new(peers: Peers<L>, protocol: Protocol, (index, count): (u16, u16)) -> Self {
        let is_udp = protocol == Protocol::Udp;
        Self {
            peers,
            protocol,
            datagrams: Vec::new(),
            ports: vec![None; if is_udp { 1 << 16 } else { 0 }],
            next_port: FIRST_PORT.next_multiple_of(count) + index,
            step: count,
            waiting: Vec::new(),
            listed: Vec::new(),
            buffer: vec![0; if is_udp { u16::MAX.into() } else { 0 }],
        }
    }

    fn socket(&mut self, index: usize) -> io::Result<&mut UdpSocket> {
        self.datagrams.get_mut(index).and_then(Option::as_mut).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Makes a UDP socket at a port of its own. Ports are used in turn.
    fn open(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        let first = self.next_port;
        while self.ports[usize::from(self.next_port)].is_some() {
            self.next_port = self.after(self.next_port);
            if self.next_port == first {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
        }
        let port = self.next_port;
        self.next_port = self.after(port);
        self.ports[usize::from(port)] = Some(index);
        if self.datagrams.len() <= index {
            self.datagrams.resize_with(index + 1, || None);
        }
        self.datagrams[index] = Some(UdpSocket { port, target, arrived: VecDeque::new() });
        self.waiting.push(index);
        Ok(())
    }

    fn after(&self, port: u16) -> u16 {
        port.checked_add(self.step).unwrap_or(FIRST_PORT.next_multiple_of(self.step) + port % self.step)
    }
}

impl<L: Link> Sockets for MemorySockets<L> {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        match self.protocol {
            Protocol::Udp => self.open(index, target),
            // QUIC has sockets of its own.
            Protocol::Tcp | Protocol::Quic => self.peers.connect(index, target),
        }
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
        let datagram = self.socket(index)?.arrived.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let len = datagram.len().min(buffer.len());
        buffer[..len].copy_from_slice(&datagram[..len]);
        Ok(len)
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        if self.protocol == Protocol::Tcp {
            return self.peers.write(index, bytes);
        }
        let UdpSocket { port, target, .. } = *self.socket(index)?;
        let sent = self.peers.send_datagram(port, target, bytes);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.waiting.push(index);
        }
        sent.map(|()| bytes.len())
    }

    fn end_writing(&mut self, index: usize) -> io::Result<()> {
        self.peers.end_writing(index);
        Ok(())
    }

    fn close(&mut self, index: usize) {
        if self.protocol == Protocol::Tcp {
            return self.peers.close(index);
        }
        if let Some(socket) = self.datagrams.get_mut(index).and_then(Option::take) {
            self.ports[usize::from(socket.port)] = None;
        }
    }

    fn statistics(&self, _: usize) -> TcpStatistics {
        TcpStatistics::default()
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        let longest = due.map_or(end, |due| due.min(end)).saturating_duration_since(Instant::now());
        // A full link soon has room again: it drops nothing.
        let longest = if self.waiting.is_empty() { longest } else { longest.min(SOON) };
        self.peers.wait(longest, &mut self.listed)?;
        ready.append(&mut self.listed);
        ready.append(&mut self.waiting);
        while let Some(datagram) = self.peers.receive_datagram(&mut self.buffer) {
            let Some(index) = self.ports.get(usize::from(datagram.local.port())).copied().flatten() else { continue };
            let payload = self.buffer[..datagram.len].to_vec();
            let socket = self.socket(index)?;
            if socket.arrived.len() < MAX_WAITING {
                socket.arrived.push_back(payload);
                ready.push(index);
            }
        }
        Ok(())
    }

    fn canceller(&self) -> Cancel {
        let waker = self.peers.waker();
        Box::new(move || waker.wake())
    }
}
