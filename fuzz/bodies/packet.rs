//! Fuzz target: packets through everything in `platform` that reads or carries them beside `vnet`: the readers of headers,
//! a link with faults, the trace; and the files of `/proc`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fuzz target fails by panic")]

use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Mutex};

use platform::packet::{PacketText, TcpSegment, Transport};
use platform::{Faulty, Impairments, Link, MemoryLink, PacketBuffer, PacketMeta, Traced};

use super::input::{self, Input};

const MTU: usize = 1500;
const FILE_HEADER_LEN: usize = 24;
const PACKET_HEADER_LEN: usize = 16;

/// Text is a file of `/proc`; other bytes are packets.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(text) = input::text(bytes) {
        return proc(text);
    }
    let mut input = Input::new(bytes);
    let impairments = impairments(&mut input);
    let seed = input.word().into();
    let mut packets = Vec::new();
    while !input.is_empty() && packets.len() < 60 {
        packets.push(input.packet());
    }
    let mut text = PacketText::default();
    for packet in &packets {
        headers(packet);
        let _described = text.line(packet);
    }
    faulty(&packets, impairments, seed);
}

/// The parts of a packet lie in it, one behind the other.
fn headers(packet: &[u8]) {
    let transport = Transport::parse(packet);
    let Some(segment) = TcpSegment::parse(packet) else { return };
    let layout = segment.layout;
    assert_eq!(transport.map(|transport| transport.at), Some(layout.tcp_at));
    assert!(layout.tcp_at + 20 <= layout.payload_at && layout.payload_at <= packet.len());
    assert_eq!(segment.payload(), &packet[layout.payload_at..]);
    let options = segment.options().as_bytes();
    assert_eq!(options.len(), layout.payload_at - layout.tcp_at - 20);
    let mut end = 0;
    for option in segment.options() {
        assert!(option.at >= end + 2 && option.at + option.value.len() <= options.len());
        end = option.at + option.value.len();
    }
    let mss = segment.options().find_map(|option| option.mss());
    assert_eq!(layout.mss_at(packet).map(|at| u16::from_be_bytes([packet[at], packet[at + 1]])), mss);
    let _unparsed = segment.endpoints();
}

fn impairments(input: &mut Input<'_>) -> Impairments {
    let mut share = || match input.byte() {
        share @ 0..=99 => u32::from(share) * 10_000,
        _ => 0,
    };
    Impairments {
        loss_ppm: share(),
        duplicate_ppm: share(),
        reorder_ppm: share(),
        corrupt_ppm: share(),
        ..Impairments::default()
    }
}

/// Every packet that was not lost arrives, and only a corrupted one is another. The trace has all that were sent.
fn faulty(packets: &[Vec<u8>], impairments: Impairments, seed: u64) {
    let (link, mut peer) = MemoryLink::pair(MTU, 64);
    let written = Written::default();
    let traced = Traced::new(link, written.clone());
    let mut faulty = Faulty::new(traced, impairments, seed);
    let counter = faulty.faults();
    let mut buffers: Vec<_> = (0..4).map(|_| PacketBuffer::new(MTU)).collect();
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    for packet in packets {
        if peer.try_send(PacketMeta::default(), &[IoSlice::new(packet)]).is_ok() {
            sent.push(packet.clone());
        }
    }
    // Packets that are held back come when the link has been found empty twice. A batch may be held back as a whole.
    let mut empty = 0;
    while empty < 3 + sent.len() {
        match faulty.try_recv(&mut buffers) {
            Ok(count) => arrived.extend(buffers[..count].iter().map(|buffer| buffer.packet().to_vec())),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                empty += 1;
            }
        }
    }
    let in_trace = sent.iter().map(|packet| PACKET_HEADER_LEN + packet.len());
    assert_eq!(written.0.lock().unwrap().len(), FILE_HEADER_LEN + in_trace.sum::<usize>());
    let counts = counter.counts();
    assert_eq!(arrived.len() as u64, sent.len() as u64 - counts.lost + counts.duplicated);
    let changed = arrived.iter().filter(|packet| !sent.contains(packet)).count() as u64;
    assert!(changed <= counts.corrupted);
    if counts == platform::FaultCounts::default() {
        assert_eq!(arrived, sent);
    }
}

/// A file in memory.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whatever a program has as its name, or an interface as its counts, is read or not.
fn proc(text: &str) {
    #[cfg(target_os = "linux")]
    for interface in ["tun0", "", "lo"] {
        assert!(platform::fuzzing::read_proc(text, interface, 100) <= 3);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = text;
}
