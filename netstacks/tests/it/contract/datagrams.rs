//! UDP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;

use netstacks::{Datagram, Datagrams, Listener, MAX_WAITING_DATAGRAMS, Netstack, Started};
use platform::{Link, MemoryLink, PacketBuffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::peer::{ADDRESS_V4, Peer};
use super::{DEADLINE, Flavour, MTU, assert_same, config, link, pattern, run_whole, runtime, server_addr, take_turns};

/// The largest payload of one packet.
fn largest(flavour: Flavour) -> usize {
    MTU - 8 - if server_addr(flavour).is_ipv6() { 40 } else { 20 }
}

/// Runs a server of datagrams against a peer.
fn run<S: Netstack<MemoryLink>>(
    flavour: Flavour,
    server: impl AsyncFnOnce(S::Listener, S::Datagrams),
    client: impl FnOnce(&Peer) + Send + 'static,
) {
    let (link, other_end) = link(flavour);
    run_whole::<MemoryLink, S>(flavour, link, other_end, &config(), server, client);
}

/// Sends as soon as there is room.
async fn send(datagrams: &impl Datagrams, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
    loop {
        match datagrams.try_send(local, peer, payload) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            result => return result,
        }
    }
}

/// Echoes `count` datagrams.
async fn echo(datagrams: &impl Datagrams, count: usize) {
    let mut buffer = vec![0; 65_535];
    for _ in 0..count {
        let Datagram { len, local, peer } = datagrams.recv(&mut buffer).await.unwrap();
        send(datagrams, local, peer, &buffer[..len]).await.unwrap();
    }
}

pub(crate) fn datagrams_of_every_length<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let lengths = [0, 1, 2, 999, 1_000, largest(flavour) - 1, largest(flavour)];
    run::<S>(
        flavour,
        // Twice, so that each has a partial checksum once.
        async move |_, datagrams| echo(&datagrams, 2 * lengths.len()).await,
        move |peer| {
            let to = server_addr(flavour);
            let socket = peer.bind(to.is_ipv6());
            for round in 0..2 {
                for len in lengths {
                    let payload = pattern(len as u64 + round, len);
                    socket.send(&payload, to);
                    let (answer, from) = socket.recv();
                    assert_same(&answer, &payload);
                    assert_eq!(from, to);
                }
            }
        },
    );
}

pub(crate) fn many_flows_of_datagrams_at_once<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const FLOWS: usize = 50;
    run::<S>(
        flavour,
        async |_, datagrams| echo(&datagrams, 2 * FLOWS).await,
        move |peer| {
            let to = server_addr(flavour);
            let sockets: Vec<_> = (0..FLOWS).map(|_| peer.bind(to.is_ipv6())).collect();
            for round in 0..2 {
                for (index, socket) in sockets.iter().enumerate() {
                    socket.send(&pattern(index as u64 + round, 500), to);
                }
                for (index, socket) in sockets.iter().enumerate() {
                    assert_eq!(socket.recv(), (pattern(index as u64 + round, 500), to));
                }
            }
        },
    );
}

pub(crate) fn answers_from_another_address<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let to = server_addr(flavour);
    let other: SocketAddr = if to.is_ipv4() { "172.16.0.9:99" } else { "[fd00:9::9]:99" }.parse().unwrap();
    run::<S>(
        flavour,
        async move |_, datagrams| {
            let mut buffer = [0; 5];
            let datagram = datagrams.recv(&mut buffer).await.unwrap();
            assert_eq!((datagram.len, datagram.local), (5, to), "the rest of the payload is cut off");
            for payload in [&buffer[..], b"", b"again"] {
                send(&datagrams, other, datagram.peer, payload).await.unwrap();
            }
            let datagram = datagrams.recv(&mut buffer).await.unwrap();
            assert_eq!((datagram.local, &buffer[..datagram.len]), (other, &b"hm"[..]));
        },
        move |peer| {
            let socket = peer.bind(to.is_ipv6());
            socket.send(b"hello, world", to);
            for payload in [&b"hello"[..], b"", b"again"] {
                assert_eq!(socket.recv(), (payload.to_vec(), other));
            }
            socket.send(b"hm", other);
        },
    );
}

/// Accepts a stream, and echoes its bytes.
async fn echo_of_a_stream(listener: &mut impl Listener) {
    let mut stream = listener.accept().await.unwrap();
    let mut bytes = vec![0; 100_000];
    stream.read_exact(&mut bytes).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    stream.read_exact(&mut [0; 1]).await.unwrap();
}

fn use_a_stream(peer: &Peer, to: SocketAddr) {
    let stream = peer.connect(to);
    let bytes = pattern(31, 100_000);
    stream.write_all(&bytes);
    stream.expect(&bytes);
    stream.write_all(b".");
}

pub(crate) fn a_flood_that_nobody_reads<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let to = server_addr(flavour);
    run::<S>(
        flavour,
        async move |mut listener, datagrams| {
            let mut buffer = [0; 1_000];
            // Make the flow known first: a stack may hold back fewer datagrams of a new flow.
            assert_eq!(datagrams.recv(&mut buffer).await.unwrap().len, 1);
            echo_of_a_stream(&mut listener).await;
            echo_of_a_stream(&mut listener).await;
            let mut count = 0;
            while datagrams.recv(&mut buffer).await.unwrap().len > 0 {
                count += 1;
                assert!(count <= MAX_WAITING_DATAGRAMS, "more datagrams waited than the bound allows");
                if count == MAX_WAITING_DATAGRAMS {
                    // There is room again.
                    echo_of_a_stream(&mut listener).await;
                }
            }
            assert_eq!(count, MAX_WAITING_DATAGRAMS);
        },
        move |peer| {
            let socket = peer.bind(to.is_ipv6());
            socket.send(b".", to);
            use_a_stream(peer, to);
            for _ in 0..3 * MAX_WAITING_DATAGRAMS {
                socket.send(&[7; 1_000], to);
            }
            use_a_stream(peer, to);
            use_a_stream(peer, to);
            socket.send(b"", to);
        },
    );
}

/// The application takes no datagrams, as in the benchmark: none is kept, and none is answered.
pub(crate) fn a_flood_that_nobody_wants<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let to = server_addr(flavour);
    run::<S>(
        flavour,
        async move |mut listener, datagrams| {
            drop(datagrams);
            echo_of_a_stream(&mut listener).await;
        },
        move |peer| {
            let socket = peer.bind(to.is_ipv6());
            for _ in 0..500 {
                socket.send(&[7; 1_000], to);
            }
            use_a_stream(peer, to);
            assert_eq!(peer.others(), 0, "no ICMP");
        },
    );
}

/// Far more flows than any stack keeps.
pub(crate) fn more_flows_than_are_kept<S: Netstack<MemoryLink>>(flavour: Flavour) {
    const ROUNDS: usize = 40;
    const AT_ONCE: usize = 100;
    let to = server_addr(flavour);
    let (tell, told) = mpsc::channel();
    run::<S>(
        flavour,
        async move |_, datagrams| {
            for _ in 0..ROUNDS {
                echo(&datagrams, AT_ONCE).await;
                tell.send(()).unwrap();
            }
        },
        move |peer| {
            for round in 0..ROUNDS {
                for index in 0..AT_ONCE {
                    let mut packet = packet(to, 15, b"payload");
                    let port = (10_000 + round * AT_ONCE + index) as u16;
                    let udp_at = packet.len() - 15;
                    packet[udp_at..udp_at + 2].copy_from_slice(&port.to_be_bytes());
                    vouch(&mut packet, 15);
                    peer.send_packet(&packet);
                }
                told.recv().unwrap();
            }
        },
    );
}

/// Sets an arbitrary checksum, which is not zero: the link vouches for it, so the stack does not verify it.
fn vouch(packet: &mut [u8], udp_len: usize) {
    let at = packet.len() - udp_len + 6;
    packet[at..at + 2].copy_from_slice(&[0xbe, 0xef]);
}

/// Returns a datagram from the peer's port 9, with this length field and a checksum of zero.
fn packet(to: SocketAddr, said: usize, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut packet = match to.ip() {
        IpAddr::V4(address) => {
            let [high, low] = (20 + len).to_be_bytes();
            let mut header = vec![0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0];
            header.extend(ADDRESS_V4);
            header.extend(address.octets());
            let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        }
        IpAddr::V6(address) => {
            let [high, low] = len.to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, high, low, 17, 64];
            header.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
            header.extend(address.octets());
            header
        }
    };
    for field in [9, to.port(), said as u16, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

/// Sending reports a full link, and works again when there is room.
pub(crate) fn a_full_link<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let _turn = take_turns::<S>();
    let (link, mut other_end) = link(flavour);
    let local = server_addr(flavour);
    let peer: SocketAddr = if local.is_ipv4() { "10.0.0.1:7" } else { "[fd00::1]:7" }.parse().unwrap();
    let mut buffers: Vec<_> = (0..32).map(|_| PacketBuffer::new(other_end.capabilities().max_packet_len)).collect();
    runtime(flavour).block_on(async {
        let Started { listener: _listener, datagrams, driver, .. } = S::start(link, &config()).unwrap();
        let driver = tokio::spawn(driver);
        let mut sent = 0;
        let error = loop {
            match datagrams.try_send(local, peer, b"payload") {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 100_000, "the link never fills");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let all = async {
            let (mut arrived, whole) = (0, sent + 1_000);
            while arrived < whole {
                arrived += other_end.try_recv(&mut buffers).unwrap_or(0);
                tokio::task::yield_now().await;
                if sent < whole && datagrams.try_send(local, peer, b"payload").is_ok() {
                    sent += 1;
                }
            }
        };
        tokio::time::timeout(DEADLINE, all).await.expect("sent datagrams do not arrive");
        assert!(!driver.is_finished());
        driver.abort();
    });
}
