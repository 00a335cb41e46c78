//! The limit of a path on the length of packets.

use std::time::{Duration, Instant};

use super::path::Packet;
use crate::packet::{TcpLayout, Transport, UDP, UDP_HEADER_LEN, packet_too_big};
use crate::{Impairments, PacketMeta};

/// The shortest time between two errors (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f).
const BETWEEN_ERRORS: Duration = Duration::from_millis(1);

/// "Don't fragment", in the seventh byte of an IPv4 header (RFC 791, 3.1).
const DONT_FRAGMENT: u8 = 0x40;

#[derive(Debug)]
pub(super) struct Limit {
    mtu: Option<u16>,
    /// Whether senders are told by ICMP (RFC 1191, RFC 8201). If not, the path is a black hole for long packets.
    tells: bool,
    told: Option<Instant>,
}

impl Limit {
    pub(super) fn new(link: &Impairments) -> Self {
        Self { mtu: link.path_mtu.map(Into::into), tells: !link.no_icmp, told: None }
    }

    pub(super) const fn is_set(&self) -> bool {
        self.mtu.is_some()
    }

    /// Whether a packet of this length may be too long.
    pub(super) fn may_stop(&self, len: usize) -> bool {
        self.mtu.is_some_and(|mtu| len > mtu.into())
    }

    /// Whether a packet is too long. One that may be fragmented passes, as if a router had split it.
    pub(super) fn stops(&self, meta: PacketMeta, packet: &[u8]) -> bool {
        let may_fragment = |packet: &[u8]| matches!(packet, [first, _, _, _, _, _, flags, ..] if first >> 4 == 4 && flags & DONT_FRAGMENT == 0);
        self.may_stop(packet.len()) && self.may_stop(segment_len(meta, packet)) && !may_fragment(packet)
    }

    /// The error about a packet that was too long, if its sender is told now.
    pub(super) fn error(&mut self, packet: &[u8]) -> Option<Packet> {
        let mtu = self.mtu.filter(|_| self.tells)?;
        let now = Instant::now();
        if self.told.is_some_and(|told| now - told < BETWEEN_ERRORS) {
            return None;
        }
        let error = packet_too_big(mtu, packet)?;
        self.told = Some(now);
        Some((PacketMeta::default(), error))
    }
}

/// The length of a packet, or of the first segment of a super-packet.
fn segment_len(meta: PacketMeta, packet: &[u8]) -> usize {
    let headers = || {
        let Transport { protocol, at, .. } = Transport::parse(packet)?;
        if protocol == UDP {
            Some(at + UDP_HEADER_LEN)
        } else {
            TcpLayout::parse(packet).map(|layout| layout.payload_at)
        }
    };
    let segment = meta.gso_size.and_then(|payload| Some(headers()? + usize::from(payload.get())));
    segment.map_or(packet.len(), |len| len.min(packet.len()))
}
