//! Fuzz target: whole connections. Clients shake hands, and then send segments with changed numbers, windows, options,
//! orders and flags; the application reads, writes, closes and resets when the bytes say so.
//!
//! A byte at a sequence number is always the same, so a wrong byte can be told. At the end a new client must be served.
//! A stack that promises it must also complete each connection whose client sent nothing that may end it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a fuzz target fails by panic")]

#[path = "connection/client.rs"]
mod client;
#[path = "connection/server.rs"]
mod server;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use netstacks::{Netstack, StackConfig, Started};
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};
use platform::packet::{TcpSegment, is_checksum_right};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::time::sleep;

use self::client::{Client, State, addresses};
use self::server::{Order, Server};
use super::input::Input;

/// How many addresses the clients have, besides that of the new client at the end.
const SLOTS: usize = 4;
/// The longest time that the choices of the input take, and that the end takes.
const LONGEST: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(400);

/// The promise of a stack, whatever the clients send. Each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(dead_code, reason = "a build without some stacks does not use each")]
pub(crate) enum Promise {
    /// It runs on, and the application reads no wrong bytes. netstack-smoltcp takes its timers from the real clock, which
    /// hardly moves here, so some of its connections wait for ever.
    Lives,
    /// A new client is served.
    Serves,
    /// A connection is complete if its client has done nothing wrong.
    Delivers,
}

/// Plays clients against the stack `S` as the bytes choose.
pub(crate) fn run<S: Netstack<MemoryLink>>(bytes: &[u8], promise: Promise) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut input = Input::new(bytes);
        let shape = input.byte();
        let mut capabilities = if shape & 1 != 0 { Capabilities::offloading(1500) } else { Capabilities::plain(1500) };
        capabilities.checksum.rx = shape & 3 != 2;
        let depth = if shape & 4 != 0 { 8 } else { 64 };
        let (link, other_end) = MemoryLink::pair_of(capabilities, depth);
        let config = StackConfig {
            window: 16 << 10,
            user_timeout: Duration::from_mins(15),
            backlog: 4,
            ..StackConfig::default()
        };
        let Started { listener, datagrams, driver, .. } = S::start(link, &config).unwrap();
        let driver = tokio::spawn(driver);
        let server = Server::new(listener);
        let mut play = Play::new(other_end, server, shape, promise);
        while !input.is_empty() {
            play.step(&mut input).await;
            assert!(!driver.is_finished(), "the driver ended: {:?}", driver.await);
        }
        play.finish().await;
        assert!(!driver.is_finished(), "the driver ended: {:?}", driver.await);
        play.server.stop();
        driver.abort();
        drop((play, datagrams));
        // ipstack has to end before its runtime does.
        sleep(Duration::from_secs(10)).await;
    });
}

struct Play {
    link: MemoryLink,
    capabilities: Capabilities,
    buffers: Vec<PacketBuffer>,
    clients: Vec<Option<Client>>,
    server: Server,
    promise: Promise,
    /// The number of the next client; it is also its first byte.
    id: u8,
    /// How many packets of the stack are lost next.
    losses: u8,
    spent: Duration,
    last: Vec<u8>,
    window: u16,
}

impl Play {
    fn new(link: MemoryLink, server: Server, shape: u8, promise: Promise) -> Self {
        let capabilities = link.capabilities();
        let buffers = (0..16).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect();
        let clients = (0..=SLOTS).map(|_| None).collect();
        // A window of 0 opens by ACKs of the input, and at the end.
        let window = [u16::MAX, 3_000, u16::MAX, 0][usize::from(shape >> 3 & 3)];
        Self {
            link,
            capabilities,
            buffers,
            clients,
            server,
            promise,
            id: 0,
            losses: 0,
            spent: Duration::ZERO,
            last: Vec::new(),
            window,
        }
    }

    /// Does one thing, and takes what the stack has sent; or does the next thing in the same batch.
    async fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let slot = usize::from(choice >> 4) % SLOTS;
        match choice & 15 {
            0 => self.connect(slot, input),
            8 => self.order(slot, input),
            9 => {
                let time = Duration::from_millis(u64::from(input.word() % 2_000));
                let time = time.min(LONGEST.saturating_sub(self.spent));
                self.spent += time;
                self.receive();
                sleep(time).await;
            }
            10 => self.losses = input.byte() % 16,
            13 => {
                self.server.accept(input.byte() & 1 != 0);
                // A handshake that waits for room in the queue may time out.
                self.blame_all();
            }
            14 => {
                self.give_up(slot);
                self.connect(slot, input);
            }
            choice => self.segment(slot, choice, input),
        }
        if choice & 0x40 == 0 {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            self.receive();
        }
    }

    fn connect(&mut self, slot: usize, input: &mut Input<'_>) {
        self.id = self.id.wrapping_add(1);
        let number = u32::from(input.word()) << 16;
        let options: &[u8] = match input.byte() & 3 {
            0 => &[2, 4, 5, 0xb4],
            1 => &[2, 4, 5, 0xb4, 1, 3, 3, 0, 4, 2, 1, 1],
            2 => &[2, 4, 2, 0x18, 4, 2, 1, 1],
            _ => &[],
        };
        let mut client = Client::new(self.id, slot, number, options.to_vec(), self.window);
        client.blameless &= self.promise == Promise::Delivers && self.server.is_accepting();
        let syn = client.syn();
        self.clients[slot] = Some(client);
        self.send(&syn);
    }

    /// The client sends a RST with the number that the stack expects, and forgets the connection.
    fn give_up(&mut self, slot: usize) {
        let Some(client) = &mut self.clients[slot] else { return };
        client.state = State::Over;
        let rst = client.packet(i64::from(client.next) + i64::from(client.fin), 0, RST | ACK, &[]);
        self.send(&rst);
    }

    fn order(&mut self, slot: usize, input: &mut Input<'_>) {
        let choice = input.byte();
        let len = usize::from(input.word());
        let order = match choice & 7 {
            0 | 1 => Order::Read(len),
            2 | 3 => Order::Write(len),
            4 => Order::Shutdown,
            5 => Order::Drop,
            6 => Order::Reset,
            _ => Order::ReadAll,
        };
        self.server.order(addresses(slot).0, order);
    }

    /// The client, or somebody else in its name, sends a segment.
    fn segment(&mut self, slot: usize, choice: u8, input: &mut Input<'_>) {
        let most = if self.capabilities.segmentation.any() { 8_000 } else { 1_400 };
        let verifies = !self.capabilities.checksum.rx;
        let Some(client) = &mut self.clients[slot] else { return };
        // The RST for a bare ACK before the handshake looks like one for the SYN.
        client.blameless &= client.state != State::SynSent || !matches!(choice, 2..=4);
        let packets = match choice {
            1 => vec![client.more(1 + u32::from(input.word()) % most)],
            2 => vec![client.wild(input, most)],
            3 => vec![client.acknowledge(input)],
            4 => vec![client.finish(input)],
            5 => vec![client.reset(input)],
            6 => vec![client.syn_again(input)],
            7 => {
                let packet = mutated(&self.last, input);
                // A wrong checksum that nobody verifies, and a right one, may do anything.
                if !verifies || is_checksum_right(&packet) {
                    self.server.tolerate_wrong_bytes();
                    self.blame_all();
                }
                vec![packet]
            }
            11 => {
                client.is_silent = input.byte() & 1 != 0;
                Vec::new()
            }
            12 => client.resend(most),
            _ => client.tiny(input),
        };
        for packet in &packets {
            self.send(packet);
        }
    }

    fn blame_all(&mut self) {
        self.clients.iter_mut().flatten().for_each(|client| client.blameless = false);
    }

    /// Sends a packet as the device would hand it over. A packet that the link has no room for is lost.
    fn send(&mut self, packet: &[u8]) {
        let mut meta = PacketMeta::default();
        if self.capabilities.segmentation.any() && packet.len() > self.capabilities.mtu {
            meta = PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(1_400) };
        }
        let _lost = self.link.try_send(meta, &[IoSlice::new(packet)]);
        self.last = packet.to_vec();
    }

    /// Takes what the stack has sent; the clients react.
    fn receive(&mut self) {
        let mut replies = Vec::new();
        while let Ok(count) = self.link.try_recv(&mut self.buffers) {
            for buffer in &self.buffers[..count] {
                if self.losses > 0 {
                    self.losses -= 1;
                    continue;
                }
                let Some(segment) = TcpSegment::parse(buffer.packet()) else { continue };
                let to: Option<SocketAddr> = segment.endpoints().map(|(_, to)| to);
                let client = self.clients.iter_mut().flatten().find(|client| Some(client.address) == to);
                replies.extend(client.and_then(|client| client.receive(&segment)));
            }
        }
        for reply in &replies {
            self.send(reply);
        }
    }

    /// From now on all do what is right. All clients that are blameless must be served, and a new one.
    async fn finish(&mut self) {
        self.losses = 0;
        self.server.finish();
        self.id = self.id.wrapping_add(1);
        let mut new = Client::new(self.id, SLOTS, 0x1234_5678, vec![2, 4, 5, 0xb4], u16::MAX);
        new.blameless = self.promise >= Promise::Serves;
        new.want(3_000);
        self.clients[SLOTS] = Some(new);
        let most = if self.capabilities.segmentation.any() { 8_000 } else { 1_400 };
        let begin = tokio::time::Instant::now();
        for client in self.clients.iter_mut().flatten() {
            client.behave(self.window.max(3_000));
        }
        loop {
            self.receive();
            let now = begin.elapsed();
            let mut packets = Vec::new();
            let mut missing = Vec::new();
            for client in &mut self.clients {
                let Some(client) = client else { continue };
                packets.extend(client.due(now, most));
                let counts = client.blameless;
                missing.extend(client.missing(&self.server.record(client.id, client.address)).filter(|_| counts));
            }
            for packet in &packets {
                self.send(packet);
            }
            if missing.is_empty() {
                break;
            }
            assert!(now < PATIENCE, "not served after {PATIENCE:?}: {missing:?}");
            // At rest only timers are left to wait for.
            sleep(Duration::from_millis(if now < Duration::from_secs(2) { 20 } else { 250 })).await;
        }
    }
}

/// A packet with a few bytes changed, and its checksums left as they were.
fn mutated(packet: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for _ in 0..=input.byte() % 4 {
        let at = usize::from(input.byte());
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= input.byte();
        }
    }
    packet
}
