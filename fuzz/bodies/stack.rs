//! Fuzz target: a stack takes whatever comes over its link, and goes on.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a fuzz target fails by panic")]

use std::io::IoSlice;
use std::num::NonZeroU16;
use std::time::Duration;

use netstacks::{Datagram, Datagrams, Listener, Netstack, StackConfig, Started};
use platform::packet::TcpSegment;
use platform::vnet;
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::input::{self, Input};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Plays a peer of several connections, each of whose steps the bytes choose, against the stack `S`
/// with an echo server. Neither the stack nor its driver may end.
pub(crate) fn run<S: Netstack<MemoryLink>>(bytes: &[u8]) {
    // Time passes when nothing else does, so that timers run out as well.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut input = Input::new(bytes);
        let offloading = input.byte() & 1 != 0;
        let pair = if offloading { MemoryLink::offloading_pair } else { MemoryLink::pair };
        let (link, other_end) = pair(1500, 64);
        let config = StackConfig {
            window: 16 << 10,
            user_timeout: Duration::from_secs(5),
            backlog: 2,
            ..StackConfig::default()
        };
        let Started { mut listener, datagrams, driver, .. } = S::start(link, &config).unwrap();
        let driver = tokio::spawn(driver);
        let answers = tokio::spawn(answer(datagrams));
        let server = tokio::spawn(async move {
            let mut streams = JoinSet::new();
            loop {
                streams.spawn(echo(listener.accept().await.unwrap()));
            }
        });
        let mut peer = Peer::new(other_end, offloading);
        while !input.is_empty() {
            peer.step(&mut input).await;
            assert!(!driver.is_finished(), "the driver ended: {:?}", driver.await);
            assert!(!server.is_finished(), "the server ended: {:?}", server.await);
            assert!(!answers.is_finished(), "the server of datagrams ended: {:?}", answers.await);
        }
        // ipstack has to end before its runtime does: a stream of its own that is dropped waits for a
        // task of its own.
        for task in [driver.abort_handle(), server.abort_handle(), answers.abort_handle()] {
            task.abort();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    });
}

async fn echo(mut stream: impl netstacks::Stream) {
    let mut buffer = [0; 3_000];
    while let Ok(len) = stream.read(&mut buffer).await
        && len > 0
        && stream.write_all(&buffer[..len]).await.is_ok()
    {}
    let _reset = stream.shutdown().await;
}

async fn answer(datagrams: impl Datagrams) {
    let mut buffer = vec![0; 65_535];
    loop {
        let Datagram { len, local, peer } = datagrams.recv(&mut buffer).await.unwrap();
        // The link may be full, or the datagram too long to be sent back.
        let _lost = datagrams.try_send(local, peer, &buffer[..len]);
    }
}

struct Peer {
    link: MemoryLink,
    offloading: bool,
    buffers: Vec<PacketBuffer>,
    flows: [Side; 4],
    last: Vec<u8>,
}

/// The peer's side of a connection.
#[derive(Clone, Copy, Default)]
struct Side {
    sequence: u32,
    acknowledgement: u32,
}

impl Peer {
    fn new(link: MemoryLink, offloading: bool) -> Self {
        let room = link.capabilities().max_packet_len;
        let buffers = (0..16).map(|_| PacketBuffer::new(room)).collect();
        Self { link, offloading, buffers, flows: Default::default(), last: Vec::new() }
    }

    /// Takes what the stack has sent, and does one thing.
    async fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let flow = usize::from(choice >> 3) % self.flows.len();
        let packet = match choice & 7 {
            0 => self.compose(flow, SYN, input, 0),
            1 => self.compose(flow, ACK, input, 0),
            2 => {
                let len = usize::from(input.word()) % 3_000;
                self.compose(flow, ACK, input, len)
            }
            3 => self.compose(flow, FIN | ACK, input, 0),
            4 => self.compose(flow, RST | ACK, input, 0),
            5 => input.packet(),
            6 => self.mutated(input),
            7 if choice & 0x80 != 0 => datagram(flow, input),
            _ => {
                tokio::time::sleep(Duration::from_millis(u64::from(input.word()))).await;
                Vec::new()
            }
        };
        self.send(&packet, input);
        self.last = packet;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.receive();
    }

    fn mutated(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut packet = self.last.clone();
        for _ in 0..input.byte() % 4 {
            let at = usize::from(input.byte());
            if let Some(byte) = packet.get_mut(at) {
                *byte ^= input.byte();
            }
        }
        packet
    }

    /// A segment that is in order, unless the input has it a little off.
    fn compose(&mut self, flow: usize, flags: u8, input: &mut Input<'_>, len: usize) -> Vec<u8> {
        let ipv6 = flow & 1 != 0;
        let twist = input.byte();
        let options: &[u8] = match twist & 3 {
            1 => &[2, 4, 5, 0xb4],
            2 => {
                let words = usize::from(input.byte() % 11);
                input.take(words * 4)
            }
            _ => &[],
        };
        let options = &options[..options.len() / 4 * 4];
        let off = if twist & 0x1c == 0x1c { u32::from(input.word()).wrapping_sub(0x8000) } else { 0 };
        let window = if twist & 0xe0 == 0xe0 { input.word() } else { 0xffff };
        let side = &mut self.flows[flow];
        if flags & SYN != 0 {
            *side = Side { sequence: u32::from(input.word()) << 16, acknowledgement: 0 };
        }
        let mut packet = ip_header(ipv6, 6);
        packet.extend((40_000 + flow as u16).to_be_bytes());
        packet.extend(80_u16.to_be_bytes());
        packet.extend(side.sequence.wrapping_add(off).to_be_bytes());
        packet.extend(side.acknowledgement.to_be_bytes());
        packet.extend([((5 + options.len() / 4) << 4) as u8, flags]);
        packet.extend(window.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(options);
        packet.resize(packet.len() + len, twist);
        if off == 0 {
            side.sequence = side.sequence.wrapping_add(len as u32 + u32::from(flags & (SYN | FIN) != 0));
        }
        input::set_len(&mut packet);
        input::set_header_checksum(&mut packet);
        packet
    }

    /// Sends a packet as the device would hand it over.
    fn send(&mut self, packet: &[u8], input: &mut Input<'_>) {
        let mut meta = PacketMeta::default();
        if self.offloading {
            let gso_size = NonZeroU16::new(input.word() % 1_461).filter(|_| packet.len() > 100);
            let wanted = PacketMeta { checksum: Checksum::Partial, gso_size };
            let Ok(header) = vnet::write(wanted, packet).or_else(|_| vnet::write(meta, packet)) else { return };
            let Ok(read) = vnet::read(&header, packet) else { return };
            meta = read;
        }
        // What is too long for the link, or does not fit into the queue, is lost.
        let _lost = self.link.try_send(meta, &[IoSlice::new(packet)]);
    }

    fn receive(&mut self) {
        while let Ok(count) = self.link.try_recv(&mut self.buffers) {
            for buffer in &self.buffers[..count] {
                let packet = buffer.packet();
                // It may send ICMP as well.
                let Some(segment) = TcpSegment::parse(packet) else { continue };
                let port = segment.destination_port();
                let Some(side) = self.flows.get_mut(usize::from(port.wrapping_sub(40_000))) else { continue };
                let len = segment.payload().len() as u32 + u32::from(segment.flags() & (SYN | FIN) != 0);
                side.acknowledgement = segment.sequence().wrapping_add(len);
            }
        }
    }
}

/// An IP header without its length and checksum.
fn ip_header(ipv6: bool, protocol: u8) -> Vec<u8> {
    if !ipv6 {
        return vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    }
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
    ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    ip
}

/// A datagram with the right lengths, or, over IPv4, a fragment of one.
fn datagram(flow: usize, input: &mut Input<'_>) -> Vec<u8> {
    let ipv6 = flow & 1 != 0;
    let mut packet = ip_header(ipv6, 17);
    let len = usize::from(input.word()) % 1_473;
    packet.extend((50_000 + u16::from(input.byte())).to_be_bytes());
    packet.extend(53_u16.to_be_bytes());
    packet.extend((8 + len as u16).to_be_bytes());
    packet.extend([0xbe, 0xef]);
    packet.resize(packet.len() + len, 7);
    let shape = input.byte();
    if !ipv6 && shape & 3 == 3 {
        // At a multiple of 8 bytes, more to come or not.
        let field = (u16::from(shape & 0x20) << 8) | (u16::from(shape >> 6) * 93);
        packet.truncate(20 + (packet.len() - 20) / 8 * 8);
        packet[6..8].copy_from_slice(&field.to_be_bytes());
    }
    input::set_len(&mut packet);
    input::set_header_checksum(&mut packet);
    packet
}
