//! The interface of a stack that is driven.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Poll};

use tokio::time::Instant;

#[cfg(doc)]
use crate::Stream;
use crate::datagrams::Inbox;
use crate::{Sink, Source};

/// A stack that is a state machine over a link. It has no tasks, wakers or locks.
pub trait Engine: Send + 'static {
    /// Takes at most one batch of packets from the link.
    fn ingress(&mut self, now: Instant) -> io::Result<Intake>;

    /// Sends what is due: data, acknowledgements, retransmissions. Stops early if the link would block, and after a
    /// bounded number of packets.
    fn egress(&mut self, now: Instant) -> io::Result<()>;

    /// Whether a connection may have something to send.
    fn has_due(&self) -> bool;

    /// The time at which a timer needs `egress`.
    fn deadline(&mut self, now: Instant) -> Option<Instant>;

    /// The next connection with a complete handshake. The caller owns its number until `release`.
    fn accept(&mut self) -> Option<Accepted>;

    /// Whether `accept` would return one.
    fn can_accept(&self) -> bool;

    /// From now on no connection is opened, and those that nobody has accepted are reset.
    fn close_listener(&mut self);

    /// Lends received bytes to a sink: see [`Stream::poll_read_with`]. `WouldBlock` if there are none.
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

    /// Whether a connection has ended in another way than by FINs.
    fn has_failed(&self, flow: FlowId) -> bool;

    /// Lends a source room for `most` bytes to be sent at most: see [`Stream::poll_write_with`]. `WouldBlock` if there is
    /// none. The connection is reset if bytes of the source are lost for lack of memory.
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

    /// Sends a FIN behind the queued bytes.
    fn finish(&mut self, flow: FlowId);

    /// The caller gives a connection up: close it and, in due time, forget it.
    fn release(&mut self, flow: FlowId);

    /// Ends a connection with a RST. The caller still owns it, until `release`.
    fn reset(&mut self, flow: FlowId);

    /// The datagrams that wait to be received.
    fn inbox(&mut self) -> &mut Inbox;

    /// The link's MTU, if it takes UDP super-packets.
    fn udp_segmentation(&self) -> Option<usize>;

    /// Sends a datagram, or returns why not; see [`crate::Datagrams::try_send`]. With a `segment_len` it sends a
    /// super-packet of datagrams, each of which fits the MTU.
    fn send_datagram(
        &mut self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()>;

    /// From now on, drop all datagrams that arrive.
    fn close_datagrams(&mut self);

    /// A connection that has changed since this last returned it.
    fn touched(&mut self) -> Option<FlowId>;

    /// Whether no connection needs a timer.
    fn is_idle(&self) -> bool;

    /// See [`platform::Link::poll_readable`].
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether packets wait for room on the link.
    fn is_blocked(&self) -> bool;

    /// Ready if the link was full and takes packets again, else pending.
    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// What one `ingress` took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Bytes of all packets.
    pub len: usize,
    /// No more packets were waiting. Else it was a whole batch.
    pub is_drained: bool,
}

/// A connection's number within its engine. Numbers are used again, so the tables stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub usize);

/// A new connection.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub flow: FlowId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}
