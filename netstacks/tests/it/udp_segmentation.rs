//! UDP super-packets, which are several datagrams in one packet, and fragments, which are one datagram in several.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use netstacks::{DatagramBatch, Datagrams, Netstack, StackConfig, Started};
use platform::packet::checksum::sum;
use platform::packet::{UDP, UDP_HEADER_LEN, write_ip, write_partial_udp_checksum};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta, vnet};

use crate::take_turns;

const SEGMENT_LEN: usize = 1_400;

fn addresses(ipv6: bool) -> [SocketAddr; 2] {
    let [local, peer] = if ipv6 { ["[fd00::9]:53", "[fd00::1]:4000"] } else { ["10.0.0.9:53", "10.0.0.1:4000"] };
    [local.parse().unwrap(), peer.parse().unwrap()]
}

fn payloads(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index / 7) as u8).collect()
}

/// A packet with these payloads and a partial checksum.
fn packet(from: SocketAddr, to: SocketAddr, payloads: &[u8]) -> Vec<u8> {
    let udp_len = UDP_HEADER_LEN + payloads.len();
    let mut packet = vec![0; 40 + udp_len];
    let udp_at = write_ip(&mut packet, from.ip(), to.ip(), UDP, udp_len).unwrap();
    packet.truncate(udp_at + udp_len);
    for (field, value) in [from.port(), to.port(), udp_len as u16].into_iter().enumerate() {
        packet[udp_at + 2 * field..][..2].copy_from_slice(&value.to_be_bytes());
    }
    packet[udp_at + UDP_HEADER_LEN..].copy_from_slice(payloads);
    let len = packet.len();
    assert!(write_partial_udp_checksum(&mut packet, len));
    packet
}

/// The number of packets, and the payloads of all datagrams in them.
fn sent(link: &mut MemoryLink) -> (usize, Vec<Vec<u8>>) {
    let mut buffers: Vec<_> = (0..100).map(|_| PacketBuffer::new(65_535)).collect();
    let count = link.try_recv(&mut buffers).unwrap();
    let mut datagrams = Vec::new();
    let mut datagram = vec![0; 65_535];
    for packet in &buffers[..count] {
        let header_len = UDP_HEADER_LEN + if packet.packet()[0] >> 4 == 6 { 40 } else { 20 };
        let mut segments = vnet::split(packet.meta(), packet.packet()).unwrap();
        while let Some(len) = segments.next_into(&mut datagram).unwrap() {
            datagrams.push(datagram[header_len..len].to_vec());
        }
    }
    (count, datagrams)
}

fn datagrams_share_packets<S: Netstack<MemoryLink>>() {
    let _turn = take_turns::<S>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (all, mut verifies) = (Capabilities::offloading(1500), Capabilities::offloading(1500));
    verifies.checksum.rx = false;
    // A super-packet cannot be verified, so a link that leaves this to the stack has none.
    for (ipv6, capabilities) in [(false, all), (true, all), (false, Capabilities::plain(1500)), (false, verifies)] {
        let offloads = capabilities == all;
        let (link, mut other_end) = MemoryLink::pair_of(capabilities, MemoryLink::DEFAULT_DEPTH);
        let [local, peer] = addresses(ipv6);
        runtime.block_on(async {
            let Started { datagrams, driver, listener: _listener, .. } =
                S::start(link, &StackConfig::default()).unwrap();
            let driver = tokio::spawn(driver);
            let mut buffer = vec![0; 65_535];
            if offloads {
                let expected = payloads(5_300);
                let gso_size = NonZeroU16::new(1_000);
                let meta = PacketMeta { checksum: Checksum::Partial, gso_size };
                other_end.try_send(meta, &[IoSlice::new(&packet(peer, local, &expected))]).unwrap();
                let first = datagrams.recv(&mut buffer).await.unwrap();
                assert_eq!(buffer[..first.len], expected[..1_000]);
                let rest = datagrams.recv_batch(&mut buffer).await.unwrap();
                assert_eq!(rest, DatagramBatch { len: 4_300, segment_len: 1_000, local, peer });
                assert_eq!(buffer[..rest.len], expected[1_000..]);
            }
            // More than one packet holds, and a shorter datagram at the end.
            let expected = payloads(64 * SEGMENT_LEN + 7);
            let taken = datagrams.try_send_batch(local, peer, &expected, SEGMENT_LEN).unwrap();
            assert_eq!(taken, expected.len());
            let (packets, arrived) = sent(&mut other_end);
            assert_eq!(packets, if offloads { 2 } else { 65 });
            assert!(arrived.iter().eq(expected.chunks(SEGMENT_LEN)), "IPv6: {ipv6}, offload: {offloads}");
            // One that fills no packet alone stays a datagram.
            datagrams.try_send_batch(local, peer, b"", 0).unwrap();
            datagrams.try_send_batch(local, peer, b"aab", 2).unwrap();
            datagrams.try_send(local, peer, b"aab").unwrap();
            let (packets, arrived) = sent(&mut other_end);
            assert_eq!(packets, if offloads { 3 } else { 4 });
            assert_eq!(arrived, [&b""[..], b"aa", b"b", b"aab"]);
            driver.abort();
            let _aborted = driver.await;
        });
    }
}

/// Cuts a packet into two fragments (RFC 791, 3.2) with this number.
fn fragments(packet: &[u8], number: u16) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(20);
    let (first, second) = payload.split_at(800);
    [(first, 0x2000_u16), (second, 100)].map(|(part, field)| {
        let mut header = header.to_vec();
        header[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        header[4..6].copy_from_slice(&number.to_be_bytes());
        header[6..8].copy_from_slice(&field.to_be_bytes());
        header[10..12].fill(0);
        let sum = !sum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header, part].concat()
    })
}

/// A device says of each packet whether the kernel has verified it, and the checksum of fragments is that of the whole.
fn fragments_with_a_wrong_checksum<S: Netstack<MemoryLink>>() {
    let _turn = take_turns::<S>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for capabilities in [Capabilities::offloading(1500), Capabilities::plain(1500)] {
        let (link, mut other_end) = MemoryLink::pair_of(capabilities, MemoryLink::DEFAULT_DEPTH);
        let [local, peer] = addresses(false);
        let mut right = packet(peer, local, &payloads(1_000));
        vnet::complete_checksum(&mut right).unwrap();
        let mut wrong = right.clone();
        wrong[900] ^= 1;
        runtime.block_on(async {
            let Started { datagrams, driver, listener: _listener, .. } =
                S::start(link, &StackConfig::default()).unwrap();
            let driver = tokio::spawn(driver);
            for (packet, number) in [(&wrong, 7), (&right, 8)] {
                for fragment in fragments(packet, number) {
                    other_end.try_send(PacketMeta::default(), &[IoSlice::new(&fragment)]).unwrap();
                }
            }
            let mut buffer = vec![0; 65_535];
            let first = datagrams.recv(&mut buffer).await.unwrap();
            assert!(buffer[..first.len] == payloads(1_000), "the datagram with the wrong checksum was delivered");
            driver.abort();
            let _aborted = driver.await;
        });
    }
}

#[cfg(feature = "lwip")]
#[test]
fn fragments_with_a_wrong_checksum_lwip() {
    fragments_with_a_wrong_checksum::<netstacks::Lwip>();
}

#[cfg(feature = "smoltcp")]
#[test]
fn fragments_with_a_wrong_checksum_smoltcp() {
    fragments_with_a_wrong_checksum::<netstacks::Smoltcp>();
}

#[cfg(feature = "lwip")]
#[test]
fn datagrams_share_packets_lwip() {
    datagrams_share_packets::<netstacks::Lwip>();
}

#[cfg(feature = "smoltcp")]
#[test]
fn datagrams_share_packets_smoltcp() {
    datagrams_share_packets::<netstacks::Smoltcp>();
}
