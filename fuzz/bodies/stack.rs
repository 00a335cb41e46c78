//! Fuzz target: a stack takes whatever comes over its link, and goes on.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a fuzz target fails by panic")]

use std::io::IoSlice;
use std::num::NonZeroU16;
use std::time::Duration;

use netstacks::{Datagram, Datagrams, Listener, Netstack, StackConfig, Started};
use platform::vnet;
use platform::{Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::input::{self, Input};

/// Sends packets, datagrams and fragments, as the bytes choose, to the stack `S`, on which an echo server runs. Neither the
/// stack nor its driver may end. Whole connections are the target `connection`'s.
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
    last: Vec<u8>,
}

impl Peer {
    fn new(link: MemoryLink, offloading: bool) -> Self {
        let room = link.capabilities().max_packet_len;
        let buffers = (0..16).map(|_| PacketBuffer::new(room)).collect();
        Self { link, offloading, buffers, last: Vec::new() }
    }

    /// Does one thing, and takes what the stack has sent.
    async fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let packet = match choice & 3 {
            0 => input.packet(),
            1 => self.mutated(input),
            2 => datagram(choice & 4 != 0, input),
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
        while self.link.try_recv(&mut self.buffers).is_ok() {}
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
}

/// A datagram with the right lengths, or, over IPv4, a fragment of one.
fn datagram(ipv6: bool, input: &mut Input<'_>) -> Vec<u8> {
    let mut packet = if ipv6 {
        let [from, to] = [1, 2].map(|host| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
        [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &from, &to].concat()
    } else {
        vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]
    };
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
