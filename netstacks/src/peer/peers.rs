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

/// Largest number of batches that one wait takes, so that the caller gets its turn.
const BATCHES: usize = 8;

/// Many scripted TCP clients on one link, for one thread that is driven by readiness; and UDP.
///
/// Each connection has the limits of [`Peer`](super::Peer), and a slot, which is a number that the caller chooses.
/// Packets arrive in [`Peers::wait`] only. It is edge-triggered: it names a slot once for each change, so the
/// caller reads and writes until [`io::ErrorKind::WouldBlock`].
///
/// Every connection has its own local port, from 1024 on in turn, whatever its remote address. A port is used
/// again after all others. The stack may still hold its last connection in TIME-WAIT then; use many remote ports.
///
/// An acknowledgement is not sent before the next wait: until then it can go with data.
#[derive(Debug)]
pub struct Peers<L> {
    wire: Wire<L>,
    local: IpAddr,
    batch: Vec<PacketBuffer>,
    table: Table,
    inbox: Inbox,
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
        let wire = Wire::new(link);
        let signal = Arc::new(Signal::new());
        Self {
            local,
            batch: wire.batch(),
            wire,
            table: Table::new(),
            inbox: Inbox::new(),
            waker: Waker::from(Arc::clone(&signal)),
            signal,
        }
    }

    /// A handle that ends a wait.
    pub fn waker(&self) -> PeersWaker {
        PeersWaker(Arc::clone(&self.signal))
    }

    /// Starts a connection. The SYN is sent by the next wait.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::AlreadyExists`] if the slot has a connection.
    /// - [`io::ErrorKind::AddrNotAvailable`] if all ports are in use.
    /// - [`io::ErrorKind::InvalidInput`] as for [`Peer::new`](super::Peer::new).
    pub fn connect(&mut self, slot: usize, remote: SocketAddr) -> io::Result<()> {
        let port = self.table.free_port(slot)?;
        let connection = Connection::new(SocketAddr::new(self.local, port), remote, self.wire.capabilities)?;
        self.table.insert(slot, port, connection);
        Ok(())
    }

    /// Whether the stack's SYN-ACK has come, and no RST since. If the stack refuses, [`Peers::read`] says so.
    pub fn is_connected(&self, slot: usize) -> bool {
        self.table
            .of_slot(slot)
            .is_some_and(|connection| connection.is_established() && connection.receiving() != Receiving::Reset)
    }

    /// Reads bytes that have arrived; 0 after the stack's FIN, and for an empty buffer.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::WouldBlock`] if there are none.
    /// - [`io::ErrorKind::ConnectionReset`] after a RST.
    /// - [`io::ErrorKind::NotConnected`] if the slot has no connection.
    pub fn read(&mut self, slot: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let port = self.table.port(slot)?;
        let connection = self.table.connection(port)?;
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = connection.read_unread(buffer);
        match connection.receiving() {
            _ if len > 0 => {
                self.table.settle(port);
                Ok(len)
            }
            Receiving::Open => Err(io::ErrorKind::WouldBlock.into()),
            Receiving::Ended => Ok(0),
            Receiving::Reset => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Sends packets from the start of `bytes`, as many as the window and the link take, and returns how many
    /// bytes these are. It may leave a rest that does not fill a packet; the next write sends it.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::WouldBlock`] if the connection is not open yet, or the window or the link is full.
    /// - [`io::ErrorKind::ConnectionReset`] after a RST.
    /// - [`io::ErrorKind::NotConnected`] if the slot has no connection.
    /// - The errors of the link.
    pub fn write(&mut self, slot: usize, bytes: &[u8]) -> io::Result<usize> {
        let port = self.table.port(slot)?;
        let connection = self.table.connection(port)?;
        if connection.receiving() == Receiving::Reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        // A link that was full is tried again after the next wait: 10,000 attempts in vain cost more.
        let len = if self.wire.is_full { 0 } else { connection.fill(&mut self.wire, bytes)? };
        if len > 0 {
            return Ok(len);
        }
        if self.wire.is_full {
            self.table.block(port);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Ends a connection and frees its slot. The next wait sends the FIN; bytes that were not read are lost. In
    /// the background the connection still takes and acknowledges the stack's packets, until its FIN has come.
    /// Does nothing if the slot has no connection.
    pub fn close(&mut self, slot: usize) {
        self.table.release(slot);
    }

    /// Sends all packets that are due, takes the packets that have come, and lists the slots that may have become
    /// connected, readable or writable, or have failed; each once. What `ready` held is dropped.
    ///
    /// Returns as soon as there is anything to do, after `longest`, or after [`PeersWaker::wake`]. It may also
    /// return early with nothing. At once if a datagram waits.
    ///
    /// # Errors
    ///
    /// The errors of the link, which is gone; [`io::ErrorKind::InvalidData`] if the stack sends more than a window
    /// has room for. `ready` is not complete then.
    pub fn wait(&mut self, longest: Duration, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.table.next_turn();
        self.signal.attach();
        let mut begin = None;
        loop {
            let has_room_again = self.regain_room(ready)?;
            self.table.send_due(&mut self.wire)?;
            self.wire.link.flush()?;
            self.receive(ready)?;
            let is_woken = self.signal.lower();
            if is_woken || has_room_again || !ready.is_empty() || self.has_datagrams() {
                return Ok(());
            }
            if self.poll_change()?.is_ready() {
                continue;
            }
            let now = Instant::now();
            let left = longest.saturating_sub(now - *begin.get_or_insert(now));
            if left.is_zero() {
                return Ok(());
            }
            thread::park_timeout(left);
        }
    }

    /// Lists slots that wait for room in the link, if it has some. Returns whether it has room after it had none.
    fn regain_room(&mut self, ready: &mut Vec<usize>) -> io::Result<bool> {
        let mut cx = Context::from_waker(&self.waker);
        if self.wire.is_full && self.wire.link.poll_writable(&mut cx)?.is_pending() {
            return Ok(false);
        }
        self.table.unblock(ready);
        Ok(mem::take(&mut self.wire.is_full))
    }

    /// Takes packets that have come.
    fn receive(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        for _ in 0..BATCHES {
            let count = match self.wire.link.try_recv(&mut self.batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                count => count?,
            };
            for buffer in &self.batch[..count] {
                if let Some(segment) = TcpSegment::parse(buffer.packet()) {
                    self.table.take(&segment, ready)?;
                } else {
                    datagrams::take(buffer, &mut self.inbox);
                }
            }
        }
        Ok(())
    }

    /// Ready if there is something to send or to receive.
    fn poll_change(&mut self) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(&self.waker);
        let writable = match (self.wire.is_full, self.table.has_waiting()) {
            (true, _) => self.wire.link.poll_writable(&mut cx),
            (false, true) => Poll::Ready(Ok(())),
            (false, false) => Poll::Pending,
        };
        if writable.is_ready() { writable } else { self.wire.link.poll_readable(&mut cx) }
    }

    fn has_datagrams(&self) -> bool {
        !self.inbox.is_empty()
    }
}
