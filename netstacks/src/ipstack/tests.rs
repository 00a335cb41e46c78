//! What the bridge adds to ipstack, seen by a peer that sends what no well-behaved one would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::Poll;
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::segment::{Header, Segment, maximum_segment_size};
use super::{Ipstack, IpstackListener, IpstackStream};
use crate::{Listener, Netstack, StackConfig};

const IRS: u32 = 0xffff_ff00;
const QUIET: Duration = Duration::from_millis(100);

/// A TCP that does as it is told.
struct Peer {
    link: MemoryLink,
    here: SocketAddr,
    there: SocketAddr,
    /// What the stack expects next, and what it sends next.
    seq: u32,
    ack: u32,
    window: u16,
}

/// A segment with its payload.
struct Got {
    segment: Segment,
    packet: Vec<u8>,
    meta: PacketMeta,
}

impl Got {
    fn payload(&self) -> &[u8] {
        &self.packet[self.segment.payload_at..][..self.segment.payload_len]
    }
}

impl Peer {
    fn send(&mut self, flags: u8, seq: u32, payload: &[u8]) {
        let header = Header {
            source: self.here,
            destination: self.there,
            seq,
            ack: self.ack,
            flags,
            window: self.window,
            mss: (flags & SYN != 0).then_some(1_460),
        };
        let mut packet = [0; 64];
        let len = header.write(&mut packet, payload.len());
        self.link.try_send(PacketMeta::default(), &[IoSlice::new(&packet[..len]), IoSlice::new(payload)]).unwrap();
        self.link.flush().unwrap();
    }

    /// The next segment, `None` for silence.
    async fn recv(&mut self, within: Duration) -> Option<Got> {
        let mut buffers = [PacketBuffer::new(self.link.capabilities().max_packet_len)];
        let received = poll_fn(|cx| {
            loop {
                match self.link.try_recv(&mut buffers) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.link.poll_readable(cx) {
                        Poll::Ready(result) => result.unwrap(),
                        Poll::Pending => return Poll::Pending,
                    },
                    result => return Poll::Ready(result.unwrap()),
                }
            }
        });
        tokio::time::timeout(within, received).await.ok()?;
        let packet = buffers[0].packet().to_vec();
        Some(Got { segment: Segment::parse(&packet).unwrap(), packet, meta: buffers[0].meta() })
    }

    async fn expect(&mut self) -> Got {
        self.recv(Duration::from_secs(5)).await.unwrap()
    }

    /// The last of the segments that come until there is silence.
    async fn last(&mut self) -> Segment {
        let mut last = self.expect().await.segment;
        while let Some(got) = self.recv(QUIET).await {
            last = got.segment;
        }
        last
    }

    async fn shake_hands(&mut self) {
        self.send(SYN, IRS, b"");
        let answer = self.expect().await.segment;
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, IRS.wrapping_add(1)));
        self.seq = answer.ack;
        self.ack = answer.end();
        self.send(ACK, self.seq, b"");
    }
}

struct World {
    peer: Peer,
    listener: IpstackListener,
    driver: JoinHandle<io::Result<()>>,
}

fn config() -> StackConfig {
    StackConfig { user_timeout: Duration::from_secs(8), ..StackConfig::default() }
}

fn world_of((link, other_end): (MemoryLink, MemoryLink), there: &str) -> World {
    let started = Ipstack::start(link, &config()).unwrap();
    let there: SocketAddr = there.parse().unwrap();
    let here = if there.is_ipv4() { "10.0.0.1:4000" } else { "[fd00::1]:4000" }.parse().unwrap();
    World {
        peer: Peer { link: other_end, here, there, seq: 0, ack: 0, window: 60_000 },
        listener: started.listener,
        driver: tokio::spawn(started.driver),
    }
}

fn world(mtu: usize) -> World {
    world_of(MemoryLink::pair(mtu, MemoryLink::DEFAULT_DEPTH), "10.0.0.2:80")
}

async fn connected(mtu: usize) -> (World, IpstackStream) {
    let mut world = world(mtu);
    world.peer.shake_hands().await;
    let stream = world.listener.accept().await.unwrap();
    (world, stream)
}

#[tokio::test]
async fn data_with_push_and_fin_is_read_and_acknowledged_and_writing_goes_on() {
    let (mut world, mut stream) = connected(1500).await;
    let peer = &mut world.peer;
    peer.send(ACK | PSH | FIN, peer.seq, b"hello");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"hello");
    assert_eq!(peer.last().await.ack, peer.seq.wrapping_add(6));
    stream.write_all(b"answer").await.unwrap();
    let got = peer.expect().await;
    assert_eq!((got.payload(), got.segment.ack), (&b"answer"[..], peer.seq.wrapping_add(6)));
    // The FIN again: our ACK was lost.
    peer.send(ACK | FIN, peer.seq.wrapping_add(5), b"");
    assert_eq!(peer.expect().await.segment.ack, peer.seq.wrapping_add(6));
}

#[tokio::test]
async fn a_repeated_segment_is_answered() {
    let (mut world, mut stream) = connected(1500).await;
    let peer = &mut world.peer;
    for _ in 0..3 {
        peer.send(ACK, peer.seq, b"once");
        assert_eq!(peer.last().await.ack, peer.seq.wrapping_add(4));
    }
    let mut buffer = [0; 100];
    assert_eq!(stream.read(&mut buffer).await.unwrap(), 4);
}

#[tokio::test]
async fn segments_that_overlap_and_come_in_any_order_make_one_stream() {
    let (mut world, mut stream) = connected(1500).await;
    let peer = &mut world.peer;
    let bytes: Vec<u8> = (0..=255).cycle().take(4_000).collect();
    // The sequence numbers wrap on the way.
    for (from, to) in [(2_000, 3_000), (900, 1_200), (0, 1_000), (500, 1_500), (2_500, 3_100), (1_400, 2_100)] {
        peer.send(ACK, peer.seq.wrapping_add(from), &bytes[from as usize..to as usize]);
    }
    let mut got = vec![0; 3_100];
    stream.read_exact(&mut got).await.unwrap();
    assert!(got == bytes[..3_100]);
    assert_eq!(peer.last().await.ack, peer.seq.wrapping_add(3_100));
}

#[tokio::test]
async fn a_gap_is_answered_with_duplicate_acknowledgements() {
    let (mut world, _stream) = connected(1500).await;
    let peer = &mut world.peer;
    for number in 1..4 {
        peer.send(ACK, peer.seq.wrapping_add(number * 10), b"0123456789");
        assert_eq!(peer.expect().await.segment.ack, peer.seq);
    }
}

#[tokio::test]
async fn the_window_closes_without_a_reader_and_opens_again() {
    let (mut world, mut stream) = connected(1500).await;
    let peer = &mut world.peer;
    for number in 0..70 {
        peer.send(ACK, peer.seq.wrapping_add(number * 1_000), &[5; 1_000]);
    }
    let last = peer.last().await;
    assert_eq!((last.ack, last.window), (peer.seq.wrapping_add(65_535), 0));
    // A probe into the closed window is answered, its byte is not taken.
    peer.send(ACK, last.ack, b"x");
    let answer = peer.last().await;
    assert_eq!((answer.ack, answer.window), (last.ack, 0));
    let mut bytes = vec![0; 65_535];
    stream.read_exact(&mut bytes).await.unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    let update = peer.last().await;
    assert!(update.window > 32_000 && update.ack == last.ack, "{update:?}");
}

#[tokio::test]
async fn nothing_is_sent_beyond_the_peers_window_and_a_closed_one_is_probed() {
    let mut world = world(1500);
    world.peer.window = 3_000;
    world.peer.shake_hands().await;
    let mut stream = world.listener.accept().await.unwrap();
    let peer = &mut world.peer;
    let writer = tokio::spawn(async move { stream.write_all(&[9; 5_000]).await.map(|()| stream) });
    let begin = peer.ack;
    // Where the machine stands still for a while, some is sent twice.
    let end_of = |segment: &Segment| segment.end().wrapping_sub(begin);
    let mut got = 0;
    while let Some(next) = peer.recv(QUIET).await {
        got = got.max(end_of(&next.segment));
    }
    assert!(got > 1_460 && got <= 3_000, "{got} bytes went into a window of 3000");
    peer.ack = begin.wrapping_add(got);
    peer.window = 0;
    peer.send(ACK, peer.seq, b"");
    let probe = loop {
        let next = peer.recv(Duration::from_secs(4)).await.unwrap().segment;
        if next.payload_len == 0 {
            break next;
        }
        assert!(end_of(&next) <= got, "the window is closed");
    };
    assert_eq!(probe.seq, peer.ack.wrapping_sub(1));
    peer.window = 10_000;
    peer.send(ACK, peer.seq, b"");
    while got < 5_000 {
        got = got.max(end_of(&peer.expect().await.segment));
    }
    writer.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_packet_of_64_kib_arrives_whole() {
    let (mut world, mut stream) = connected(65_535).await;
    let bytes: Vec<u8> = (0..=250).cycle().take(60_000).collect();
    world.peer.send(ACK | PSH, world.peer.seq, &bytes);
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).await.unwrap();
    assert!(got == bytes);
}

#[tokio::test]
async fn a_repeated_syn_gets_the_syn_ack_again_and_a_lost_one_is_sent_again() {
    let mut world = world_of(MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH), "[fd00::2]:80");
    let peer = &mut world.peer;
    peer.send(SYN, IRS, b"");
    let first = peer.expect().await;
    peer.send(SYN, IRS, b"");
    for wait in [Duration::from_millis(200), Duration::from_secs(3)] {
        let again = peer.recv(wait).await.unwrap();
        assert_eq!((again.segment.flags, again.segment.seq), (SYN | ACK, first.segment.seq));
        assert_eq!(maximum_segment_size(&again.packet), Some(1_440));
    }
}

#[tokio::test]
async fn a_segment_without_a_connection_is_reset() {
    let mut world = world(1500);
    let peer = &mut world.peer;
    peer.ack = 77;
    peer.send(ACK, 5, b"stray");
    let reset = peer.expect().await.segment;
    assert_eq!((reset.flags, reset.seq), (RST, 77));
    peer.send(FIN, 5, b"stray");
    let reset = peer.expect().await.segment;
    assert_eq!((reset.flags, reset.ack), (RST | ACK, 11));
    peer.send(RST | ACK, 5, b"");
    assert!(peer.recv(QUIET).await.is_none());
}

#[tokio::test]
async fn an_unacknowledged_fin_is_sent_again_and_the_port_can_be_used_again() {
    let (mut world, mut stream) = connected(1500).await;
    let peer = &mut world.peer;
    stream.shutdown().await.unwrap();
    for _ in 0..2 {
        let fin = peer.recv(Duration::from_secs(3)).await.unwrap().segment;
        assert_eq!((fin.flags, fin.seq), (FIN | ACK, peer.ack));
    }
    peer.ack = peer.ack.wrapping_add(1);
    peer.send(FIN | ACK, peer.seq, b"");
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(peer.last().await.ack, peer.seq.wrapping_add(1));
    // In TIME-WAIT, and before the old stream is dropped.
    peer.shake_hands().await;
    let mut second = world.listener.accept().await.unwrap();
    drop(stream);
    peer.send(ACK, peer.seq, b"again");
    second.read_exact(&mut [0; 5]).await.unwrap();
}

#[tokio::test]
async fn a_link_that_segments_gets_super_packets() {
    for (there, mss) in [("10.0.0.2:80", 1_460), ("[fd00::2]:80", 1_440)] {
        let mut world = world_of(MemoryLink::offloading_pair(1500, MemoryLink::DEFAULT_DEPTH), there);
        world.peer.shake_hands().await;
        let mut stream = world.listener.accept().await.unwrap();
        stream.write_all(&[3; 15_000]).await.unwrap();
        let got = world.peer.expect().await;
        assert_eq!(got.payload(), [3; 15_000]);
        assert_eq!(got.meta, PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(mss) });
    }
}

#[tokio::test]
async fn without_its_driver_the_stack_lets_the_link_go_and_its_streams_fail() {
    let (mut world, mut stream) = connected(1500).await;
    let waiting = tokio::spawn(async move { (stream.read(&mut [0; 1]).await, stream) });
    world.peer.send(SYN, 5, b"");
    world.driver.abort();
    let (result, stream) = waiting.await.unwrap();
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotConnected);
    assert!(world.listener.accept().await.is_err());
    drop(stream);
    let gone = poll_fn(|cx| {
        loop {
            match world.peer.link.try_recv(&mut [PacketBuffer::new(1500)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match world.peer.link.poll_readable(cx) {
                    Poll::Ready(_) => {}
                    Poll::Pending => return Poll::Pending,
                },
                Err(error) => return Poll::Ready(error.kind()),
                Ok(_) => {}
            }
        }
    });
    assert_eq!(tokio::time::timeout(QUIET * 10, gone).await.unwrap(), io::ErrorKind::BrokenPipe);
}

/// With a connection in whatever state that nobody has accepted.
#[test]
fn a_runtime_ends_before_its_connections() {
    for shaken in [false, true] {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let world = runtime.block_on(async {
                let mut world = world(1500);
                if shaken {
                    world.peer.shake_hands().await;
                } else {
                    world.peer.send(SYN, IRS, b"");
                    world.peer.expect().await;
                }
                tokio::task::yield_now().await;
                world
            });
            drop(runtime);
            drop(world);
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn a_stream_may_be_dropped_anywhere() {
    for multi_thread in [false, true] {
        let mut builder = if multi_thread {
            tokio::runtime::Builder::new_multi_thread()
        } else {
            tokio::runtime::Builder::new_current_thread()
        };
        let runtime = builder.enable_all().build().unwrap();
        let (world, first) = runtime.block_on(connected(1500));
        let (second_world, second) = runtime.block_on(connected(1500));
        // Within a runtime, outside of it, and after its end.
        runtime.block_on(async { drop(first) });
        drop(world.listener);
        drop(second);
        let (third_world, third) = runtime.block_on(connected(1500));
        drop(runtime);
        drop((third, third_world, second_world));
    }
}
