//! Fragments of a datagram.

use std::io::IoSlice;
use std::net::SocketAddr;

use netstacks::{Datagrams, Netstack, StackConfig, Started};
use platform::packet::checksum::sum;
use platform::packet::{IPV4_HEADER_LEN, UDP, UDP_HEADER_LEN, write_ip, write_partial_udp_checksum};
use platform::{Capabilities, Link, MemoryLink, PacketMeta, vnet};

use crate::take_turns;

/// A datagram with this payload and a checksum, in a packet.
fn packet(payload: &[u8]) -> Vec<u8> {
    let [to, from]: [SocketAddr; 2] = ["10.0.0.9:53", "10.0.0.1:4000"].map(|address| address.parse().unwrap());
    let udp_len = UDP_HEADER_LEN + payload.len();
    let mut packet = vec![0; IPV4_HEADER_LEN + udp_len];
    let udp_at = write_ip(&mut packet, from.ip(), to.ip(), UDP, udp_len).unwrap();
    for (field, value) in [from.port(), to.port(), udp_len as u16].into_iter().enumerate() {
        packet[udp_at + 2 * field..][..2].copy_from_slice(&value.to_be_bytes());
    }
    packet[udp_at + UDP_HEADER_LEN..].copy_from_slice(payload);
    let len = packet.len();
    assert!(write_partial_udp_checksum(&mut packet, len));
    vnet::complete_checksum(&mut packet).unwrap();
    packet
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
        let payload: Vec<u8> = (0..1_000).map(|index| (index / 7) as u8).collect();
        let right = packet(&payload);
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
            assert!(buffer[..first.len] == payload, "the datagram with the wrong checksum was delivered");
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
