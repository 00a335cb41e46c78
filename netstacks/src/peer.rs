//! A scripted TCP peer: the other end of a stack that runs over a link in memory.
//!
//! A [`Peer`] is a client of one connection, without timers: it only reacts to the stack. It supports a
//! transfer over a link that loses, repeats and reorders nothing: the handshake, whole segments up to the
//! stack's window, one acknowledgement for each batch, and a FIN each way. It retransmits nothing: over a
//! link that loses packets, or with a stack that drops them, it waits for ever. It has no congestion control,
//! no selective acknowledgements and no timestamps. Once it is made, it allocates only for bytes that arrive
//! while it is written to and not read.
//!
//! Only the link copies the payload that it sends. Received payload is copied once, from the packet to the
//! caller's buffer.
//!
//! [`Peer`] is for tasks; [`Client`] makes a plain blocking connection of it, for a thread. [`Peers`] has many
//! connections on one link, for a thread that is driven by readiness; it copies received payload once more.
//! [`SharedLink`] has one link for the peers of several threads.

mod client;
mod connection;
mod peers;
mod shared;
mod signal;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use platform::packet::TcpSegment;
use platform::{Link, PacketBuffer};

pub use self::client::{Canceller, Client};
use self::connection::{Connection, Receiving, Sending, Wire};
pub use self::peers::{Peers, PeersWaker};
pub use self::shared::SharedLink;

/// A TCP client of one connection over `L`; the text of the module names its limits.
///
/// Call all its methods in one task or thread; each remembers the waker of its last call only.
#[derive(Debug)]
pub struct Peer<L> {
    wire: Wire<L>,
    connection: Connection,
    batch: Vec<PacketBuffer>,
}

impl<L: Link> Peer<L> {
    /// A peer at `local` that connects to `remote`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if these are of two IP versions, or the link's packets are too small for
    /// the headers.
    pub fn new(link: L, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let wire = Wire::new(link);
        Ok(Self { connection: Connection::new(local, remote, wire.capabilities)?, batch: wire.batch(), wire })
    }

    /// Connects: ready after the stack's SYN-ACK.
    ///
    /// # Errors
    ///
    /// The errors of the link, and [`io::ErrorKind::ConnectionReset`] if the stack refuses.
    pub fn poll_connect(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.receive_all()?;
            if self.connection.is_established() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Reads bytes that have arrived; 0 after the stack's FIN, and for an empty buffer.
    ///
    /// # Errors
    ///
    /// The link's own, and [`io::ErrorKind::ConnectionReset`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let len = self.connection.read_unread(buffer);
            if len > 0 {
                self.settle()?;
                return Poll::Ready(Ok(len));
            }
            match self.receive(buffer)? {
                Some(0) => continue,
                Some(len) => return Poll::Ready(Ok(len)),
                None => self.settle()?,
            }
            if self.connection.receiving() == Receiving::Ended {
                return Poll::Ready(Ok(0));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Sends whole packets from the start of `bytes`, as many as the window and the link take, and returns how
    /// many bytes these are. The caller offers a rest that does not fill a packet again, with more behind it;
    /// alone it is sent too.
    ///
    /// # Errors
    ///
    /// The link's own, [`io::ErrorKind::ConnectionReset`], and [`io::ErrorKind::BrokenPipe`] after
    /// [`Peer::poll_shutdown`].
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.connection.is_closing() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            self.receive_all()?;
            let len = self.connection.fill(&mut self.wire, bytes)?;
            if len > 0 {
                self.wire.link.flush()?;
                return Poll::Ready(Ok(len));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Ends the sending half: ready once the FIN is sent, which needs room in the stack's window. Reading goes
    /// on.
    ///
    /// # Errors
    ///
    /// The link's own, and [`io::ErrorKind::ConnectionReset`].
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.close();
        while self.connection.sending() != Sending::FinSent {
            self.receive_all()?;
            if self.connection.sending() != Sending::FinSent {
                ready!(self.poll_change(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready if the link has packets, or room again if it had none.
    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Wire { link, is_full, .. } = &mut self.wire;
        link.flush()?;
        let writable = if *is_full { link.poll_writable(cx) } else { Poll::Pending };
        let readable = link.poll_readable(cx);
        if writable.is_ready() { writable } else { readable }
    }

    /// Takes all waiting packets, batch by batch. Their payload is read later.
    fn receive_all(&mut self) -> io::Result<()> {
        while self.receive(&mut [])?.is_some() {}
        self.settle()
    }

    /// Takes a batch of packets and acknowledges it. Returns how many bytes of its payload are in the buffer; the
    /// rest is read later. `None`: no packet waits.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.check_reset()?;
        let count = match self.wire.link.try_recv(&mut self.batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            count => count?,
        };
        let mut filled = 0;
        for packet in &self.batch[..count] {
            // A stack may send other packets too.
            if let Some(segment) = TcpSegment::parse(packet.packet()) {
                filled += self.connection.take(&segment, &mut buffer[filled..])?;
            }
        }
        self.check_reset()?;
        self.send_due()?;
        Ok(Some(filled))
    }

    fn check_reset(&self) -> io::Result<()> {
        match self.connection.receiving() {
            Receiving::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Receiving::Open | Receiving::Ended => Ok(()),
        }
    }

    /// Sends the packet that is due once no packet waits.
    fn settle(&mut self) -> io::Result<()> {
        self.wire.is_full = false;
        self.send_due()
    }

    /// Sends the SYN, the acknowledgement or the FIN that is due, if the link has room.
    fn send_due(&mut self) -> io::Result<()> {
        // The caller may make no other call that flushes.
        if self.connection.due().is_some() && self.connection.send_due(&mut self.wire)? {
            self.wire.link.flush()?;
        }
        Ok(())
    }
}
