//! Fuzz targets: what `platform::vnet` does with what a device hands over.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fuzz target fails by panic")]

use std::num::NonZeroU16;

use platform::packet::{TcpLayout, Transport, UDP, UDP_HEADER_LEN};
use platform::vnet::{self, Malformed, SuperPacket};
use platform::{Checksum, PacketMeta};

use super::input::{self, Input};

/// What is accepted can be worked with, and says the same when it is written and read again.
pub(crate) fn read(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut header = [0; vnet::HEADER_LEN];
    for byte in &mut header {
        *byte = input.byte();
    }
    let likely = input.byte() & 1 != 0;
    let packet = input.packet();
    let payload_at = payload_at(&packet);
    if likely
        && payload_at.is_some()
        && let Some(Transport { ipv6, protocol, at }) = Transport::parse(&packet)
    {
        header[0] |= 1;
        let (gso_type, checksum_at) = match (protocol, ipv6) {
            (UDP, _) => (5, 6_u16),
            (_, true) => (4, 16),
            (_, false) => (1, 16),
        };
        header[1] = gso_type;
        header[6..8].copy_from_slice(&(at as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&checksum_at.to_ne_bytes());
    }
    let Ok(meta) = vnet::read(&header, &packet) else { return };
    if let Some(gso_size) = meta.gso_size {
        assert_eq!(meta.checksum, Checksum::Partial);
        assert!(packet.len() > payload_at.unwrap() + usize::from(gso_size.get()));
    }
    if payload_at.is_some() {
        let header = vnet::write(meta, &packet).unwrap();
        assert_eq!(vnet::read(&header, &packet), Ok(meta));
    }
    match vnet::split(meta, &packet) {
        Ok(segments) => assert!(segments.remaining() > 0),
        Err(error) => assert_eq!(error, Malformed::ChecksumUnknown),
    }
    let mut completed = packet.clone();
    if vnet::complete_checksum(&mut completed).is_ok() {
        assert_eq!(completed.len(), packet.len());
    } else {
        assert_eq!(completed, packet);
    }
}

/// Where the payload of a TCP or UDP packet begins.
fn payload_at(packet: &[u8]) -> Option<usize> {
    let tcp = TcpLayout::parse(packet).map(|layout| layout.payload_at);
    let udp =
        || Transport::parse(packet).filter(|transport| transport.protocol == UDP).map(|udp| udp.at + UDP_HEADER_LEN);
    tcp.or_else(|| udp().filter(|at| *at <= packet.len()))
}

/// The segments hold the super-packet's bytes, no more and no fewer, and are right.
pub(crate) fn split(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let checksum = if input.byte() < 32 { Checksum::Filled } else { Checksum::Partial };
    let gso_size = input.word();
    let packet = input.packet();
    let meta = PacketMeta { checksum, gso_size: NonZeroU16::new(gso_size) };
    let Ok(mut segments) = vnet::split(meta, &packet) else { return };
    let count = segments.remaining();
    let mut buffer = vec![0; packet.len()];
    let mut payload = Vec::new();
    let mut written = 0;
    while let Some(len) = segments.next_into(&mut buffer).unwrap() {
        written += 1;
        let segment = &buffer[..len];
        assert_eq!(vnet::read(&[0; vnet::HEADER_LEN], segment), Ok(PacketMeta::default()));
        if meta.gso_size.is_some() {
            let payload_at = payload_at(segment).unwrap();
            assert!(len - payload_at <= usize::from(gso_size));
            assert_eq!(transport_sum(segment, &Transport::parse(segment).unwrap()), 0xffff);
            payload.extend_from_slice(&segment[payload_at..]);
        }
    }
    assert_eq!(written, count);
    if meta.gso_size.is_some() {
        assert!(payload == packet[payload_at(&packet).unwrap()..]);
    }
}

/// What was joined is cut into what it was joined from.
pub(crate) fn coalesce(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut buffer = vec![0; usize::from(input.word()) + 40];
    let first = input.packet();
    let Some(mut whole) = SuperPacket::begin(&mut buffer, &first) else { return };
    let mut last = first.clone();
    let mut taken = vec![first];
    while !input.is_empty() && taken.len() < 100 {
        let next = following(&last, &mut input);
        if whole.append(&next) {
            taken.push(next.clone());
            last = next;
        }
    }
    let (len, meta) = whole.finish();
    assert_eq!(meta.gso_size.is_some(), taken.len() > 1);
    assert_eq!(meta.checksum, Checksum::Partial);
    let packet = &buffer[..len];
    assert_eq!(vnet::read(&vnet::write(meta, packet).unwrap(), packet), Ok(meta));
    let mut segments = vnet::split(meta, packet).unwrap();
    assert_eq!(segments.remaining(), taken.len());
    let mut out = vec![0; len];
    for expected in &taken {
        let len = segments.next_into(&mut out).unwrap().unwrap();
        assert!(without_checksums(&out[..len]) == without_checksums(expected));
    }
}

/// The segment that would come next, but for one change.
fn following(last: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte();
    let Some(layout) = TcpLayout::parse(last) else { return input.packet() };
    let mut next = last.to_vec();
    let len = (last.len() - layout.payload_at) as u32;
    let at = layout.tcp_at + 4;
    let sequence = u32::from_be_bytes([last[at], last[at + 1], last[at + 2], last[at + 3]]).wrapping_add(len);
    next[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
    if !layout.ipv6 {
        let identification = u16::from_be_bytes([last[4], last[5]]).wrapping_add(1);
        next[4..6].copy_from_slice(&identification.to_be_bytes());
    }
    if choice & 1 != 0 {
        next.truncate(next.len().saturating_sub(usize::from(input.byte())).max(layout.payload_at));
    }
    if choice & 2 != 0 {
        next.extend_from_slice(input.take(8));
    }
    if choice & 4 != 0 {
        next[layout.tcp_at + 13] ^= input.byte();
    }
    input::set_len(&mut next);
    if choice & 0xf0 == 0 {
        let at = usize::from(input.word()) % next.len();
        next[at] ^= input.byte();
    }
    next
}

/// Identification and checksums need not be those of the segment that was taken.
fn without_checksums(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let layout = TcpLayout::parse(&packet).unwrap();
    if !layout.ipv6 {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet[layout.tcp_at + 16..layout.tcp_at + 18].fill(0);
    packet
}

/// RFC 1071 word by word, over pseudo-header and segment.
fn transport_sum(packet: &[u8], transport: &Transport) -> u64 {
    let addresses = if transport.ipv6 { &packet[8..40] } else { &packet[12..20] };
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|pair| u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let len = (packet.len() - transport.at) as u64;
    let mut sum = words(addresses) + u64::from(transport.protocol) + len + words(&packet[transport.at..]);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}
