//! Fuzz target: packets through everything in `platform` that reads or carries them beside `vnet`: the readers of headers,
//! the packets of utun, a link with faults, the trace; and the files of `/proc`.

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
    #[cfg(unix)]
    utun::run(&packets, seed);
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

#[cfg(unix)]
mod utun {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io::{self, IoSlice};

    use platform::PacketBuffer;
    use platform::fuzzing::{Calls, Packets, Slot};

    use super::MTU;

    /// A socket as XNU's sources say that it behaves; see `platform/src/utun.rs`.
    struct Socket {
        incoming: RefCell<VecDeque<Vec<u8>>>,
        outgoing: RefCell<Vec<Vec<u8>>>,
        has_many: bool,
    }

    impl Calls for Socket {
        fn receive(&self, slot: &mut Slot<'_>) -> io::Result<usize> {
            let frame = self.incoming.borrow_mut().pop_front().ok_or(io::ErrorKind::WouldBlock)?;
            let (family, packet) = frame.split_at(frame.len().min(slot.family.len()));
            slot.family[..family.len()].copy_from_slice(family);
            let len = packet.len().min(slot.storage.len());
            slot.storage[..len].copy_from_slice(&packet[..len]);
            slot.len = family.len() + len;
            Ok(slot.len)
        }

        fn receive_many(&self, slots: &mut [Slot<'_>]) -> io::Result<usize> {
            if !self.has_many {
                // EINVAL, as of a kernel that lacks the call for this kind of socket.
                return Err(io::Error::from_raw_os_error(22));
            }
            for (index, slot) in slots.iter_mut().enumerate() {
                match self.receive(slot) {
                    Ok(_) => {}
                    Err(error) if index == 0 => return Err(error),
                    Err(_) => return Ok(index),
                }
            }
            Ok(slots.len())
        }

        fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let frame: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let len = frame.len();
            self.outgoing.borrow_mut().push(frame);
            Ok(len)
        }

        fn send_many(&self, packets: &[IoSlice<'_>]) -> io::Result<usize> {
            if !self.has_many {
                return Err(io::Error::from_raw_os_error(22));
            }
            self.outgoing.borrow_mut().extend(packets.iter().map(|packet| packet.to_vec()));
            Ok(packets.len())
        }
    }

    /// Packets come out as they went in, cut to the room that there is, however they are received. Only IP packets are
    /// sent, with their family.
    pub(super) fn run(packets: &[Vec<u8>], choice: u64) {
        let socket = Socket {
            incoming: RefCell::new(packets.iter().map(|packet| [&[0, 0, 0, 2], &packet[..]].concat()).collect()),
            outgoing: RefCell::default(),
            has_many: choice & 1 != 0,
        };
        let mut ours = Packets::default();
        let mut buffers: Vec<_> = (0..=choice % 40).map(|_| PacketBuffer::new(MTU)).collect();
        let mut arrived = Vec::new();
        while let Ok(count) = ours.try_recv(&socket, &mut buffers) {
            assert!(count > 0 && count <= buffers.len());
            arrived.extend(buffers[..count].iter().map(|buffer| buffer.packet().to_vec()));
        }
        let expected: Vec<_> = packets.iter().map(|packet| packet[..packet.len().min(MTU)].to_vec()).collect();
        assert_eq!(arrived, expected);
        for packet in packets {
            let (front, back) = packet.split_at(packet.len() / 2);
            let sent = ours.try_send(&socket, &[IoSlice::new(front), IoSlice::new(back)]);
            let version = packet.first().map(|byte| byte >> 4);
            assert_eq!(sent.is_ok(), version == Some(4) || version == Some(6));
            if sent.is_ok() {
                ours.flush(&socket).unwrap();
                assert_eq!(socket.outgoing.borrow().last().unwrap()[4..], packet[..]);
            }
        }
    }
}
