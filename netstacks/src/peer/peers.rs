//! Many connections on one link.

mod datagrams;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use platform::packet::TcpSegment;
use platform::{Link, PacketBuffer};

use self::table::Table;
use super::connection::{Connection, Receiving, Wire};
use super::signal::Signal;
use crate::datagrams::Inbox;

/// Largest number of batches that one wait takes before it returns to the caller.
const BATCHES: usize = 8;

/// Many scripted TCP clients on one link, and UDP, for a thread with an event loop.
///
/// Each connection has a slot: a number that the caller chooses. [`Peers::wait`] is edge-triggered, so read and write
/// until [`io::ErrorKind::WouldBlock`]. Each has its own local port, in turn from 1024 on, whatever the remote address:
/// the stack may still hold the last one in TIME-WAIT. Acknowledgements go with data, or with the next wait.
#[derive(Debug)]
pub struct Peers<L> {
    wire: Wire<L>,
    local: IpAddr,
    batch: Vec<PacketBuffer>,
    table: Table,
    inbox: Inbox,
    /// Slots that a read found ready; the next wait lists them.
    found: Vec<usize>,
    signal: Arc<Signal>,
    waker: Waker,
}

/// Ends a [`Peers::wait`] from another thread.
#[derive(Clone, Debug)]
pub struct PeersWaker(Arc<Signal>);

impl PeersWaker {
    /// Ends the current wait, or the next one if there is none.
    pub fn wake(&self) {
        self.0.raise();
    }
}

impl<L: Link> Peers<L> {
    /// Clients at the address `local`.
    pub fn new(link: L, local: IpAddr) -> Self {
        Self::sharing(link, local, 0, 1)
    }

    /// One of `count` groups of clients at this address, over its end of a
    /// [`SharedLink::split_evenly`](super::SharedLink::split_evenly). It has the local ports that leave the remainder `index`.
    pub fn sharing(link: L, local: IpAddr, index: u16, count: u16) -> Self {
        let wire = Wire::new(link);
        let signal = Arc::new(Signal::new());
        Self {
            local,
            batch: wire.batch(),
            wire,
            table: Table::new(index, count),
            inbox: Inbox::new(),
            found: Vec::new(),
            waker: Waker::from(Arc::clone(&signal)),
            signal,
        }
    }

    /// A handle that ends a wait.
    pub fn waker(&self) -> PeersWaker {
        PeersWaker(Arc::clone(&self.signal))
    }

    /// Starts a connection. The next wait sends the SYN. [`io::ErrorKind::AlreadyExists`] if the slot has one.
    pub fn connect(&mut self, slot: usize, remote: SocketAddr) -> io::Result<()> {
        let port = self.table.free_port()?;
        self.connect_from(slot, port, remote)
    }

    /// The same from this port; [`io::ErrorKind::AlreadyExists`] also if the port has a connection.
    pub fn connect_from(&mut self, slot: usize, port: u16, remote: SocketAddr) -> io::Result<()> {
        if self.table.port(slot).is_ok() || self.table.connection(port).is_ok() {
            let error = format!("slot {slot} or port {port} has a connection");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
        }
        let connection = Connection::new(SocketAddr::new(self.local, port), remote, self.wire.capabilities)?;
        self.table.insert(slot, port, connection);
        Ok(())
    }

    /// Whether the stack's SYN-ACK has arrived, and no RST since. If it refuses, [`Peers::read`] returns the error.
    pub fn is_connected(&self, slot: usize) -> bool {
        self.table
            .of_slot(slot)
            .is_some_and(|connection| connection.is_established() && connection.receiving != Receiving::Reset)
    }

    /// Reads bytes that have arrived. Returns 0 after the stack's FIN, and for an empty buffer.
    pub fn read(&mut self, slot: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let port = self.table.port(slot)?;
        let connection = self.table.connection(port)?;
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = connection.read_unread(buffer);
        match connection.receiving {
            _ if len > 0 => {
                self.table.settle(port);
                Ok(len)
            }
            Receiving::Open => self.receive_into(port, buffer),
            Receiving::Ended => Ok(0),
            Receiving::Reset => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Receives a batch. Bytes of the connection of `port` go straight to the buffer; others are read later.
    fn receive_into(&mut self, port: u16, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.wire.link.try_recv(&mut self.batch)?;
        // The caller may be done with the slots that the last wait listed.
        self.table.next_turn();
        let mut filled = 0;
        for packet in &self.batch[..count] {
            match TcpSegment::parse(packet.packet()) {
                Some(segment) => filled += self.table.take(&segment, port, &mut buffer[filled..], &mut self.found)?,
                None => datagrams::take(packet, &mut self.inbox),
            }
        }
        if filled == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.table.send_due(&mut self.wire)?;
        self.wire.link.flush()?;
        Ok(filled)
    }

    /// Sends packets from the start of `bytes`, as many as the window and the link take, and returns how many bytes
    /// these are. A rest that does not fill a packet may be left.
    pub fn write(&mut self, slot: usize, bytes: &[u8]) -> io::Result<usize> {
        let port = self.table.port(slot)?;
        let connection = self.table.connection(port)?;
        if connection.receiving == Receiving::Reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if connection.closing {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        // If the link was full, it is tried again only after the next wait: 10,000 failed attempts are expensive.
        let len = if self.wire.is_full { 0 } else { connection.fill(&mut self.wire, bytes)? };
        if len > 0 {
            return Ok(len);
        }
        if self.wire.is_full {
            self.table.block(port);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Ends the sending half of a connection: the next wait sends the FIN, if there is room. Reads still work.
    pub fn end_writing(&mut self, slot: usize) {
        self.table.end_writing(slot);
    }

    /// Ends a connection and frees its slot; unread bytes are lost. In the background it still receives until the FIN.
    pub fn close(&mut self, slot: usize) {
        self.table.release(slot);
    }

    /// Sends all due packets, receives packets, and replaces the content of `ready`: it lists each slot once that may
    /// have become connected, readable or writable, or has failed.
    ///
    /// Returns when there is something to do, after `longest`, or after [`PeersWaker::wake`], and at once if a datagram
    /// waits; sometimes early with an empty list. [`io::ErrorKind::InvalidData`] if the stack sends more than a window.
    pub fn wait(&mut self, longest: Duration, ready: &mut Vec<usize>) -> io::Result<()> {
        self.signal.attach();
        let mut begin = None;
        while self.advance(ready)?.is_pending() {
            let now = Instant::now();
            let left = longest.saturating_sub(now - *begin.get_or_insert(now));
            if left.is_zero() {
                break;
            }
            thread::park_timeout(left);
        }
        Ok(())
    }

    /// The same as [`Peers::wait`] for a task, which bounds the time itself.
    pub fn poll_wait(&mut self, cx: &mut Context<'_>, ready: &mut Vec<usize>) -> Poll<io::Result<()>> {
        self.signal.attach_task(cx.waker());
        self.advance(ready)
    }

    /// Sends and receives until there is something to do, or the link has nothing. Then the link has the waker.
    fn advance(&mut self, ready: &mut Vec<usize>) -> Poll<io::Result<()>> {
        ready.clear();
        ready.append(&mut self.found);
        self.table.next_turn();
        loop {
            let has_room_again = self.regain_room(ready)?;
            self.table.send_due(&mut self.wire)?;
            self.wire.link.flush()?;
            self.receive(ready)?;
            let is_woken = self.signal.lower();
            if is_woken || has_room_again || !ready.is_empty() || !self.inbox.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.poll_change()?.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Lists slots that wait for room in the link, if it has room. Returns whether it was full before and has room now.
    fn regain_room(&mut self, ready: &mut Vec<usize>) -> io::Result<bool> {
        let mut cx = Context::from_waker(&self.waker);
        if self.wire.is_full && self.wire.link.poll_writable(&mut cx)?.is_pending() {
            return Ok(false);
        }
        self.table.unblock(ready);
        Ok(mem::take(&mut self.wire.is_full))
    }

    fn receive(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        for _ in 0..BATCHES {
            let count = match self.wire.link.try_recv(&mut self.batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                count => count?,
            };
            for buffer in &self.batch[..count] {
                if let Some(segment) = TcpSegment::parse(buffer.packet()) {
                    self.table.take(&segment, 0, &mut [], ready)?;
                } else {
                    datagrams::take(buffer, &mut self.inbox);
                }
            }
        }
        Ok(())
    }

    fn poll_change(&mut self) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(&self.waker);
        let writable = match (self.wire.is_full, self.table.has_waiting()) {
            (true, _) => self.wire.link.poll_writable(&mut cx),
            (false, true) => Poll::Ready(Ok(())),
            (false, false) => Poll::Pending,
        };
        if writable.is_ready() { writable } else { self.wire.link.poll_readable(&mut cx) }
    }
}
