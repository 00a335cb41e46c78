//! Fuzz target: whole connections. The bytes choose the moves of a play of several clients: they shake hands, and then
//! send segments with changed numbers, windows, options, orders and flags; the application reads, writes, closes and resets.
//!
//! At the end a new client must be served. A stack that promises it must also keep every invariant of random play for each
//! connection whose client sent nothing that may end it.

#![allow(clippy::panic, reason = "a fuzz target fails by panic")]

use conformance::fuzzing::{CLIENTS, Fault, Forged, Move, Offer, Opening, Script, perform_script};
use netstacks::StackKind;
use platform::Capabilities;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};

use super::input::Input;

/// The longest time that the moves take, in milliseconds.
const LONGEST_MS: u16 = 40_000;

/// Plays clients against a stack as the bytes choose.
pub(crate) fn run(stack: StackKind, bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let shape = input.byte();
    let offloads = shape & 1 != 0;
    let mut capabilities = if offloads { Capabilities::offloading(1500) } else { Capabilities::plain(1500) };
    capabilities.checksum.rx = shape & 3 != 2;
    let depth = if shape & 4 != 0 { 8 } else { 64 };
    // A window of 0 opens by ACKs of the input, and at the end.
    let window = [u16::MAX, 3_000, u16::MAX, 0][usize::from(shape >> 3 & 3)];
    let mut moves = Vec::new();
    let mut left_ms = LONGEST_MS;
    while !input.is_empty() {
        let choice = input.byte();
        let at = u16::from(choice >> 4) % CLIENTS;
        let made = moves_of(choice & 15, at, window, &mut input);
        let count = made.len();
        for (index, mut one) in made.into_iter().enumerate() {
            if let Move::Pass(ms) = &mut one {
                *ms = left_ms.min(*ms);
                left_ms -= *ms;
            }
            moves.push((at, one, index + 1 < count || choice & 0x40 != 0));
        }
    }
    let script = Script { capabilities, depth, moves };
    if let Err(broken) = perform_script(stack, &script) {
        panic!("{broken}");
    }
}

/// One thing that the client at a place, its server, or the network does.
fn moves_of(choice: u8, at: u16, window: u16, input: &mut Input<'_>) -> Vec<Move> {
    let one = match choice {
        0 => connect(at, window, input),
        1 => Move::ClientSends { len: 1 + input.word() % 8_000, cut: 1_400, ends: false, fault: Fault::Joined },
        2 => data(input),
        3 => acknowledgement(input),
        4 => end(FIN | ACK, input),
        5 => end(RST, input),
        // A SYN with any number in the middle of the connection. It gets a challenge ACK.
        6 => forged(SYN, i32::from(input.word()) << 16),
        7 => Move::Changed((0..=input.byte() % 4).map(|_| (input.byte(), input.byte())).collect()),
        8 => order(input),
        9 => Move::Pass(input.word() % 2_000),
        10 => Move::Lose(input.byte() % 16),
        11 => Move::LoseAcks(if input.byte() & 1 != 0 { u8::MAX } else { 0 }),
        12 => Move::ClientSendsAgain { cut: 1_400, fault: Fault::Joined },
        13 => Move::ServerAccepts(input.byte() & 1 != 0),
        14 => return vec![Move::ClientResets, connect(at, window, input)],
        _ => return tiny(input),
    };
    vec![one]
}

fn connect(at: u16, window: u16, input: &mut Input<'_>) -> Move {
    let isn = u32::from(input.word()) << 16;
    let (mss, scale, sack) = match input.byte() & 3 {
        0 => (Some(1_460), None, false),
        1 => (Some(1_460), Some(0), true),
        2 => (Some(536), None, true),
        _ => (None, None, false),
    };
    let offer = Offer { window, mss, scale, sack, ..Offer::default() };
    Move::Connects(Opening { ipv6: at % 2 == 1, isn, offer, loses_ack: false })
}

fn order(input: &mut Input<'_>) -> Move {
    let choice = input.byte();
    let len = input.word();
    match choice & 7 {
        0 | 1 => Move::ServerReads(len),
        2 | 3 => Move::ServerWrites(len),
        4 => Move::ServerEnds,
        5 => Move::ServerDrops,
        6 => Move::ServerResets,
        _ => Move::ServerReads(u16::MAX),
    }
}

fn forged(flags: u8, at: i32) -> Move {
    Move::ClientForges(Forged { flags, from_end: false, at, len: 0, ack: 0, window: None, options: Vec::new() })
}

/// Bytes from anywhere around the window, with any options.
fn data(input: &mut Input<'_>) -> Move {
    let at = i32::from(input.word()) - 4_096;
    let choice = input.byte();
    let options = if choice & 0x80 != 0 { words(choice & 7, input) } else { Vec::new() };
    let flags = ACK | [0, PSH, URG, PSH | URG][usize::from(choice >> 5 & 3)];
    let len = 1 + u16::from(choice & 31) * 47 % 1_400;
    Move::ClientForges(Forged { flags, from_end: false, at, len, ack: 0, window: None, options })
}

/// An ACK with any number, window and options.
fn acknowledgement(input: &mut Input<'_>) -> Move {
    let choice = input.byte();
    let ack = match choice & 3 {
        1 => -i32::from(input.word()),
        2 => i32::from(input.word()),
        _ => 0,
    };
    let window = match choice >> 2 & 3 {
        1 => Some(0),
        2 => Some(input.word()),
        3 => Some(1 + u16::from(input.byte())),
        _ => None,
    };
    let count = if choice & 0x10 == 0 { 0 } else { input.byte() % 11 };
    let options = words(count, input);
    let flags = if choice & 0x20 == 0 { ACK } else { ACK | input.byte() & (PSH | URG | 0xc0) };
    Move::ClientForges(Forged { flags, from_end: true, at: 0, len: 0, ack, window, options })
}

/// The end of the client's stream, or a FIN or RST at another place.
fn end(flags: u8, input: &mut Input<'_>) -> Move {
    let choice = input.byte();
    match (choice & 1, flags) {
        (0, RST) => Move::ClientResets,
        (0, _) => Move::ClientSends { len: 0, cut: 1, ends: true, fault: Fault::None },
        _ => forged(flags | [0, ACK][usize::from(choice >> 1 & 1)], i32::from(input.word()) - 4_096),
    }
}

/// Many segments of a byte, with holes between them.
fn tiny(input: &mut Input<'_>) -> Vec<Move> {
    let from = i32::from(input.byte());
    let count = i32::from(input.byte() & 31);
    let segment = |index| Forged {
        flags: ACK,
        from_end: false,
        at: from + 2 * index,
        len: 1,
        ack: 0,
        window: None,
        options: Vec::new(),
    };
    (0..count).map(|index| Move::ClientForges(segment(index))).collect()
}

/// So many words of four bytes, as far as there are any.
fn words(count: u8, input: &mut Input<'_>) -> Vec<u8> {
    let bytes = input.take(usize::from(count) * 4);
    bytes[..bytes.len() / 4 * 4].to_vec()
}
