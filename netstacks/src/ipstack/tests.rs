//! Hostile packets, floods and ports used again, segment by segment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment, is_checksum_right};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Ipstack, IpstackListener, IpstackStream};
use crate::{Listener, Netstack, StackConfig, Stream, Workaround, Workarounds};

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
    fn new(backlog: usize, verifies: bool) -> Self {
        Self::with(backlog, verifies, Workarounds::ALL)
    }

    fn with(backlog: usize, verifies: bool, workarounds: Workarounds) -> Self {
        let mut capabilities = Capabilities::plain(1500);
        capabilities.checksum.rx = !verifies;
        let (link, other_end) = MemoryLink::pair_of(capabilities, 1 << 14);
        let config = StackConfig { backlog, workarounds, ..StackConfig::default() };
        let started = Ipstack::start(link, &config).unwrap();
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
    let headers = TcpHeaders::new(client.address, SocketAddr::from(([10, 0, 0, 2], 80))).unwrap();
    let mut bytes = [0; MAX_HEADERS_LEN];
    let Client { sequence, acknowledgement, .. } = client;
    let fields = TcpFields { sequence, acknowledgement, flags, window: u16::MAX };
    let len = headers.write(fields, &[], payload, Checksum::Filled, &mut bytes);
    [&bytes[..len], payload].concat()
}

impl Client {
    fn at(self, distance: i32) -> Self {
        Self { sequence: self.sequence.wrapping_add_signed(distance), ..self }
    }
}

async fn read_error(stream: &mut IpstackStream) -> ErrorKind {
    timeout(SOON, stream.read(&mut [0; 10])).await.unwrap().unwrap_err().kind()
}

#[tokio::test(start_paused = true)]
async fn a_port_is_used_again_at_once_after_a_reset() {
    let mut net = Net::new(4, false);
    let mut client = net.connect(4000, 1_000).await;
    for round in 1..=60_u32 {
        let mut stream = net.accept().await;
        net.send(client, ACK | PSH, b"hello!");
        stream.read_exact(&mut [0; 6]).await.unwrap();
        // The RST and the next SYN come in one batch. The new number is below or above the last ones.
        net.send(client.at(6), RST | ACK, &[]);
        client.sequence = round.wrapping_mul(0x6000_0000);
        net.send(Client { acknowledgement: 0, ..client }, SYN, &[]);
        net.syn_ack(&mut client).await;
        net.send(client, ACK, &[]);
        assert_eq!(read_error(&mut stream).await, ErrorKind::ConnectionReset, "round {round}");
        assert!(stream.has_failed());
    }
}

/// RFC 5961, 4: the client has lost its connection. The stack asks, the client resets, and its next SYN opens another.
#[tokio::test(start_paused = true)]
async fn a_client_that_vanished_connects_again() {
    let mut net = Net::new(4, false);
    let old = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    stream.write_all(&[7; 100]).await.unwrap();
    net.seen(old).await;
    let mut new = client(4000, 5_000_000);
    net.send(new, SYN, &[]);
    assert_eq!(net.seen(old).await, [(ACK, old.acknowledgement + 100, old.sequence, 0)], "the challenge");
    net.send(old, RST, &[]);
    assert_eq!(read_error(&mut stream).await, ErrorKind::ConnectionReset);
    net.send(new, SYN, &[]);
    net.syn_ack(&mut new).await;
    net.send(new, ACK | PSH, b"x");
    let mut stream = net.accept().await;
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
}

/// RFC 5961, 3.2, and RFC 9293, 3.10.7.4.
#[tokio::test(start_paused = true)]
async fn only_the_right_number_resets_or_closes() {
    let mut net = Net::new(4, false);
    let client = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    let ack = (ACK, client.acknowledgement, client.sequence, 0);
    for (distance, flags, expected) in [
        (1, RST, &[ack][..]),
        (60_000, RST | ACK, &[ack]),
        (70_000, RST, &[]),
        (-1, RST, &[]),
        (70_000, FIN | ACK, &[ack]),
        (-10, FIN | ACK, &[ack]),
    ] {
        net.send(client.at(distance), flags, &[]);
        assert_eq!(net.seen(client).await, expected, "flags {flags:x} at {distance}");
    }
    net.send(client, ACK, b"alive");
    stream.read_exact(&mut [0; 5]).await.unwrap();
    assert_eq!(net.seen(client).await, [(ACK, client.acknowledgement, client.sequence + 5, 0)]);
    net.send(client.at(5), RST, &[]);
    assert_eq!(read_error(&mut stream).await, ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_checksum_does_nothing() {
    let mut net = Net::new(4, true);
    let client = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    for flags in [RST, FIN | ACK] {
        let mut packet = packet(client, flags, &[]);
        packet[37] ^= 1;
        net.link.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    }
    assert_eq!(net.seen(client).await, []);
    net.send(client, ACK, b"alive");
    stream.read_exact(&mut [0; 5]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn accept_waits_for_the_handshake() {
    let mut net = Net::new(4, false);
    // A scan: the SYN-ACK gets a RST.
    let mut scan = client(4000, 1_000);
    net.send(scan, SYN, &[]);
    net.syn_ack(&mut scan).await;
    net.send(scan, RST, &[]);
    // A second SYN with another number takes the place of the first.
    let mut first = client(4001, 1_000);
    net.send(first, SYN, &[]);
    net.syn_ack(&mut first).await;
    let mut second = client(4001, 9_000);
    net.send(second, SYN, &[]);
    net.syn_ack(&mut second).await;
    assert!(net.accepts_nothing().await, "no handshake is complete");
    // The SYN-ACK is lost: the repeated SYN gets another.
    net.send(second.at(-1), SYN, &[]);
    let syn_ack = (SYN | ACK, second.acknowledgement.wrapping_sub(1), second.sequence, 0);
    assert_eq!(net.seen(second).await, [syn_ack]);
    net.send(second, ACK, b"x");
    assert_eq!(net.accept().await.read_u8().await.unwrap(), b'x');
    assert!(net.accepts_nothing().await);
}

/// While the accept queue is full, the ACK that completes a handshake is dropped; the connection stays half-open.
#[tokio::test(start_paused = true)]
async fn a_full_accept_queue_holds_handshakes_back() {
    let mut net = Net::new(1, false);
    let mut late = client(4001, 2_000);
    net.send(late, SYN, &[]);
    net.syn_ack(&mut late).await;
    net.connect(4000, 1_000).await;
    net.send(late, ACK, &[]);
    assert_eq!(net.seen(late).await, []);
    net.send(client(4002, 3_000), SYN, &[]);
    assert_eq!(net.seen(client(4002, 0)).await, []);
    assert_eq!(net.accept().await.peer_addr().port(), 4000);
    assert!(net.accepts_nothing().await);
    net.send(late, ACK, b"x");
    assert_eq!(net.accept().await.read_u8().await.unwrap(), b'x');
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_syns_keeps_nobody_out() {
    let mut net = Net::new(4, false);
    let mut early = client(4000, 1_000);
    net.send(early, SYN, &[]);
    net.syn_ack(&mut early).await;
    for index in 0..6_000_u16 {
        net.send(client(10_000 + index, u32::from(index) << 8), SYN, &[]);
        if index % 100 == 0 {
            net.seen(early).await;
        }
    }
    net.seen(early).await;
    net.send(early, ACK, b"x");
    let seen = net.seen(early).await;
    assert!(matches!(seen[..], [(RST, ..)]), "the oldest was forgotten: {seen:?}");
    net.connect(4000, 77_000).await;
    assert_eq!(net.accept().await.peer_addr().port(), 4000);
}

/// ipstack walks all segments that are out of order for each packet, and stops for ever at bytes that it has twice.
#[tokio::test(start_paused = true)]
async fn segments_out_of_order_are_few_and_never_overlap() {
    let mut net = Net::new(4, false);
    let client = net.connect(4000, 1_000).await;
    let mut stream = net.accept().await;
    let bytes: Vec<u8> = (0..4_020_u32).map(|at| (at % 251) as u8).collect();
    for (at, place) in (2..4_000).zip(2..).step_by(2) {
        net.send(client.at(place), ACK | PSH, &bytes[at..=at]);
        net.send(client.at(place), ACK, &bytes[at..at + 20]);
    }
    assert!(!net.seen(client).await.is_empty(), "they get ACKs");
    // All is sent again.
    for (from, place) in (0..4_000).zip(0..).step_by(1_000) {
        net.send(client.at(place), ACK, &bytes[from..from + 1_000]);
    }
    let mut all = vec![0; 4_000];
    timeout(SOON, stream.read_exact(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, bytes[..4_000]);
    let last = net.seen(client).await.pop();
    assert_eq!(last, Some((ACK, client.acknowledgement, client.sequence + 4_000, 0)));
}

/// ipstack's window never closes. The adapter closes it when much is unread, and opens it again.
#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_closes_the_window() {
    let mut net = Net::new(4, true);
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

/// All workarounds, and all but one; and whether that is on.
fn with_and_without(workaround: Workaround) -> [(Workarounds, bool); 2] {
    [(Workarounds::ALL, true), (format!("-{}", workaround.name()).parse().unwrap(), false)]
}

#[tokio::test(start_paused = true)]
async fn any_rst_ends_a_connection_without_checks() {
    for (workarounds, is_on) in with_and_without(Workaround::ChecksSegments) {
        let mut net = Net::with(4, false, workarounds);
        let client = net.connect(4000, 1_000).await;
        let stream = net.accept().await;
        net.send(client.at(70_000), RST, &[]);
        net.seen(client).await;
        assert_eq!(stream.has_failed(), !is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_checksum_does_no_harm_without_a_look() {
    for (workarounds, is_on) in with_and_without(Workaround::VerifiesChecksums) {
        let mut net = Net::with(4, true, workarounds);
        let client = net.connect(4000, 1_000).await;
        let mut stream = net.accept().await;
        let mut packet = packet(client, ACK | PSH, b"data");
        packet[37] ^= 1;
        net.link.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
        assert_eq!(timeout(SOON, stream.read_exact(&mut [0; 4])).await.is_err(), is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn the_window_stays_open_without_a_limit() {
    for (workarounds, is_on) in with_and_without(Workaround::ClosesWindow) {
        let mut net = Net::with(4, true, workarounds);
        let mut client = net.connect(4000, 1_000).await;
        let _stream = net.accept().await;
        let (mut sent, mut window) = (0, u16::MAX);
        while window > 0 && sent < 6 << 20 {
            for _ in 0..40 {
                let len = window.min(1_400);
                net.send(client, ACK, &vec![7; len.into()]);
                client.sequence = client.sequence.wrapping_add(len.into());
                window -= len;
            }
            sent += 40 * 1_400;
            (window, _) = net.window(client).await;
        }
        assert_eq!(window == 0, is_on);
    }
}

/// ipstack does not wake the task when the last byte is acknowledged.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_if_it_does_not_ask_again() {
    for (workarounds, is_on) in with_and_without(Workaround::PollsShutdown) {
        let mut net = Net::with(4, false, workarounds);
        let client = net.connect(4000, 1_000).await;
        let mut stream = net.accept().await;
        stream.write_all(&[7; 100]).await.unwrap();
        let shutdown = tokio::spawn(async move { timeout(10 * SOON, stream.shutdown()).await.is_ok() });
        net.seen(client).await;
        net.send(Client { acknowledgement: client.acknowledgement + 100, ..client }, ACK, &[]);
        assert_eq!(shutdown.await.unwrap(), is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_is_passed_on_whole() {
    for (workarounds, is_on) in with_and_without(Workaround::ShortWrites) {
        let mut net = Net::with(4, false, workarounds);
        net.connect(4000, 1_000).await;
        assert_eq!(net.accept().await.largest == 1460, is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn the_mtu_is_that_of_the_link() {
    for (workarounds, is_on) in with_and_without(Workaround::LargeMtu) {
        let (link, _other_end) = MemoryLink::offloading_pair(1500, 4);
        let config = StackConfig { workarounds, ..StackConfig::default() };
        let effective = Ipstack::start(link, &config).unwrap().effective;
        assert_eq!(effective.largest_packet_bytes > 1500, is_on);
        assert_eq!(effective.workarounds.contains(&"large-mtu".into()), is_on);
    }
}
