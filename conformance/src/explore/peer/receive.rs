//! What the client does with a segment of the stack.

use std::time::Instant;

use platform::packet::flags::{ACK, FIN, RST, SYN};

use super::{Gone, MOST_PACKETS, Peer};
use crate::client::{MSS, SACK_PERMITTED};
use crate::explore::app::App;
use crate::explore::{Invariant, Played};
use crate::wire::Segment;
use crate::{Out, distance};

impl Peer {
    /// Receives what the stack has sent. All of it is checked before the client answers any: an answer widens the window.
    pub(in crate::explore) fn receive(&mut self, app: &App) -> Played {
        let mut segments = Vec::new();
        while let Some(segment) = self.client.segment_until(Instant::now())? {
            if self.is_open && self.is_blameless && self.gone.is_none() && !segment.has(SYN) {
                self.check(&segment, app)?;
            }
            segments.push(segment);
        }
        self.packets += segments.len();
        if self.packets > MOST_PACKETS {
            Invariant::Progress.holds(!self.is_blameless, || format!("{MOST_PACKETS} packets came"))?;
            self.vanish();
        }
        segments.into_iter().try_for_each(|segment| self.arrive(segment))
    }

    fn arrive(&mut self, segment: Segment) -> Played {
        match self.gone {
            Some(Gone::Vanished) => return Ok(()),
            Some(Gone::Reset) => return self.refuse(&segment),
            None => {}
        }
        if self.losses > 0 {
            self.losses -= 1;
        } else if std::mem::take(&mut self.overtakes) {
            self.late = Some(segment);
        } else {
            self.take(&segment)?;
            if let Some(late) = self.late.take() {
                self.take(&late)?;
            }
        }
        Ok(())
    }

    /// Answers a segment of a connection that the client does not know (RFC 9293, 3.10.7.1).
    fn refuse(&self, segment: &Segment) -> Played {
        if segment.has(RST) {
            return Ok(());
        }
        let out = Out { flags: RST, seq: segment.ack, ack: 0, window: 0, options: &[], payload: &[] };
        Ok(self.client.put(out)?)
    }

    /// Takes a segment that has arrived, and acknowledges it if it has payload, SYN or FIN.
    pub(super) fn take(&mut self, segment: &Segment) -> Played {
        if segment.has(RST) {
            return self.take_reset(segment);
        }
        if segment.has(SYN) {
            return self.take_syn_ack(segment);
        }
        if !self.is_open {
            return self.refuse(segment);
        }
        let acknowledged = distance(self.client.isn.wrapping_add(1), segment.ack).max(0) as usize;
        self.is_fin_acknowledged |= self.has_ended && acknowledged > self.next;
        self.acknowledged = self.acknowledged.max(acknowledged.min(self.next));
        self.edge = self.edge.max(acknowledged + (usize::from(segment.window) << self.client.scale));
        let (at, end) = self.places(segment);
        let mut segment = segment.clone();
        let is_new = segment.len() > 0;
        if end > self.limit {
            let room = self.limit.saturating_sub(at.unwrap_or_default());
            segment.payload.truncate(room);
            segment.flags &= !FIN;
        }
        if at.is_some() && segment.len() > 0 {
            self.client.accept(segment, &mut Vec::new());
        }
        if is_new { self.ack() } else { Ok(()) }
    }

    /// Returns the places of a segment's first byte, `None` if it is before the stream, and of the byte after its last.
    pub(super) fn places(&self, segment: &Segment) -> (Option<usize>, usize) {
        let at = i64::from(distance(self.client.stack_isn.wrapping_add(1), segment.seq));
        let end = at + i64::from(segment.payload.len() as u32);
        (usize::try_from(at).ok(), usize::try_from(end).unwrap_or_default())
    }

    /// A RST with any number but the next is answered with an ACK (RFC 5961, 3.2).
    fn take_reset(&mut self, segment: &Segment) -> Played {
        if !self.is_open {
            let is_ours = segment.ack == self.client.isn.wrapping_add(1);
            self.was_reset |= is_ours;
            return Invariant::Freed.holds(!is_ours || !self.is_blameless, || "a RST came for a SYN".to_owned());
        }
        if segment.seq == self.client.expected {
            self.was_reset = true;
            return Ok(());
        }
        self.ack()
    }

    fn take_syn_ack(&mut self, segment: &Segment) -> Played {
        if self.is_open {
            return self.ack();
        }
        if !segment.has(ACK) || segment.ack != self.client.isn.wrapping_add(1) {
            return self.refuse(segment);
        }
        self.is_open = true;
        self.client.opened(segment);
        self.client.sack = self.opening.offer.sack && self.client.has_agreed(SACK_PERMITTED);
        if let Some(&[high, low]) = segment.option(MSS) {
            self.stack_mss = u16::from_be_bytes([high, low]).max(1).into();
        }
        self.edge = segment.window.into();
        if self.opening.loses_ack { Ok(()) } else { self.ack() }
    }
}
