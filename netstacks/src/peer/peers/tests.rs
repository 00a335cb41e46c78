//! Many connections, packet by packet.

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
