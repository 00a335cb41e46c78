//! Tests of the recovery from losses.

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
        let mut shown = Self { recovery: Recovery::new(10, Workarounds::ALL), unacknowledged: 10, now: Instant::now() };
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
