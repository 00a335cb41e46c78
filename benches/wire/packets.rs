//! Emits and parses packets with smoltcp, with the checksum and, as `offload`, without it.
//!
//! A packet here is a TCP segment or a UDP datagram of [`PAYLOAD`] bytes between two IPv6 addresses, without the IP
//! header, and in the cache. Emitting it copies the payload. Parsing it copies nothing.

use std::hint::black_box;

use criterion::{Bencher, Criterion};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, Ipv6Address, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr};

/// Payload of a packet in bytes, as in smoltcp's own bench.
const PAYLOAD: usize = 400;

const SOURCE: IpAddress = IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const DESTINATION: IpAddress = IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

type Bench = fn(&mut Bencher<'_>, &ChecksumCapabilities);

/// Five of the names are known from published results. `wire::bench_emit_tcp_offload` completes them.
pub(crate) fn bench(criterion: &mut Criterion) {
    let benches: [(&str, Bench); 3] = [("emit_tcp", emit_tcp), ("emit_udp", emit_udp), ("parse_tcp", parse_tcp)];
    let checksums = [("", ChecksumCapabilities::default()), ("_offload", ChecksumCapabilities::ignored())];
    for (name, bench) in benches {
        for (suffix, checksums) in &checksums {
            criterion.bench_function(&format!("wire::bench_{name}{suffix}"), |bencher| bench(bencher, checksums));
        }
    }
}

/// A segment in the middle of a connection.
fn segment(payload: &[u8]) -> TcpRepr<'_> {
    TcpRepr {
        src_port: 40_000,
        dst_port: 80,
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(1_000_000),
        ack_number: Some(TcpSeqNumber(2_000_000)),
        window_len: 64_000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    }
}

fn emit_tcp(bencher: &mut Bencher<'_>, checksums: &ChecksumCapabilities) {
    let payload = [0x5a; PAYLOAD];
    let segment = segment(&payload);
    let mut bytes = vec![0; segment.buffer_len()];
    bencher.iter(|| {
        let mut packet = TcpPacket::new_unchecked(black_box(&mut bytes));
        black_box(&segment).emit(&mut packet, &SOURCE, &DESTINATION, checksums);
    });
    let packet = TcpPacket::new_checked(&bytes).unwrap();
    assert_eq!(packet.verify_checksum(&SOURCE, &DESTINATION), checksums.tcp.tx());
}

fn emit_udp(bencher: &mut Bencher<'_>, checksums: &ChecksumCapabilities) {
    let payload = [0x5a; PAYLOAD];
    let datagram = UdpRepr { src_port: 40_000, dst_port: 53 };
    let mut bytes = vec![0; datagram.header_len() + PAYLOAD];
    bencher.iter(|| {
        let mut packet = UdpPacket::new_unchecked(black_box(&mut bytes));
        let fill = |room: &mut [u8]| room.copy_from_slice(black_box(&payload));
        black_box(&datagram).emit(&mut packet, &SOURCE, &DESTINATION, PAYLOAD, fill, checksums);
    });
    let packet = UdpPacket::new_checked(&bytes).unwrap();
    assert_eq!(packet.checksum() != 0, checksums.udp.tx());
    assert!(packet.verify_checksum(&SOURCE, &DESTINATION), "a checksum of 0 means that there is none, and is valid");
}

fn parse_tcp(bencher: &mut Bencher<'_>, checksums: &ChecksumCapabilities) {
    let payload = [0x5a; PAYLOAD];
    let segment = segment(&payload);
    let mut bytes = vec![0; segment.buffer_len()];
    let mut packet = TcpPacket::new_unchecked(&mut bytes);
    segment.emit(&mut packet, &SOURCE, &DESTINATION, &ChecksumCapabilities::default());
    bencher.iter(|| {
        let packet = TcpPacket::new_checked(black_box(&bytes)).unwrap();
        let read = TcpRepr::parse(&packet, &SOURCE, &DESTINATION, checksums).unwrap();
        black_box(read.payload.len())
    });
}
