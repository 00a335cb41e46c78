//! UDP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use netstacks::peer::Peers;
use netstacks::{Datagram, Datagrams, Listener, Netstack, Started};
use platform::{Counted, Link, MemoryLink, PacketBuffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{DEADLINE, Flavour, PATIENCE, addresses, config, exchange, link, pattern, run, runtime, take_turns};

/// Sends as soon as there is room.
async fn send(datagrams: &impl Datagrams, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
    loop {
        match datagrams.try_send(local, peer, payload) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            result => return result,
        }
    }
}

/// A server sends from any address, also nothing at all, and reads the begin of a datagram that is longer than its buffer.
pub(crate) fn answers_from_another_address<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let [local, to] = addresses(flavour);
    let other: SocketAddr = if to.is_ipv4() { "172.16.0.9:99" } else { "[fd00:9::9]:99" }.parse().unwrap();
    let (link, other_end) = link(flavour);
    let server = async move |_, datagrams: S::Datagrams| {
        let mut buffer = [0; 5];
        let datagram = datagrams.recv(&mut buffer).await.unwrap();
        assert_eq!((datagram.len, datagram.local), (5, to), "the rest of the payload is cut off");
        for payload in [&buffer[..], b"", b"again"] {
            send(&datagrams, other, datagram.peer, payload).await.unwrap();
        }
        let datagram = datagrams.recv(&mut buffer).await.unwrap();
        assert_eq!((datagram.local, &buffer[..datagram.len]), (other, &b"hm"[..]));
    };
    run::<MemoryLink, S, _>(flavour, link, &config(), server, move || {
        let mut peers = Peers::new(other_end, local.ip());
        peers.send_datagram(7, to, b"hello, world").unwrap();
        let mut buffer = [0; 100];
        for payload in [&b"hello"[..], b"", b"again"] {
            let Datagram { len, peer, .. } = loop {
                peers.wait(PATIENCE, &mut Vec::new()).unwrap();
                if let Some(datagram) = peers.receive_datagram(&mut buffer) {
                    break datagram;
                }
            };
            assert_eq!((&buffer[..len], peer), (payload, other));
        }
        peers.send_datagram(7, other, b"hm").unwrap();
        peers.wait(Duration::ZERO, &mut Vec::new()).unwrap();
        peers
    });
}

/// The application takes no datagrams, as in the benchmark: none is kept, and none is answered, also not by ICMP.
pub(crate) fn a_flood_that_nobody_wants<S: Netstack<Counted<MemoryLink>>>(flavour: Flavour) {
    let [local, to] = addresses(flavour);
    let (link, other_end) = link(flavour);
    let link = Counted::new(link);
    let traffic = link.traffic();
    let server = async |mut listener: S::Listener, datagrams| {
        drop(datagrams);
        let mut stream = listener.accept().await.unwrap();
        stream.write_all(&pattern(31, 100_000)).await.unwrap();
        stream.read_exact(&mut vec![0; 100_000]).await.unwrap();
    };
    run::<_, S, _>(flavour, link, &config(), server, move || {
        let mut peers = Peers::new(other_end, local.ip());
        for _ in 0..500 {
            while peers.send_datagram(7, to, &[7; 1_000]).is_err() {
                peers.wait(Duration::from_millis(1), &mut Vec::new()).unwrap();
            }
        }
        peers.connect(0, to).unwrap();
        while !peers.is_connected(0) {
            peers.wait(PATIENCE, &mut Vec::new()).unwrap();
        }
        exchange(&mut peers, &vec![7; 100_000], &pattern(31, 100_000));
        // Each packet of the stream is sent by itself over a plain link, and is acknowledged.
        assert!(traffic.counts().tx_packets < 300, "{:?}", traffic.counts());
        peers
    });
}

/// Sending reports a full link, and works again when there is room.
pub(crate) fn a_full_link<S: Netstack<MemoryLink>>(flavour: Flavour) {
    let _turn = take_turns::<S>();
    let (link, mut other_end) = link(flavour);
    let [mut peer, local] = addresses(flavour);
    peer.set_port(7);
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
