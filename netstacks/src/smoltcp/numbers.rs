//! The sequence numbers of a connection on the wire. A half-open connection has no socket, which would draw them. So
//! all packets are renumbered. They also tell what smoltcp has sent and announced.

use platform::packet::checksum::{sum, update};
use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{TcpSegment, offset};

use crate::recovery::is_before;

#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Our initial sequence number.
    pub(super) initial: u32,
    /// The distance from smoltcp's numbers to those on the wire.
    shift: u32,
    scale: u8,
    /// The number after the last byte that was sent.
    pub(super) sent: u32,
    /// The end of the window that was announced last.
    pub(super) window_end: u32,
    /// Packets are only read, and not sent.
    pub(super) is_rehearsal: bool,
}

impl Numbers {
    /// Before the SYN-ACK. `scale` is the shift count of our window, if the peer scales windows too.
    pub(super) fn new(initial: u32, scale: u8, is_rehearsal: bool) -> Self {
        Self { initial, shift: 0, scale, sent: initial, window_end: 0, is_rehearsal }
    }

    /// Renumbers a packet from smoltcp, and notes what it says. Ignores other packets than TCP. Returns whether it is a SYN.
    #[inline]
    pub(super) fn outgoing(&mut self, packet: &mut [u8]) -> bool {
        let Some(segment) = TcpSegment::parse(packet) else { return false };
        let (flags, old) = (segment.flags(), segment.sequence());
        let is_syn = flags & SYN != 0;
        if is_syn {
            self.shift = self.initial.wrapping_sub(old);
        }
        let sequence = old.wrapping_add(self.shift);
        if flags & (ACK | RST) == ACK {
            let len = segment.payload().len() as u32 + u32::from(is_syn) + u32::from(flags & FIN != 0);
            let end = sequence.wrapping_add(len);
            if is_before(self.sent, end) {
                self.sent = end;
            }
            let scale = if is_syn { 0 } else { self.scale };
            self.window_end = segment.acknowledgement().wrapping_add(u32::from(segment.window()) << scale);
        }
        let at = segment.layout.tcp_at;
        let tcp = &mut packet[at..];
        let checksum = u16::from_be_bytes([tcp[offset::CHECKSUM], tcp[offset::CHECKSUM + 1]]);
        let checksum = update(checksum, sum(&old.to_be_bytes()), sum(&sequence.to_be_bytes()));
        tcp[offset::SEQUENCE..offset::SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
        tcp[offset::CHECKSUM..offset::CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        is_syn
    }

    /// Renumbers a packet for smoltcp. Its checksum was verified, and then no longer fits.
    #[inline]
    pub(super) fn incoming(&self, packet: &mut [u8]) {
        let Some(segment) = TcpSegment::parse(packet) else { return };
        if segment.flags() & ACK != 0 {
            let at = segment.layout.tcp_at + offset::ACKNOWLEDGEMENT;
            let acknowledgement = segment.acknowledgement().wrapping_sub(self.shift);
            packet[at..at + 4].copy_from_slice(&acknowledgement.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use platform::packet::{TcpFields, is_checksum_right};

    use super::*;
    use crate::fixture::segment;

    fn packet(fields: TcpFields) -> Vec<u8> {
        segment(([10, 0, 0, 2], 80), ([10, 0, 0, 1], 7), fields, &[], b"data")
    }

    #[test]
    fn numbers_are_shifted_both_ways_and_the_checksum_follows() {
        let mut numbers = Numbers::new(u32::MAX, 2, false);
        let mut syn = packet(TcpFields { sequence: 500, acknowledgement: 9, flags: SYN | ACK, window: 100 });
        numbers.outgoing(&mut syn);
        assert!(is_checksum_right(&syn));
        assert_eq!(TcpSegment::parse(&syn).unwrap().sequence(), u32::MAX);
        // A SYN-ACK's window is not scaled. Its number and its data count.
        assert_eq!((numbers.sent, numbers.window_end), (4, 109));

        let mut data = packet(TcpFields { sequence: 501, acknowledgement: 20, flags: ACK | FIN, window: 100 });
        numbers.outgoing(&mut data);
        assert!(is_checksum_right(&data));
        assert_eq!(TcpSegment::parse(&data).unwrap().sequence(), 0);
        assert_eq!((numbers.sent, numbers.window_end), (5, 420));

        let mut old = packet(TcpFields { sequence: 501, acknowledgement: 20, flags: ACK, window: 7 });
        numbers.outgoing(&mut old);
        assert_eq!((numbers.sent, numbers.window_end), (5, 48), "a retransmission does not take bytes back");

        let mut answer = packet(TcpFields { sequence: 9, acknowledgement: 5, flags: ACK, window: 1 });
        numbers.incoming(&mut answer);
        assert_eq!(TcpSegment::parse(&answer).unwrap().acknowledgement(), 506);
        let mut reset = packet(TcpFields { sequence: 9, acknowledgement: 0, flags: RST, window: 1 });
        numbers.incoming(&mut reset);
        assert_eq!(TcpSegment::parse(&reset).unwrap().acknowledgement(), 0, "without ACK it has no number");
    }
}
