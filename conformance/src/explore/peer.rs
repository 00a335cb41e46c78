//! The client of a play. It may do anything that RFC 9293 allows a peer, and checks each segment of the stack.

mod check;

use std::ops::Range;
use std::time::Instant;

use platform::packet::Transport;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};

use super::app::App;
use super::play::{Fault, Play};
use super::{Invariant, LONGEST, Played, Stream};
use crate::client::{MSS, WINDOW_SCALE};
use crate::wire::{SACK, Segment};
use crate::{Client, Out, distance};

/// The most blocks of a SACK option that has no other option beside it (RFC 2018, 3).
const MOST_BLOCKS: usize = 4;

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

    /// Returns the ranges behind the first gap.
    fn blocks(&self) -> Vec<Range<usize>> {
        let mut at = 0;
        let runs = self.bytes.chunk_by(|one, next| one == next).map(|run| {
            at += run.len();
            (run[0], at - run.len()..at)
        });
        runs.filter(|(arrived, range)| *arrived && range.start > self.prefix).map(|(_, range)| range).collect()
    }
}

/// Places in the streams count from 0; a FIN has the place after the last byte.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Peer {
    client: Client,
    play: Play,
    streams: [Stream; 2],
    /// The shift counts of the client's and the stack's windows.
    shifts: [u8; 2],
    stack_mss: usize,
    pub(super) is_open: bool,
    /// Whether the stack verifies checksums.
    is_verified: bool,

    /// How many bytes were sent and acknowledged, and where the stack's window ends.
    pub(super) next: usize,
    acknowledged: usize,
    edge: usize,
    /// The bytes that the network has delivered to the stack, and whether it has delivered the FIN.
    delivered: Coverage,
    pub(super) has_ended: bool,
    is_fin_delivered: bool,
    is_fin_acknowledged: bool,

    /// The bytes that have arrived, the place of the stack's FIN, and where the client's window ends.
    arrived: Coverage,
    fin: Option<usize>,
    limit: usize,
    window: usize,
    is_reading: bool,
    pub(super) was_reset: bool,
    pub(super) gone: Option<Gone>,

    lost_acks: u8,
    losses: u8,
    overtakes: bool,
    late: Option<Segment>,
    packets: usize,
}

impl Peer {
    pub(super) fn new(mut client: Client, is_verified: bool, play: &Play, streams: [Stream; 2]) -> Self {
        client.begin_at(play.isn);
        client.window = play.window.min(u16::MAX.into()) as u16;
        Self {
            client,
            play: play.clone(),
            streams,
            shifts: [0; 2],
            stack_mss: 536,
            is_open: false,
            is_verified,
            next: 0,
            acknowledged: 0,
            edge: 0,
            delivered: Coverage::default(),
            has_ended: false,
            is_fin_delivered: false,
            is_fin_acknowledged: false,
            arrived: Coverage::default(),
            fin: None,
            limit: play.window,
            window: play.window,
            is_reading: true,
            was_reset: false,
            gone: None,
            lost_acks: 0,
            losses: 0,
            overtakes: false,
            late: None,
            packets: 0,
        }
    }

    pub(super) fn syn(&mut self) -> Played {
        Ok(self.client.syn_with(&self.play.offer())?)
    }

    /// Begins a new connection from the same port, which the stack has to tell from the old one.
    pub(super) fn again(self) -> Self {
        let Self { client, is_verified, play, streams, .. } = self;
        let isn = client.isn.wrapping_add(0x0100_0000);
        Self::new(client, is_verified, &Play { isn, loses_ack: false, ..play }, streams)
    }

    /// Whether both sides know that the other has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_acknowledged() && self.has_ended && self.has_received_end()
    }

    /// Whether the stack has acknowledged everything.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.acknowledged == self.next && self.is_fin_acknowledged == self.has_ended
    }

    /// Whether everything up to the stack's FIN has arrived.
    pub(super) fn has_received_end(&self) -> bool {
        self.fin == Some(self.arrived.prefix)
    }

    pub(super) fn lose_acks(&mut self, count: u8) {
        self.lost_acks = count;
    }

    pub(super) fn lose(&mut self, count: u8) {
        self.losses = count;
    }

    pub(super) fn overtake(&mut self) {
        self.overtakes = true;
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
            self.arrived.prefix,
            fin(self.has_received_end()),
            if self.was_reset { ", and a RST" } else { "" },
        )
    }

    /// Sends new bytes, as far as the stack's window allows.
    pub(super) fn send(&mut self, len: usize, cut: usize, ends: bool, fault: Fault) -> Played {
        let from = self.next;
        if self.is_open && !self.has_ended {
            self.next = (from + len).min(self.edge.min(LONGEST)).max(from);
            self.has_ended = ends;
        }
        if self.next == from && !(self.has_ended && ends) {
            return self.deliver(vec![(from..from, false)], fault);
        }
        self.send_from(from, cut, fault)
    }

    /// Ends the client's half, if it has not ended.
    pub(super) fn end(&mut self) -> Played {
        if self.has_ended { Ok(()) } else { self.send(0, 1, true, Fault::None) }
    }

    /// Sends once more what is not acknowledged.
    pub(super) fn send_again(&mut self, cut: usize, fault: Fault) -> Played {
        if self.is_acknowledged() { Ok(()) } else { self.send_from(self.acknowledged, cut, fault) }
    }

    fn send_from(&mut self, from: usize, cut: usize, fault: Fault) -> Played {
        let mut from = from;
        let mut segments = Vec::new();
        // Options take a part of the MSS (RFC 6691, 2).
        let cut = cut.min(self.stack_mss.saturating_sub(self.sack().len())).max(1);
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

    /// Sends a segment with the right acknowledgement and window.
    fn put(&mut self, range: Range<usize>, flags: u8) -> Played {
        let (window, edge) = self.announce();
        self.limit = self.limit.max(edge);
        if !range.is_empty() {
            self.delivered.add(range.clone());
        }
        self.is_fin_delivered |= flags & FIN != 0;
        let packet = self.packet(range, flags, window);
        Ok(self.client.send_packet(&packet)?)
    }

    /// Sends a segment of which a bit is flipped. Where the stack need not verify checksums, it is lost.
    fn put_damaged(&mut self, range: Range<usize>, flags: u8, bit: u16) -> Played {
        let (window, _) = self.announce();
        let mut packet = self.packet(range, flags, window);
        let Some(at) = Transport::parse(&packet).map(|transport| transport.at) else { return Ok(()) };
        let bit = usize::from(bit) % ((packet.len() - at) * 8);
        packet[at + bit / 8] ^= 1 << (bit % 8);
        if self.is_verified { Ok(self.client.send_packet(&packet)?) } else { Ok(()) }
    }

    fn packet(&self, range: Range<usize>, flags: u8, window: u16) -> Vec<u8> {
        let is_behind_fin = self.has_ended && range.is_empty() && flags & FIN == 0;
        let seq = self.client.isn.wrapping_add(1 + range.start as u32 + u32::from(is_behind_fin));
        let received = self.arrived.prefix + usize::from(self.has_received_end());
        let ack = self.client.stack_isn.wrapping_add(1 + received as u32);
        let options = self.sack();
        let payload = &self.streams[0][range];
        self.client.packet(Out { flags, seq, ack, window, options: &options, payload })
    }

    /// Returns the window field, and where it ends. A reading client's window ends as far ahead as ever; the window of one
    /// that does not read stays where it is.
    fn announce(&self) -> (u16, usize) {
        let from = self.arrived.prefix;
        let edge = if self.is_reading { self.limit.max(from + self.window) } else { self.limit };
        let field = (edge.saturating_sub(from) >> self.shifts[0]).min(u16::MAX.into());
        (field as u16, from + (field << self.shifts[0]))
    }

    fn sack(&self) -> Vec<u8> {
        let blocks = self.arrived.blocks();
        if blocks.is_empty() || !self.play.has_sack {
            return Vec::new();
        }
        let blocks = &blocks[..blocks.len().min(MOST_BLOCKS)];
        let mut option = vec![1, 1, SACK, 2 + 8 * blocks.len() as u8];
        let number = |at: usize| self.client.stack_isn.wrapping_add(1 + at as u32).to_be_bytes();
        option.extend(blocks.iter().flat_map(|block| [number(block.start), number(block.end)]).flatten());
        option
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
            None if self.is_open => self.send_again(usize::MAX, Fault::None),
            None => self.syn(),
        }
    }

    /// Receives what the stack has sent. All of it is checked before the client answers any: an answer widens the window.
    pub(super) fn receive(&mut self, app: &App) -> Played {
        let mut segments = Vec::new();
        while let Some(segment) = self.client.segment_until(Instant::now())? {
            if self.is_open && self.gone.is_none() && !segment.has(SYN) {
                self.check(&segment, app)?;
            }
            segments.push(segment);
        }
        self.packets += segments.len();
        Invariant::Progress.holds(self.packets <= MOST_PACKETS, || format!("{MOST_PACKETS} packets came"))?;
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
    fn take(&mut self, segment: &Segment) -> Played {
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
        self.edge = self.edge.max(acknowledged + (usize::from(segment.window) << self.shifts[1]));
        let (at, end) = self.places(segment);
        if segment.has(FIN) {
            self.fin = Some(end);
        }
        let (from, to) = (at.unwrap_or_default(), end.min(self.limit));
        if from < to {
            self.arrived.add(from..to);
        }
        if segment.len() > 0 { self.ack() } else { Ok(()) }
    }

    /// Returns the places of a segment's first byte, `None` if it is before the stream, and of the byte after its last.
    fn places(&self, segment: &Segment) -> (Option<usize>, usize) {
        let at = i64::from(distance(self.client.stack_isn.wrapping_add(1), segment.seq));
        let end = at + i64::from(segment.payload.len() as u32);
        (usize::try_from(at).ok(), usize::try_from(end).unwrap_or_default())
    }

    /// A RST with any number but the next is answered with an ACK (RFC 5961, 3.2).
    fn take_reset(&mut self, segment: &Segment) -> Played {
        if !self.is_open {
            let is_ours = segment.ack == self.client.isn.wrapping_add(1);
            return Invariant::Freed.holds(!is_ours, || "a RST came for a SYN".to_owned());
        }
        let received = self.arrived.prefix + usize::from(self.has_received_end());
        if segment.seq == self.client.stack_isn.wrapping_add(1 + received as u32) {
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
        self.client.stack_isn = segment.seq;
        let option = |kind: u8| segment.option(kind);
        if let (Some(ours), Some(&[theirs])) = (self.play.scale, option(WINDOW_SCALE)) {
            self.shifts = [ours, theirs.min(14)];
        }
        if let Some(&[high, low]) = option(MSS) {
            self.stack_mss = u16::from_be_bytes([high, low]).max(1).into();
        }
        self.edge = segment.window.into();
        if self.play.loses_ack { Ok(()) } else { self.ack() }
    }
}
