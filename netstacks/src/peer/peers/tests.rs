//! Many connections, packet by packet, and against every stack.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::mem::size_of;

use platform::MemoryLink;
use platform::packet::flags::{ACK, FIN, RST, SYN};

use super::*;
use crate::peer::tests::{Far, PATIENCE, plain};

const ADDRESS: [u8; 4] = [10, 0, 0, 1];
const REMOTE: &str = "10.0.0.2:80";

/// Clients, and the far end of the connection from this port, which the test plays by hand.
fn peers((near, far): (MemoryLink, MemoryLink), port: u16) -> (Peers<MemoryLink>, Far) {
    let (local, remote) = (SocketAddr::from((ADDRESS, port)), REMOTE.parse().unwrap());
    (Peers::new(near, ADDRESS.into()), Far::new(far, remote, local))
}

/// The slots that a wait with a timeout of zero lists.
fn now(peers: &mut Peers<MemoryLink>) -> Vec<usize> {
    let mut ready = Vec::new();
    peers.wait(Duration::ZERO, &mut ready).unwrap();
    ready
}

/// Clients with one open connection, in slot 5.
fn connected(link: (MemoryLink, MemoryLink), window: u16) -> (Peers<MemoryLink>, Far) {
    let (mut peers, mut far) = peers(link, 1024);
    peers.connect(5, REMOTE.parse().unwrap()).unwrap();
    assert!(now(&mut peers).is_empty() && !peers.is_connected(5));
    assert_eq!(flags(&mut far), [SYN]);
    far.send(SYN | ACK, 2, window, &[2, 4, 5, 180], &[]);
    assert_eq!(now(&mut peers), [5]);
    assert!(peers.is_connected(5) && far.seen().is_empty(), "the acknowledgement can go with data");
    (peers, far)
}

fn flags(far: &mut Far) -> Vec<u8> {
    far.seen().iter().map(|packet| packet.flags).collect()
}

fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn an_acknowledgement_goes_with_data_or_with_the_next_wait() {
    let (mut peers, mut far) = connected(plain(), 10_000);
    assert_eq!(peers.write(5, b"request").unwrap(), 7);
    assert!(now(&mut peers).is_empty());
    assert_eq!(far.seen().len(), 1);
    far.send(ACK, 9, 10_000, &[], b"resp");
    far.send(ACK, 9, 10_000, &[], b"onse");
    assert_eq!(now(&mut peers), [5]);
    let mut buffer = [0; 20];
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 8);
    assert_eq!(&buffer[..8], b"response");
    assert_eq!(kind(peers.read(5, &mut buffer)), io::ErrorKind::WouldBlock);
    assert!(far.seen().is_empty());
    assert!(now(&mut peers).is_empty());
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].flags, seen[0].acknowledgement), (1, ACK, 1009));
}

/// A read of one slot may receive the packets of another, which the caller has read to the end before.
#[test]
fn a_slot_that_a_read_of_another_found_is_listed() {
    let (mut peers, mut far) = connected(plain(), 10_000);
    peers.connect(6, REMOTE.parse().unwrap()).unwrap();
    let mut buffer = [0; 10];
    far.send(ACK, 2, 10_000, &[], b"one");
    assert_eq!(now(&mut peers), [5]);
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 3);
    assert_eq!(kind(peers.read(5, &mut buffer)), io::ErrorKind::WouldBlock);
    far.send(ACK, 2, 10_000, &[], b"two");
    assert_eq!(kind(peers.read(6, &mut buffer)), io::ErrorKind::WouldBlock);
    assert_eq!(now(&mut peers), [5]);
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"two");
    // A read takes its own bytes straight from the link.
    far.send(ACK, 2, 10_000, &[], b"three");
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"three");
}

#[test]
fn a_closed_connection_is_kept_until_the_stack_closes_too() {
    let (mut peers, mut far) = connected(plain(), 10_000);
    peers.close(5);
    assert_eq!(kind(peers.read(5, &mut [0])), io::ErrorKind::NotConnected);
    assert!(now(&mut peers).is_empty());
    assert_eq!(flags(&mut far), [FIN | ACK]);
    far.send(ACK, 3, 10_000, &[], b"late");
    far.send(FIN | ACK, 3, 10_000, &[], &[]);
    assert!(now(&mut peers).is_empty());
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].flags, seen[0].acknowledgement), (1, ACK, 1006));
    // It is over, so no packet of it gets a reply.
    far.send(FIN | ACK, 3, 10_000, &[], &[]);
    assert!(now(&mut peers).is_empty() && far.seen().is_empty());
    assert!(peers.table.connection(1024).is_err());
}

#[test]
fn a_stack_may_close_first() {
    let (mut peers, mut far) = connected(plain(), 10_000);
    far.send(FIN | ACK, 2, 10_000, &[], b"bye");
    assert_eq!(now(&mut peers), [5]);
    let mut buffer = [0; 10];
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 3);
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 0);
    peers.close(5);
    now(&mut peers);
    let seen = far.seen();
    assert_eq!((seen[0].flags, seen[0].acknowledgement), (ACK, 1001));
    assert_eq!((seen.len(), seen[1].flags, seen[1].acknowledgement), (2, FIN | ACK, 1005));
    assert!(peers.table.connection(1024).is_err());
}

#[test]
fn a_fin_waits_for_the_handshake_and_for_room_in_the_window() {
    let (mut peers, mut far) = peers(plain(), 1024);
    peers.connect(0, REMOTE.parse().unwrap()).unwrap();
    now(&mut peers);
    peers.close(0);
    now(&mut peers);
    assert_eq!(flags(&mut far), [SYN]);
    far.send(SYN | ACK, 2, 0, &[], &[]);
    now(&mut peers);
    assert_eq!(flags(&mut far), [ACK]);
    far.send(ACK, 2, 1, &[], &[]);
    now(&mut peers);
    assert_eq!(flags(&mut far), [FIN | ACK]);
    far.send(RST, 3, 0, &[], &[]);
    now(&mut peers);
    assert!(peers.table.connection(1024).is_err());
    // A connection that never sent its SYN leaves nothing behind.
    peers.connect(0, REMOTE.parse().unwrap()).unwrap();
    peers.close(0);
    now(&mut peers);
    assert!(far.seen().is_empty());
}

#[test]
fn a_reset_ends_its_connection_only() {
    let (mut peers, mut far) = connected(plain(), 10_000);
    peers.connect(6, REMOTE.parse().unwrap()).unwrap();
    far.send(ACK, 2, 10_000, &[], b"last");
    far.send(RST, 2, 0, &[], &[]);
    assert_eq!(now(&mut peers), [5]);
    let mut buffer = [0; 10];
    assert_eq!(peers.read(5, &mut buffer).unwrap(), 4);
    assert_eq!(kind(peers.read(5, &mut buffer)), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(peers.write(5, b"x")), io::ErrorKind::ConnectionReset);
    assert!(!peers.is_connected(5));
    assert_eq!(kind(peers.read(6, &mut buffer)), io::ErrorKind::WouldBlock);
    peers.close(5);
    assert!(peers.table.connection(1024).is_err());
    peers.connect(5, REMOTE.parse().unwrap()).unwrap();
}

#[test]
fn a_full_link_is_waited_for() {
    let (mut peers, mut far) = connected(MemoryLink::pair(1500, 2), 60_000);
    assert_eq!(peers.write(5, &[1; 14_600]).unwrap(), 2 * 1460);
    assert_eq!(kind(peers.write(5, &[1; 1460])), io::ErrorKind::WouldBlock);
    peers.connect(6, REMOTE.parse().unwrap()).unwrap();
    assert!(now(&mut peers).is_empty());
    assert_eq!(far.seen().len(), 2);
    assert_eq!(now(&mut peers), [5]);
    assert_eq!(peers.write(5, &[1; 1460]).unwrap(), 1460);
    assert_eq!(flags(&mut far), [SYN, ACK]);
}

#[test]
fn slots_that_wait_for_room_are_listed_in_turn_a_few_at_once() {
    let (mut peers, _far) = peers(plain(), 1024);
    for slot in 0..100 {
        peers.connect(slot, REMOTE.parse().unwrap()).unwrap();
        let port = peers.table.port(slot).unwrap();
        peers.table.block(port);
        peers.table.block(port);
    }
    let mut ready = Vec::new();
    peers.table.next_turn();
    peers.table.unblock(&mut ready);
    assert!(ready.len() < 100);
    peers.table.unblock(&mut ready);
    assert!(ready.into_iter().eq(0..100));
}

#[test]
fn a_window_that_opens_is_listed() {
    let (mut peers, mut far) = connected(plain(), 1000);
    assert_eq!(peers.write(5, &[1; 3000]).unwrap(), 1000);
    assert_eq!(kind(peers.write(5, &[1; 2000])), io::ErrorKind::WouldBlock);
    assert!(now(&mut peers).is_empty());
    far.send(ACK, 1002, 1000, &[], &[]);
    assert_eq!(now(&mut peers), [5]);
    assert_eq!(peers.write(5, &[1; 2000]).unwrap(), 1000);
}

#[test]
fn a_keep_alive_is_answered() {
    let (mut peers, mut far) = connected(plain(), 1000);
    now(&mut peers);
    far.seen();
    far.next -= 1;
    far.send(ACK, 2, 1000, &[], &[]);
    now(&mut peers);
    now(&mut peers);
    assert_eq!(flags(&mut far), [ACK]);
}

#[test]
fn ports_are_used_in_turn_and_slots_hold_one_connection() {
    let remote = REMOTE.parse().unwrap();
    let (mut peers, _far) = peers(plain(), 1024);
    assert_eq!(kind(peers.write(0, b"x")), io::ErrorKind::NotConnected);
    peers.connect(0, remote).unwrap();
    assert_eq!(kind(peers.connect(0, remote)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(peers.connect(1, "[fd00::2]:80".parse().unwrap())), io::ErrorKind::InvalidInput);
    let ports: Vec<_> = (1..=64_511)
        .map(|slot| {
            peers.connect(slot, remote).unwrap();
            peers.table.port(slot).unwrap()
        })
        .collect();
    assert!(ports.iter().copied().eq(1025..=u16::MAX));
    assert_eq!(kind(peers.connect(64_512, remote)), io::ErrorKind::AddrNotAvailable);
    peers.close(7);
    peers.connect(7, remote).unwrap();
    assert_eq!(peers.table.port(7).unwrap(), 1031);
}

#[test]
fn an_idle_connection_is_small() {
    assert!(size_of::<Connection>() <= 256, "{} bytes", size_of::<Connection>());
}

#[test]
fn a_wait_is_woken_from_another_thread_and_ends_in_time() {
    let (mut peers, _far) = peers(plain(), 1024);
    let mut ready = vec![1];
    peers.wait(Duration::from_millis(20), &mut ready).unwrap();
    assert!(ready.is_empty());
    let (waker, begin) = (peers.waker(), Instant::now());
    // One wake before the wait, and one that is likely during it.
    waker.wake();
    peers.wait(PATIENCE, &mut ready).unwrap();
    let other = thread::spawn(move || waker.wake());
    peers.wait(PATIENCE, &mut ready).unwrap();
    other.join().unwrap();
    assert!(ready.is_empty() && begin.elapsed() < PATIENCE);
}

#[test]
fn a_lost_link_is_an_error() {
    let (mut peers, far) = connected(plain(), 1000);
    drop(far);
    assert_eq!(kind(peers.wait(PATIENCE, &mut Vec::new())), io::ErrorKind::BrokenPipe);
}

#[cfg(any(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod with_stacks {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{Datagrams, Listener, Netstack, StackConfig, StackKind, Visitor};

    const AT_ONCE: usize = 300;
    const IN_A_ROW: usize = 2000;
    const REQUEST: [u8; 4] = *b"ping";

    /// A stack on a thread. It echoes all bytes, or closes after the first read.
    struct Serve {
        link: MemoryLink,
        closes_first: bool,
        stop: tokio::sync::oneshot::Receiver<()>,
    }

    impl Visitor<MemoryLink> for Serve {
        type Output = ();

        fn visit<S: Netstack<MemoryLink>>(self) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let Self { link, closes_first, stop } = self;
            runtime.block_on(async {
                let mut stack = S::start(link, &StackConfig::default()).unwrap();
                let datagrams = stack.datagrams;
                let tasks = [
                    tokio::spawn(async { drop(stack.driver.await) }),
                    tokio::spawn(async move {
                        while let Ok(stream) = stack.listener.accept().await {
                            tokio::spawn(echo(stream, closes_first));
                        }
                    }),
                    tokio::spawn(async move {
                        let mut buffer = [0; 2000];
                        while let Ok(datagram) = datagrams.recv(&mut buffer).await {
                            datagrams.try_send(datagram.local, datagram.peer, &buffer[..datagram.len]).unwrap();
                        }
                    }),
                ];
                let _dropped = stop.await;
                tasks.iter().for_each(tokio::task::JoinHandle::abort);
            });
        }
    }

    async fn echo(mut stream: impl crate::Stream, closes_first: bool) {
        let mut buffer = [0; 4096];
        loop {
            let len = stream.read(&mut buffer).await.unwrap();
            stream.write_all(&buffer[..len]).await.unwrap();
            if len == 0 || closes_first {
                return stream.shutdown().await.unwrap();
            }
        }
    }

    /// Without the published crates: they close connections late, or not at all.
    const STACKS: [StackKind; 3] = [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp];

    /// Runs a client against stacks, over plain and offloading links and both IP versions.
    fn with_every_stack(closes_first: bool, client: fn(Peers<MemoryLink>, IpAddr)) {
        #[cfg(feature = "lwip")]
        let _turn = crate::lwip::tests::turn();
        for stack in STACKS.into_iter().filter(|stack| stack.compiled_in()) {
            for [local, remote] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
                for (link, peer) in [plain(), MemoryLink::offloading_pair(1500, 256)] {
                    let (stop, stopped) = tokio::sync::oneshot::channel();
                    let serve = Serve { link: link.moderated(), closes_first, stop: stopped };
                    let server = thread::spawn(move || stack.visit(serve).unwrap());
                    client(Peers::new(peer, local.parse().unwrap()), remote.parse().unwrap());
                    drop(stop);
                    server.join().unwrap();
                }
            }
        }
    }

    /// Waits until `turn` returns `true`, in bounded time.
    fn drive(peers: &mut Peers<MemoryLink>, mut turn: impl FnMut(&mut Peers<MemoryLink>, &[usize]) -> bool) {
        let (begin, mut ready) = (Instant::now(), Vec::new());
        while !turn(peers, &ready) {
            assert!(begin.elapsed() < PATIENCE, "it hangs");
            peers.wait(PATIENCE, &mut ready).unwrap();
        }
    }

    /// Waits until no connection is left, not even in the background.
    fn finish(mut peers: Peers<MemoryLink>) {
        let begin = Instant::now();
        while !peers.table.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "a connection is left");
            // A connection in the background ends no wait.
            peers.wait(Duration::from_millis(1), &mut Vec::new()).unwrap();
        }
    }

    /// One of many connections at the same time.
    #[derive(Clone)]
    struct Exchange {
        bytes: Vec<u8>,
        sent: usize,
        back: Vec<u8>,
    }

    impl Exchange {
        /// More than a segment, and different for each connection.
        fn new(slot: usize) -> Self {
            let bytes = (0..3000 + slot).map(|at| (at * 7 + slot) as u8).collect();
            Self { bytes, sent: 0, back: Vec::new() }
        }

        fn turn(&mut self, peers: &mut Peers<MemoryLink>, slot: usize) {
            while self.sent < self.bytes.len() {
                match peers.write(slot, &self.bytes[self.sent..]) {
                    Ok(len) => self.sent += len,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            let mut buffer = [0; 1000];
            while self.back.len() < self.bytes.len() {
                match peers.read(slot, &mut buffer) {
                    Ok(len) => {
                        assert!(len > 0, "the stack has closed");
                        self.back.extend(&buffer[..len]);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn many_connections_at_once_get_their_own_bytes() {
        with_every_stack(false, |mut peers, remote| {
            let mut exchanges: Vec<_> = (0..AT_ONCE).map(Exchange::new).collect();
            for slot in 0..AT_ONCE {
                peers.connect(slot, (remote, 80 + slot as u16 % 3).into()).unwrap();
            }
            let mut left = AT_ONCE;
            drive(&mut peers, |peers, ready| {
                for &slot in ready {
                    let exchange = &mut exchanges[slot];
                    if peers.table.port(slot).is_ok() {
                        exchange.turn(peers, slot);
                        if exchange.back.len() == exchange.bytes.len() {
                            assert!(exchange.back == exchange.bytes, "what came back on {slot} differs");
                            peers.close(slot);
                            left -= 1;
                        }
                    }
                }
                left == 0
            });
            finish(peers);
        });
    }

    /// A connection for each request, one after the other.
    fn requests(mut peers: Peers<MemoryLink>, remote: IpAddr, stack_closes: bool) {
        let (mut made, mut is_sent, mut got, mut is_open) = (0, false, 0, false);
        drive(&mut peers, |peers, _| {
            loop {
                if !is_open {
                    if made == IN_A_ROW {
                        return true;
                    }
                    peers.connect(0, (remote, 80 + made as u16 % 7).into()).unwrap();
                    (made, is_open, is_sent, got) = (made + 1, true, false, 0);
                }
                if !is_sent {
                    match peers.write(0, &REQUEST) {
                        Ok(len) => assert_eq!(len, REQUEST.len()),
                        Err(_) => return false,
                    }
                    is_sent = true;
                }
                let mut buffer = [0; 10];
                match peers.read(0, &mut buffer) {
                    Ok(0) => assert!(stack_closes && got == REQUEST.len(), "the stack has closed"),
                    Ok(len) => {
                        assert_eq!(buffer[..len], REQUEST[got..][..len]);
                        got += len;
                        if stack_closes || got < REQUEST.len() {
                            continue;
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        return false;
                    }
                }
                peers.close(0);
                is_open = false;
            }
        });
        finish(peers);
    }

    #[test]
    fn a_connection_for_each_request_closed_by_the_client() {
        with_every_stack(false, |peers, remote| requests(peers, remote, false));
    }

    #[test]
    fn a_connection_for_each_request_closed_by_the_stack() {
        with_every_stack(true, |peers, remote| requests(peers, remote, true));
    }

    #[test]
    fn datagrams_go_both_ways() {
        with_every_stack(false, |mut peers, remote| {
            let target = SocketAddr::new(remote, 53);
            for port in 5000..5010 {
                peers.send_datagram(port, target, &port.to_be_bytes()).unwrap();
            }
            let mut buffer = [0; 10];
            let mut ports = Vec::new();
            drive(&mut peers, |peers, _| {
                while let Some(datagram) = peers.receive_datagram(&mut buffer) {
                    assert_eq!(datagram.peer, target);
                    assert_eq!(buffer[..datagram.len], datagram.local.port().to_be_bytes());
                    ports.push(datagram.local.port());
                }
                ports.len() == 10
            });
            assert!(ports.into_iter().eq(5000..5010));
            let long = vec![0; 1473];
            assert_eq!(kind(peers.send_datagram(5000, target, &long)), io::ErrorKind::InvalidInput);
        });
    }
}
