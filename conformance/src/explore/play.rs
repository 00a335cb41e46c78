//! The moves of a play, and how they are drawn at random.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::select;

use crate::Offer;

/// The most moves of a play. Each play also has an end, in which the client does all that it owes.
const MOST_MOVES: usize = 16;

/// A play: how the connection begins, its moves, and how it ends.
#[derive(Clone, Debug)]
pub(super) struct Play {
    /// The stack's buffers, in bytes.
    pub(super) buffers: usize,
    pub(super) opening: Opening,
    pub(super) moves: Vec<Move>,
    /// Which half ends first, if the moves leave both open.
    pub(super) server_first: bool,
}

/// How a connection begins.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Whether it is over IPv6.
    pub ipv6: bool,
    /// The sequence number of the SYN.
    pub isn: u32,
    /// The SYN. Its window is that of the client, in bytes.
    pub offer: Offer,
    /// The ACK of the handshake is lost, and the next segment takes its place.
    pub loses_ack: bool,
}

/// A move of the client, of the server above the stack, or of the network between them.
#[allow(missing_docs, reason = "the text of each says what it does")]
#[derive(Clone, Debug)]
pub enum Move {
    ServerWrites(u16),
    ServerReads(u16),
    ServerEnds,
    ServerDrops,
    ServerResets,
    /// The client sends new bytes, as far as the stack's window allows, and its FIN if `ends`. Without either this is an ACK.
    ClientSends {
        len: u16,
        cut: u16,
        ends: bool,
        fault: Fault,
    },
    /// The client sends all that is not acknowledged once more, cut anew.
    ClientSendsAgain {
        cut: u16,
        fault: Fault,
    },
    ClientStopsReading,
    ClientReads,
    ClientResets,
    ClientVanishes,
    /// So many of the client's ACKs are lost.
    LoseAcks(u8),
    /// So many packets of the stack are lost.
    Lose(u8),
    /// The stack's next packet arrives after the one that follows it.
    Overtake,
    /// In milliseconds.
    Pass(u16),
    // The moves from here on are not drawn.
    /// A new client begins, in the place of the one before.
    Connects(Opening),
    ClientForges(Forged),
    /// The last packet of the client comes again with changed bytes: their places, and the bits that flip.
    Changed(Vec<(u8, u8)>),
    ServerAccepts(bool),
}

/// A segment with any numbers and flags. Its bytes are those of the stream.
#[derive(Clone, Debug)]
pub struct Forged {
    /// Its flags.
    pub flags: u8,
    /// Its place: from the end of what the client has sent, or else from what is acknowledged.
    pub from_end: bool,
    /// How far it is from there.
    pub at: i32,
    /// The length of its payload.
    pub len: u16,
    /// How far its acknowledgement is from the right one.
    pub ack: i32,
    /// Its window field, if it is not the right one.
    pub window: Option<u16>,
    /// Its options: a multiple of four bytes.
    pub options: Vec<u8>,
}

/// What the network does to one of several segments of the client, by its index.
#[allow(missing_docs, reason = "the text of each says what it does")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Lost(u8),
    Twice(u8),
    /// It arrives after all others.
    Late(u8),
    /// All segments arrive in reverse order.
    Reversed,
    /// A bit of it is flipped.
    Damaged(u8, u16),
    /// All segments arrive as a super-packet, if the link takes one. It is not drawn.
    Joined,
}

/// Draws a play.
pub(super) fn plays() -> impl Strategy<Value = Play> {
    let options =
        (select(&[Some(1460), Some(536), Some(1220), None][..]), select(&[None, Some(0), Some(3), Some(7)][..]));
    let begin = (
        any::<bool>(),
        select(&[256 << 10, 16 << 10, 4 << 10][..]),
        select(&[0x1000_0000, 0xffff_fc00, 0x7fff_fc00][..]),
        options,
        any::<bool>(),
        select(&[65_535, 8_000, 3_000, 1_200][..]),
        any::<bool>(),
    );
    // A play shrinks from the front. A move less saves more than a smaller number.
    (vec(moves(), 0..=MOST_MOVES), begin, any::<bool>()).prop_map(|(moves, begin, server_first)| {
        let (ipv6, buffers, isn, (mss, scale), sack, window, loses_ack) = begin;
        let offer = Offer { window, mss, scale, sack, ..Offer::default() };
        Play { buffers, opening: Opening { ipv6, isn, offer, loses_ack }, moves, server_first }
    })
}

fn moves() -> impl Strategy<Value = Move> {
    let cut = || select(&[1_000_u16, 1_460, 300, 50][..]);
    let sends = (0..6_000_u16, cut(), prop_oneof![7 => Just(false), 1 => Just(true)], faults());
    prop_oneof![
        2 => (1..300_u16).prop_map(Move::Pass),
        5 => (1..6_000_u16).prop_map(Move::ServerWrites),
        4 => (1..6_000_u16).prop_map(Move::ServerReads),
        8 => sends.prop_map(|(len, cut, ends, fault)| Move::ClientSends { len, cut, ends, fault }),
        3 => (cut(), faults()).prop_map(|(cut, fault)| Move::ClientSendsAgain { cut, fault }),
        1 => Just(Move::ClientStopsReading),
        1 => Just(Move::ClientReads),
        1 => (1..4_u8).prop_map(Move::LoseAcks),
        2 => (1..4_u8).prop_map(Move::Lose),
        1 => Just(Move::Overtake),
        1 => Just(Move::ServerEnds),
        1 => prop_oneof![
            Just(Move::ServerDrops),
            Just(Move::ServerResets),
            Just(Move::ClientResets),
            Just(Move::ClientVanishes),
        ],
    ]
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => (0..6_u8).prop_map(Fault::Lost),
        1 => (0..6_u8).prop_map(Fault::Twice),
        1 => (0..6_u8).prop_map(Fault::Late),
        1 => Just(Fault::Reversed),
        1 => (0..6_u8, any::<u16>()).prop_map(|(index, bit)| Fault::Damaged(index, bit)),
    ]
}

/// The play as text: a line for its begin, one for each move, and one for its end.
impl fmt::Display for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, opening, .. } = self;
        write!(f, "lab: IPv{}, buffers of {buffers} bytes; {opening}", if opening.ipv6 { 6 } else { 4 })?;
        if opening.loses_ack {
            write!(f, ";\nnetwork: loses the ACK of the handshake")?;
        }
        for one in &self.moves {
            write!(f, ";\n{one}")?;
        }
        let first = if self.server_first { "server" } else { "client" };
        write!(f, ";\nthen nothing is lost, both read everything, and the {first} ends first")
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { isn, offer: Offer { window, mss, scale, sack, .. }, .. } = self;
        let option = |name: &str, value: Option<u16>| {
            value.map_or_else(|| format!("no {name}"), |value| format!("{name} {value}"))
        };
        let (mss, scale) = (option("MSS", *mss), option("scale", scale.map(u16::from)));
        write!(f, "SYN number {isn:#x}, {mss}, {scale}, {}, window {window}", if *sack { "SACK" } else { "no SACK" })
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerWrites(len) => write!(f, "served: writes {len} bytes"),
            Self::ServerReads(len) => write!(f, "served: reads {len} bytes"),
            Self::ServerEnds => write!(f, "served: shutdown"),
            Self::ServerDrops => write!(f, "served: drop"),
            Self::ServerResets => write!(f, "served: reset"),
            Self::ClientSends { len: 0, ends: false, fault, .. } => write!(f, "client: ack{fault}"),
            Self::ClientSends { len: 0, ends: true, fault, .. } => write!(f, "client: fin{fault}"),
            Self::ClientSends { len, cut, ends, fault } => {
                let fin = if *ends { " and FIN" } else { "" };
                write!(f, "client: data, {len} bytes{fin} in segments of {cut}{fault}")
            }
            Self::ClientSendsAgain { cut, fault } => {
                write!(f, "client: data that is not acknowledged again, in segments of {cut}{fault}")
            }
            Self::ClientStopsReading => write!(f, "client: stops reading, so its window closes"),
            Self::ClientReads => write!(f, "client: reads again"),
            Self::ClientResets => write!(f, "client: rst"),
            Self::ClientVanishes => write!(f, "client: vanishes"),
            Self::LoseAcks(count) => write!(f, "network: loses the client's next {count} ACKs"),
            Self::Lose(count) => write!(f, "network: loses the stack's next {count} packets"),
            Self::Overtake => write!(f, "network: delivers the stack's next packet after the one that follows"),
            Self::Pass(ms) => write!(f, "{ms} ms pass"),
            Self::Connects(opening) => write!(f, "client: {opening}"),
            Self::ClientForges(forged) => write!(f, "client: {forged:?}"),
            Self::Changed(bytes) => write!(f, "client: its last packet again, with changed bytes {bytes:?}"),
            Self::ServerAccepts(accepts) => write!(f, "server: accepts connections: {accepts}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Lost(index) => write!(f, ", segment {index} is lost"),
            Self::Twice(index) => write!(f, ", segment {index} arrives twice"),
            Self::Late(index) => write!(f, ", segment {index} arrives last"),
            Self::Reversed => write!(f, ", they arrive in reverse order"),
            Self::Damaged(index, bit) => write!(f, ", bit {bit} of segment {index} is flipped"),
            Self::Joined => write!(f, ", they arrive joined"),
        }
    }
}
