//! Loss recovery for stacks that ignore SACK blocks: says when they must retransmit the first unacknowledged segment.
//! `docs/architecture.md` has the five cases (RFC 6675, 2 and 4, `IsLost`; RFC 6582, 3.2, step 3; RFC 8985, 3 and 7).
//! With SACK blocks the window of a duplicate does not matter: Linux raises its window with each segment that arrives.
//! A probe leaves lwIP's congestion window as it is; for smoltcp's Reno and CUBIC each retransmission is a loss.

use std::time::Duration;

use platform::packet::TcpSegment;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use tokio::time::Instant;

use crate::{Workaround, Workarounds};

/// The kind of the SACK option (RFC 2018, 3).
const SACK: u8 = 5;

/// How many duplicate acknowledgements mean a loss (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// How often a segment is sent again before the stack's own timeout takes over.
const MAX_RETRIES: u32 = 2;

const SHORTEST_WAIT: Duration = Duration::from_millis(5);
/// The round trip time in recovery while it is unknown: half of Linux's `TCP_RTO_MIN` (`include/net/tcp.h`).
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// The additional wait if a single segment is outstanding: `WCDelAckT` of RFC 8985, 7.2, which has 200 ms.
const DELAYED_ACK: Duration = Duration::from_millis(300);

/// The state of a connection at its stack, by which packets are acceptable (RFC 9293, 3.10.7.4).
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
    pub(crate) peer_window: u16,
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

    /// The segment of a packet if the stack takes its acknowledgement and its window.
    #[inline]
    pub(crate) fn accept<'a>(&self, packet: &'a [u8]) -> Option<TcpSegment<'a>> {
        let outstanding = self.sent.wrapping_sub(self.unacknowledged);
        TcpSegment::parse(packet).filter(|segment| {
            segment.flags() & (ACK | RST | SYN) == ACK
                && segment.acknowledgement().wrapping_sub(self.unacknowledged) <= outstanding
                && self.has_room_for(segment.sequence(), segment.payload().len())
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    workarounds: Workarounds,
    mss: u32,
    pub(crate) duplicates: u8,
    episode: Option<Episode>,
    tail: Option<u32>,
    /// When the wait began: at the last acknowledgement, retransmission, or, outside of recovery, new segment.
    since: Option<Instant>,
    /// How often the first unacknowledged segment was sent again because that wait was over.
    retries: u32,
    probed: Option<u32>,
    /// A sequence number, and the time when it was sent, for one round trip time at a time (RFC 6298, 3).
    timed: Option<(u32, Instant)>,
    round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    /// Recovery ends when everything before this is acknowledged.
    end: u32,
    has_sack: bool,
}

/// Why the first unacknowledged segment must be retransmitted. lwIP's glue has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Perhaps no loss: no acknowledgement arrives.
    Probe = 0,
    /// Another loss in the same window, or a lost retransmission.
    Again = 1,
    /// A new loss. It reduces the congestion window. The stack may have counted the duplicates too.
    New = 2,
}

impl Recovery {
    pub(crate) fn new(mss: usize, workarounds: Workarounds) -> Self {
        Self { workarounds, mss: mss as u32, ..Self::default() }
    }

    /// Whether this is a duplicate acknowledgement (RFC 5681, 2; RFC 6675, 2).
    #[inline]
    fn is_duplicate(&self, segment: &TcpSegment<'_>, edges: &Edges) -> bool {
        segment.acknowledgement() == edges.unacknowledged
            && edges.unacknowledged != edges.sent
            && segment.flags() & FIN == 0
            && segment.payload().is_empty()
            && (segment.window() == edges.peer_window
                || self.workarounds.has(Workaround::PartialAck) && largest_block(segment, edges) > 0)
    }

    /// Handles a segment that the stack accepts. Returns why the first unacknowledged one must be retransmitted then.
    #[inline]
    pub(crate) fn on_segment(&mut self, segment: &TcpSegment<'_>, edges: &Edges, now: Instant) -> Option<Lost> {
        let acknowledgement = segment.acknowledgement();
        let advances = acknowledgement != edges.unacknowledged;
        if advances {
            (self.duplicates, self.since, self.retries) = (0, Some(now), 0);
            if let Some((_, sent_at)) = self.timed.take_if(|(end, _)| !is_before(acknowledgement, *end)) {
                let took = now - sent_at;
                self.round_trip = Some(self.round_trip.map_or(took, |smoothed| (7 * smoothed + took) / 8));
            }
            self.episode.take_if(|episode| !is_before(acknowledgement, episode.end));
            self.probed.take_if(|end| !is_before(acknowledgement, *end));
        } else if self.is_duplicate(segment, edges) {
            self.duplicates = self.duplicates.saturating_add(1);
        } else {
            self.duplicates = 0;
            if edges.peer_window == 0 {
                self.since = Some(now);
            }
            return None;
        }
        let block = largest_block(segment, edges);
        let is_lost = match self.episode {
            _ if !self.workarounds.has(Workaround::PartialAck) => return None,
            Some(episode) => advances && (block > 0 || !episode.has_sack),
            None => block > 2 * self.mss || self.duplicates >= DUPLICATES,
        };
        is_lost.then(|| self.retransmit(block > 0, acknowledgement, edges.sent, now))
    }

    /// Retransmits what is known to be lost at `first`. Begins a recovery up to `end` if there is none.
    fn retransmit(&mut self, has_sack: bool, first: u32, end: u32, now: Instant) -> Lost {
        (self.since, self.retries) = (Some(now), 0);
        self.timed = Some((first.wrapping_add(1), now));
        let lost = if self.episode.is_none() { Lost::New } else { Lost::Again };
        self.episode.get_or_insert(Episode { end, has_sack });
        lost
    }

    /// Call it after sending. Returns why the first unacknowledged segment must be retransmitted now, or else when.
    pub(crate) fn next(&mut self, edges: &Edges, fits: bool, now: Instant) -> Result<Option<Instant>, Lost> {
        let tail = self.tail.replace(edges.sent).unwrap_or(edges.unacknowledged);
        // In recovery, new segments are acknowledged only after the lost ones. With a closed window only probes are sent.
        if is_before(tail, edges.sent) && self.episode.is_none() && edges.peer_window != 0 {
            self.since = Some(now);
            self.timed.get_or_insert((tail.wrapping_add(1), now));
        }
        match self.late_at(edges) {
            Some(at) if at <= now && fits => Err(self.expire(edges, now)),
            late_at => Ok(late_at.filter(|at| *at > now)),
        }
    }

    fn expire(&mut self, edges: &Edges, now: Instant) -> Lost {
        (self.since, self.retries) = (Some(now), self.retries + 1);
        if self.episode.is_some() {
            // Karn's algorithm (RFC 6298, 3).
            self.timed = None;
            return Lost::Again;
        }
        let was_probed = self.probed.replace(edges.sent).is_some_and(|end| is_before(edges.unacknowledged, end));
        if self.retries == 1 && was_probed && self.workarounds.has(Workaround::PartialAck) {
            return self.retransmit(false, edges.unacknowledged, edges.sent, now);
        }
        // Unlike Karn's algorithm, this keeps the time of the original: the round trip may have become longer.
        Lost::Probe
    }

    fn late_at(&self, edges: &Edges) -> Option<Instant> {
        let outstanding = edges.sent.wrapping_sub(edges.unacknowledged);
        let recovers = self.episode.is_some();
        let waits = recovers || self.workarounds.has(Workaround::TailLossProbe);
        if !waits || outstanding == 0 || edges.peer_window == 0 || self.retries >= MAX_RETRIES {
            return None;
        }
        // RFC 8985, 7.2 waits for a second if the round trip time is unknown. That is also the stack's own first timeout.
        let round_trip = self.round_trip.or(recovers.then_some(FIRST_ROUND_TRIP))?;
        let delayed = if recovers || outstanding > self.mss { Duration::ZERO } else { DELAYED_ACK };
        Some(self.since? + ((2 * round_trip).max(SHORTEST_WAIT) + delayed) * (self.retries + 1))
    }
}

/// The length of the longest SACK block beyond the acknowledgement, in bytes, or 0.
fn largest_block(segment: &TcpSegment<'_>, edges: &Edges) -> u32 {
    let outstanding = edges.sent.wrapping_sub(segment.acknowledgement());
    let Some(option) = segment.options().find(|option| option.kind == SACK) else { return 0 };
    let lengths = option.value.chunks_exact(8).map(|block| {
        let [start, end] = [[block[0], block[1], block[2], block[3]], [block[4], block[5], block[6], block[7]]]
            .map(|edge| u32::from_be_bytes(edge).wrapping_sub(segment.acknowledgement()));
        // No peer has bytes that were not sent. A block before the acknowledgement reports a duplicate (RFC 2883, 4).
        if 0 < start && start < end && end <= outstanding { end - start } else { 0 }
    });
    lengths.max().unwrap_or(0)
}

pub(crate) fn is_before(first: u32, second: u32) -> bool {
    first.wrapping_sub(second).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::packet;

    /// An acknowledgement of the bytes before `byte`, with this window.
    fn acknowledgement(byte: u32, options: &[u8], payload: usize, window: u16) -> Vec<u8> {
        let mut packet = packet(false, ACK, options, payload);
        packet[28..32].copy_from_slice(&byte.to_be_bytes());
        packet[34..36].copy_from_slice(&window.to_be_bytes());
        packet
    }

    /// The edges of a stack that expects the byte 0 from its peer, which has announced a window of 9.
    fn edges(unacknowledged: u32, sent: u32) -> Edges {
        Edges { unacknowledged, sent, expected: 0, window_end: 1000, peer_window: 9 }
    }

    #[test]
    fn a_duplicate_has_the_last_window_or_sack_blocks() {
        let recovery = |workarounds: &str| Recovery::new(10, workarounds.parse().unwrap());
        for (byte, options, payload, window, expected) in [
            (7, sack(20, 30), 0, 300, true),
            (7, sack(20, 30), 5, 300, false),
            (7, sack(1, 5), 0, 300, false),
            (7, vec![], 0, 300, false),
            (7, vec![], 0, 9, true),
            (8, vec![], 0, 9, false),
        ] {
            let packet = acknowledgement(byte, &options, payload, window);
            let is_duplicate = |workarounds, sent| {
                recovery(workarounds).is_duplicate(&TcpSegment::parse(&packet).unwrap(), &edges(7, sent))
            };
            assert_eq!(is_duplicate("all", 97), expected, "{byte} {options:?} {payload} {window}");
            assert_eq!(is_duplicate("none", 97), expected && window == 9);
            assert!(!is_duplicate("all", 7), "nothing is in flight");
        }
    }

    #[test]
    fn each_part_is_off_when_it_is_off() {
        let recovery = |workarounds: &str| Recovery::new(10, workarounds.parse().unwrap());
        let mut shown = Shown { recovery: recovery("-partial-ack"), ..Shown::new() };
        assert!([40, 70, 90, 100].iter().all(|end| shown.ack(10, &sack(20, *end), 100).is_none()));
        assert_eq!(shown.ack(50, &sack(60, 100), 120), None);

        let mut shown = Shown { recovery: recovery("-tail-loss-probe"), ..Shown::idle() };
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
        let wrapped = Edges { unacknowledged: u32::MAX, sent: 1, expected: 0, ..open };
        let accepts = |number| wrapped.accept(&acknowledgement(number, &[], 0, 9)).is_some();
        assert!([u32::MAX, 0, 1].into_iter().all(accepts) && !accepts(2) && !accepts(u32::MAX - 1));
    }

    /// A packet that the stack refuses must not become the base of a retransmission.
    #[test]
    fn a_segment_outside_the_window_is_not_accepted() {
        let accepts = |sequence: u32, byte, flags| {
            let mut packet = acknowledgement(byte, &sack(60, 100), 0, 3);
            packet[24..28].copy_from_slice(&sequence.to_be_bytes());
            packet[33] = flags;
            edges(10, 100).accept(&packet).is_some()
        };
        assert!(accepts(0, 50, ACK));
        assert!(!accepts(1000, 50, ACK) && !accepts(1u32.wrapping_neg(), 50, ACK));
        assert!(!accepts(0, 101, ACK) && !accepts(0, 9, ACK));
        assert!(!accepts(0, 50, 0) && !accepts(0, 50, ACK | RST) && !accepts(0, 50, ACK | SYN));
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
            let mut shown =
                Self { recovery: Recovery::new(10, Workarounds::ALL), unacknowledged: 10, now: Instant::now() };
            assert_eq!(shown.ack(10, &[], 100), None);
            assert_eq!(shown.recovery.next(&edges(10, 10), true, shown.now), Ok(None));
            shown
        }

        fn ack(&mut self, byte: u32, options: &[u8], sent: u32) -> Option<Lost> {
            self.now += Duration::from_millis(10);
            let edges = edges(self.unacknowledged, sent);
            self.unacknowledged = byte;
            self.hear(&acknowledgement(byte, options, 0, 9), &edges)
        }

        fn hear(&mut self, packet: &[u8], edges: &Edges) -> Option<Lost> {
            self.recovery.on_segment(&edges.accept(packet).unwrap(), edges, self.now)
        }

        /// How long an acknowledgement may still take, if everything up to `sent` has been sent.
        fn wait(&mut self, sent: u32) -> Option<Duration> {
            let late_at = self.recovery.next(&edges(self.unacknowledged, sent), true, self.now).unwrap();
            late_at.map(|at| at - self.now)
        }

        /// Lets this time pass.
        fn late(&mut self, sent: u32) -> Option<Lost> {
            let wait = self.wait(sent)?;
            let edges = edges(self.unacknowledged, sent);
            let late_at = self.now + wait;
            assert_eq!(self.recovery.next(&edges, true, self.now + wait / 2), Ok(Some(late_at)));
            self.now = late_at;
            self.recovery.next(&edges, true, self.now).err()
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
        // The first was an acknowledgement of the same byte.
        let answers = [(); 4].map(|()| shown.ack(10, &[], 100));
        assert_eq!(answers, [None, Some(Lost::New), None, None]);
        assert_eq!(shown.ack(50, &[], 100), Some(Lost::Again));
    }

    #[test]
    fn a_retransmission_without_an_acknowledgement_is_repeated() {
        let mut shown = Shown::recovering();
        assert_eq!(shown.wait(100), Some(2 * FIRST_ROUND_TRIP));
        assert_eq!(shown.late(100), Some(Lost::Again));
        // Twice is the limit. The acknowledgement of a segment that was sent several times gives no round trip time.
        assert_eq!(shown.late(100), Some(Lost::Again));
        assert_eq!(shown.wait(100), None);
        assert_eq!(shown.ack(50, &sack(60, 100), 100), Some(Lost::Again));
        assert_eq!(shown.wait(100), Some(2 * FIRST_ROUND_TRIP));
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
    fn a_probe_is_forgotten_before_the_sequence_numbers_wrap_around() {
        let mut shown = Shown::idle();
        assert_eq!(shown.late(200), Some(Lost::Probe));
        for end in [200, 1 << 30, 2 << 30, 3 << 30] {
            assert_eq!(shown.ack(end, &[], end), None);
        }
        assert_eq!(shown.late((3 << 30) + 100), Some(Lost::Probe));
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
        let open = edges(100, 200);
        let closed = Edges { peer_window: 0, ..open };
        shown.now += Duration::from_millis(100);
        assert_eq!(shown.hear(&acknowledgement(100, &[], 0, 0), &open), None);
        assert_eq!(shown.recovery.next(&closed, true, shown.now), Ok(None));
        shown.now += Duration::from_millis(100);
        assert_eq!(shown.hear(&acknowledgement(100, &[], 0, 9), &closed), None);
        assert_eq!(shown.wait(200), Some(Duration::from_millis(20)));
    }

    #[test]
    fn the_longest_block_beyond_the_acknowledgement_counts() {
        let longest = |blocks: &[[u32; 2]]| {
            let bytes = blocks.iter().flatten().flat_map(|edge| edge.to_be_bytes());
            let option: Vec<u8> = [1, 1, SACK, 2 + 8 * blocks.len() as u8].into_iter().chain(bytes).collect();
            largest_block(&TcpSegment::parse(&acknowledgement(10, &option, 0, 9)).unwrap(), &edges(10, 60))
        };
        assert_eq!(longest(&[[20, 30], [40, 60]]), 20);
        // These report duplicates.
        assert_eq!(longest(&[[20, 30], [20, 40]]), 20);
        assert_eq!(longest(&[[0, 10], [20, 30]]), 10);
        assert_eq!(longest(&[[0, 10]]), 0);
        assert_eq!(longest(&[[30, 20], [10, 20]]), 0);
        // These were not sent.
        assert_eq!(longest(&[[20, 30], [40, 61]]), 10);
        assert_eq!(longest(&[[20, 1 << 31]]), 0);
    }
}
