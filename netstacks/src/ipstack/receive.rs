//! The receiving half of a connection: what of a segment is handed to ipstack, and the window.
//!
//! ipstack takes what it is given: it has no receive window to speak of, never gets over segments
//! that overlap, and leaves a repeated segment unanswered, so that a lost ACK ends in silence. It
//! is therefore given every byte once, in order and within the window, and nothing else.

use platform::packet::flags::FIN;

use super::segment::{Segment, after};

/// More segments than these do not wait for a gap to be filled; their bytes are bounded as well.
const MAX_STORED: usize = 256;

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    /// What is expected next: all before it was handed over, the peer's FIN included.
    pub(super) next: u32,
    /// The right edge of the window that was advertised.
    edge: u32,
    /// What the application has read up to.
    consumed: u32,
    /// The last acknowledgement that was sent.
    acked: u32,
    /// Where the peer's FIN is, once all before it has come.
    fin: Option<u32>,
    /// Bytes that may wait for the application.
    budget: u32,
    mss: u32,
    /// Packets that came ahead of a gap, in no order.
    stored: Vec<(u32, Vec<u8>)>,
}

/// What a segment comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nothing but an acknowledgement.
    Empty,
    /// To be answered with an ACK, and not to be handed on: a probe, a repetition.
    Unwanted,
    /// Ahead of a gap: to be answered with an ACK, and worth keeping.
    Early,
    /// New bytes: so many of the payload are known already, so many are new.
    Data { skip: usize, len: usize },
}

impl Receiver {
    pub(super) fn new(irs: u32, budget: u32, mss: u32) -> Self {
        let next = irs.wrapping_add(1);
        Self {
            next,
            edge: next.wrapping_add(budget),
            consumed: next,
            acked: irs,
            fin: None,
            budget,
            mss,
            stored: Vec::new(),
        }
    }

    /// Takes a segment in. What is `Data` counts as received from now on.
    pub(super) fn arrive(&mut self, segment: &Segment) -> Arrival {
        let fin = segment.has(FIN);
        if segment.payload_len == 0 && !fin {
            // A keep-alive or a window probe is one before what is expected (RFC 9293, 3.8.4).
            let probe = segment.seq == self.next.wrapping_sub(1);
            return if probe { Arrival::Unwanted } else { Arrival::Empty };
        }
        if self.fin.is_some() || !after(segment.end(), self.next) {
            return Arrival::Unwanted;
        }
        if after(segment.seq, self.next) {
            return if after(segment.end(), self.edge.wrapping_add(1)) { Arrival::Unwanted } else { Arrival::Early };
        }
        let skip = self.next.wrapping_sub(segment.seq) as usize;
        let room = self.edge.wrapping_sub(self.next) as usize;
        let fresh = segment.payload_len - skip.min(segment.payload_len);
        let len = fresh.min(room);
        self.next = self.next.wrapping_add(len as u32);
        if fin && len == fresh {
            self.fin = Some(self.next);
            self.next = self.next.wrapping_add(1);
        } else if len == 0 {
            return Arrival::Unwanted;
        }
        Arrival::Data { skip, len }
    }

    /// Keeps a packet that came early, as far as there is room.
    pub(super) fn store(&mut self, seq: u32, packet: &[u8]) {
        let bytes: usize = self.stored.iter().map(|(_, packet)| packet.len()).sum();
        let known = self.stored.iter().any(|(at, stored)| *at == seq && stored.len() >= packet.len());
        if !known && self.stored.len() < MAX_STORED && bytes < self.budget as usize {
            self.stored.push((seq, packet.to_vec()));
        }
    }

    /// A kept packet whose turn has come.
    pub(super) fn release(&mut self) -> Option<Vec<u8>> {
        let next = self.next;
        let index = self.stored.iter().position(|(seq, _)| !after(*seq, next))?;
        Some(self.stored.swap_remove(index).1)
    }

    /// Nothing more is to come.
    pub(super) fn forget_stored(&mut self) {
        self.stored = Vec::new();
    }

    /// The application has read so many bytes more.
    pub(super) fn read(&mut self, len: usize) {
        self.consumed = self.consumed.wrapping_add(len as u32);
    }

    /// Nobody reads any more: what comes counts as read.
    pub(super) fn discard(&mut self) {
        self.consumed = self.fin.unwrap_or(self.next);
        self.stored = Vec::new();
    }

    /// Whether the peer's FIN has come, with all before it.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some()
    }

    /// Whether the application has read all that will ever come.
    pub(super) fn is_drained(&self) -> bool {
        self.fin == Some(self.consumed)
    }

    /// Whether a reset with this sequence number lies within the window (RFC 9293, 3.10.7.4). One
    /// more, because of a FIN that was already counted.
    pub(super) fn admits_reset(&self, seq: u32) -> bool {
        !after(self.next, seq) && !after(seq, self.edge.wrapping_add(1))
    }

    /// Whether reading has opened the window so far that the peer has to be told. What is left
    /// when the reader has caught up always is, so a sender never waits for more.
    pub(super) fn is_update_due(&self) -> bool {
        let open = self.edge.wrapping_sub(self.next).cast_signed();
        let gain = self.gain();
        self.fin.is_none() && open < (self.budget / 2).cast_signed() && gain >= self.step().max(self.budget / 4)
    }

    /// The acknowledgement and the window for a segment that leaves now, and whether either says
    /// anything new.
    pub(super) fn announce(&mut self) -> (u32, u16, bool) {
        let gain = self.gain();
        let opened = self.fin.is_none() && gain > 0 && gain >= self.step();
        if opened {
            self.edge = self.edge.wrapping_add(gain);
        }
        let changed = opened || self.acked != self.next;
        self.acked = self.next;
        // A FIN lies one beyond the window at most.
        let window = self.edge.wrapping_sub(self.next).cast_signed().max(0);
        (self.next, window.try_into().unwrap_or(u16::MAX), changed)
    }

    /// How far the window's edge could move.
    fn gain(&self) -> u32 {
        self.consumed.wrapping_add(self.budget).wrapping_sub(self.edge)
    }

    /// Smallest move of the edge: less makes the sender send crumbs (RFC 9293, 3.8.6.2.2).
    fn step(&self) -> u32 {
        self.mss.min(self.budget / 2)
    }
}
