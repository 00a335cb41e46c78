//! A scripted TCP peer: the client of a stack that runs over a link in memory.
//!
//! A [`Peer`] is a client with one connection and no timers: it only reacts to the stack. It supports a
//! transfer over a link that loses, repeats and reorders nothing: the handshake, whole segments up to the
//! stack's window, one acknowledgement for each batch, and a FIN in each direction. It does not retransmit: over a
//! link that loses packets, or with a stack that drops them, it waits for ever. It has no congestion control,
//! no selective acknowledgements and no timestamps. After its creation it allocates only for bytes that arrive
//! while the caller writes and does not read.
//!
//! Only the link copies the payload that it sends. Received payload is copied once, from the packet to the
//! caller's buffer.
//!
//! [`Peer`] is for tasks. [`Client`] wraps it as a blocking connection for a thread. [`Peers`] has many
//! connections on one link, for an event loop; it copies received payload once more. [`SharedLink`] shares one link
//! between the peers of several threads.

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

pub use self::client::Client;
use self::connection::{Connection, Receiving, Sending, Wire};
pub use self::peers::{Peers, PeersWaker};
pub use self::shared::SharedLink;

/// A TCP client with one connection over `L`. See the [module](self) for its limits.
///
/// Call all its methods from one task or thread: each remembers only the waker of its last call.
///
/// ```
/// use std::future::poll_fn;
///
/// use netstacks::peer::Peer;
/// use netstacks::{Netstack, Smoltcp, StackConfig};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let stack = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
///
/// let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:80".parse()?)?;
/// poll_fn(|cx| peer.poll_connect(cx)).await?;
/// assert_eq!(poll_fn(|cx| peer.poll_write(cx, b"hello")).await?, 5);
/// poll_fn(|cx| peer.poll_shutdown(cx)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer<L> {
    wire: Wire<L>,
    connection: Connection,
    batch: Vec<PacketBuffer>,
}

impl<L: Link> Peer<L> {
    /// A peer at the address `local` that connects to `remote`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the IP versions of the addresses differ, or the link's packets are too small
    /// for the headers.
    pub fn new(link: L, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let wire = Wire::new(link);
        Ok(Self { connection: Connection::new(local, remote, wire.capabilities)?, batch: wire.batch(), wire })
    }

    /// Connects: ready after the stack's SYN-ACK.
    ///
    /// # Errors
    ///
    /// The errors of the link, and [`io::ErrorKind::ConnectionReset`] if the stack refuses the connection.
    pub fn poll_connect(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.receive_all()?;
            if self.connection.is_established() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Reads bytes that have arrived. Returns 0 after the stack's FIN, and for an empty buffer.
    ///
    /// # Errors
    ///
    /// The errors of the link, and [`io::ErrorKind::ConnectionReset`].
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

    /// Sends full packets from the start of `bytes`, as many as the window and the link take, and returns how many
    /// bytes these are. A rest that does not fill a packet is left to the next call. If `bytes` is less than a full
    /// packet, it is sent as it is.
    ///
    /// # Errors
    ///
    /// The errors of the link, [`io::ErrorKind::ConnectionReset`], and [`io::ErrorKind::BrokenPipe`] after
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

    /// Ends the sending half. Ready when the FIN is sent, which needs room in the stack's window. Reads still work.
    ///
    /// # Errors
    ///
    /// The errors of the link, and [`io::ErrorKind::ConnectionReset`].
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

    /// Ready if the link has packets, or if it was full and has room again.
    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Wire { link, is_full, .. } = &mut self.wire;
        link.flush()?;
        let writable = if *is_full { link.poll_writable(cx) } else { Poll::Pending };
        let readable = link.poll_readable(cx);
        if writable.is_ready() { writable } else { readable }
    }

    /// Receives all waiting packets, batch by batch. Their payload is read later.
    fn receive_all(&mut self) -> io::Result<()> {
        while self.receive(&mut [])?.is_some() {}
        self.settle()
    }

    /// Receives a batch of packets and acknowledges it. Returns how many bytes of its payload are in the buffer; the
    /// rest is read later. `None` if no packet waits.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.check_reset()?;
        let count = match self.wire.link.try_recv(&mut self.batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            count => count?,
        };
        let mut filled = 0;
        for packet in &self.batch[..count] {
            // The stack may also send packets that are not TCP.
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

    /// Sends the packet that is due, after all waiting packets were received.
    fn settle(&mut self) -> io::Result<()> {
        self.wire.is_full = false;
        self.send_due()
    }

    /// Sends the SYN, the acknowledgement or the FIN that is due, if the link has room.
    fn send_due(&mut self) -> io::Result<()> {
        // The caller may not make another call that flushes.
        if self.connection.due().is_some() && self.connection.send_due(&mut self.wire)? {
            self.wire.link.flush()?;
        }
        Ok(())
    }
}
