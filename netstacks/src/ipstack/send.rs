//! The sending half of a connection: what is acknowledged, what may be sent, and our FIN.
//!
//! ipstack sends a segment whenever something is left of the peer's window, be it a single byte,
//! and so beyond it; and it sends no FIN while anything is under way and none a second time. Both
//! decisions are made here.

use platform::packet::flags::FIN;

use super::segment::{Segment, after};

/// Duplicate acknowledgements that ipstack is told of: the third makes it retransmit (RFC 5681,
/// 3.2), and so would every further one.
const DUPLICATES: u32 = 3;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    /// What the peer has acknowledged up to.
    pub(super) una: u32,
    /// What was sent up to, our FIN not counted.
    pub(super) next: u32,
    pub(super) fin: Fin,
    /// Largest payload of one segment on the wire.
    pub(super) mss: u32,
    /// Largest payload that ipstack may be given at once: of a segment, or of a super-packet.
    pub(super) largest: usize,
    /// What may be under way at most.
    budget: u32,
    window: u32,
    largest_window: u32,
    /// Sequence and acknowledgement of the last window update (RFC 9293, 3.10.7.4).
    updated_at: (u32, u32),
    duplicates: u32,
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    Open,
    /// To be sent once all up to there is.
    Wanted(u32),
    Sent,
    Acknowledged,
}

/// What an acknowledgement comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AckOutcome {
    /// Something was acknowledged, or the window has changed.
    pub(super) progress: bool,
    /// ipstack has to see it.
    pub(super) tell: bool,
}

impl Sender {
    pub(super) fn new(syn: &Segment, budget: u32, mss: u32) -> Self {
        let window = u32::from(syn.window);
        Self {
            una: 0,
            next: 0,
            fin: Fin::Open,
            mss,
            largest: mss as usize,
            budget,
            window,
            largest_window: window,
            updated_at: (syn.seq, 0),
            duplicates: 0,
        }
    }

    /// ipstack has answered the SYN.
    pub(super) fn open(&mut self, iss: u32) {
        self.una = iss;
        self.next = iss.wrapping_add(1);
        self.updated_at.1 = iss;
    }

    /// The sequence number of the first byte, while none was sent.
    pub(super) fn start(&self) -> u32 {
        self.next
    }

    /// The sequence number of a segment without payload.
    pub(super) fn seq(&self) -> u32 {
        match self.fin {
            Fin::Sent | Fin::Acknowledged => self.next.wrapping_add(1),
            Fin::Open | Fin::Wanted(_) => self.next,
        }
    }

    /// ipstack sends up to there.
    pub(super) fn sent(&mut self, end: u32) {
        if after(end, self.next) {
            self.next = end;
        }
    }

    /// Takes an acknowledgement in; `None` for one of what was never sent.
    pub(super) fn acknowledge(&mut self, segment: &Segment) -> Option<AckOutcome> {
        if after(segment.ack, self.seq()) {
            return None;
        }
        let mut outcome = AckOutcome::default();
        let bare = segment.payload_len == 0 && !segment.has(FIN);
        if after(segment.ack, self.una) {
            // Our FIN is none of ipstack's business.
            let una = if after(segment.ack, self.next) { self.next } else { segment.ack };
            if una != segment.ack {
                self.fin = Fin::Acknowledged;
            }
            outcome.tell = una != self.una;
            outcome.progress = true;
            self.una = una;
            self.duplicates = 0;
        } else if bare && segment.ack == self.una && self.next != self.una && u32::from(segment.window) == self.window {
            self.duplicates += 1;
            outcome.tell = self.duplicates <= DUPLICATES;
        }
        outcome.progress |= self.update_window(segment);
        Some(outcome)
    }

    /// Takes the window from a segment that is not older than the last that had one.
    fn update_window(&mut self, segment: &Segment) -> bool {
        let (seq, ack) = self.updated_at;
        let newer = after(segment.seq, seq) || (segment.seq == seq && !after(ack, segment.ack));
        let window = u32::from(segment.window);
        if !newer {
            return false;
        }
        self.updated_at = (segment.seq, segment.ack);
        self.largest_window = self.largest_window.max(window);
        std::mem::replace(&mut self.window, window) != window
    }

    /// How many of `wanted` bytes may be sent now behind `written`, 0 for none yet: never beyond
    /// the window, and no crumbs (RFC 9293, 3.8.6.2.1).
    pub(super) fn room(&self, written: u32, wanted: usize) -> usize {
        let under_way = written.wrapping_sub(self.una);
        let room = self.window.min(self.budget).saturating_sub(under_way) as usize;
        let mss = self.mss as usize;
        if room >= wanted {
            wanted
        } else if room > mss {
            room - room % mss
        } else if room == mss || under_way == 0 || room >= self.largest_window as usize / 2 {
            room
        } else {
            0
        }
    }

    /// Whether everything up to the end of the stream is acknowledged, but for our FIN.
    pub(super) fn is_delivered(&self) -> bool {
        match self.fin {
            Fin::Open => false,
            Fin::Wanted(end) => end == self.next && self.una == end,
            Fin::Sent => self.una == self.next,
            Fin::Acknowledged => true,
        }
    }

    /// Whether our FIN's turn has come.
    pub(super) fn is_fin_due(&self) -> bool {
        self.fin == Fin::Wanted(self.next)
    }
}
