//! Checks of arriving segments that smoltcp lacks (RFC 9293, 3.10.7.4; RFC 5961; RFC 1337).

use platform::packet::TcpSegment;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use smoltcp::socket::tcp::State;

use super::connection::Connection;
use crate::driven::segment::Segment;
use crate::recovery::{Edges, is_before};

/// Offset of the flags in a TCP header (RFC 9293, 3.1).
const FLAGS_AT: usize = 13;

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// smoltcp gets it.
    Pass,
    Drop,
    /// The peer gets an acknowledgement of what is expected. If both sides could go on like that, it is throttled.
    Challenge {
        is_throttled: bool,
    },
    /// The SYN of a new connection: the old one is over.
    Reopen,
}

/// Decides about a segment of a connection.
pub(super) fn screen(connection: &Connection, segment: &Segment) -> Verdict {
    let edges = connection.edges();
    match connection.socket.state() {
        State::Closed if segment.opens => Verdict::Reopen,
        State::Closed => Verdict::Pass,
        // A SYN behind the last number opens a new connection (RFC 1122, 4.2.2.13). A RST ends TIME-WAIT too early
        // (RFC 1337).
        State::TimeWait if segment.opens && !is_before(segment.sequence, edges.expected) => Verdict::Reopen,
        State::TimeWait if segment.flags & RST != 0 => Verdict::Drop,
        _ => screen_synchronized(&edges, connection.oldest_acknowledgement(), segment),
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
                Verdict::Challenge { is_throttled: false }
            } else {
                Verdict::Drop
            }
        }
        // RFC 5961, 4.2. The peer answers with a RST, and not with another SYN.
        flags if flags & SYN != 0 => Verdict::Challenge { is_throttled: false },
        // smoltcp would take an acknowledgement of bytes that are queued and not sent. RFC 5961, 5.2 has the other limit.
        ACK if is_before(edges.sent, segment.acknowledgement) || is_before(segment.acknowledgement, oldest) => {
            Verdict::Challenge { is_throttled: true }
        }
        _ => Verdict::Pass,
    }
}

/// Removes the FIN of a segment that ends beyond the window. smoltcp cuts the data there, and would take the FIN all the
/// same.
pub(super) fn trim(edges: &Edges, segment: &Segment, packet: &mut [u8]) {
    let end = segment.sequence.wrapping_add(segment.len as u32);
    if segment.flags & FIN != 0
        && segment.len > 0
        && is_before(edges.window_end, end)
        && let Some(layout) = TcpSegment::parse(packet).map(|segment| segment.layout)
    {
        packet[layout.tcp_at + FLAGS_AT] &= !FIN;
    }
}
