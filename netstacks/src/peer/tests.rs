//! Tests the peer packet by packet against the other end of its link. The contract of the stacks uses it with every stack.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use platform::vnet::complete_checksum;
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};

use super::connection::{SCALE, WINDOW};
use super::*;

const LOCAL: &str = "10.0.0.1:1024";
const REMOTE: &str = "10.0.0.2:80";
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The stack's end of the link, which the test plays by hand.
pub(super) struct Far {
    link: MemoryLink,
    headers: TcpHeaders,
    pub(super) next: u32,
}

/// A packet from the peer.
pub(super) struct Seen {
    pub(super) flags: u8,
    sequence: u32,
    pub(super) acknowledgement: u32,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
    gso_size: Option<NonZeroU16>,
}

impl Far {
    pub(super) fn new(link: MemoryLink, remote: SocketAddr, local: SocketAddr) -> Self {
        Self { link, headers: TcpHeaders::new(remote, local).unwrap(), next: 1000 }
    }

    pub(super) fn send(&mut self, flags: u8, acknowledgement: u32, window: u16, options: &[u8], payload: &[u8]) {
        let fields = TcpFields { sequence: self.next, acknowledgement, flags, window };
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = self.headers.write(fields, options, payload, Checksum::Filled, &mut headers);
        let slices = [IoSlice::new(&headers[..len]), IoSlice::new(payload)];
        self.link.try_send(PacketMeta::default(), &slices).unwrap();
        self.next += payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
    }

    /// The packets that the peer has sent since the last call. Each checksum must be correct, or partial.
    pub(super) fn seen(&mut self) -> Vec<Seen> {
        let mut buffers = [PacketBuffer::new(65_535)];
        let mut seen = Vec::new();
        while self.link.try_recv(&mut buffers).is_ok() {
            let meta = buffers[0].meta();
            let packet = buffers[0].packet_mut();
            if meta.checksum == Checksum::Filled {
                let arrived = packet.to_vec();
                let layout = TcpSegment::parse(packet).unwrap().layout;
                platform::packet::write_partial_checksum(packet, &layout, arrived.len());
                complete_checksum(packet).unwrap();
                assert!(packet == arrived, "a wrong checksum");
            }
            let segment = TcpSegment::parse(packet).unwrap();
            seen.push(Seen {
                flags: segment.flags(),
                sequence: segment.sequence(),
                acknowledgement: segment.acknowledgement(),
                window: segment.window(),
                options: segment.options().as_bytes().to_vec(),
                payload: segment.payload().to_vec(),
                gso_size: meta.gso_size,
            });
        }
        seen
    }
}

/// Peers with one connection, in slot 0.
struct Peer(Peers<MemoryLink>);

impl Peer {
    /// Takes in what has arrived, and sends what is due.
    fn wait(&mut self) -> io::Result<()> {
        self.0.wait(Duration::ZERO, &mut Vec::new())
    }

    /// `None` if it would block.
    fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        let written = self.wait().and_then(|()| self.0.write(0, bytes));
        self.wait().ok();
        unless_blocked(written)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        unless_blocked(self.0.read(0, buffer))
    }
}

fn unless_blocked<T>(result: io::Result<T>) -> Option<io::Result<T>> {
    Some(result).filter(|result| !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock))
}

/// A peer that is connected to a far end with a window of `window` bytes and an MSS of 1460.
fn connected((near, far): (MemoryLink, MemoryLink), window: u16) -> (Peer, Far) {
    let (local, remote): (SocketAddr, SocketAddr) = (LOCAL.parse().unwrap(), REMOTE.parse().unwrap());
    let [high, low] = (near.capabilities().mtu as u16 - 40).to_be_bytes();
    let mut peer = Peer(Peers::new(near, local.ip()));
    let mut far = Far::new(far, remote, local);
    peer.0.connect(0, remote).unwrap();
    peer.wait().unwrap();
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].flags, seen[0].sequence, seen[0].window), (1, SYN, 1, 65_535));
    assert_eq!(seen[0].options, [2, 4, high, low, 1, 3, 3, SCALE]);
    far.send(SYN | ACK, 2, window, &[2, 4, 5, 180, 1, 3, 3, 0], &[]);
    peer.wait().unwrap();
    peer.wait().unwrap();
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].flags, seen[0].sequence, seen[0].acknowledgement), (1, ACK, 2, 1001));
    assert_eq!(usize::from(seen[0].window) << SCALE, WINDOW);
    (peer, far)
}

pub(super) fn plain() -> (MemoryLink, MemoryLink) {
    MemoryLink::pair(1500, 64)
}

#[test]
fn a_write_goes_in_whole_segments_up_to_the_window() {
    let (mut peer, mut far) = connected(plain(), 10_000);
    let bytes: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    assert_eq!(peer.write(&bytes).unwrap().unwrap(), 6 * 1460);
    assert!(peer.write(&bytes).is_none(), "1240 bytes of window are left, less than a segment");
    let seen = far.seen();
    assert!(seen.iter().all(|packet| packet.payload.len() == 1460 && packet.flags == ACK));
    let arrived: Vec<u8> = seen.into_iter().flat_map(|packet| packet.payload).collect();
    assert_eq!(arrived, bytes[..6 * 1460]);
    far.send(ACK, 2 + 6 * 1460, 10_000, &[], &[]);
    // A rest that does not fill a packet is left to the next write, which sends it if there is no more.
    assert_eq!(peer.write(&bytes[..2000]).unwrap().unwrap(), 1460);
    assert_eq!(peer.write(&bytes[..540]).unwrap().unwrap(), 540);
    let lens: Vec<_> = far.seen().iter().map(|packet| packet.payload.len()).collect();
    assert_eq!(lens, [1460, 540]);
}

#[test]
fn a_window_below_a_segment_is_used_once_half_of_it_is_open() {
    let (mut peer, mut far) = connected(plain(), 1000);
    let bytes = [1; 3000];
    assert_eq!(peer.write(&bytes).unwrap().unwrap(), 1000);
    far.send(ACK, 1002, 499, &[], &[]);
    assert!(peer.write(&bytes).is_none());
    far.send(ACK, 1002, 500, &[], &[]);
    assert_eq!(peer.write(&bytes).unwrap().unwrap(), 500);
}

#[test]
fn super_packets_are_as_large_as_the_link_takes() {
    let (mut peer, mut far) = connected(MemoryLink::offloading_pair(1500, 64), 65_535);
    let bytes = vec![1; 100_000];
    assert_eq!(peer.write(&bytes).unwrap().unwrap(), 44 * 1460);
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].payload.len(), seen[0].gso_size), (1, 44 * 1460, NonZeroU16::new(1460)));
    assert_eq!(peer.write(&bytes[..1000]).unwrap().unwrap(), 1000);
    assert_eq!(far.seen()[0].gso_size, None);
}

#[test]
fn a_batch_is_read_with_one_acknowledgement_and_a_repeated_segment_once() {
    let (mut peer, mut far) = connected(plain(), 60_000);
    far.send(ACK, 2, 60_000, &[], b"one ");
    far.send(ACK, 2, 60_000, &[], b"two ");
    far.next -= 4;
    far.send(ACK, 2, 60_000, &[], b"two ");
    far.send(ACK, 2, 60_000, &[], b"three");
    let mut buffer = [0; 20];
    assert_eq!(peer.read(&mut buffer).unwrap().unwrap(), 13);
    assert_eq!(&buffer[..13], b"one two three");
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].acknowledgement), (1, 1014));
    assert!(peer.read(&mut buffer).is_none());
}

#[test]
fn unread_bytes_are_kept_and_close_the_window() {
    let (mut peer, mut far) = connected(MemoryLink::pair(65_535, 64), 60_000);
    let sent: Vec<u8> = (0..=250).cycle().take(60_000).collect();
    let (mut total, mut window) = (0, 0);
    // Each write finds the window closed, but receives the packets that have arrived.
    far.send(ACK, 2, 0, &[], &[]);
    while total + sent.len() <= WINDOW {
        far.send(ACK, 2, 0, &[], &sent);
        assert!(peer.write(b"x").is_none());
        total += sent.len();
        window = usize::from(far.seen().last().unwrap().window) << SCALE;
    }
    assert!(window <= WINDOW - total, "{window} bytes are said to be open");
    let (mut read, mut buffer) = (0, [0; 7777]);
    while read < total {
        let len = peer.read(&mut buffer).unwrap().unwrap();
        assert!(buffer[..len].iter().zip(read..).all(|(byte, at)| *byte == sent[at % sent.len()]), "at {read}");
        read += len;
    }
    peer.wait().unwrap();
    let opened: Vec<_> = far.seen().iter().map(|packet| usize::from(packet.window) << SCALE).collect();
    assert!(opened.len() == 1 && opened[0] >= WINDOW / 2, "{opened:?}");
}

#[test]
fn more_than_the_window_is_an_error() {
    let (mut peer, mut far) = connected(MemoryLink::pair(65_535, 64), 60_000);
    let sent = vec![0; 60_000];
    let error = (0..=WINDOW / sent.len()).find_map(|_| {
        far.send(ACK, 2, 0, &[], &sent);
        far.seen();
        peer.write(b"x")?.err()
    });
    assert_eq!(error.unwrap().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn each_half_ends_by_itself() {
    let (mut peer, mut far) = connected(plain(), 60_000);
    for _ in 0..2 {
        peer.0.end_writing(0);
        peer.wait().unwrap();
    }
    let seen = far.seen();
    assert_eq!((seen.len(), seen[0].flags, seen[0].sequence), (1, FIN | ACK, 2));
    assert_eq!(peer.write(b"x").unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    far.send(FIN | ACK, 3, 60_000, &[], b"bye");
    let mut buffer = [0; 10];
    assert_eq!(peer.read(&mut buffer).unwrap().unwrap(), 3);
    assert_eq!(peer.read(&mut buffer).unwrap().unwrap(), 0);
    assert_eq!(far.seen()[0].acknowledgement, 1005);
}

#[test]
fn packets_of_others_are_ignored() {
    let (mut peer, mut far) = connected(plain(), 60_000);
    far.link.try_send(PacketMeta::default(), &[IoSlice::new(b"\x45 no packet")]).unwrap();
    far.headers = TcpHeaders::new("10.0.0.2:81".parse().unwrap(), LOCAL.parse().unwrap()).unwrap();
    far.send(RST, 2, 0, &[], &[]);
    assert!(peer.read(&mut [0; 10]).is_none());
}

#[test]
fn a_link_without_room_for_a_payload_is_refused() {
    for (link, remote) in [(MemoryLink::pair(48, 1).0, REMOTE), (plain().0, "[fd00::1]:80")] {
        let connected = Peers::new(link, [10, 0, 0, 1].into()).connect(0, remote.parse().unwrap());
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_blocked_client_times_out() {
    let (near, _far) = plain();
    let client = Client::connect(near, [10, 0, 0, 1].into(), REMOTE.parse().unwrap(), Duration::from_millis(20));
    assert_eq!(client.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
