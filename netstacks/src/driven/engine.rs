//! The interface between a stack that is a state machine and its driver.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Poll};

use platform::Capabilities;
use tokio::time::Instant;

use super::table::Table;
#[cfg(doc)]
use crate::Stream;
use crate::datagrams::Inbox;
use crate::{Sink, Source};

/// A stack that is a state machine over a link. It has no tasks, wakers or locks.
pub trait Engine: Send + 'static {
    /// The engine's own state of a connection.
    type Connection;

    /// Takes at most one batch of packets from the link.
    fn ingress(&mut self, now: Instant) -> io::Result<Intake>;

    /// Sends due data, acknowledgements and retransmissions, at most a bounded number of packets.
    fn egress(&mut self, now: Instant) -> io::Result<()>;

    /// The time at which a timer needs a call of `egress`.
    fn deadline(&mut self, now: Instant) -> Option<Instant>;

    /// Its connections. The [`FlowId`] of one that was accepted stays valid until the caller calls `release`.
    fn table(&self) -> &Table<Self::Connection>;

    fn table_mut(&mut self) -> &mut Table<Self::Connection>;

    /// Opens no more connections, and resets those that were not accepted.
    fn close_listener(&mut self);

    /// Lends received bytes to a sink; see [`Stream::poll_read_with`]. `WouldBlock` if there are none.
    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize>;

    /// Copies received bytes to `buffer`. Returns how many, 0 after the peer's FIN, or `WouldBlock`.
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

    /// Whether a connection has ended other than by FINs.
    fn has_failed(&self, flow: FlowId) -> bool;

    /// Lends a source room for `most` bytes; see [`Stream::poll_write_with`]. Lack of memory resets the connection.
    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize>;

    /// Queues bytes to be sent. Returns how many it had room for, or `WouldBlock` for none.
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

    /// The caller no longer needs a connection: closes it, and forgets it when it has ended.
    fn release(&mut self, flow: FlowId);

    /// Ends a connection with a RST. The caller must still call `release`.
    fn reset(&mut self, flow: FlowId);

    fn inbox(&mut self) -> &mut Inbox;

    /// The link's abilities, if it takes UDP super-packets.
    fn udp_segmentation(&self) -> Option<Capabilities>;

    /// Sends a datagram, or a super-packet of them if there is a `segment_len`; see [`crate::Datagrams::try_send`].
    fn send_datagram(
        &mut self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()>;

    fn close_datagrams(&mut self);

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    fn is_blocked(&self) -> bool;

    /// Ready if the link was full and takes packets again, else pending.
    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Bytes of all packets.
    pub len: usize,
    /// Whether no more packets were waiting. If not, the batch was full.
    pub is_drained: bool,
    /// See [`platform::Link::has_passed_on`].
    pub has_passed_on: bool,
}

/// A connection's number within its engine. Numbers are reused, so the tables stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub usize);

#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub flow: FlowId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}
