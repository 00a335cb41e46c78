//! The client of a play. It may do anything that RFC 9293 allows, and forge segments; it checks the stack's segments.

mod check;
mod receive;

use std::ops::Range;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{Transport, is_checksum_right};

use super::play::{Fault, Forged, Opening};
use super::{LONGEST, Played, Stream};
use crate::client::WINDOW_SCALE;
use crate::wire::Segment;
use crate::{Client, Out, distance};

/// The most packets of the stack in a play. Two sides that answer each other for ever send more.
const MOST_PACKETS: usize = 10_000;

/// Why the client takes no more part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Reset,
    Vanished,
}

/// Which bytes of a stream have arrived.
#[derive(Default)]
struct Coverage {
    bytes: Vec<bool>,
    /// How many bytes there are before the first gap.
    prefix: usize,
}

impl Coverage {
    fn add(&mut self, range: Range<usize>) {
        self.bytes.resize(self.bytes.len().max(range.end), false);
        self.bytes[range].fill(true);
        self.prefix += self.bytes[self.prefix..].iter().take_while(|arrived| **arrived).count();
    }
}

/// A place in a stream as a number that may be before it.
fn place(at: usize) -> i64 {
    i64::from(at as u32)
}

/// Places in the streams count from 0; a FIN has the place after the last byte.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Peer {
    client: Client,
    opening: Opening,
    streams: [Stream; 2],
    stack_mss: usize,
    pub(super) is_open: bool,
    /// Whether the stack verifies checksums.
    is_verified: bool,
    /// Whether the same port had another connection before.
    pub(super) is_again: bool,
    /// Whether it has sent nothing that may end the connection, lose bytes or misplace its end.
    pub(super) is_blameless: bool,

    /// How many bytes were sent and acknowledged, and where the stack's window ends.
    pub(super) next: usize,
    acknowledged: usize,
    edge: usize,
    /// The bytes that the network has delivered to the stack, and whether it has delivered the FIN.
    delivered: Coverage,
    pub(super) has_ended: bool,
    is_fin_delivered: bool,
    is_fin_acknowledged: bool,

    /// Where the client's window ends.
    limit: usize,
    window: usize,
    is_reading: bool,
    pub(super) was_reset: bool,
    pub(super) gone: Option<Gone>,

    pub(super) lost_acks: u8,
    pub(super) losses: u8,
    pub(super) overtakes: bool,
    late: Option<Segment>,
    packets: usize,
    last: Vec<u8>,
}

impl Peer {
    pub(super) fn new(mut client: Client, is_verified: bool, opening: &Opening, streams: [Stream; 2]) -> Self {
        client.begin_at(opening.isn);
        let window = opening.offer.window.into();
        Self {
            client,
            opening: opening.clone(),
            streams,
            stack_mss: 536,
            is_open: false,
            is_verified,
            is_again: false,
            is_blameless: true,
            next: 0,
            acknowledged: 0,
            edge: 0,
            delivered: Coverage::default(),
            has_ended: false,
            is_fin_delivered: false,
            is_fin_acknowledged: false,
            limit: window,
            window,
            is_reading: true,
            was_reset: false,
            gone: None,
            lost_acks: 0,
            losses: 0,
            overtakes: false,
            late: None,
            packets: 0,
            last: Vec::new(),
        }
    }

    pub(super) fn syn(&mut self) -> Played {
        Ok(self.client.syn_with(&self.opening.offer)?)
    }

    /// Whether all its sequence numbers are before this one.
    pub(super) fn is_before(&self, isn: u32) -> bool {
        distance(self.number(place(self.next) + 1), isn) > 0
    }

    /// Returns how a new connection from the same port begins, which the stack has to tell from the old one.
    pub(super) fn opening_again(&self) -> Opening {
        Opening { isn: self.client.isn.wrapping_add(0x0100_0000), loses_ack: false, ..self.opening.clone() }
    }

    /// Whether both sides know that the other has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_acknowledged() && self.has_ended && self.has_received_end()
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        self.acknowledged == self.next && self.is_fin_acknowledged == self.has_ended
    }

    /// Whether everything up to the stack's FIN has arrived.
    pub(super) fn has_received_end(&self) -> bool {
        self.client.ended
    }

    /// How many bytes of the stack have arrived without a gap.
    pub(super) fn received(&self) -> usize {
        let received = distance(self.client.stack_isn.wrapping_add(1), self.client.expected);
        usize::try_from(received).unwrap_or(0).saturating_sub(usize::from(self.client.ended))
    }

    /// Describes it, for the text of a failure.
    pub(super) fn state(&self) -> String {
        let fin = |has_it: bool| if has_it { " and the FIN" } else { "" };
        let [sent, acknowledged] = [self.has_ended, self.is_fin_acknowledged].map(fin);
        format!(
            "the client sent {} bytes{sent}, the stack acknowledged {}{acknowledged}, and its window ends at {}; {} bytes{} came{}",
            self.next,
            self.acknowledged,
            self.edge,
            self.received(),
            fin(self.has_received_end()),
            if self.was_reset { ", and a RST" } else { "" },
        )
    }

    /// Sends new bytes, as far as the stack's window allows.
    pub(super) fn send(&mut self, len: usize, cut: usize, ends: bool, fault: Fault) -> Played {
        let from = self.next;
        // Before the handshake, the RST for an ACK looks like one for the SYN.
        self.is_blameless &= self.is_open;
        if self.is_open && !self.has_ended {
            self.next = (from + len).min(self.edge.min(LONGEST)).max(from);
            self.has_ended = ends;
        }
        if self.next == from && !(self.has_ended && ends) {
            return self.deliver(vec![(from..from, false)], fault);
        }
        self.send_from(from, cut, fault)
    }

    pub(super) fn end(&mut self) -> Played {
        if self.has_ended { Ok(()) } else { self.send(0, 1, true, Fault::None) }
    }
    /// Sends once more what is not acknowledged.
    pub(super) fn send_again(&mut self, cut: usize, fault: Fault) -> Played {
        if self.is_acknowledged() { Ok(()) } else { self.send_from(self.acknowledged, cut, fault) }
    }

    fn send_from(&mut self, mut from: usize, cut: usize, fault: Fault) -> Played {
        let mut segments = Vec::new();
        // Options take a part of the MSS (RFC 6691, 2).
        let cut = cut.min(self.stack_mss.saturating_sub(self.client.options().len())).max(1);
        loop {
            let to = self.next.min(from + cut);
            let is_last = to == self.next;
            segments.push((from..to, is_last && self.has_ended));
            if is_last {
                return self.deliver(segments, fault);
            }
            from = to;
        }
    }

    /// Sends segments, which the network delivers with a fault. They all have the acknowledgement of this moment.
    fn deliver(&mut self, mut segments: Vec<(Range<usize>, bool)>, fault: Fault) -> Played {
        let at = |index: u8| usize::from(index) % segments.len();
        let damaged = if let Fault::Damaged(index, bit) = fault { Some((at(index), bit)) } else { None };
        match fault {
            Fault::None | Fault::Damaged(..) => {}
            Fault::Lost(index) => drop(segments.remove(at(index))),
            Fault::Twice(index) => segments.insert(at(index), segments[at(index)].clone()),
            Fault::Late(index) => {
                let late = segments.remove(at(index));
                segments.push(late);
            }
            Fault::Reversed => segments.reverse(),
            Fault::Joined => self.put_joined(&mut segments)?,
        }
        for (index, (range, ends)) in segments.into_iter().enumerate() {
            let flags = ACK | if ends { FIN } else { 0 } | if range.is_empty() { 0 } else { PSH };
            match damaged.filter(|(damaged, _)| *damaged == index) {
                Some((_, bit)) => self.put_damaged(range, flags, bit)?,
                None => self.put(range, flags)?,
            }
        }
        Ok(())
    }

    /// Sends all segments with bytes, and without a FIN, as one super-packet, and takes them from the list.
    fn put_joined(&mut self, segments: &mut Vec<(Range<usize>, bool)>) -> Played {
        let count = segments.iter().take_while(|(range, ends)| !range.is_empty() && !ends).count();
        if count < 2 || !self.client.takes_super_packets() {
            return Ok(());
        }
        self.announce();
        let ranges: Vec<_> = segments.drain(..count).map(|(range, _)| range).collect();
        let packets: Vec<_> = ranges.iter().map(|range| self.packet(range.clone(), ACK)).collect();
        self.client.send_joined(&packets)?;
        for range in ranges {
            self.delivered.add(range);
        }
        Ok(())
    }

    /// Sends a segment with the right acknowledgement and window.
    fn put(&mut self, range: Range<usize>, flags: u8) -> Played {
        self.announce();
        let packet = self.packet(range.clone(), flags);
        self.delivered.add(range);
        self.is_fin_delivered |= flags & FIN != 0;
        self.send_packet(packet)
    }

    fn send_packet(&mut self, packet: Vec<u8>) -> Played {
        self.client.send_packet(&packet)?;
        self.last = packet;
        Ok(())
    }

    /// Sends a segment of which a bit is flipped. Where the stack need not verify checksums, it is lost.
    fn put_damaged(&mut self, range: Range<usize>, flags: u8, bit: u16) -> Played {
        let limit = self.limit;
        self.announce();
        self.limit = limit;
        let mut packet = self.packet(range, flags);
        let Some(at) = Transport::parse(&packet).map(|transport| transport.at) else { return Ok(()) };
        let bit = usize::from(bit) % ((packet.len() - at) * 8);
        packet[at + bit / 8] ^= 1 << (bit % 8);
        if self.is_verified { self.send_packet(packet) } else { Ok(()) }
    }

    /// Sends the last packet again with changed bytes. Returns whether the stack may take it.
    pub(super) fn put_changed(&mut self, changes: &[(u8, u8)]) -> Result<bool, super::Broken> {
        let mut packet = self.last.clone();
        for (at, bits) in changes {
            if let Some(byte) = packet.get_mut(usize::from(*at)) {
                *byte ^= bits;
            }
        }
        let is_taken = !self.is_verified || is_checksum_right(&packet);
        self.send_packet(packet)?;
        Ok(is_taken)
    }

    fn packet(&self, range: Range<usize>, flags: u8) -> Vec<u8> {
        let at = match place(range.start) {
            at if !range.is_empty() || flags & FIN != 0 => at,
            // Bytes beyond the stack's window were forged. No stack takes an ACK behind them.
            _ if self.next > self.edge => place(self.acknowledged),
            at => at + i64::from(self.has_ended),
        };
        let seq = self.number(at);
        self.client.packet(Out { flags, seq, payload: &self.streams[0][range], ..self.client.out() })
    }

    /// Returns the sequence number of a place in the client's stream.
    fn number(&self, place: i64) -> u32 {
        self.client.isn.wrapping_add(1).wrapping_add(place as u32)
    }

    /// Sends a segment with any numbers, flags, window and options.
    pub(super) fn forge(&mut self, forged: &Forged) -> Played {
        let Forged { flags, from_end, at, len, ack, window, ref options } = *forged;
        let base = if from_end { self.next + usize::from(self.has_ended) } else { self.acknowledged };
        let mut at = place(base) + i64::from(at);
        self.is_blameless &= self.is_harmless(flags, at, ack);
        let mut range = 0..0;
        if len > 0 {
            let most = if self.has_ended { self.next } else { LONGEST };
            let from = usize::try_from(at).unwrap_or(0).min(most);
            range = from..most.min(from + usize::from(len));
            self.next = self.next.max(range.end);
            at = place(range.start);
        }
        self.announce();
        let right = self.client.out();
        let window = window.unwrap_or(right.window);
        self.limit = self.limit.max(self.received() + (usize::from(window) << self.shift()));
        let (seq, ack) = (self.number(at), right.ack.wrapping_add(ack as u32));
        let payload = &self.streams[0][range.clone()];
        let packet = self.client.packet(Out { flags, seq, ack, window, options, payload });
        self.delivered.add(range);
        self.send_packet(packet)
    }

    /// Whether a forged segment at a place is nothing that the stack may hold against the client.
    fn is_harmless(&self, flags: u8, at: i64, ack: i32) -> bool {
        let acknowledged = place(self.acknowledged);
        self.is_open
            // An ACK that is too old may still be the first one.
            && (ack == 0 || (ack < 0 && acknowledged > 0))
            && (flags & RST == 0 || at < acknowledged)
            && (flags & FIN == 0 || at + 1 < acknowledged)
            && (flags & SYN == 0 || (acknowledged > 0 && !self.has_ended && !self.has_received_end()))
    }

    /// The shift count of the client's windows.
    fn shift(&self) -> u8 {
        self.opening.offer.scale.filter(|_| self.client.has_agreed(WINDOW_SCALE)).unwrap_or(0)
    }

    /// Sets the window field. The window of a client that does not read ends where it is.
    fn announce(&mut self) {
        let from = self.received();
        let edge = if self.is_reading { self.limit.max(from + self.window) } else { self.limit };
        let field = (edge.saturating_sub(from) >> self.shift()).min(u16::MAX.into());
        self.client.window = field as u16;
        self.limit = self.limit.max(from + (field << self.shift()));
    }

    pub(super) fn ack(&mut self) -> Played {
        if self.lost_acks > 0 {
            self.lost_acks -= 1;
            return Ok(());
        }
        self.put(self.next..self.next, ACK)
    }

    /// Ends the connection with a RST. From now on the client knows nothing of it.
    pub(super) fn reset(&mut self) -> Played {
        self.gone = Some(Gone::Reset);
        self.put(self.next..self.next, RST | ACK)
    }

    pub(super) fn vanish(&mut self) {
        self.gone = Some(Gone::Vanished);
    }

    pub(super) fn read(&mut self, is_reading: bool) -> Played {
        self.is_reading = is_reading;
        if is_reading && self.is_open { self.ack() } else { Ok(()) }
    }

    /// From now on nothing is lost. The client reads all, and says so.
    pub(super) fn be_kind(&mut self) -> Played {
        (self.lost_acks, self.losses, self.overtakes) = (0, 0, false);
        self.window = u16::MAX.into();
        if self.gone.is_some() {
            return Ok(());
        }
        if let Some(late) = self.late.take() {
            self.take(&late)?;
        }
        self.read(true)
    }

    /// The client sends all unacknowledged bytes again, as after a timeout.
    pub(super) fn time_out(&mut self) -> Played {
        match self.gone {
            Some(_) => Ok(()),
            None if self.was_reset => Ok(()),
            None if self.is_open => self.send_again(usize::MAX, Fault::None),
            None => self.syn(),
        }
    }
}
