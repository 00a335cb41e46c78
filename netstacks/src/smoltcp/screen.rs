//! Checks of arriving segments that smoltcp lacks (RFC 9293, 3.10.7.4; RFC 5961; RFC 1337).

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{TcpSegment, offset};
use smoltcp::socket::tcp::State;

use super::connection::Connection;
use crate::driven::segment::Segment;
use crate::recovery::{Edges, is_before};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// smoltcp gets it.
    Pass,
    Drop,
    /// The peer gets an acknowledgement of what is expected.
    Challenge,
    /// The SYN of a new connection: the old one is over.
    Reopen,
}

/// Decides about a segment of a connection with these edges.
pub(super) fn screen(connection: &Connection, edges: &Edges, segment: &Segment) -> Verdict {
    match connection.socket.state() {
        State::Closed if segment.opens => Verdict::Reopen,
        State::Closed => Verdict::Pass,
        // A SYN behind the last number opens a new connection (RFC 1122, 4.2.2.13). A RST ends TIME-WAIT too early
        // (RFC 1337).
        State::TimeWait if segment.opens && !is_before(segment.sequence, edges.expected) => Verdict::Reopen,
        State::TimeWait if segment.flags & RST != 0 => Verdict::Drop,
        _ => screen_synchronized(edges, connection.oldest_acknowledgement(edges), segment),
    }
}

/// `oldest` is the oldest acknowledgement number that a segment may have.
fn screen_synchronized(edges: &Edges, oldest: u32, segment: &Segment) -> Verdict {
    match segment.flags & (SYN | RST | ACK) {
        flags if flags & RST != 0 => {
            // RFC 5961, 3.2: only the expected number ends the connection.
            if segment.sequence == edges.expected {
                Verdict::Pass
            } else if edges.has_room_for(segment.sequence, 0) {
                Verdict::Challenge
            } else {
                Verdict::Drop
            }
        }
        // RFC 5961, 4.2. The peer answers with a RST, and not with another SYN.
        flags if flags & SYN != 0 => Verdict::Challenge,
        // smoltcp would take an acknowledgement of bytes that are queued and not sent. RFC 5961, 5.2 has the other limit.
        ACK if is_before(edges.sent, segment.acknowledgement) || is_before(segment.acknowledgement, oldest) => {
            Verdict::Challenge
        }
        _ => Verdict::Pass,
    }
}

/// Removes the FIN of a segment that ends beyond the window. smoltcp cuts the data, and would take the FIN.
pub(super) fn trim(edges: &Edges, segment: &Segment, packet: &mut [u8]) {
    let end = segment.sequence.wrapping_add(segment.len as u32);
    if segment.flags & FIN != 0
        && segment.len > 0
        && is_before(edges.window_end, end)
        && let Some(layout) = TcpSegment::parse(packet).map(|segment| segment.layout)
    {
        packet[layout.tcp_at + offset::FLAGS] &= !FIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowKey;
    use crate::fixture::packet;

    const EDGES: Edges = Edges { unacknowledged: 100, sent: 200, expected: 1000, window_end: 1500, peer_window: 300 };

    fn segment(flags: u8, sequence: u32, acknowledgement: u32, len: usize) -> Segment {
        let key = FlowKey { local: "10.0.0.2:80".parse().unwrap(), peer: "10.0.0.1:7".parse().unwrap() };
        Segment { key, flags, sequence, acknowledgement, len, opens: flags == SYN }
    }

    #[test]
    fn a_segment_that_cannot_be_the_peers_is_challenged_or_dropped() {
        for (flags, sequence, acknowledgement, expected) in [
            (ACK, 1000, 100, Verdict::Pass),
            (ACK, 1000, 200, Verdict::Pass),
            (ACK, 1000, 201, Verdict::Challenge),
            (ACK, 1000, 50, Verdict::Pass),
            (ACK, 1000, 49, Verdict::Challenge),
            (SYN, 1000, 0, Verdict::Challenge),
            (SYN | ACK, 1000, 100, Verdict::Challenge),
            (RST, 1000, 0, Verdict::Pass),
            (RST | ACK, 1001, 100, Verdict::Challenge),
            (RST, 1499, 0, Verdict::Challenge),
            (RST, 1500, 0, Verdict::Drop),
            (RST, 999, 0, Verdict::Drop),
        ] {
            let segment = segment(flags, sequence, acknowledgement, 0);
            assert_eq!(screen_synchronized(&EDGES, 50, &segment), expected, "{segment:?}");
        }
    }

    #[test]
    fn a_fin_beyond_the_window_goes_with_the_data_before_it() {
        for (sequence, len, stays) in [(1400, 100, true), (1400, 101, false), (1500, 0, true)] {
            let mut packet = packet(false, FIN | ACK, &[], len);
            trim(&EDGES, &segment(FIN | ACK, sequence, 100, len), &mut packet);
            assert_eq!(TcpSegment::parse(&packet).unwrap().flags() & FIN != 0, stays, "{len} bytes");
        }
    }
}
