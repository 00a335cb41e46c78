//! Each invariant is broken by a link that does something wrong, and shrinking finds the smallest play.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use netstacks::{StackConfig, StackCongestion, StackKind};
use platform::packet::TcpSegment;
use platform::packet::flags::{FIN, RST, SYN};
use platform::{Capabilities, Link, PacketBuffer, PacketMeta};
use tokio::runtime::Builder;

use super::play::{Fault, Move};
use super::*;
use crate::packets::with_tcp_bytes;
use crate::server::Start;
use crate::{AnyLink, Lab, Offer, link};

/// Changes a packet. `None` is a loss.
type Change = fn(Vec<u8>) -> Option<Vec<u8>>;

/// The client's end of a link that changes the packets of both directions.
struct Breaking {
    link: AnyLink,
    to_stack: Change,
    to_client: Change,
}

impl Link for Breaking {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        loop {
            self.link.try_recv(&mut buffers[..1])?;
            let meta = buffers[0].meta();
            if let Some(packet) = (self.to_client)(buffers[0].packet().to_vec()) {
                buffers[0].storage_mut()[..packet.len()].copy_from_slice(&packet);
                return buffers[0].filled(packet.len(), meta).map(|()| 1);
            }
        }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let packet = (self.to_stack)(slices.iter().flat_map(|slice| slice.to_vec()).collect());
        packet.map_or(Ok(()), |packet| self.link.try_send(meta, &[IoSlice::new(&packet)]))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

fn run(stack: StackKind) -> Run {
    let (layer, workarounds, congestion) = (Layer::Stack, netstacks::Workarounds::ALL, StackCongestion::None);
    Run { stack, program: None, layer, shards: 1, offload: false, mtu: link::MTU, workarounds, congestion, trace: None }
}

/// Performs moves on smoltcp behind a link that changes packets.
fn broken_by(moves: &[Move], to_stack: Change, to_client: Change) -> Option<Invariant> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let (links, link) = link::ends(Layer::Stack, 1, false, false, link::MTU).unwrap();
    let config = StackConfig { user_timeout: UNHURRIED.user_timeout, ..StackConfig::default() };
    let running = StackKind::Smoltcp.visit(Start { links, config }).unwrap().unwrap();
    let client = AnyLink::new(Breaking { link, to_stack, to_client });
    let mut lab = Lab::new(client, running, &run(StackKind::Smoltcp), runtime.handle(), false);
    let offer = Offer { mss: Some(536), window: 1_200, ..Offer::default() };
    let opening = Opening { ipv6: false, isn: 0x1000_0000, offer, loses_ack: false };
    let play = Play { buffers: 256 << 10, opening, moves: moves.to_vec(), server_first: false };
    let played = runtime.block_on(stage::perform(&play, &mut lab, UNHURRIED));
    played.and_then(|()| Ok(lab.finish()?)).err().map(|broken| broken.invariant)
}

fn segment(packet: &[u8]) -> TcpSegment<'_> {
    TcpSegment::parse(packet).unwrap()
}

#[test]
fn every_invariant_is_watched() {
    const SEND: Move = Move::ClientSends { len: 2_000, cut: 500, ends: false, fault: Fault::None };
    const EXCHANGE: &[Move] = &[Move::ServerWrites(3_000), SEND, Move::ServerReads(3_000), Move::Pass(500)];
    const RESET: &[Move] = &[SEND, Move::ServerResets];
    let honest: Change = Some;
    assert_eq!(broken_by(EXCHANGE, honest, honest), None);
    assert_eq!(broken_by(RESET, honest, honest), None);
    let wrong_byte: Change = |packet| {
        let Some(byte) = segment(&packet).payload().first().copied() else { return Some(packet) };
        Some(with_tcp_bytes(packet, 20, &[!byte]))
    };
    let ack_of_more: Change = |packet| {
        let ack = segment(&packet).acknowledgement();
        let is_syn = segment(&packet).flags() & SYN != 0;
        Some(if is_syn { packet } else { with_tcp_bytes(packet, 8, &ack.wrapping_add(100_000).to_be_bytes()) })
    };
    let wider_window: Change = |packet| Some(with_tcp_bytes(packet, 14, &[0xff, 0xff]));
    let larger_mss: Change = |packet| {
        let is_syn = segment(&packet).flags() & SYN != 0;
        Some(if is_syn { with_tcp_bytes(packet, 22, &[5, 0xb4]) } else { packet })
    };
    let rst_for_data: Change = |packet| {
        let is_data = !segment(&packet).payload().is_empty();
        Some(if is_data { with_tcp_bytes(packet, 13, &[RST]) } else { packet })
    };
    let no_fin: Change = |packet| Some(packet).filter(|packet| segment(packet).flags() & FIN == 0);
    let no_rst: Change = |packet| Some(packet).filter(|packet| segment(packet).flags() & RST == 0);
    let no_second_syn: Change = |packet| {
        let is_second = segment(&packet).flags() & SYN != 0 && segment(&packet).sequence() != 0x1000_0000;
        Some(packet).filter(|_| !is_second)
    };
    let wrong_checksum: Change = |mut packet| {
        packet[37] ^= 1;
        Some(packet)
    };
    for (moves, to_stack, to_client, invariant) in [
        (EXCHANGE, honest, wrong_byte, Invariant::Bytes),
        (EXCHANGE, honest, ack_of_more, Invariant::Acks),
        (EXCHANGE, wider_window, honest, Invariant::Window),
        (EXCHANGE, larger_mss, honest, Invariant::Size),
        (EXCHANGE, honest, rst_for_data, Invariant::Unasked),
        (EXCHANGE, honest, no_fin, Invariant::Progress),
        (RESET, honest, no_rst, Invariant::End),
        (EXCHANGE, no_second_syn, honest, Invariant::Freed),
        (EXCHANGE, honest, wrong_checksum, Invariant::Lives),
    ] {
        assert_eq!(broken_by(moves, to_stack, to_client), Some(invariant));
    }
}

#[test]
fn a_seed_always_draws_the_same_play() {
    let text = |seed| drawn(seed).unwrap().current().to_string();
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn a_play_shrinks_to_the_moves_that_matter() {
    let breaks = |play: &Play| {
        let writes = play.moves.iter().any(|one| matches!(one, Move::ServerWrites(1_000..)));
        let resets = play.moves.iter().any(|one| matches!(one, Move::ClientResets));
        (writes && resets).then(|| "both".to_owned())
    };
    let seed = (0..1_000).find(|seed| breaks(&drawn(*seed).unwrap().current()).is_some()).unwrap();
    let (play, what) = shrunk(seed, breaks).unwrap();
    assert_eq!(what, "both");
    let Opening { ipv6, ref offer, loses_ack, .. } = play.opening;
    assert!(!ipv6 && !offer.sack && !loses_ack && play.moves.len() == 2, "{play}");
    assert!(play.moves.iter().any(|one| matches!(one, Move::ServerWrites(1_000))), "{play}");
}

/// In tokio's time a play gives the same result each time.
#[cfg(all(feature = "lwip", feature = "smoltcp"))]
#[test]
fn lwip_and_smoltcp_keep_the_invariants() {
    for stack in [StackKind::Lwip, StackKind::Smoltcp] {
        for (case, ran) in explore(Exploration { plays: 20, seed: 1 }, &run(stack)) {
            assert_eq!(ran.outcome, Outcome::Pass, "{stack} {}", case.id);
        }
    }
}
