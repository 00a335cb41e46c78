//! What the stacks leave out of loss recovery: they read no SACK blocks, and repeat one segment for each three
//! duplicate acknowledgements.
//!
//! - A stack counts a duplicate only if its window is that of the last (RFC 5681, 2). Linux raises its receive window
//!   with each segment that arrives, so that none is counted, and one loss costs a time-out of a second. RFC 6675, 2
//!   counts an acknowledgement that brings SACK blocks, whatever its window. So such an acknowledgement keeps the
//!   window of the last.
//! - One acknowledgement may tell of many segments. More than two in SACK blocks mean that the segment before them
//!   was lost (RFC 6675, 4, `IsLost`).
//! - An acknowledgement of a part of what had been sent before the loss was noticed means that another segment was lost.
//!   It is repeated at once (RFC 6582, 3.2, step 3), and not after a time-out.
//! - A repeated segment may be lost too. That is known once the peer has three segments that were sent after it, or
//!   when nothing comes for several round trips (RFC 8985, 3, has both ideas). So it is repeated again.

use std::time::Duration;

use platform::packet::TcpSegment;
use platform::packet::checksum::update;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use tokio::time::Instant;

/// The kind of the window scale option (RFC 7323, 2.2).
const WINDOW_SCALE: u8 = 3;

/// The kind of the SACK option (RFC 2018, 3).
const SACK: u8 = 5;

/// How many duplicate acknowledgements mean a loss (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// How long a repeated segment is waited for, at least and without a round trip to go by: as Linux'
/// `TCP_TIMEOUT_MIN` and `TCP_RTO_MIN` (`include/net/tcp.h`), but for the clock of the former.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// The length of an IPv4 and a TCP header without options, in bytes.
pub(crate) const HEADERS: usize = 40;

/// Offsets in a TCP header (RFC 9293, 3.1).
const WINDOW_AT: usize = 14;
const CHECKSUM_AT: usize = 16;

/// What the acknowledgements of a connection have said. All positions are sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    mss: u32,
    acknowledgement: u32,
    window: u16,
    /// The peer's window scale (RFC 7323, 2.2), if its SYN was shown.
    scale: u8,
    /// How often the acknowledgement was repeated.
    duplicates: u8,
    /// While a loss is being made good.
    episode: Option<Episode>,
    /// How long the peer took at most to acknowledge a segment that was repeated once.
    round_trip: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    /// It ends when all before this is acknowledged.
    end: u32,
    /// The peer sends SACK blocks.
    has_sack: bool,
    /// Nothing beyond this had been sent when the missing segment was repeated.
    sent: u32,
    /// How many acknowledgements told of segments beyond that.
    beyond: u8,
    /// When the missing segment was repeated, and how often.
    repeated_at: Instant,
    repeats: u32,
}

/// Why the first segment that is not acknowledged is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// A new loss, at which the congestion window falls.
    New,
    /// The same one: another segment of that window, or the repeated one.
    Again,
}

impl Recovery {
    /// `mss` is the payload of a segment on the wire, in bytes.
    pub(crate) fn new(mss: usize) -> Self {
        Self {
            mss: mss as u32,
            acknowledgement: 0,
            window: 0,
            scale: 0,
            duplicates: 0,
            episode: None,
            round_trip: None,
        }
    }

    /// Takes note of a packet from the peer, and answers whether the first segment that is not acknowledged is to be
    /// repeated now. A duplicate acknowledgement gets the window of the one that it repeats.
    ///
    /// To be called for every packet of the connection that arrives, before the stack has it. Nothing from `sent` on has
    /// been sent yet.
    #[inline]
    pub(crate) fn on_packet(&mut self, packet: &mut [u8], sent: u32, now: Instant) -> Option<Lost> {
        let segment = TcpSegment::parse(packet)?;
        let (acknowledgement, window) = (segment.acknowledgement(), segment.window());
        let is_pure = segment.flags() & (ACK | SYN | FIN | RST) == ACK && segment.payload().is_empty();
        let is_repeated = is_pure && acknowledgement == self.acknowledgement;
        if !is_repeated && self.episode.is_none() {
            if segment.flags() & SYN != 0 {
                let scale = segment.options().find(|option| option.kind == WINDOW_SCALE);
                self.scale = scale.and_then(|option| option.value.first().copied()).map_or(0, |scale| scale.min(14));
            }
            (self.acknowledgement, self.window, self.duplicates) = (acknowledgement, window, 0);
            return None;
        }
        let sacked = Sacked::of(&segment, acknowledgement);
        if is_repeated {
            if sacked.bytes == 0 && window != self.window {
                self.window = window;
                return None;
            }
            set_window(packet, self.window);
            return if is_before(acknowledgement, sent) { self.repeated(sacked, sent, now) } else { None };
        }
        let is_new = is_before(self.acknowledgement, acknowledgement);
        (self.acknowledgement, self.window, self.duplicates) = (acknowledgement, window, 0);
        let episode = self.episode.as_mut()?;
        if is_new && episode.repeats == 1 {
            self.round_trip = self.round_trip.max(Some(now - episode.repeated_at));
        }
        let is_over = !is_before(acknowledgement, episode.end);
        if sacked.bytes == 0 && (is_over || episode.has_sack) {
            if is_over {
                self.episode = None;
            }
            return None;
        }
        if is_over {
            episode.end = sent;
        }
        (is_new && is_pure).then(|| {
            episode.repeats = 0;
            episode.repeat(sent, now)
        })
    }

    /// When the missing segment is to be repeated once more, unless something comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let episode = self.episode.as_ref()?;
        let wait = self.round_trip.map_or(FIRST_WAIT, |round_trip| (2 * round_trip).max(SHORTEST_WAIT));
        // Twice, and the rest is the stack's time-out.
        (episode.repeats < DUPLICATES.into()).then(|| episode.repeated_at + wait * episode.repeats)
    }

    /// Whether that time has come.
    pub(crate) fn expire(&mut self, sent: u32, now: Instant) -> Option<Lost> {
        self.deadline().filter(|&at| at <= now)?;
        Some(self.episode.as_mut()?.repeat(sent, now))
    }

    /// Where that ends at most which was sent of so many bytes that wait for an acknowledgement.
    #[inline]
    pub(crate) fn sent_of(&self, queued: usize) -> u32 {
        let window = usize::from(self.window) << self.scale;
        self.acknowledgement.wrapping_add(queued.min(window) as u32)
    }

    /// The window of the last acknowledgement, as it stands in the header.
    pub(crate) fn window(&self) -> u16 {
        self.window
    }

    fn repeated(&mut self, sacked: Sacked, sent: u32, now: Instant) -> Option<Lost> {
        self.duplicates = self.duplicates.saturating_add(1);
        let Some(episode) = &mut self.episode else {
            let is_counted = self.duplicates >= DUPLICATES;
            let is_lost = is_counted || sacked.bytes > 2 * self.mss;
            if is_lost {
                let has_sack = sacked.bytes > 0;
                let episode = Episode { end: sent, has_sack, sent, beyond: 0, repeated_at: now, repeats: 1 };
                self.episode = Some(episode);
            }
            // What it has counted, the stack repeats of its own.
            return (is_lost && !is_counted).then_some(Lost::New);
        };
        if sacked.bytes == 0 || !is_before(episode.sent, sacked.end) {
            return None;
        }
        episode.beyond += 1;
        (episode.beyond == DUPLICATES).then(|| episode.repeat(sent, now))
    }
}

impl Episode {
    fn repeat(&mut self, sent: u32, now: Instant) -> Lost {
        (self.sent, self.beyond, self.repeated_at) = (sent, 0, now);
        self.repeats += 1;
        Lost::Again
    }
}

/// What SACK blocks say beyond the acknowledgement.
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
        for option in segment.options().filter(|option| option.kind == SACK) {
            for block in option.value.chunks_exact(8) {
                let start = u32::from_be_bytes([block[0], block[1], block[2], block[3]]);
                let end = u32::from_be_bytes([block[4], block[5], block[6], block[7]]);
                // A block before it tells of what came twice (RFC 2883, 4).
                if is_before(acknowledgement, start) && is_before(start, end) {
                    sacked.bytes = sacked.bytes.saturating_add(end.wrapping_sub(start));
                    sacked.end = if is_before(sacked.end, end) { end } else { sacked.end };
                }
            }
        }
        sacked
    }
}

/// Whether a sequence number comes before another (RFC 9293, 3.4).
fn is_before(first: u32, second: u32) -> bool {
    first.wrapping_sub(second).cast_signed() < 0
}

/// Changes the window of a TCP segment.
pub(crate) fn set_window(packet: &mut [u8], window: u16) {
    let Some(segment) = TcpSegment::parse(packet) else { return };
    let (old, at) = (segment.window(), segment.layout.tcp_at);
    if window == old {
        return;
    }
    let tcp = &mut packet[at..];
    let checksum = u16::from_be_bytes([tcp[CHECKSUM_AT], tcp[CHECKSUM_AT + 1]]);
    tcp[WINDOW_AT..WINDOW_AT + 2].copy_from_slice(&window.to_be_bytes());
    // A checksum that is left to the link is not verified either.
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&update(checksum, old, window).to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::mss_rewrite::tests::packet;

    /// An acknowledgement of what comes before a byte, with this window.
    fn acknowledgement(byte: u32, options: &[u8], payload: usize, window: u16) -> Vec<u8> {
        let mut packet = packet(false, ACK, options, payload);
        packet[28..32].copy_from_slice(&byte.to_be_bytes());
        packet[34..36].copy_from_slice(&window.to_be_bytes());
        packet
    }

    fn window(packet: &[u8]) -> u16 {
        TcpSegment::parse(packet).unwrap().window()
    }

    #[test]
    fn only_a_repeated_acknowledgement_with_sack_blocks_keeps_the_window() {
        let sack = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 11];
        for (options, payload, expected) in [(&sack[..], 0, 100), (&sack, 5, 300), (&[], 0, 300)] {
            let mut recovery = Recovery::new(10);
            recovery.on_packet(&mut acknowledgement(7, &[], 0, 100), 100, Instant::now());
            let mut repeated = acknowledgement(7, options, payload, 300);
            recovery.on_packet(&mut repeated, 100, Instant::now());
            assert_eq!(window(&repeated), expected);
        }
    }

    #[test]
    fn the_checksum_follows_the_window() {
        let sack = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 11];
        let mut recovery = Recovery::new(10);
        recovery.on_packet(&mut acknowledgement(7, &[], 0, 100), 100, Instant::now());
        let mut repeated = acknowledgement(7, &sack, 0, 300);
        let sum = |packet: &[u8]| platform::packet::checksum::sum(&packet[20..]);
        let before = !sum(&repeated);
        repeated[36..38].copy_from_slice(&before.to_be_bytes());
        let verified = sum(&repeated);
        recovery.on_packet(&mut repeated, 100, Instant::now());
        assert_eq!(window(&repeated), 100);
        assert_eq!(sum(&repeated), verified);
    }

    /// A SACK option for the bytes from `start` to `end`.
    fn sack(start: u32, end: u32) -> Vec<u8> {
        [&[1, 1, SACK, 10], &start.to_be_bytes()[..], &end.to_be_bytes()[..]].concat()
    }

    /// Shows a packet, 10 ms after the last.
    struct Shown {
        recovery: Recovery,
        now: Instant,
    }

    impl Shown {
        /// Of segments of ten bytes.
        fn new() -> Self {
            let mut shown = Self { recovery: Recovery::new(10), now: Instant::now() };
            assert_eq!(shown.ack(10, &[], 100), None);
            shown
        }

        fn ack(&mut self, byte: u32, options: &[u8], sent: u32) -> Option<Lost> {
            self.now += Duration::from_millis(10);
            self.recovery.on_packet(&mut acknowledgement(byte, options, 0, 9), sent, self.now)
        }

        /// The segment at 10 was lost of those up to 100, and has just been repeated.
        fn recovering() -> Self {
            let mut shown = Self::new();
            assert_eq!(shown.ack(10, &sack(20, 40), 100), None);
            assert_eq!(shown.ack(10, &sack(20, 50), 100), Some(Lost::New));
            shown
        }
    }

    #[test]
    fn a_partial_acknowledgement_has_the_next_segment_repeated() {
        let mut shown = Shown::recovering();
        assert_eq!(shown.ack(50, &sack(60, 100), 120), Some(Lost::Again));
        // Without a hole it is only late.
        assert_eq!(shown.ack(80, &[], 120), None);
        // All is there that had been sent before.
        assert_eq!(shown.ack(100, &[], 120), None);
        assert_eq!(shown.ack(110, &sack(120, 130), 150), None);
        // This is another loss.
        assert_eq!(shown.ack(110, &sack(120, 150), 150), Some(Lost::New));
        assert_eq!(shown.ack(150, &sack(160, 200), 200), Some(Lost::Again));
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
    fn three_later_segments_tell_that_the_repeated_one_was_lost() {
        let mut shown = Shown::recovering();
        let answers = [60, 70, 80, 90, 100, 110, 120, 130, 140, 150].map(|end| shown.ack(10, &sack(20, end), 150));
        // The first that was sent after the segment was repeated is the sixth.
        assert_eq!(answers.map(|lost| lost.is_some()), [6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|end| end == 13));
    }

    #[test]
    fn silence_tells_it_too() {
        let mut shown = Shown::recovering();
        let repeated_at = shown.now;
        assert_eq!(shown.recovery.deadline(), Some(repeated_at + FIRST_WAIT));
        assert_eq!(shown.recovery.expire(100, repeated_at + FIRST_WAIT / 2), None);
        assert_eq!(shown.recovery.expire(100, repeated_at + FIRST_WAIT), Some(Lost::Again));
        // Twice in all; and a segment that was repeated twice says nothing of the round trip.
        let deadline = shown.recovery.deadline().unwrap();
        assert_eq!(shown.recovery.expire(100, deadline), Some(Lost::Again));
        assert_eq!(shown.recovery.deadline(), None);
        assert_eq!(shown.ack(50, &sack(60, 100), 100), Some(Lost::Again));
        assert_eq!(shown.recovery.deadline(), Some(shown.now + FIRST_WAIT));
        // One of 10 ms.
        assert_eq!(shown.ack(70, &sack(80, 100), 100), Some(Lost::Again));
        assert_eq!(shown.recovery.deadline(), Some(shown.now + Duration::from_millis(20)));
    }
}
