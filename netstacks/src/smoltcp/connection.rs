//! The engine's state of a connection.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use std::{ptr, slice};

use memmap2::MmapMut;
use platform::packet::TcpSegment;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, RecvError, State};
use tokio::time::Instant;

use super::half_open::HalfOpen;
use super::numbers::Numbers;
use crate::recovery::{Edges, Recovery, is_before};
use crate::{Sink, Source};

/// A socket in its own set.
pub(super) struct Socket {
    /// Borrows from `rings`, so it must be dropped first. Fields are dropped in the order of their declaration.
    set: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) rings: MmapMut,
}

impl Socket {
    /// A closed socket with two rings of `window` bytes, or the system's refusal. Both rings are in one anonymous
    /// mapping: a page takes memory only once it is written to. An allocator would fill reused memory with zeros.
    pub(super) fn new(window: usize) -> io::Result<Self> {
        let mut rings = MmapMut::map_anon(2 * window)?;
        // SAFETY: the mapping has this length, does not move, and nothing else uses it. The slice does not really live
        // for `'static`: the set with the borrowing socket is dropped before the mapping, and no caller may take the
        // socket out of its set.
        let bytes = unsafe { slice::from_raw_parts_mut(rings.as_mut_ptr(), 2 * window) };
        let (receive, send) = bytes.split_at_mut(window);
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(tcp::Socket::new(tcp::SocketBuffer::new(receive), tcp::SocketBuffer::new(send)));
        Ok(Self { set, handle, rings })
    }

    pub(super) fn set(&mut self) -> &mut SocketSet<'static> {
        &mut self.set
    }

    /// Gives the memory of both rings back to the system, with the bytes in them.
    pub(super) fn discard_rings(&mut self) {
        let rings = ptr::slice_from_raw_parts_mut(self.rings.as_mut_ptr(), self.rings.len());
        // SAFETY: a whole anonymous mapping. The socket, which borrows it, does not run now.
        let _not_everywhere = unsafe { platform::discard(rings) };
    }
}

impl Deref for Socket {
    type Target = tcp::Socket<'static>;

    fn deref(&self) -> &Self::Target {
        self.set.get(self.handle)
    }
}

impl DerefMut for Socket {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.set.get_mut(self.handle)
    }
}

/// A connection, or the beginning of one.
#[allow(
    clippy::large_enum_variant,
    reason = "a box for each connection would cost more than the memory of half-open ones"
)]
pub enum Place {
    HalfOpen(HalfOpen),
    Open(Connection),
}

impl Place {
    pub(super) fn open(&self) -> Option<&Connection> {
        match self {
            Self::Open(connection) => Some(connection),
            Self::HalfOpen(_) => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Open(connection) => Some(connection),
            Self::HalfOpen(_) => None,
        }
    }
}

pub struct Connection {
    pub(super) socket: Socket,
    pub(super) numbers: Numbers,
    peer_first: u32,
    /// Shift count of the peer's window.
    peer_scale: u8,
    /// Largest payload of a segment or super-packet to a peer that accepts segments of the full MTU, in bytes.
    pub(super) segment_len: usize,
    pub(super) recovery: Recovery,
    /// The peer's window, as in the header of the last segment that smoltcp has accepted.
    pub(super) peer_window: u16,
    /// A packet from the peer closed the socket: a RST, or the end of an orderly close.
    pub(super) reset: bool,
    /// The peer's FIN has arrived.
    pub(super) peer_finished: bool,
    pub(super) fin: Fin,
    read: usize,
    written: usize,
    /// The end of the last bytes from the peer, in order or not, that the window had room for.
    arrived: u32,
    /// Since when the rings have rested: how many bytes were read and written before, and when that is long enough.
    rest: Option<(usize, Instant)>,
    /// How many bytes were read and written before the memory of the rings was given back.
    rested: usize,
    /// The length of an orphan's send queue at the last check, in bytes.
    unsent: usize,
    /// When an orphan is aborted, unless the peer makes progress.
    orphaned_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// Not requested.
    Open,
    /// Requested, but smoltcp does not know it yet; see `SmoltcpEngine::close`.
    Due,
    /// smoltcp sends it behind the queued bytes.
    Asked,
}

/// How long empty rings keep their memory, at least. A page that was given back costs a microsecond.
pub(super) const REST: Duration = Duration::from_secs(1);

/// Connections that rest end this together, so that the driver does not wake for each.
const REST_STEP: Duration = Duration::from_millis(100);

/// A socket is used again only if it has carried at most this many bytes.
const MAX_SPARE_BYTES: usize = 64 << 10;

/// How long an orphan waits for a peer that acknowledges nothing, or sends no FIN: Linux's `tcp_fin_timeout`.
pub(super) const MAX_FIN_WAIT: Duration = Duration::from_mins(1);

impl Connection {
    /// The connection of a socket that has answered the SYN of `begun`. `segment_len` is the largest payload.
    pub(super) fn new(
        socket: Socket,
        numbers: Numbers,
        begun: &HalfOpen,
        segment_len: usize,
        recovery: Recovery,
    ) -> Self {
        Self {
            socket,
            numbers,
            peer_first: begun.peer_first(),
            peer_scale: begun.peer_scale.unwrap_or(0),
            segment_len,
            recovery,
            peer_window: 0,
            reset: false,
            peer_finished: false,
            fin: Fin::Open,
            read: 0,
            written: 0,
            arrived: begun.peer_first(),
            rest: None,
            rested: 0,
            unsent: usize::MAX,
            orphaned_until: None,
        }
    }

    /// The connection's sequence numbers, which follow from the bytes that came and went: smoltcp tells none.
    pub(super) fn edges(&self) -> Edges {
        let finished = matches!(self.socket.state(), State::FinWait2 | State::TimeWait);
        let acknowledged = self.written - self.socket.send_queue() + usize::from(finished);
        let received = self.read + self.socket.recv_queue() + usize::from(self.peer_finished);
        Edges {
            unacknowledged: self.numbers.initial.wrapping_add(1).wrapping_add(acknowledged as u32),
            sent: self.numbers.sent,
            expected: self.peer_first.wrapping_add(received as u32),
            window_end: self.numbers.window_end,
            peer_window: self.peer_window,
        }
    }

    /// The oldest acknowledgement number that may still arrive (RFC 5961, 5.2), and not before our first.
    pub(super) fn oldest_acknowledgement(&self, edges: &Edges) -> u32 {
        let largest_window = usize::from(u16::MAX) << self.peer_scale;
        edges.unacknowledged.wrapping_sub((self.written + 1).min(largest_window) as u32)
    }

    /// Whether the first segment in flight fits into the peer's window. smoltcp retransmits a whole super-packet.
    pub(super) fn is_first_within_window(&self) -> bool {
        self.socket.send_queue().min(self.segment_len) <= usize::from(self.peer_window) << self.peer_scale
    }

    /// Whether the socket has carried so few bytes that a new connection may use it: its touched memory stays allocated.
    pub(super) fn is_fresh(&self) -> bool {
        self.read + self.written + self.socket.recv_queue() <= MAX_SPARE_BYTES
    }

    /// Notes how far a packet reaches in the window: a forged number must not count (RFC 9293, 3.10.7.4).
    pub(super) fn note_arrived(&mut self, packet: &[u8], edges: &Edges) {
        let Some(segment) = TcpSegment::parse(packet) else { return };
        let (sequence, len) = (segment.sequence(), segment.payload().len());
        if len == 0 || !edges.has_room_for(sequence, len) {
            return;
        }
        let mut end = sequence.wrapping_add(len as u32);
        if is_before(edges.window_end, end) {
            end = edges.window_end;
        }
        if is_before(self.arrived, end) {
            self.arrived = end;
        }
    }

    /// How long the rings keep their memory; `None` if they have bytes or have given it back.
    pub(super) fn rests_until(&mut self, epoch: Instant, now: Instant) -> Option<Instant> {
        let moved = self.read + self.written;
        let queued = self.socket.recv_queue() + self.socket.send_queue();
        // Bytes behind a hole are in the ring too.
        if moved == self.rested || queued > 0 || is_before(self.edges().expected, self.arrived) {
            return None;
        }
        if let Some((before, until)) = self.rest
            && before == moved
        {
            return Some(until);
        }
        let steps = (now + REST).saturating_duration_since(epoch).as_millis() / REST_STEP.as_millis() + 1;
        let until = epoch + REST_STEP * steps as u32;
        self.rest = Some((moved, until));
        Some(until)
    }

    /// Gives the memory of the rings back, which must be empty.
    pub(super) fn give_back(&mut self) {
        self.rested = self.read + self.written;
        self.socket.discard_rings();
    }

    /// When an orphan has waited for too long. Call it whenever the peer may have acknowledged something.
    pub(super) fn stuck_at(&mut self, now: Instant) -> Instant {
        if self.socket.send_queue() < self.unsent {
            self.unsent = self.socket.send_queue();
            self.orphaned_until = None;
        }
        *self.orphaned_until.get_or_insert(now + MAX_FIN_WAIT)
    }

    /// The error of a closed socket.
    pub(super) fn ended(&self) -> io::Error {
        if self.reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::TimedOut }.into()
    }

    /// Lends the bytes that its socket has received.
    pub(super) fn lend(&mut self, sink: &mut Sink<'_>) -> io::Result<usize> {
        let lent = self.lend_ring(sink)?;
        self.read += lent;
        Ok(lent)
    }

    fn lend_ring(&mut self, sink: &mut Sink<'_>) -> io::Result<usize> {
        let mut lent = 0;
        // The bytes may wrap around the end of the ring, so there may be two parts.
        loop {
            let offered = self.socket.recv(|bytes| match bytes.len() {
                0 => (0, Err(io::ErrorKind::WouldBlock.into())),
                len => match sink(&[IoSlice::new(bytes)]) {
                    Ok(0) => (0, Err(io::ErrorKind::WouldBlock.into())),
                    Ok(taken) => (taken.min(len), Ok((taken.min(len), taken >= len))),
                    Err(error) => (0, Err(error)),
                },
            });
            match offered {
                Ok(Ok((taken, true))) => lent += taken,
                Ok(Ok((taken, false))) => return Ok(lent + taken),
                _ if lent > 0 => return Ok(lent),
                Ok(Err(error)) => return Err(error),
                Err(RecvError::Finished) => return Ok(0),
                Err(RecvError::InvalidState) => return Err(self.ended()),
            }
        }
    }

    /// Lends a source the room in its socket.
    pub(super) fn fill(&mut self, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        let filled = self.fill_ring(most, source)?;
        self.written += filled;
        Ok(filled)
    }

    fn fill_ring(&mut self, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        if self.fin != Fin::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.socket.may_send() {
            return Err(self.ended());
        }
        let room = (self.socket.send_capacity() - self.socket.send_queue()).min(most);
        // smoltcp sends all queued bytes, so there would be small segments in between: 52 kB each instead of 64.
        let room = if room > self.segment_len { room - room % self.segment_len } else { room };
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut filled = 0;
        // The room may wrap around the end of the ring, so there may be two parts.
        while filled < room {
            let given = self.socket.send(|free| {
                let len = free.len().min(room - filled);
                match source(&mut free[..len]) {
                    Ok(given) => (given.min(len), Ok((given.min(len), given < len))),
                    Err(error) => (0, Err(error)),
                }
            });
            match given {
                Ok(Ok((given, false))) => filled += given,
                Ok(Ok((given, true))) => return Ok(filled + given),
                _ if filled > 0 => break,
                Ok(Err(error)) => return Err(error),
                Err(tcp::SendError::InvalidState) => return Err(self.ended()),
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowKey;

    /// A half-open connection costs less than 1 KiB, with its places in the table's maps, queues and timers.
    #[test]
    fn a_half_open_connection_is_small() {
        let in_maps = 2 * (size_of::<FlowKey>() + 4 * size_of::<usize>());
        let len = size_of::<Place>() + size_of::<FlowKey>() + in_maps;
        assert!(len < 700, "{len} bytes");
    }
}
