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
mod tests;
