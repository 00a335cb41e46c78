//! Measures how much one client that misbehaves slows down another. Both share a link in memory. The other client
//! connects, or sends a byte and waits for the answer.
//!
//!     cargo bench -p rust-tun-perf-netstacks --bench beside
//!     cargo bench -p rust-tun-perf-netstacks --bench beside -- smoltcp
//!
//! Each stack has two limits, and the bench ends with code 1 if a stack misses one:
//!
//! - at least 95 of 100 connections succeed within a second;
//! - the 99th percentile of the answers is at most five times as high as without the client that misbehaves, by the
//!   median of several rounds.
//!
//! The client that misbehaves sends at a fixed rate: if it filled the link, no stack could help the other one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may panic")]

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netstacks::peer::{Peers, SharedLink};
use netstacks::{Listener, Netstack, StackConfig, StackKind, Started, Visitor};
use platform::packet::flags::{ACK, PSH, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 80);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The port of the misbehaving client, an even one.
const BAD_PORT: u16 = 1000;

/// Each round is one measurement without the other client and one beside it.
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);
const CONNECTIONS: usize = 100;
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(1);

const LEAST_CONNECTED: usize = 95;
const HIGHEST_RATIO: f64 = 5.0;

/// How the other client misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// SYNs from addresses that never answer.
    Syns,
    /// A SYN, and a RST for the SYN-ACK.
    Scan,
    /// Segments of one byte at every second byte of the window.
    Holes,
    /// The same segment of a byte, which was acknowledged long ago.
    Old,
    /// RSTs within the window, but not at its edge.
    Resets,
    /// Acknowledgements of bytes that were never sent.
    Acks,
}

impl Bad {
    const ALL: [Self; 6] = [Self::Syns, Self::Scan, Self::Holes, Self::Old, Self::Resets, Self::Acks];

    /// Packets a second.
    fn rate(self) -> u32 {
        match self {
            Self::Syns | Self::Scan => 5_000,
            Self::Holes | Self::Old | Self::Resets | Self::Acks => 20_000,
        }
    }
}

/// The link's end of the misbehaving client.
struct Rogue {
    bad: Bad,
    link: SharedLink<MemoryLink>,
    batch: [PacketBuffer; 1],
    /// Our next number and the stack's.
    sequence: u32,
    acknowledgement: u32,
    sent: u32,
}

impl Rogue {
    fn new(bad: Bad, link: SharedLink<MemoryLink>) -> Self {
        let batch = [PacketBuffer::new(link.capabilities().max_packet_len)];
        Self { bad, link, batch, sequence: 7, acknowledgement: 0, sent: 0 }
    }

    fn send(&mut self, from: (Ipv4Addr, u16), fields: TcpFields, payload: &[u8]) {
        let mut headers = [0; MAX_HEADERS_LEN];
        let template = TcpHeaders::new(from.into(), SERVER).unwrap();
        let len = template.write(fields, &[], payload, Checksum::Filled, &mut headers);
        // A full link loses the packet.
        let _lost = self.link.try_send(PacketMeta::default(), &[IoSlice::new(&headers[..len]), IoSlice::new(payload)]);
    }

    fn fields(&self, offset: u32, flags: u8) -> TcpFields {
        let (sequence, acknowledgement) = (self.sequence.wrapping_add(offset), self.acknowledgement);
        TcpFields { sequence, acknowledgement, flags, window: u16::MAX }
    }

    /// Receives all packets. Returns the number and the acknowledgement of the last SYN-ACK.
    fn receive(&mut self) -> Option<(u32, u32)> {
        let mut seen = None;
        while self.link.try_recv(&mut self.batch).is_ok() {
            if let Some(segment) = TcpSegment::parse(self.batch[0].packet())
                && segment.flags() & SYN != 0
            {
                seen = Some((segment.sequence(), segment.acknowledgement()));
            }
        }
        seen
    }

    /// Opens the connection on which it misbehaves, if it needs one.
    fn open(&mut self) {
        if matches!(self.bad, Bad::Syns | Bad::Scan) {
            return;
        }
        let from = (CLIENT, BAD_PORT);
        self.send(from, self.fields(0, SYN), &[]);
        self.link.flush().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let (number, acknowledgement) = loop {
            if let Some(seen) = self.receive() {
                break seen;
            }
            assert!(Instant::now() < deadline, "no SYN-ACK");
            thread::sleep(Duration::from_millis(1));
        };
        (self.sequence, self.acknowledgement) = (acknowledgement, number.wrapping_add(1));
        self.send(from, self.fields(0, ACK | PSH), b"a");
        self.sequence = self.sequence.wrapping_add(1);
        self.link.flush().unwrap();
    }

    /// Sends one packet of its kind.
    fn misbehave(&mut self) {
        let (index, from) = (self.sent, (CLIENT, BAD_PORT));
        self.sent = self.sent.wrapping_add(1);
        match self.bad {
            Bad::Syns => {
                let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 8, 0, 0)) | (index % (1 << 18)));
                self.send((address, 10_000), TcpFields { flags: SYN, ..self.fields(0, SYN) }, &[]);
            }
            Bad::Scan => {
                if let Some((_, acknowledgement)) = self.receive() {
                    self.send(from, TcpFields { sequence: acknowledgement, flags: RST, ..TcpFields::default() }, &[]);
                }
                self.send(from, TcpFields { sequence: index << 12, ..self.fields(0, SYN) }, &[]);
            }
            Bad::Holes => self.send(from, self.fields(1 + 2 * (index % 30_000), ACK | PSH), b"b"),
            Bad::Old => self.send(from, self.fields(u32::MAX, ACK | PSH), b"a"),
            Bad::Resets => self.send(from, self.fields(100 + index % 30_000, RST), &[]),
            Bad::Acks => {
                let fields = self.fields(0, ACK);
                let acknowledgement = fields.acknowledgement.wrapping_add(1000 + index % 30_000);
                self.send(from, TcpFields { acknowledgement, ..fields }, &[]);
            }
        }
    }

    /// Misbehaves at its rate until the end.
    fn run(mut self, end: &AtomicBool) -> u32 {
        let start = Instant::now();
        while !end.load(Ordering::Relaxed) {
            let due = (start.elapsed().as_secs_f64() * f64::from(self.bad.rate())) as u32;
            while self.sent < due {
                self.misbehave();
            }
            self.link.flush().unwrap();
            let _counted_above = self.receive();
            thread::sleep(Duration::from_millis(1));
        }
        self.sent
    }
}

/// Runs a stack with an echo server until the other end of the link goes.
fn serve<S: Netstack<MemoryLink>>(link: MemoryLink) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let Started { mut listener, driver, .. } = S::start(link, &StackConfig::default()).unwrap();
        tokio::spawn(async move {
            while let Ok(mut stream) = listener.accept().await {
                tokio::spawn(async move {
                    let mut byte = [0; 1];
                    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
                });
            }
        });
        let ended = driver.await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::BrokenPipe, "the stack ended: {ended}");
    });
}

/// The client that behaves, at the odd ports.
type Good = Peers<SharedLink<MemoryLink>>;

/// Connects again and again. Returns the times of the connections that had an answer within a second.
fn connect(mut good: Good) -> Vec<Duration> {
    let mut times = Vec::new();
    for slot in 0..CONNECTIONS {
        let start = Instant::now();
        if good.connect(slot, SERVER).and_then(|()| exchange(&mut good, slot)).is_ok() {
            times.push(start.elapsed());
        }
        thread::sleep(BETWEEN_CONNECTIONS);
    }
    times
}

/// Sends a byte and waits for the answer, for a second.
fn exchange(good: &mut Good, slot: usize) -> io::Result<()> {
    let (begin, mut is_sent, mut ready) = (Instant::now(), false, Vec::new());
    while begin.elapsed() < PATIENCE {
        let moved =
            if is_sent || !good.is_connected(slot) { good.read(slot, &mut [0]) } else { good.write(slot, b"x") };
        match moved {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if is_sent => return Ok(()),
            Ok(_) => is_sent = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => good.wait(PATIENCE, &mut ready)?,
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Asks for one byte after another. Returns the time of each answer.
fn request(mut good: Good) -> Vec<Duration> {
    good.connect(0, SERVER).expect("a free port");
    exchange(&mut good, 0).expect("the first request");
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < ROUND {
        let start = Instant::now();
        exchange(&mut good, 0).expect("an answer within a second");
        times.push(start.elapsed());
    }
    times
}

/// Runs a client that behaves beside one that does not, or alone. Returns the times of its work.
fn beside<S: Netstack<MemoryLink>>(bad: Option<Bad>, work: impl FnOnce(Good) -> Vec<Duration>) -> Vec<Duration> {
    let (near, far) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let mut ends = SharedLink::split_evenly(far, 2);
    let (good, rogue) = (Peers::sharing(ends.remove(1), CLIENT.into(), 1, 2), ends.remove(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| serve::<S>(near));
        let rogue = bad.map(|bad| {
            let mut rogue = Rogue::new(bad, rogue);
            rogue.open();
            let is_over = &is_over;
            scope.spawn(move || rogue.run(is_over))
        });
        let times = work(good);
        is_over.store(true, Ordering::Relaxed);
        let sent = rogue.map(|rogue| rogue.join().unwrap());
        assert!(sent != Some(0), "the other client sent nothing");
        server.join().unwrap();
        times
    })
}

fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times.get(times.len() * percent / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

struct Judge {
    stack: StackKind,
}

impl Visitor<MemoryLink> for Judge {
    type Output = bool;

    fn visit<S: Netstack<MemoryLink>>(self) -> bool {
        let Self { stack } = self;
        let mut is_good = true;
        for bad in [Bad::Syns, Bad::Scan] {
            let mut times = beside::<S>(Some(bad), connect);
            let connected = times.len();
            let p50 = percentile(&mut times, 50);
            println!(
                "{stack:<16} {bad:<7?} {connected:>3} of {CONNECTIONS} connected within a second, p50 {p50:.0} µs"
            );
            is_good &= connected >= LEAST_CONNECTED;
        }
        for bad in Bad::ALL {
            let p99 = |bad| percentile(&mut beside::<S>(bad, request), 99);
            let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (p99(None), p99(Some(bad)))).collect();
            rounds.sort_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
            let (alone, besides) = rounds[ROUNDS / 2];
            let ratio = besides / alone;
            println!("{stack:<16} {bad:<7?} p99 {alone:>6.0} µs alone, {besides:>6.0} µs beside it: {ratio:.1} times");
            is_good &= ratio <= HIGHEST_RATIO;
        }
        is_good
    }
}

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let stacks = [StackKind::Lwip, StackKind::Smoltcp, StackKind::Ipstack];
    let chosen = stacks.into_iter().filter(|stack| wanted.as_ref().is_none_or(|name| stack.name() == name));
    // A stack that is not compiled in has no figure.
    let bad: Vec<_> = chosen.filter(|stack| stack.visit(Judge { stack: *stack }) == Ok(false)).collect();
    if !bad.is_empty() {
        println!("over the limits: {}", bad.iter().map(|stack| stack.name()).collect::<Vec<_>>().join(", "));
        std::process::exit(1);
    }
}
