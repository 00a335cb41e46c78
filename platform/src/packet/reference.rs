//! Simple, slow functions. The tests compare the fast ones with them.

use std::num::NonZeroU16;

use crate::{Checksum, PacketMeta};

/// Pseudo-random bytes.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn carry(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// RFC 1071, word by word.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0));
    carry(bytes.chunks(2).map(word).sum())
}

pub(crate) fn pseudo_header(packet: &[u8], len: u16, protocol: u8) -> Vec<u8> {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    [addresses, &len.to_be_bytes(), &[0, protocol]].concat()
}

/// The sum of the pseudo-header and everything after it. For a right packet it is all ones.
pub(crate) fn whole_sum(packet: &[u8], at: usize, protocol: u8) -> u16 {
    let len = u16::try_from(packet.len() - at).unwrap();
    sum(&[&pseudo_header(packet, len, protocol), &packet[at..]].concat())
}

/// Extension headers before TCP: hop-by-hop options, a routing header with no segments left, and destination options.
pub(crate) const EXTENSIONS: [u8; 32] = [
    43, 0, 1, 4, 0, 0, 0, 0, // PadN
    60, 0, 4, 0, 0, 0, 0, 0, // segment routing (RFC 8754), at its end
    6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // PadN
];

/// The shape of a super-packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ipv6: bool,
    /// Whether it has [`EXTENSIONS`], over IPv6.
    pub(crate) extended: bool,
    pub(crate) flags: u8,
    /// Length of the TCP options, a multiple of four.
    pub(crate) options: usize,
    /// Length of the payload.
    pub(crate) payload: usize,
}

/// A shape over IPv4, and those that differ in what precedes the payload.
pub(crate) const PLAIN: Shape = Shape { ipv6: false, extended: false, flags: ALL_FLAGS, options: 0, payload: 100 };
pub(crate) const SHAPES: [Shape; 5] = [
    PLAIN,
    Shape { ipv6: true, ..PLAIN },
    Shape { ipv6: true, extended: true, ..PLAIN },
    Shape { options: 12, flags: 0x10, ..PLAIN },
    Shape { ipv6: true, options: 40, ..PLAIN },
];
/// All that a super-packet may have: FIN, PSH, ACK, ECE, CWR.
const ALL_FLAGS: u8 = 0xd9;

impl Shape {
    pub(crate) fn tcp_at(self) -> usize {
        match (self.ipv6, self.extended) {
            (false, _) => 20,
            (true, false) => 40,
            (true, true) => 40 + EXTENSIONS.len(),
        }
    }

    pub(crate) fn payload_at(self) -> usize {
        self.tcp_at() + 20 + self.options
    }

    /// The same shape with the largest payload that fits the IP header's length field.
    pub(crate) fn largest(self) -> Self {
        let beyond = if self.ipv6 { 40 } else { 0 };
        Self { payload: 65_535 + beyond - self.payload_at(), ..self }
    }

    pub(crate) fn packet(self) -> Vec<u8> {
        [self.headers(), bytes(PAYLOAD, self.payload)].concat()
    }

    /// The headers of the packet with a partial checksum. Identification and sequence number soon wrap.
    pub(crate) fn headers(self) -> Vec<u8> {
        let tcp_len = u16::try_from(20 + self.options + self.payload).unwrap();
        let mut headers = Vec::new();
        if self.ipv6 {
            headers.extend([0x6a, 0xbc, 0xde, 0xf0]);
            headers.extend((tcp_len + (self.tcp_at() - 40) as u16).to_be_bytes());
            headers.extend([if self.extended { 0 } else { 6 }, 63]);
            headers.extend(bytes(5, 32));
        } else {
            headers.extend([0x45, 0x12]);
            headers.extend((20 + tcp_len).to_be_bytes());
            headers.extend([0xff, 0xfe, 0, 0, 63, 6, 0, 0]);
            headers.extend([10, 0, 0, 1, 192, 168, 255, 254]);
            let checksum = !sum(&headers);
            headers[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let partial = sum(&pseudo_header(&headers, tcp_len, 6));
        if self.ipv6 && self.extended {
            headers.extend(EXTENSIONS);
        }
        headers.extend([0x12, 0x34, 0x56, 0x78, 0xff, 0xff, 0xf0, 0x01, 1, 2, 3, 4]);
        headers.extend([u8::try_from((5 + self.options / 4) << 4).unwrap(), self.flags, 0xab, 0xcd]);
        headers.extend(partial.to_be_bytes());
        headers.extend([0, 9]);
        headers.extend(bytes(6, self.options));
        headers
    }
}

/// The seed of every payload: each shorter payload is a prefix of each longer one.
pub(crate) const PAYLOAD: u64 = 7;

pub(crate) fn meta(gso_size: usize) -> PacketMeta {
    PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(u16::try_from(gso_size).unwrap()) }
}

/// The `index`th segment of a super-packet.
pub(crate) fn segment(packet: &[u8], tcp_at: usize, gso_size: usize, index: usize) -> Vec<u8> {
    let payload_at = tcp_at + usize::from(packet[tcp_at + 12] >> 4) * 4;
    let (headers, payload) = packet.split_at(payload_at);
    let from = index * gso_size;
    let last = from + gso_size >= payload.len();
    let mut segment = headers.to_vec();
    segment.extend(payload[from..].iter().take(gso_size));
    let len = segment.len();
    if packet[0] >> 4 == 6 {
        segment[4..6].copy_from_slice(&u16::try_from(len - 40).unwrap().to_be_bytes());
    } else {
        segment[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
        let identification = u32::from(u16::from_be_bytes([packet[4], packet[5]])) + u32::try_from(index).unwrap();
        segment[4..6].copy_from_slice(&identification.to_be_bytes()[2..]);
        segment[10..12].fill(0);
        let checksum = !sum(&segment[..tcp_at]);
        segment[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    let tcp = &mut segment[tcp_at..];
    let sequence = u64::from(u32::from_be_bytes(tcp[4..8].try_into().unwrap())) + from as u64;
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes()[4..]);
    for (flag, kept) in [(0x80, index == 0), (0x01, last), (0x08, last)] {
        if !kept {
            tcp[13] &= !flag;
        }
    }
    tcp[16..18].fill(0);
    let checksum = !whole_sum(&segment, tcp_at, 6);
    segment[tcp_at + 16..tcp_at + 18].copy_from_slice(&checksum.to_be_bytes());
    segment
}
