//! Half-open connections. They have no socket, which has two rings: a closed one makes the SYN-ACK.

use std::time::Duration;

use platform::Checksum;
use platform::packet::flags::{ACK, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use tokio::time::Instant;

use crate::FlowKey;
use crate::driven::segment::Segment;

/// The longest options of a TCP header (RFC 9293, 3.1).
const MAX_OPTIONS_LEN: usize = 40;

/// The first timeout of a SYN-ACK (RFC 6298, 2.1). It doubles each time.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// The window that a SYN-ACK announces at most: it is not scaled (RFC 7323, 2.2).
const LARGEST_WINDOW: usize = 0xffff;

#[derive(Clone, Copy, Debug)]
pub struct HalfOpen {
    syn: TcpFields,
    options: [u8; MAX_OPTIONS_LEN],
    options_len: u8,
    /// The shift count of the peer's window; `None` if it does not scale windows.
    pub(super) peer_scale: Option<u8>,
    pub(super) initial: u32,
    pub(super) since: Instant,
    /// How often the SYN-ACK was sent.
    pub(super) tries: u32,
    /// When the SYN-ACK is due again; `None` if it is due now.
    pub(super) again_at: Option<Instant>,
}

/// What to do with a packet of a half-open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Open,
    /// The client repeats its SYN, or may have lost track: send the SYN-ACK again.
    Answer,
    /// A SYN with another number: the client has started again.
    Replace,
    /// The client has given up.
    Forget,
    /// It acknowledges another number than ours: a RST.
    Refuse,
    Drop,
}

impl HalfOpen {
    /// After a SYN. `None` if the packet is none.
    pub(super) fn new(packet: &[u8], initial: u32, now: Instant) -> Option<Self> {
        let segment = TcpSegment::parse(packet)?;
        let bytes = segment.options().as_bytes();
        let mut options = [0; MAX_OPTIONS_LEN];
        options.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self {
            syn: TcpFields {
                sequence: segment.sequence(),
                acknowledgement: 0,
                flags: segment.flags(),
                window: segment.window(),
            },
            options,
            options_len: bytes.len() as u8,
            peer_scale: segment.options().find_map(|option| option.window_scale()),
            initial,
            since: now,
            tries: 0,
            again_at: None,
        })
    }

    /// Writes the SYN, without its data. Returns its length. smoltcp does not verify the checksum.
    pub(super) fn write(&self, key: &FlowKey, packet: &mut [u8; MAX_HEADERS_LEN]) -> Option<usize> {
        let options = &self.options[..usize::from(self.options_len)];
        let headers = TcpHeaders::new(key.peer, key.local)?;
        Some(headers.write(self.syn, options, &[], Checksum::Partial, packet))
    }

    /// The first byte that the peer sends.
    pub(super) fn peer_first(&self) -> u32 {
        self.syn.sequence.wrapping_add(1)
    }

    /// Decides about the next segment from the peer (RFC 9293, 3.10.7.4, SYN-RECEIVED; RFC 5961, 3).
    pub(super) fn next(&self, segment: &Segment, window: usize) -> Next {
        let ahead = segment.sequence.wrapping_sub(self.peer_first());
        let in_window = (ahead as usize) < window.min(LARGEST_WINDOW);
        match segment.flags & (SYN | ACK | RST) {
            SYN if segment.sequence == self.syn.sequence => Next::Answer,
            SYN => Next::Replace,
            flags if flags & RST != 0 => match ahead {
                0 => Next::Forget,
                _ if in_window => Next::Answer,
                _ => Next::Drop,
            },
            ACK if segment.acknowledgement != self.initial.wrapping_add(1) => Next::Refuse,
            ACK if in_window => Next::Open,
            0 => Next::Drop,
            _ => Next::Answer,
        }
    }

    /// When the SYN-ACK is due; `None` for now.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        self.again_at.filter(|at| now < *at)
    }

    /// Notes that the SYN-ACK was sent. Returns when it is due again.
    pub(super) fn answered(&mut self, now: Instant) -> Instant {
        let again_at = now + FIRST_TIMEOUT * (1 << self.tries.min(5));
        self.tries += 1;
        *self.again_at.insert(again_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::packet;

    const MSS_AND_SCALE: [u8; 8] = [2, 4, 5, 180, 1, 3, 3, 99];

    fn half_open() -> HalfOpen {
        let mut syn = packet(false, SYN, &MSS_AND_SCALE, 500);
        syn[24..28].copy_from_slice(&1000u32.to_be_bytes());
        HalfOpen::new(&syn, 70, Instant::now()).unwrap()
    }

    #[test]
    fn the_syn_comes_back_without_its_data() {
        let key = FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: "10.0.0.1:7".parse().unwrap() };
        let mut packet = [0; MAX_HEADERS_LEN];
        let len = half_open().write(&key, &mut packet).unwrap();
        let segment = TcpSegment::parse(&packet[..len]).unwrap();
        assert_eq!((segment.sequence(), segment.flags(), segment.payload().len()), (1000, SYN, 0));
        assert_eq!(segment.options().as_bytes(), MSS_AND_SCALE);
        assert_eq!((half_open().peer_first(), half_open().peer_scale), (1001, Some(14)));
        assert_eq!(segment.endpoints(), Some((key.peer, key.local)));
    }

    #[test]
    fn only_the_right_numbers_open_or_end_a_handshake() {
        let key = FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: "10.0.0.1:7".parse().unwrap() };
        for (flags, sequence, acknowledgement, expected) in [
            (SYN, 1000, 0, Next::Answer),
            (SYN, 1001, 0, Next::Replace),
            (RST, 1001, 0, Next::Forget),
            (RST, 1002, 0, Next::Answer),
            (RST, 1000, 0, Next::Drop),
            (RST | ACK, 1001 + 0xffff, 0, Next::Drop),
            (ACK, 1001, 71, Next::Open),
            (ACK, 1005, 71, Next::Open),
            (ACK, 1000, 71, Next::Answer),
            (ACK, 1001 + 0xffff, 71, Next::Answer),
            (ACK, 1001, 70, Next::Refuse),
            (SYN | ACK, 1001, 71, Next::Answer),
            (0, 1001, 71, Next::Drop),
        ] {
            let segment = Segment { key, flags, sequence, acknowledgement, len: 0, opens: flags == SYN };
            assert_eq!(half_open().next(&segment, 1 << 20), expected, "{segment:?}");
        }
    }

    #[test]
    fn each_syn_ack_waits_twice_as_long() {
        let mut half_open = half_open();
        let mut now = half_open.since;
        assert_eq!(half_open.due_at(now), None);
        for seconds in [1, 2, 4, 8] {
            let again_at = half_open.answered(now);
            assert_eq!(again_at - now, Duration::from_secs(seconds));
            assert_eq!(half_open.due_at(now), Some(again_at));
            now = again_at;
            assert_eq!(half_open.due_at(now), None);
        }
        half_open.answered(now);
        half_open.again_at = None;
        assert_eq!(half_open.due_at(now), None);
    }
}
