//! Fuzz target: a gate takes whatever comes over its link, whatever is decided.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a fuzz target fails by panic")]

use std::io::IoSlice;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use netstacks::{Admission, Gate, Unreachable};
use platform::packet::TcpSegment;
use platform::{Link, MemoryLink, PacketBuffer, PacketMeta};

use super::input::{Input, set_len};

const MTU: usize = 1500;
const REASONS: [Unreachable; 4] = [Unreachable::Network, Unreachable::Host, Unreachable::Port, Unreachable::Prohibited];

/// Hands a gate packets out of the bytes, some with the head of a packet that it looks for, and decides on each
/// request as they say. No SYN gets past it undecided, and every answer is a packet of its own length.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (link, mut peer) = MemoryLink::pair(MTU, 64);
    let (mut gated, mut gate) = netstacks::gate(link, 2);
    let answers = gate.answers();
    let mut buffers: Vec<_> = (0..4).map(|_| PacketBuffer::new(MTU)).collect();
    let (mut admitted, mut any_admitted) = (Vec::new(), false);
    while !input.is_empty() {
        let packet = packet(&mut input);
        let _full = peer.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]);
        if input.byte() & 1 != 0 {
            // The stack sends it, too.
            let _full = gated.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]);
            while peer.try_recv(&mut buffers).is_ok() {}
        }
        if let Ok(count) = gated.try_recv(&mut buffers) {
            for buffer in &buffers[..count] {
                assert!(any_admitted || !opens(buffer.packet()), "a SYN has passed: {:?}", buffer.packet());
            }
        }
        decide(&mut gate, &answers, &mut input, &mut admitted);
        any_admitted |= !admitted.is_empty();
        if input.byte() & 1 != 0 {
            admitted.drain(..).for_each(Admission::reset);
        }
        while let Ok(count) = peer.try_recv(&mut buffers) {
            for buffer in &buffers[..count] {
                assert_eq!(said_len(buffer.packet()), buffer.packet().len());
            }
        }
    }
}

/// A packet of bytes, to which the next ones give a head.
fn packet(input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.byte());
    let mut packet: Vec<u8> = (0..len.max(1)).map(|_| input.byte()).collect();
    let head: &[(usize, u8)] = match input.byte() % 6 {
        0 => &[(0, 0x45), (6, 0), (7, 0), (9, 6), (32, 0x50), (33, 0x02)],
        1 => &[(0, 0x60), (6, 6), (52, 0x50), (53, 0xc2)],
        2 => &[(0, 0x45), (6, 0), (7, 0), (9, 1), (20, 8), (21, 0)],
        3 => &[(0, 0x60), (6, 58), (40, 128), (41, 0)],
        _ => &[],
    };
    for (at, value) in head {
        if let Some(byte) = packet.get_mut(*at) {
            *byte = *value;
        }
    }
    set_len(&mut packet);
    packet
}

fn decide(gate: &mut Gate, answers: &netstacks::Answers, input: &mut Input<'_>, admitted: &mut Vec<Admission>) {
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(request)) = pin!(gate.request()).poll(&mut cx) {
        let choice = input.byte();
        let reason = REASONS[usize::from(choice >> 4) % REASONS.len()];
        answers.unreachable(request.key(), reason);
        match choice % 4 {
            0 => admitted.push(request.admit()),
            1 => request.refuse(),
            2 => request.unreachable(reason),
            _ => drop(request),
        }
    }
}

/// Whether a packet opens a connection.
fn opens(packet: &[u8]) -> bool {
    TcpSegment::parse(packet).is_some_and(|segment| segment.flags() & 0x17 == 0x02)
}

fn said_len(packet: &[u8]) -> usize {
    match packet[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
        _ => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
    }
}
