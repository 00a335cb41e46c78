//! Loss recovery for stacks that ignore SACK blocks. On their own they retransmit one segment after three duplicate
//! acknowledgements.
//!
//! - A stack counts a duplicate only if its window is unchanged (RFC 5681, 2). Linux raises its receive window with
//!   each segment that arrives, so the stack counts none, and one loss costs a timeout of a second. RFC 6675, 2 counts
//!   an acknowledgement with SACK blocks, whatever its window. So this module writes the last window into it.
//! - One acknowledgement may report many segments. If SACK blocks cover more than two segments, the segment before
//!   them was lost (RFC 6675, 4, `IsLost`).
//! - During recovery, an acknowledgement of new data with another hole behind it means that the segment there was lost
//!   too. It is retransmitted at once (RFC 6582, 3.2, step 3), not after a timeout.
//! - A retransmission may be lost too. It counts as lost if the peer has three segments that were sent after it, or if
//!   no acknowledgement of it arrives for two round trips (both ideas are from RFC 8985, 3). Then it is sent again.
//! - The last segments in flight, or their only acknowledgement, may be lost. Then no duplicate acknowledgements
//!   arrive. After two round trips of silence, the first unacknowledged segment is sent as a probe. Its
//!   acknowledgement covers everything that the peer has. So the congestion window does not change, unless SACK blocks
//!   then show a loss, or the peer is silent again before everything is acknowledged.
//!
//!   The idea is from RFC 8985, 7, which sends the last segment, once, and needs SACK. The stacks here could not use
//!   the SACK blocks of the reply to choose the segments to retransmit.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{TcpSegment, offset};
use tokio::time::Instant;

use crate::{Repair, Repairs};

/// The kind of the SACK option (RFC 2018, 3).
const SACK: u8 = 5;

/// How many duplicate acknowledgements mean a loss (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// How often a segment is sent before the stack's own timeout takes over. In recovery the original does not count.
const MAX_TRIES: u32 = 3;

/// The shortest wait for an acknowledgement.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);
/// The wait in recovery while the round trip time is unknown: Linux's `TCP_RTO_MIN` (`include/net/tcp.h`).
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// The additional wait if a single segment is outstanding: `WCDelAckT` of RFC 8985, 7.2, which has 200 ms. lwIP's own
/// timeout is about as long.
const DELAYED_ACK: Duration = Duration::from_millis(300);

/// The length of an IPv4 and a TCP header without options, in bytes.
pub(crate) const HEADERS: usize = 40;

/// The sequence numbers of a connection at its stack. A packet that the stack would not accept by them must change
/// nothing (RFC 9293, 3.10.7.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    /// The first byte that is not acknowledged: SND.UNA.
    pub(crate) unacknowledged: u32,
    /// The number after the last byte that was sent: SND.NXT. A FIN counts as one byte.
    pub(crate) sent: u32,
    /// The next byte from the peer: RCV.NXT.
    pub(crate) expected: u32,
    /// The end of the receive window that was announced: RCV.NXT + RCV.WND.
    pub(crate) window_end: u32,
}

impl Edges {
    /// Whether the receive window has a part of a segment of `len` bytes.
    pub(crate) fn has_room_for(&self, sequence: u32, len: usize) -> bool {
        let end = sequence.wrapping_add(len as u32);
        match (len, is_before(self.expected, self.window_end)) {
            (0, false) => sequence == self.expected,
            (_, false) => false,
            (0, true) => !is_before(sequence, self.expected) && is_before(sequence, self.window_end),
            (_, true) => is_before(self.expected, end) && is_before(sequence, self.window_end),
        }
    }

    /// Whether this acknowledges bytes that were sent, or repeats the last acknowledgement.
    pub(crate) fn may_acknowledge(&self, acknowledgement: u32) -> bool {
        acknowledgement.wrapping_sub(self.unacknowledged) <= self.sent.wrapping_sub(self.unacknowledged)
    }
}

/// The state of loss recovery of a connection. All positions are sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    repairs: Repairs,
    mss: u32,
    /// The window of the last acknowledgement, as in the header.
    window: u16,
    /// How many duplicates of the last acknowledgement have arrived.
    duplicates: u8,
    /// Set during loss recovery.
    episode: Option<Episode>,
    /// The end of the sent bytes at the last call of `deadline`.
    tail: Option<u32>,
    /// When the wait for an acknowledgement began: at the last acknowledgement, the last retransmission, or, outside of
    /// recovery, the last new segment.
    since: Option<Instant>,
    /// How often the first unacknowledged segment has been sent. In recovery the original does not count.
    tries: u32,
    /// The end of the sent bytes at the last probe.
    probed: Option<u32>,
    /// A sequence number, and the time when the bytes before it were sent. Their acknowledgement gives a round trip
    /// time. One measurement at a time is enough (RFC 6298, 3).
    timed: Option<(u32, Instant)>,
    /// The smoothed round trip time (RFC 6298, 2).
    round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    /// Recovery ends when everything before this is acknowledged.
    end: u32,
    /// Whether the peer sends SACK blocks.
    has_sack: bool,
    /// An upper bound of the end of the sent bytes at the last retransmission.
    sent: u32,
    /// How many acknowledgements reported segments beyond `sent`.
    beyond: u8,
}

/// Why the first unacknowledged segment must be retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// A new loss. It reduces the congestion window.
    New,
    /// Another loss in the same window, or a lost retransmission.
    Again,
    /// Perhaps no loss: no acknowledgement arrives.
    Probe,
}

impl Recovery {
    /// `mss` is the payload of a segment on the wire, in bytes.
    pub(crate) fn new(mss: usize, repairs: Repairs) -> Self {
        Self {
            repairs,
            mss: mss as u32,
            window: 0,
            duplicates: 0,
            episode: None,
            tail: None,
            since: None,
            tries: 1,
            probed: None,
            timed: None,
            round_trip: None,
        }
    }

    /// Handles a packet from the peer. Returns a reason if the first unacknowledged segment must be retransmitted now.
    /// Writes the last window into a duplicate acknowledgement with SACK blocks; the checksum then no longer fits.
    ///
    /// Call it for every packet of the connection, before the stack gets it, and after its checksum was verified. It
    /// ignores a packet that the stack would not accept.
    #[inline]
    pub(crate) fn on_packet(&mut self, packet: &mut [u8], edges: &Edges, now: Instant) -> Option<Lost> {
        let segment = TcpSegment::parse(packet)?;
        let (acknowledgement, window) = (segment.acknowledgement(), segment.window());
        if segment.flags() & (ACK | RST | SYN) != ACK
            || !edges.may_acknowledge(acknowledgement)
            || !edges.has_room_for(segment.sequence(), segment.payload().len())
        {
            return None;
        }
        if acknowledgement != edges.unacknowledged {
            (self.window, self.duplicates) = (window, 0);
            (self.since, self.tries) = (Some(now), 1);
            if let Some((_, sent_at)) = self.timed.take_if(|(end, _)| !is_before(acknowledgement, *end)) {
                let took = now - sent_at;
                self.round_trip = Some(self.round_trip.map_or(took, |smoothed| (7 * smoothed + took) / 8));
            }
            self.episode?;
            let edges = Edges { unacknowledged: acknowledgement, ..*edges };
            return self.advanced(Sacked::of(&segment, acknowledgement), &edges, now);
        }
        let sacked = if is_pure(&segment) { Sacked::of(&segment, acknowledgement) } else { Sacked::default() };
        let keeps_window = sacked.bytes > 0 && self.repairs.has(Repair::DuplicateAckWindow);
        if !is_pure(&segment) || !keeps_window && window != self.window {
            if self.window == 0 {
                self.since = Some(now);
            }
            (self.window, self.duplicates) = (window, 0);
            return None;
        }
        let at = segment.layout.tcp_at + offset::WINDOW;
        packet[at..at + 2].copy_from_slice(&self.window.to_be_bytes());
        if is_before(acknowledgement, edges.sent) { self.repeated(sacked, edges, now) } else { None }
    }

    /// Notes what has been sent. Returns when a segment must be retransmitted if no acknowledgement arrives before.
    ///
    /// Call it after everything was sent that may be sent.
    pub(crate) fn deadline(&mut self, edges: &Edges, now: Instant) -> Option<Instant> {
        let tail = self.tail.replace(edges.sent).unwrap_or(edges.unacknowledged);
        // In recovery, new segments are acknowledged only after the lost ones. With a closed window only probes are sent.
        if is_before(tail, edges.sent) && self.episode.is_none() && self.window != 0 {
            self.since = Some(now);
            self.timed.get_or_insert((tail.wrapping_add(1), now));
        }
        self.late_at(edges)
    }

    /// Returns a reason if a segment must be retransmitted because its deadline is over.
    pub(crate) fn expire(&mut self, edges: &Edges, now: Instant) -> Option<Lost> {
        self.late_at(edges).filter(|&at| at <= now)?;
        Some(self.retransmit(edges, now))
    }

    /// The deadline of the acknowledgement. `None` if nothing is outstanding, the peer's window is closed, or all tries
    /// are used up.
    fn late_at(&self, edges: &Edges) -> Option<Instant> {
        let outstanding = self.tail?.wrapping_sub(edges.unacknowledged).cast_signed();
        if outstanding <= 0 || self.window == 0 || self.tries >= MAX_TRIES {
            return None;
        }
        if self.episode.is_none() && !self.repairs.has(Repair::TailLossProbe) {
            return None;
        }
        let mut wait = match self.round_trip {
            Some(round_trip) => (2 * round_trip).max(SHORTEST_WAIT),
            None if self.episode.is_some() => FIRST_WAIT,
            // RFC 8985, 7.2 waits for a second. That is also the stack's own first timeout.
            None => return None,
        };
        if self.episode.is_none() && outstanding.cast_unsigned() <= self.mss {
            wait += DELAYED_ACK;
        }
        Some(self.since? + wait * self.tries)
    }

    /// The window of the last acknowledgement, as in the header.
    pub(crate) fn window(&self) -> u16 {
        self.window
    }

    /// Handles an acknowledgement of new data during recovery. The edges include it.
    fn advanced(&mut self, sacked: Sacked, edges: &Edges, now: Instant) -> Option<Lost> {
        let episode = self.episode.as_mut()?;
        if !is_before(edges.unacknowledged, episode.end) {
            self.episode = None;
            return self.is_lost(sacked).then(|| self.begin(sacked, edges, now));
        }
        (sacked.bytes > 0 || !episode.has_sack).then(|| {
            (episode.sent, episode.beyond) = (edges.sent, 0);
            self.timed = Some((edges.unacknowledged.wrapping_add(1), now));
            Lost::Again
        })
    }

    /// Handles a duplicate acknowledgement.
    fn repeated(&mut self, sacked: Sacked, edges: &Edges, now: Instant) -> Option<Lost> {
        if !self.repairs.has(Repair::PartialAck) {
            return None;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        let Some(episode) = &mut self.episode else {
            let is_counted = self.duplicates >= DUPLICATES;
            let begins = is_counted || self.is_lost(sacked);
            // After three duplicates the stack retransmits on its own.
            return begins.then(|| self.begin(sacked, edges, now)).filter(|_| !is_counted);
        };
        if sacked.bytes == 0 || !is_before(episode.sent, sacked.end) {
            return None;
        }
        episode.beyond = episode.beyond.saturating_add(1);
        (episode.beyond == DUPLICATES).then(|| self.retransmit(edges, now))
    }

    fn is_lost(&self, sacked: Sacked) -> bool {
        sacked.bytes > 2 * self.mss
    }

    fn begin(&mut self, sacked: Sacked, edges: &Edges, now: Instant) -> Lost {
        self.episode = Some(Episode { end: edges.sent, has_sack: sacked.bytes > 0, sent: edges.sent, beyond: 0 });
        (self.since, self.tries) = (Some(now), 1);
        self.timed = Some((edges.unacknowledged.wrapping_add(1), now));
        Lost::New
    }

    /// Retransmits because the last retransmission, or everything in flight, seems to be lost.
    fn retransmit(&mut self, edges: &Edges, now: Instant) -> Lost {
        (self.since, self.tries) = (Some(now), self.tries + 1);
        let Some(episode) = &mut self.episode else {
            let is_outstanding = |end| is_before(edges.unacknowledged, end);
            let begins = self.tries == 2 && self.repairs.has(Repair::PartialAck);
            if begins && self.probed.is_some_and(is_outstanding) {
                return self.begin(Sacked::default(), edges, now);
            }
            self.probed = self.tail;
            // Unlike Karn's algorithm (RFC 6298, 3), this keeps the time of the original: the round trip may have
            // become longer. If it has not, the next probes are only later than necessary.
            return Lost::Probe;
        };
        (episode.sent, episode.beyond) = (edges.sent, 0);
        // Karn's algorithm (RFC 6298, 3).
        self.timed = None;
        Lost::Again
    }
}

/// The content of the SACK blocks beyond the acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Sacked {
    /// How many bytes are in them.
    bytes: u32,
    /// Where the last one ends.
    end: u32,
}

impl Sacked {
    fn of(segment: &TcpSegment<'_>, acknowledgement: u32) -> Self {
        let mut sacked = Self { bytes: 0, end: acknowledgement };
        let Some(option) = segment.options().find(|option| option.kind == SACK) else { return sacked };
        let blocks = || {
            option.value.chunks_exact(8).map(|block| {
                [[block[0], block[1], block[2], block[3]], [block[4], block[5], block[6], block[7]]]
                    .map(|edge| u32::from_be_bytes(edge).wrapping_sub(acknowledgement))
            })
        };
        // The first block may report a duplicate: bytes before the acknowledgement or within the second block
        // (RFC 2883, 4).
        let [first, second] = [blocks().next(), blocks().nth(1)];
        let is_twice = first.zip(second).is_some_and(|(first, second)| second[0] <= first[0] && first[1] <= second[1]);
        for [start, end] in blocks().skip(usize::from(is_twice)) {
            // Edges are relative to the acknowledgement, so a block before it has very large ones.
            if 0 < start && start < end && end < 1 << 31 {
                sacked.bytes = sacked.bytes.saturating_add(end - start);
                if is_before(sacked.end, acknowledgement.wrapping_add(end)) {
                    sacked.end = acknowledgement.wrapping_add(end);
                }
            }
        }
        sacked
    }
}

/// Whether a packet is an acknowledgement and nothing else.
fn is_pure(segment: &TcpSegment<'_>) -> bool {
    segment.flags() & (ACK | SYN | FIN | RST) == ACK && segment.payload().is_empty()
}

/// Whether a sequence number comes before another (RFC 9293, 3.4).
pub(crate) fn is_before(first: u32, second: u32) -> bool {
    first.wrapping_sub(second).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::mss_rewrite::tests::packet;

    /// An acknowledgement of the bytes before `byte`, with this window.
    fn acknowledgement(byte: u32, options: &[u8], payload: usize, window: u16) -> Vec<u8> {
        let mut packet = packet(false, ACK, options, payload);
        packet[28..32].copy_from_slice(&byte.to_be_bytes());
        packet[34..36].copy_from_slice(&window.to_be_bytes());
        packet
    }

    fn window(packet: &[u8]) -> u16 {
        TcpSegment::parse(packet).unwrap().window()
    }

    /// The edges of a stack that expects the byte 0 from its peer.
    fn edges(unacknowledged: u32, sent: u32) -> Edges {
        Edges { unacknowledged, sent, expected: 0, window_end: 1000 }
    }

    #[test]
    fn only_a_repeated_acknowledgement_with_sack_blocks_keeps_the_window() {
        let sack = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 11];
        for (options, payload, expected) in [(&sack[..], 0, 100), (&sack, 5, 300), (&[], 0, 300)] {
            let mut recovery = Recovery::new(10, Repairs::ALL);
            recovery.on_packet(&mut acknowledgement(7, &[], 0, 100), &edges(7, 97), Instant::now());
            let mut repeated = acknowledgement(7, options, payload, 300);
            recovery.on_packet(&mut repeated, &edges(7, 97), Instant::now());
            assert_eq!(window(&repeated), expected);
        }
    }

    #[test]
    fn each_part_is_off_when_it_is_off() {
        let recovery = |off: Repair| Recovery::new(10, format!("-{}", off.name()).parse().unwrap());
        let mut shown = Shown { recovery: recovery(Repair::DuplicateAckWindow), ..Shown::new() };
        shown.ack(10, &[], 100);
        let mut repeated = acknowledgement(10, &sack(20, 40), 0, 300);
        shown.recovery.on_packet(&mut repeated, &edges(10, 100), shown.now);
        assert_eq!(window(&repeated), 300, "it keeps its window");

        let mut shown = Shown { recovery: recovery(Repair::PartialAck), ..Shown::new() };
        for end in [10, 40, 70, 90, 100] {
            assert_eq!(shown.ack(10, &sack(20, end), 100), None);
        }
        assert_eq!(shown.ack(50, &sack(60, 100), 120), None);

        let mut shown = Shown { recovery: recovery(Repair::TailLossProbe), ..Shown::idle() };
        shown.ack(100, &[], 100);
        assert_eq!(shown.wait(200), None, "there is no probe");
    }

    #[test]
    fn a_segment_is_acceptable_if_the_window_has_a_part_of_it() {
        let open = Edges { expected: 10, window_end: 20, ..Edges::default() };
        let closed = Edges { expected: 10, window_end: 10, ..Edges::default() };
        // RFC 9293, table 6.
        for (edges, sequence, len, expected) in [
            (open, 9, 0, false),
            (open, 10, 0, true),
            (open, 19, 0, true),
            (open, 20, 0, false),
            (open, 9, 1, false),
            (open, 9, 2, true),
            (open, 19, 9, true),
            (open, 20, 1, false),
            (open, 5, 50, true),
            (closed, 10, 0, true),
            (closed, 9, 0, false),
            (closed, 11, 0, false),
            (closed, 10, 1, false),
        ] {
            assert_eq!(edges.has_room_for(sequence, len), expected, "{edges:?} {sequence} {len}");
        }
        let wrapped = Edges { expected: u32::MAX - 1, window_end: 5, ..Edges::default() };
        assert!(wrapped.has_room_for(2, 9) && !wrapped.has_room_for(5, 0));
        let wrapped = Edges { unacknowledged: u32::MAX, sent: 1, ..Edges::default() };
        assert!([u32::MAX, 0, 1].into_iter().all(|number| wrapped.may_acknowledge(number)));
        assert!(!wrapped.may_acknowledge(2) && !wrapped.may_acknowledge(u32::MAX - 1));
    }

    /// A packet that the stack refuses must not become the base of a retransmission.
    #[test]
    fn a_segment_outside_the_window_changes_nothing() {
        let change = |sequence: u32, byte| {
            let mut shown = Shown::recovering();
            let before = format!("{:?}", shown.recovery);
            let mut packet = acknowledgement(byte, &sack(60, 100), 0, 3);
            packet[24..28].copy_from_slice(&sequence.to_be_bytes());
            shown.recovery.on_packet(&mut packet, &edges(10, 100), shown.now);
            before != format!("{:?}", shown.recovery)
        };
        assert!(change(0, 50));
        assert!(!change(1000, 50) && !change(1u32.wrapping_neg(), 50));
        assert!(!change(0, 101) && !change(0, 9));
    }

    /// A SACK option for the bytes from `start` to `end`.
    fn sack(start: u32, end: u32) -> Vec<u8> {
        [&[1, 1, SACK, 10], &start.to_be_bytes()[..], &end.to_be_bytes()[..]].concat()
    }

    /// A recovery, the acknowledgements of its peer, and a clock. Each packet comes 10 ms after the last.
    struct Shown {
        recovery: Recovery,
        unacknowledged: u32,
        now: Instant,
    }

    impl Shown {
        /// With segments of ten bytes.
        fn new() -> Self {
            let mut shown = Self { recovery: Recovery::new(10, Repairs::ALL), unacknowledged: 10, now: Instant::now() };
            assert_eq!(shown.ack(10, &[], 100), None);
            assert_eq!(shown.recovery.deadline(&edges(10, 10), shown.now), None);
            shown
        }

        fn ack(&mut self, byte: u32, options: &[u8], sent: u32) -> Option<Lost> {
            self.now += Duration::from_millis(10);
            let edges = edges(self.unacknowledged, sent);
            self.unacknowledged = byte;
            self.recovery.on_packet(&mut acknowledgement(byte, options, 0, 9), &edges, self.now)
        }

        /// How long an acknowledgement may still take, if everything up to `sent` has been sent.
        fn wait(&mut self, sent: u32) -> Option<Duration> {
            self.recovery.deadline(&edges(self.unacknowledged, sent), self.now).map(|at| at - self.now)
        }

        /// Lets this time pass.
        fn late(&mut self, sent: u32) -> Option<Lost> {
            let wait = self.wait(sent)?;
            let edges = edges(self.unacknowledged, sent);
            assert_eq!(self.recovery.expire(&edges, self.now + wait / 2), None);
            self.now += wait;
            self.recovery.expire(&edges, self.now)
        }

        /// With nothing outstanding, and a round trip time of 10 ms.
        fn idle() -> Self {
            let mut shown = Self::new();
            assert_eq!(shown.wait(100), None);
            assert_eq!(shown.ack(100, &[], 100), None);
            assert_eq!(shown.wait(100), None);
            shown
        }

        /// Everything up to 100 was sent. The segment at 10 was lost, and has just been retransmitted.
        fn recovering() -> Self {
            let mut shown = Self::new();
            assert_eq!(shown.ack(10, &sack(20, 40), 100), None);
            assert_eq!(shown.ack(10, &sack(20, 50), 100), Some(Lost::New));
            shown
        }
    }

    #[test]
    fn a_partial_acknowledgement_has_the_next_segment_retransmitted() {
        let mut shown = Shown::recovering();
        assert_eq!(shown.ack(50, &sack(60, 100), 120), Some(Lost::Again));
        // Without a hole the next segment is not lost, only late.
        assert_eq!(shown.ack(80, &[], 120), None);
        // The peer has everything that was sent before the recovery, so it ends.
        assert_eq!(shown.ack(100, &[], 120), None);
        assert_eq!(shown.ack(110, &sack(120, 130), 150), None);
        // This is a new loss, and so is the one after the end of its recovery.
        assert_eq!(shown.ack(110, &sack(120, 150), 150), Some(Lost::New));
        assert_eq!(shown.ack(150, &sack(160, 200), 200), Some(Lost::New));
    }

    #[test]
    fn without_sack_each_partial_acknowledgement_counts() {
        let mut shown = Shown::new();
        for _ in 0..4 {
            assert_eq!(shown.ack(10, &[], 100), None);
        }
        assert_eq!(shown.ack(50, &[], 100), Some(Lost::Again));
    }

    #[test]
    fn three_later_segments_show_that_the_retransmission_was_lost() {
        let mut shown = Shown::recovering();
        let answers = [60, 70, 80, 90, 100, 110, 120, 130, 140, 150].map(|end| shown.ack(10, &sack(20, end), 150));
        // The sixth SACK is the first one for a segment that was sent after the retransmission.
        assert_eq!(answers.map(|lost| lost.is_some()), [6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|end| end == 13));
    }

    #[test]
    fn a_retransmission_without_an_acknowledgement_is_repeated() {
        let mut shown = Shown::recovering();
        assert_eq!(shown.wait(100), Some(FIRST_WAIT));
        assert_eq!(shown.late(100), Some(Lost::Again));
        // Twice is the limit. The acknowledgement of a segment that was sent several times gives no round trip time.
        assert_eq!(shown.late(100), Some(Lost::Again));
        assert_eq!(shown.wait(100), None);
        assert_eq!(shown.ack(50, &sack(60, 100), 100), Some(Lost::Again));
        assert_eq!(shown.wait(100), Some(FIRST_WAIT));
        // This acknowledgement gives a round trip time of 10 ms.
        assert_eq!(shown.ack(70, &sack(80, 100), 100), Some(Lost::Again));
        assert_eq!(shown.wait(100), Some(Duration::from_millis(20)));
    }

    #[test]
    fn two_probes_follow_a_flight_without_an_acknowledgement() {
        let mut shown = Shown::idle();
        assert_eq!(shown.wait(200), Some(Duration::from_millis(20)));
        assert_eq!(shown.late(200), Some(Lost::Probe));
        assert_eq!(shown.wait(200), Some(Duration::from_millis(40)));
        assert_eq!(shown.late(200), Some(Lost::Probe));
        assert_eq!(shown.late(200), None);
        // Only the acknowledgements were lost, so this is no loss. The next flight has its own probes.
        assert_eq!(shown.ack(200, &[], 200), None);
        assert_eq!(shown.late(300), Some(Lost::Probe));
    }

    #[test]
    fn silence_after_a_partial_acknowledgement_is_a_loss() {
        let mut shown = Shown::idle();
        assert_eq!(shown.late(200), Some(Lost::Probe));
        assert_eq!(shown.ack(110, &[], 200), None);
        assert_eq!(shown.late(200), Some(Lost::New));
        assert_eq!(shown.ack(120, &[], 200), Some(Lost::Again));
    }

    #[test]
    fn a_hole_behind_a_probe_is_a_loss() {
        let mut shown = Shown::idle();
        assert_eq!(shown.late(200), Some(Lost::Probe));
        assert_eq!(shown.ack(110, &sack(120, 200), 200), None);
        assert_eq!(shown.ack(110, &sack(120, 200), 200), Some(Lost::New));
    }

    #[test]
    fn each_new_segment_and_each_acknowledgement_puts_the_probe_off() {
        let mut shown = Shown::idle();
        let wait = shown.wait(150);
        shown.now += Duration::from_millis(15);
        assert_eq!(shown.wait(200), wait);
        assert_eq!(shown.ack(150, &[], 200), None);
        assert!(shown.wait(200) >= wait);
        shown.now += Duration::from_millis(5);
        assert!(shown.wait(200) < wait);
    }

    #[test]
    fn one_segment_may_be_acknowledged_late() {
        let mut shown = Shown::idle();
        assert_eq!(shown.wait(110), Some(Duration::from_millis(20) + DELAYED_ACK));
        assert_eq!(shown.wait(120), Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_closed_window_is_not_probed() {
        let mut shown = Shown::idle();
        assert!(shown.wait(200).is_some());
        let window = |window, shown: &mut Shown| {
            shown.now += Duration::from_millis(100);
            let mut packet = acknowledgement(100, &[], 0, window);
            assert_eq!(shown.recovery.on_packet(&mut packet, &edges(100, 200), shown.now), None);
        };
        window(0, &mut shown);
        assert_eq!(shown.wait(200), None);
        window(9, &mut shown);
        assert_eq!(shown.wait(200), Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_duplicate_sack_block_counts_once() {
        let blocks = |blocks: &[[u32; 2]]| {
            let edges = blocks.iter().flatten().flat_map(|edge| edge.to_be_bytes());
            let option: Vec<u8> = [1, 1, SACK, 2 + 8 * blocks.len() as u8].into_iter().chain(edges).collect();
            let packet = acknowledgement(10, &option, 0, 9);
            let sacked = Sacked::of(&TcpSegment::parse(&packet).unwrap(), 10);
            (sacked.bytes, sacked.end)
        };
        assert_eq!(blocks(&[[20, 30], [40, 60]]), (30, 60));
        assert_eq!(blocks(&[[20, 30], [20, 40]]), (20, 40));
        assert_eq!(blocks(&[[0, 10], [20, 30]]), (10, 30));
    }
}
