//! Checks the segments of a peer before ipstack reads them (RFC 9293, 3.10.7.4; RFC 5961).
//!
//! ipstack compares a segment with no window: any RST ends a connection, any FIN closes it, and it stores all that
//! comes out of order.

use std::mem;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{TcpSegment, offset};

use crate::recovery::is_before;
use crate::{Workaround, Workarounds};

/// Most segments out of order that ipstack holds. It walks all of them for each packet.
const MAX_HELD: usize = 128;
/// A small window opens by no less than this many bytes (RFC 9293, 3.8.6.2.2).
const LEAST_STEP: u32 = 16 << 10;
/// Most bytes that ipstack moves to the reader for one packet.
pub(super) const PIECE: usize = 8192;

/// The part of a segment's payload that ipstack reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// How many bytes it leaves out at the start, and how many it reads.
    pub(super) skip: usize,
    pub(super) len: usize,
    /// How many more packets ipstack needs, to move all that is in order now.
    pub(super) nudges: usize,
    /// The acknowledgement number that it reads: the highest so far. It drops a segment with a lower one.
    pub(super) acknowledgement: Option<u32>,
}

impl Piece {
    /// All of a segment, with its own number.
    pub(super) fn whole(segment: &TcpSegment<'_>) -> Self {
        Self { len: segment.payload().len(), ..Self::default() }
    }
}

/// The decision about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// ipstack reads a part of the segment.
    Pass(Piece),
    /// The same, and the adapter sends an ACK: it is out of order (RFC 5681, 4.2).
    PassAndAck(Piece),
    /// ipstack reads it, and the handshake is complete.
    Establish(Piece),
    /// ipstack has these bytes. It needs a packet, to move them to the reader.
    Nudge,
    Drop,
    /// The adapter sends an ACK in place of ipstack, which does not see the segment.
    Ack,
    /// The adapter sends the SYN-ACK once more.
    SynAck,
    /// The adapter sends a RST with this number.
    Rst(u32),
    /// A RST ends the connection.
    End,
    /// A SYN opens a new connection in place of this one.
    Replace,
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// ipstack has not sent its SYN-ACK.
    #[default]
    Listening,
    /// The peer has not acknowledged the SYN-ACK.
    HalfOpen,
    Established,
    /// A RST or a failure has ended it.
    Ended,
}

/// The sequence numbers of a connection, as its packets show them.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) stage: Stage,
    /// The peer's initial number, and ours.
    irs: u32,
    pub(super) iss: u32,
    /// The acknowledgement and the window that ipstack has sent last.
    pub(super) acked: u32,
    pub(super) window: u16,
    /// Most bytes that wait for the application. ipstack has no limit: its window never closes.
    most_unread: u32,
    /// The furthest end that the window has had.
    edge: u32,
    /// Whether the window is smaller than ipstack's, because much is unread.
    pub(super) is_reduced: bool,
    /// The end of the bytes that ipstack was given without a gap.
    passed: u32,
    /// The bytes that it was given beyond a gap. ipstack waits for ever if some of them come twice.
    held: Vec<(u32, u32)>,
    /// The first byte of ours that is not acknowledged, and the end of what was sent.
    pub(super) una: u32,
    pub(super) next: u32,
    /// Sequence number of the peer's FIN.
    pub(super) fin: Option<u32>,
    pub(super) sent_fin: bool,
    pub(super) workarounds: Workarounds,
}

impl Numbers {
    /// A connection that a SYN with this number opens.
    pub(super) fn new(irs: u32, most_unread: u32, workarounds: Workarounds) -> Self {
        let first = irs.wrapping_add(1);
        Self { irs, most_unread, workarounds, acked: first, edge: first, passed: first, ..Self::default() }
    }

    /// Decides about a segment of the peer. `has_room`: whether the accept queue takes another connection.
    pub(super) fn check(&mut self, segment: &TcpSegment<'_>, has_room: impl FnOnce() -> bool) -> Verdict {
        let flags = segment.flags();
        match self.stage {
            Stage::Ended => stray(segment),
            _ if !self.workarounds.has(Workaround::ChecksSegments) => self.believe(segment),
            _ if flags & RST != 0 => self.check_reset(segment.sequence()),
            _ if flags & SYN != 0 => self.check_syn(segment),
            Stage::Listening => Verdict::Drop,
            Stage::HalfOpen if !has_room() => Verdict::Drop,
            Stage::HalfOpen | Stage::Established => self.check_segment(segment),
        }
    }

    /// Passes every segment on, as ipstack does. Notes the end of the connection and of the peer's bytes.
    fn believe(&mut self, segment: &TcpSegment<'_>) -> Verdict {
        let flags = segment.flags();
        if flags & RST != 0 {
            return Verdict::End;
        }
        if flags & FIN != 0 {
            let len = segment.payload().len() as u32;
            self.fin.get_or_insert(segment.sequence().wrapping_add(len));
        }
        self.una = segment.acknowledgement();
        let is_first = self.stage == Stage::HalfOpen && flags & (SYN | ACK) == ACK;
        let piece = Piece::whole(segment);
        if is_first { Verdict::Establish(piece) } else { Verdict::Pass(piece) }
    }

    /// RFC 5961, 3.2. ipstack may not have acknowledged all that it was given.
    fn check_reset(&self, sequence: u32) -> Verdict {
        if sequence.wrapping_sub(self.acked) <= self.passed.wrapping_sub(self.acked).saturating_add(self.closed()) {
            // RFC 1337: TIME-WAIT ignores it.
            return if self.is_over() { Verdict::Drop } else { Verdict::End };
        }
        if self.is_in_window(sequence) && self.stage != Stage::Listening { Verdict::Ack } else { Verdict::Drop }
    }

    fn check_syn(&self, segment: &TcpSegment<'_>) -> Verdict {
        let is_new = segment.flags() & ACK == 0;
        match self.stage {
            Stage::HalfOpen if is_new && segment.sequence() == self.irs => Verdict::SynAck,
            // The SYN of another connection: the peer has given up this one.
            Stage::HalfOpen if is_new => Verdict::Replace,
            // RFC 1122, 4.2.2.13: the number is beyond those of the connection that is over.
            Stage::Established if is_new && self.is_over() && is_before(self.acked, segment.sequence()) => {
                Verdict::Replace
            }
            Stage::Established | Stage::HalfOpen => Verdict::Ack,
            Stage::Listening | Stage::Ended => Verdict::Drop,
        }
    }

    fn check_segment(&mut self, segment: &TcpSegment<'_>) -> Verdict {
        let (sequence, acknowledgement) = (segment.sequence(), segment.acknowledgement());
        let len = segment.payload().len() as u32;
        let is_fin = segment.flags() & FIN != 0;
        if segment.flags() & ACK == 0 {
            return Verdict::Drop;
        }
        let is_acceptable = acknowledgement.wrapping_sub(self.una) <= self.next.wrapping_sub(self.una);
        if self.stage == Stage::HalfOpen && (!is_acceptable || acknowledgement == self.iss) {
            return Verdict::Rst(acknowledgement);
        }
        let end = sequence.wrapping_add(len);
        // A probe that keeps the connection alive has the number before the next one; ipstack answers it.
        let is_probe = len == 0 && !is_fin && sequence == self.acked.wrapping_sub(1);
        // An ACK without data is good at the edge, too.
        let begins_late = if len > 0 { !is_before(sequence, self.edge) } else { is_before(self.edge, sequence) };
        let ends_early = is_before(end, self.acked) || (end == self.acked && len > 0 && !is_fin);
        if is_before(self.next, acknowledgement) || begins_late || (ends_early && !is_probe) {
            return Verdict::Ack;
        }
        if is_acceptable {
            self.una = acknowledgement;
        }
        let verdict = self.place(sequence, end);
        let (Verdict::Pass(piece) | Verdict::PassAndAck(piece)) = verdict else { return verdict };
        if is_fin {
            self.fin.get_or_insert(end);
        }
        if self.stage == Stage::HalfOpen { Verdict::Establish(piece) } else { verdict }
    }

    /// Decides about the bytes from `sequence` to `end`.
    fn place(&mut self, sequence: u32, end: u32) -> Verdict {
        let len = end.wrapping_sub(sequence) as usize;
        if len == 0 || end == self.acked {
            return Verdict::Pass(Piece { skip: len, ..self.piece() });
        }
        if !is_before(self.passed, end) {
            return Verdict::Nudge;
        }
        if !is_before(self.passed, sequence) {
            let end = self.held.first().map_or(end, |held| if is_before(held.0, end) { held.0 } else { end });
            let skip = self.passed.wrapping_sub(sequence) as usize;
            let len = end.wrapping_sub(self.passed) as usize;
            self.passed = end;
            let joined = self.join();
            let nudges = if self.workarounds.has(Workaround::CutsSuperPackets) { joined.div_ceil(PIECE) } else { 0 };
            return Verdict::Pass(Piece { skip, len, nudges, ..self.piece() });
        }
        let place = self.held.partition_point(|held| is_before(held.0, sequence));
        let is_free = place.checked_sub(1).is_none_or(|before| !is_before(sequence, self.held[before].1))
            && self.held.get(place).is_none_or(|after| !is_before(after.0, end));
        if !is_free || self.held.len() >= MAX_HELD {
            return Verdict::Ack;
        }
        self.held.insert(place, (sequence, end));
        Verdict::PassAndAck(Piece { len, ..self.piece() })
    }

    fn piece(&self) -> Piece {
        Piece { acknowledgement: Some(self.una), ..Piece::default() }
    }

    /// Joins the held bytes that are in order now, and returns their number.
    fn join(&mut self) -> usize {
        let before = self.passed;
        let joined = self.held.iter().take_while(|held| mem::replace(&mut self.passed, held.1) == held.0).count();
        self.passed = if joined == 0 { before } else { self.held[joined - 1].1 };
        self.held.drain(..joined);
        self.passed.wrapping_sub(before) as usize
    }

    /// Notes a packet of ipstack. Returns `false` for one of an earlier connection, which must not be sent.
    pub(super) fn note(&mut self, segment: &TcpSegment<'_>) -> bool {
        let (flags, sequence) = (segment.flags(), segment.sequence());
        let len = segment.payload().len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        match self.stage {
            Stage::Listening if flags & SYN != 0 && segment.acknowledgement() == self.acked => {
                self.stage = Stage::HalfOpen;
                (self.iss, self.una, self.next) = (sequence, sequence, sequence);
            }
            Stage::Listening | Stage::Ended => return false,
            Stage::HalfOpen | Stage::Established => {}
        }
        let end = sequence.wrapping_add(len);
        self.next = if is_before(self.next, end) { end } else { self.next };
        self.sent_fin |= flags & FIN != 0;
        if flags & RST != 0 {
            self.stage = Stage::Ended;
        }
        if !is_before(segment.acknowledgement(), self.acked) {
            (self.acked, self.window) = (segment.acknowledgement(), segment.window());
            self.passed = if is_before(self.passed, self.acked) { self.acked } else { self.passed };
        }
        true
    }

    /// Whether ipstack may read the peer's FIN: its own was sent, and it has all bytes before.
    pub(super) fn may_close(&self) -> bool {
        !self.workarounds.has(Workaround::HoldsFin) || self.sent_fin && self.fin == Some(self.acked)
    }

    /// The window to send when the application has read so many bytes.
    pub(super) fn offer(&mut self, read: u32) -> u16 {
        let unread = if self.workarounds.has(Workaround::ClosesWindow) { self.unread(read) } else { 0 };
        let room = self.most_unread.saturating_sub(unread).min(u16::MAX.into()) as u16;
        let mut window = self.window.min(room);
        let edge = self.acked.wrapping_add(window.into());
        self.is_reduced = window < self.window;
        if self.is_reduced && !is_before(self.edge.wrapping_add(LEAST_STEP), edge) {
            window = self.edge.wrapping_sub(self.acked).min(self.window.into()) as u16;
        } else {
            self.edge = if is_before(self.edge, edge) { edge } else { self.edge };
        }
        window
    }

    /// Whether so much was read that the peer should know it.
    pub(super) fn may_reopen(&self, read: u32) -> bool {
        self.is_reduced && self.unread(read) <= self.most_unread / 2
    }

    fn unread(&self, read: u32) -> u32 {
        let unread = self.acked.wrapping_sub(self.irs.wrapping_add(1)).wrapping_sub(read);
        // The application has read what ipstack has not acknowledged yet, or the FIN.
        if unread > u32::MAX / 2 { 0 } else { unread }
    }

    /// 1 if ipstack was given the peer's FIN, and has not acknowledged it.
    fn closed(&self) -> u32 {
        u32::from(self.fin.is_some_and(|fin| !is_before(fin, self.acked)))
    }

    /// Whether both FINs are acknowledged.
    fn is_over(&self) -> bool {
        self.sent_fin && self.una == self.next && self.fin.is_some_and(|fin| is_before(fin, self.acked))
    }

    fn is_in_window(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.acked) < self.edge.wrapping_sub(self.acked).max(1)
    }
}

/// Decides about a segment of no connection (RFC 9293, 3.10.7.1 and 3.10.7.2).
pub(super) fn stray(segment: &TcpSegment<'_>) -> Verdict {
    match segment.flags() & (SYN | ACK | RST) {
        SYN => Verdict::Replace,
        flags if flags & (RST | ACK) == ACK => Verdict::Rst(segment.acknowledgement()),
        _ => Verdict::Drop,
    }
}

/// Changes the acknowledgement number in headers.
pub(super) fn write_acknowledgement(headers: &mut [u8], tcp_at: usize, number: u32) {
    headers[tcp_at + offset::ACKNOWLEDGEMENT..][..4].copy_from_slice(&number.to_be_bytes());
}
