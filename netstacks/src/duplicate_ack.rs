//! Duplicate acknowledgements with a window that does not change.
//!
//! A stack retransmits at once after three duplicate acknowledgements, and counts one only if its window is that of
//! the last (RFC 5681, 2). Linux raises its receive window with each segment that arrives, so that no duplicate is
//! counted: one loss then costs a time-out of a second. RFC 6675, 2 counts an acknowledgement that brings new SACK
//! blocks, whatever its window. So for a stack that does not read SACK blocks, such an acknowledgement keeps the window
//! of the last.

use platform::packet::TcpSegment;
use platform::packet::checksum::update;
use platform::packet::flags::{ACK, FIN, RST, SYN};

/// The kind of the SACK option (RFC 2018, 3).
const SACK: u8 = 5;

/// Offsets in a TCP header (RFC 9293, 3.1).
const WINDOW_AT: usize = 14;
const CHECKSUM_AT: usize = 16;

/// The last acknowledgement of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastAck {
    acknowledgement: u32,
    window: u16,
}

impl LastAck {
    /// Gives a duplicate acknowledgement the window of the one that it repeats, and remembers any other. To be called
    /// for every packet of the connection that arrives.
    #[inline]
    pub(crate) fn keep_window(&mut self, packet: &mut [u8]) {
        let Some(segment) = TcpSegment::parse(packet) else { return };
        let (acknowledgement, window, at) = (segment.acknowledgement(), segment.window(), segment.layout.tcp_at);
        let is_repeated = acknowledgement == self.acknowledgement
            && segment.flags() & (ACK | SYN | FIN | RST) == ACK
            && segment.payload().is_empty()
            && segment.options().any(|option| option.kind == SACK);
        if !is_repeated {
            *self = Self { acknowledgement, window };
        } else if window != self.window {
            let tcp = &mut packet[at..];
            let checksum = u16::from_be_bytes([tcp[CHECKSUM_AT], tcp[CHECKSUM_AT + 1]]);
            tcp[WINDOW_AT..WINDOW_AT + 2].copy_from_slice(&self.window.to_be_bytes());
            // A checksum that is left to the link is not verified either.
            tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&update(checksum, window, self.window).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::mss_rewrite::tests::packet;

    /// An acknowledgement of byte 7, with this window.
    fn acknowledgement(options: &[u8], payload: usize, window: u16) -> Vec<u8> {
        let mut packet = packet(false, ACK, options, payload);
        packet[28..32].copy_from_slice(&7_u32.to_be_bytes());
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
            let mut last = LastAck::default();
            last.keep_window(&mut acknowledgement(&[], 0, 100));
            let mut repeated = acknowledgement(options, payload, 300);
            last.keep_window(&mut repeated);
            assert_eq!(window(&repeated), expected);
        }
    }

    #[test]
    fn the_checksum_follows_the_window() {
        let sack = [1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 11];
        let mut last = LastAck::default();
        last.keep_window(&mut acknowledgement(&[], 0, 100));
        let mut repeated = acknowledgement(&sack, 0, 300);
        let sum = |packet: &[u8]| platform::packet::checksum::sum(&packet[20..]);
        let before = !sum(&repeated);
        repeated[36..38].copy_from_slice(&before.to_be_bytes());
        let verified = sum(&repeated);
        last.keep_window(&mut repeated);
        assert_eq!(sum(&repeated), verified);
    }
}
