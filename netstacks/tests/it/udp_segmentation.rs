//! UDP super-packets: several datagrams in one packet.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use netstacks::{DatagramBatch, Datagrams, Netstack, StackConfig, Started};
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
            let (packets, arrived) = sent(&mut other_end);
            assert_eq!(packets, if offloads { 2 } else { 3 });
            assert_eq!(arrived, [&b""[..], b"aa", b"b"]);
            driver.abort();
            let _aborted = driver.await;
        });
    }
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
