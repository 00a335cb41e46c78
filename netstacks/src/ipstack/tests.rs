//! What a run needs, and what a hostile peer must not do, segment by segment.

use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{TcpFields, TcpSegment, is_checksum_right};
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Ipstack, IpstackListener, IpstackStream};
use crate::fixture::segment;
use crate::{Listener, Netstack, StackConfig, Stream, Workarounds};

/// Time for everything that is due now; it does not really pass.
const SOON: Duration = Duration::from_millis(300);

/// The network of the clients.
struct Net {
    link: MemoryLink,
    listener: IpstackListener,
    _driver: JoinHandle<std::io::Result<()>>,
}

/// A client, with the numbers of its next segment.
#[derive(Clone, Copy)]
struct Client {
    address: SocketAddr,
    sequence: u32,
    acknowledgement: u32,
}

/// Flags, sequence number, acknowledgement and length of the payload.
type Seen = (u8, u32, u32, usize);

impl Net {
    fn new(backlog: usize) -> Self {
        Self::over(MemoryLink::pair(1500, 1 << 14), &StackConfig { backlog, ..StackConfig::default() })
    }

    fn over((link, other_end): (MemoryLink, MemoryLink), config: &StackConfig) -> Self {
        let started = Ipstack::start(link, config).unwrap();
        Self { link: other_end, listener: started.listener, _driver: tokio::spawn(started.driver) }
    }

    fn send(&mut self, client: Client, flags: u8, payload: &[u8]) {
        let packet = packet(client, flags, payload);
        self.link.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    }

    /// The packets that the stack sends to the client.
    async fn seen(&mut self, client: Client) -> Vec<Seen> {
        sleep(SOON).await;
        let mut buffers: Vec<_> = (0..64).map(|_| PacketBuffer::new(1500)).collect();
        let mut seen = Vec::new();
        while let Ok(count) = self.link.try_recv(&mut buffers) {
            for buffer in &buffers[..count] {
                let segment = TcpSegment::parse(buffer.packet()).unwrap();
                if segment.destination_port() == client.address.port() {
                    let len = segment.payload().len();
                    seen.push((segment.flags(), segment.sequence(), segment.acknowledgement(), len));
                }
            }
        }
        seen
    }

    /// The window and the acknowledgement number that the client has seen last. The checksums are right.
    async fn window(&mut self, client: Client) -> (u16, u32) {
        sleep(SOON).await;
        let mut buffers: Vec<_> = (0..64).map(|_| PacketBuffer::new(1500)).collect();
        let mut last = (0, client.sequence);
        while let Ok(count) = self.link.try_recv(&mut buffers) {
            for buffer in &buffers[..count] {
                assert!(is_checksum_right(buffer.packet()));
                let segment = TcpSegment::parse(buffer.packet()).unwrap();
                last = (segment.window(), segment.acknowledgement());
            }
        }
        last
    }

    /// Takes the SYN-ACK for a SYN with this number.
    async fn syn_ack(&mut self, client: &mut Client) {
        let seen = self.seen(*client).await;
        let next = client.sequence.wrapping_add(1);
        let syn_ack = seen.iter().find(|(flags, _, acked, _)| *flags == SYN | ACK && *acked == next);
        let (_, sequence, ..) = syn_ack.unwrap_or_else(|| panic!("no SYN-ACK for {next}: {seen:?}"));
        (client.sequence, client.acknowledgement) = (next, sequence.wrapping_add(1));
    }

    async fn connect(&mut self, port: u16, sequence: u32) -> Client {
        let mut client = client(port, sequence);
        self.send(client, SYN, &[]);
        self.syn_ack(&mut client).await;
        self.send(client, ACK, &[]);
        client
    }

    async fn accept(&mut self) -> IpstackStream {
        timeout(SOON, self.listener.accept()).await.unwrap().unwrap()
    }

    async fn accepts_nothing(&mut self) -> bool {
        timeout(SOON, self.listener.accept()).await.is_err()
    }
}

fn client(port: u16, sequence: u32) -> Client {
    Client { address: SocketAddr::from(([10, 0, 0, 1], port)), sequence, acknowledgement: 0 }
}

fn packet(client: Client, flags: u8, payload: &[u8]) -> Vec<u8> {
    let Client { address, sequence, acknowledgement } = client;
    let fields = TcpFields { sequence, acknowledgement, flags, window: u16::MAX };
    segment(address, ([10, 0, 0, 2], 80), fields, &[], payload)
}

impl Client {
    fn at(self, distance: i32) -> Self {
        Self { sequence: self.sequence.wrapping_add_signed(distance), ..self }
    }
}

#[tokio::test(start_paused = true)]
async fn accept_waits_for_the_handshake() {
    let mut net = Net::new(4);
    // A scan: the SYN-ACK gets a RST.
    let mut scan = client(4000, 1_000);
    net.send(scan, SYN, &[]);
    net.syn_ack(&mut scan).await;
    net.send(scan, RST, &[]);
    let mut client = client(4001, 9_000);
    net.send(client, SYN, &[]);
    net.syn_ack(&mut client).await;
    net.send(Client { acknowledgement: client.acknowledgement + 1, ..client }, ACK, &[]);
    // It opens nothing either.
    net.send(Client { address: ([10, 0, 0, 1], 4002).into(), ..client }, SYN | ACK, &[]);
    assert!(net.accepts_nothing().await, "no handshake is complete");
    // The SYN-ACK is lost: the repeated SYN gets it again.
    net.send(client.at(-1), SYN, &[]);
    let syn_ack = (SYN | ACK, client.acknowledgement.wrapping_sub(1), client.sequence, 0);
    assert_eq!(net.seen(client).await, [syn_ack]);
    net.send(client, ACK, b"x");
    assert_eq!(net.accept().await.read_u8().await.unwrap(), b'x');
    assert!(net.accepts_nothing().await);
}

/// A super-packet comes with a FIN. Its bytes come first, then their end, and our side is still open.
#[tokio::test(start_paused = true)]
async fn both_sides_end_after_their_bytes() {
    let mut net = Net::over(MemoryLink::offloading_pair(1500, 64), &StackConfig::default());
    let client = net.connect(4000, u32::MAX - 5_000).await;
    let mut stream = net.accept().await;
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
    let meta = PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(1460) };
    net.link.try_send(meta, &[IoSlice::new(&packet(client, ACK | PSH | FIN, &bytes))]).unwrap();
    let mut read = Vec::new();
    timeout(SOON, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(read == bytes);
    net.seen(client).await;
    stream.write_all(b"answer").await.unwrap();
    let end = client.sequence.wrapping_add(20_000);
    assert_eq!(net.seen(client).await, [(ACK | PSH, client.acknowledgement, end, 6)]);
    // The FIN waits for the acknowledgement, although nothing wakes ipstack's `shutdown` then.
    let shutdown = tokio::spawn(async move { stream.shutdown().await.map(|()| stream) });
    let client = Client { sequence: end.wrapping_add(1), acknowledgement: client.acknowledgement + 6, ..client };
    net.send(client, ACK, &[]);
    let seen = net.seen(client).await;
    assert_eq!(seen[0], (ACK | FIN, client.acknowledgement, end, 0));
    assert_eq!(seen.last(), Some(&(ACK, client.acknowledgement + 1, client.sequence, 0)), "our peer's FIN");
    shutdown.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rst_ends_reads_and_writes_and_the_port_is_free_again() {
    let mut net = Net::new(4);
    let mut client = net.connect(4000, 1_000).await;
    for _ in 0..3 {
        let mut stream = net.accept().await;
        net.send(client, RST, &[]);
        assert_eq!(
            timeout(SOON, stream.read(&mut [0; 10])).await.unwrap().unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(stream.has_failed());
        sleep(SOON).await;
        client = net.connect(4000, client.sequence.wrapping_add(0x6000_0000)).await;
    }
}

/// ipstack keeps segments beyond a gap without a limit, walks all for each packet, and stops for ever at bytes that it has
/// twice.
#[tokio::test(start_paused = true)]
async fn segments_beyond_a_gap_are_few_and_never_overlap() {
    let mut net = Net::new(4);
    let client = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    let bytes: Vec<u8> = (0..60_000_u32).map(|at| (at % 251) as u8).collect();
    for at in (2..4_000).step_by(2) {
        net.send(client.at(at), ACK | PSH, &bytes[at as usize..][..1]);
        net.send(client.at(at), ACK, &bytes[at as usize..][..20]);
    }
    assert!(!net.seen(client).await.is_empty(), "those that are dropped get ACKs");
    // All is sent again, with some bytes twice, and the first ones last.
    for at in (500..60_000).step_by(500).chain([0]) {
        net.send(client.at(at), ACK, &bytes[at as usize..][..500]);
    }
    let mut read = 0;
    let mut all = vec![0; 60_000];
    while read < all.len() {
        read += timeout(SOON, stream.read(&mut all[read..])).await.unwrap().unwrap();
        let last =
            net.seen(client).await.pop().map_or(0, |(_, _, acked, _)| acked.wrapping_sub(client.sequence)) as usize;
        for at in (last..60_000).step_by(1_400) {
            net.send(client.at(i32::try_from(at).unwrap()), ACK, &bytes[at..60_000.min(at + 1_400)]);
        }
    }
    assert!(all == bytes);
}

/// ipstack's window never closes. The adapter closes it when much is unread, and opens it again.
#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_closes_the_window() {
    let mut net = Net::new(4);
    let mut client = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    let bytes = [7; 1_400];
    let (mut sent, mut window) = (0, u16::MAX);
    while window > 0 {
        for _ in 0..40 {
            let len = window.min(1_400);
            net.send(client, ACK, &bytes[..len.into()]);
            client.sequence = client.sequence.wrapping_add(len.into());
            window -= len;
        }
        sent += 40 * bytes.len();
        assert!(sent < 8 << 20, "the window stays open");
        let acked;
        (window, acked) = net.window(client).await;
        assert_eq!(acked, client.sequence);
    }
    net.send(client, ACK, &[7]);
    assert_eq!(net.window(client).await, (0, client.sequence), "the byte is not taken");
    stream.read_exact(&mut vec![0; StackConfig::default().window / 4 * 3]).await.unwrap();
    assert_eq!(net.window(client).await, (u16::MAX, client.sequence));
}

#[tokio::test(start_paused = true)]
async fn each_workaround_is_off_when_it_is_off() {
    for (workarounds, is_on) in [(Workarounds::ALL, true), (Workarounds::NONE, false)] {
        let config = StackConfig { workarounds, ..StackConfig::default() };
        let (link, other_end) = MemoryLink::offloading_pair(1500, 64);
        let effective = Ipstack::start(link, &config).unwrap().effective;
        assert_eq!(effective.largest_packet_bytes > 1500, is_on);
        assert_eq!(effective.workarounds.len(), if is_on { 2 } else { 0 });
        drop(other_end);
        let mut net = Net::over(MemoryLink::pair(1500, 64), &config);
        net.connect(4000, 1_000).await;
        assert_eq!(net.accept().await.most == 1460, is_on);
    }
}
