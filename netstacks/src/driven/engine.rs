//! What a stack has to do to be driven.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::time::Instant;

#[cfg(doc)]
use crate::Stream;
use crate::{Datagram, Sink, Source};

/// A stack that is a state machine over a link. It has no tasks, wakers or locks.
pub trait Engine: Send + 'static {
    /// Takes at most one batch of packets from the link.
    fn ingress(&mut self, now: Instant) -> io::Result<Intake>;

    /// Sends what is due: data, acknowledgements, and what a timer demands. Stops early where the
    /// link would block.
    fn egress(&mut self, now: Instant) -> io::Result<()>;

    /// When `egress` is due for a timer's sake.
    fn deadline(&mut self, now: Instant) -> Option<Instant>;

    /// The next connection whose handshake is done. Its identity is the caller's until `release`.
    fn accept(&mut self) -> Option<Accepted>;

    /// Whether `accept` has one.
    fn can_accept(&self) -> bool;

    /// Lends received bytes to a sink: see [`Stream::poll_lend`]. `WouldBlock` where there are none.
    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize>;

    /// Takes received bytes: their number, 0 after the peer's FIN, or `WouldBlock`.
    fn recv(&mut self, flow: FlowId, buffer: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        self.lend(flow, &mut |slices| {
            let before = taken;
            for slice in slices {
                let room = &mut buffer[taken..];
                let len = room.len().min(slice.len());
                room[..len].copy_from_slice(&slice[..len]);
                taken += len;
            }
            Ok(taken - before)
        })
    }

    /// Whether a connection has ended otherwise than by FINs.
    fn has_failed(&self, flow: FlowId) -> bool;

    /// Lends a source room for `most` bytes to be sent at most: see [`Stream::poll_fill`]. `WouldBlock` where there is
    /// none. Where bytes that the source gave are lost for lack of memory, the connection is reset.
    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize>;

    /// Queues bytes to be sent: how many it had room for, or `WouldBlock` for none.
    fn send(&mut self, flow: FlowId, bytes: &[u8]) -> io::Result<usize> {
        let mut left = bytes;
        self.fill(flow, bytes.len(), &mut |room| {
            let (now, later) = left.split_at(room.len().min(left.len()));
            room[..now.len()].copy_from_slice(now);
            left = later;
            Ok(now.len())
        })
    }

    /// Sends a FIN behind what is queued.
    fn finish(&mut self, flow: FlowId);

    /// Nobody asks for this connection any more: close it and, in due time, forget it.
    fn release(&mut self, flow: FlowId);

    /// Ends a connection with a RST. It is still the caller's, until `release`.
    fn reset(&mut self, flow: FlowId);

    /// Takes the oldest datagram that waits, or `WouldBlock`.
    fn recv_datagram(&mut self, buffer: &mut [u8]) -> io::Result<Datagram>;

    /// Whether `recv_datagram` has one.
    fn has_datagram(&self) -> bool;

    /// Sends a datagram, or answers why not; see [`crate::Datagrams::try_send`].
    fn send_datagram(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()>;

    /// Nobody receives datagrams any more: what comes is to be dropped.
    fn close_datagrams(&mut self);

    /// A connection whose state has changed since it was last named here.
    fn touched(&mut self) -> Option<FlowId>;

    /// Whether there is any connection that a timer may matter to.
    fn is_idle(&self) -> bool;

    /// See [`platform::Link::poll_readable`].
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether packets wait for room on the link.
    fn is_blocked(&self) -> bool;

    /// Ready where the link would block and takes packets again, pending otherwise.
    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// How much one `ingress` took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// All that was waiting.
    Drained,
    /// A whole batch; more may be waiting.
    Full,
}

/// A connection's number within its engine. Numbers are used again, so the tables stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(pub usize);

/// A new connection.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub flow: FlowId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}
