//! Packets whose lengths, options or fragments contradict themselves.

use super::super::segments::wrapped::PADDING;
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("options-nonsense", "MUST-7", "RFC 9293, 3.1", |lab| {
        // The end, MSS, window scale, SACK permitted, SACK, timestamps, TCP Fast Open, and an unknown one.
        const KINDS: [u8; 8] = [0, 2, 3, 4, 5, 8, 34, 77];
        const LENS: [u8; 12] = [0, 1, 2, 3, 4, 5, 9, 10, 18, 34, 40, 255];
        let (mut client, mut served) = lab.connect()?;
        // A stack may reset this one.
        let (victim, _held) = lab.connect()?;
        let options: Vec<_> = KINDS.iter().flat_map(|kind| LENS.map(|len| (*kind, len))).collect();
        for (index, (kind, len)) in options.into_iter().enumerate() {
            // The option alone at the end of the header, and in front of others.
            for options in [vec![1, 1, kind, len], vec![kind, len, 0xff, 0xff, 1, 3, 3, 14, 2, 4, 0xff, 0xff]] {
                let other = lab.client();
                other.put(Out { flags: SYN, ack: 0, options: &options, ..other.out() })?;
                victim.put(Out { options: &options, ..victim.out() })?;
                victim.put(Out { flags: ACK | PSH, options: &options, ..victim.out() })?;
            }
            if index % 16 == 15 {
                named(exchange(&mut client, &mut served), || format!("after kind {kind} and length {len}"))?;
            }
        }
        exchange(&mut client, &mut served)?;
        lab.still_serves()
    })
    .about("SYNs and segments with every length of every usual option, in and beyond the header")
    .expects("The stack does not crash or hang: another connection goes on, and new ones open."),
    Case::new("packets-cut", "ours", "RFC 1122, 3.2.1; RFC 9293, 3.1", |lab| {
        let headers_len = if lab.ipv6 { 40 } else { 0 };
        survives(lab, |packet| {
            // Half of them know their length.
            let cut = |len: usize| [packet[..len].to_vec(), with_len(&packet[..len], len.saturating_sub(headers_len))];
            (1..packet.len()).flat_map(cut).collect()
        })
    })
    .about("A segment and a SYN, cut after each of their bytes")
    .expects("They are dropped: the connection goes on, and new ones open.")
    .over_ipv6("packets-cut-ipv6", "ours", "The same over IPv6", "RFC 8200, 3; RFC 9293, 3.1"),
    Case::new("ip-length-wrong", "ours", "RFC 791, 3.1; RFC 1122, 3.2.1", |lab| {
        survives(lab, |packet| {
            let len = packet.len();
            let lens = [0, 1, 19, 20, 21, 39, 40, 41, len - 1, len + 1, len + 1000, 65_535];
            // The length of the header, in words.
            let with_words = (0..16).filter(|words| *words != 5);
            let with_words = with_words.map(|words| packets::with_ip_bytes(packet.to_vec(), 0, &[0x40 | words]));
            lens.map(|len| with_len(packet, len)).into_iter().chain(with_words).collect()
        })
    })
    .about("IPv4 packets whose lengths are too small, or more than the packet has")
    .expects("They are dropped: the connection goes on, and new ones open."),
    Case::new("ip-length-wrong-ipv6", "ours", "RFC 8200, 3", |lab| {
        survives(lab, |packet| {
            let len = packet.len() - 40;
            [0, 1, 19, 20, 21, len - 1, len + 1, len + 1000, 65_535].map(|len| with_len(packet, len)).into()
        })
    })
    .about("IPv6 packets whose payload length is too small, or more than the packet has")
    .expects("They are dropped: the connection goes on, and new ones open.")
    .ipv6(),
    Case::new("ipv4-options-nonsense", "ours", "RFC 791, 3.1; RFC 1122, 3.2.1.8", |lab| {
        // Record route, time stamp, security, source routes, stream identifier, router alert, and an unknown one.
        const KINDS: [u8; 8] = [7, 68, 130, 131, 137, 136, 148, 94];
        const LENS: [u8; 9] = [0, 1, 2, 3, 4, 7, 8, 12, 255];
        survives(lab, |packet| {
            let options = KINDS.into_iter().flat_map(|kind| LENS.map(|len| (kind, len)));
            let with_pointer = options.flat_map(|(kind, len)| [0, 4, 5, 9, 255].map(|pointer| [kind, len, pointer, 1]));
            with_pointer.map(|first| packets::with_ip_options(packet, &[&first[..], &[10, 1, 0, 3]].concat())).collect()
        })
    })
    .about("IPv4 options of every usual type with wrong lengths and pointers")
    .expects("The stack does not crash or hang: the connection goes on, and new ones open."),
    Case::new("fragments-nonsense", "ours", "RFC 1858, 2 and 3; RFC 3128", |lab| {
        survives(lab, |packet| {
            let fragment = |(offset, more, len): (u16, bool, usize)| {
                let fragment = &packet[..packet.len().min(20 + len)];
                let field = offset | u16::from(more) << 13;
                packets::with_ip_bytes(with_len(fragment, fragment.len()), 6, &field.to_be_bytes())
            };
            FRAGMENTS.map(fragment).into()
        })
    })
    .about("Fragments that overlap, lie within each other, end beyond 65,535 bytes, or have no payload")
    .expects("The stack does not crash or hang: the connection goes on, and new ones open."),
    Case::new("fragments-nonsense-ipv6", "ours", "RFC 5722, 4; RFC 8200, 4.5", |lab| {
        survives(lab, |packet| {
            let fragment = |(offset, more, len): (u16, bool, usize)| {
                let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
                let fragment = &packet[..packet.len().min(40 + len)];
                packets::with_extension(fragment, 44, &[0, 0, high, low, 8, 1, 5, 9])
            };
            FRAGMENTS.map(fragment).into()
        })
    })
    .about("The same over IPv6")
    .expects("The stack does not crash or hang: the connection goes on, and new ones open.")
    .ipv6(),
    Case::new("ipv6-header-chains", "ours", "RFC 8200, 4", |lab| {
        let chain = |packet: &[u8], number: u8, header: [u8; 8], count: usize| {
            (0..count).fold(packet.to_vec(), |packet, _| packets::with_extension(&packet, number, &header))
        };
        // These carry no data: a stack may accept a packet with many headers.
        survives(lab, |packet| {
            let packet = &packets::with_ip_bytes(packet.to_vec(), 4, &20_u16.to_be_bytes())[..60];
            let mut packets: Vec<_> = [0, 43, 44, 60].map(|number| chain(packet, number, PADDING, 170)).into();
            // A header whose length is that of the packet, and beyond it; options without an end.
            for header in [[0, 255, 1, 4, 0, 0, 0, 0], [0, 3, 1, 4, 0, 0, 0, 0], [0, 0, 1, 255, 0, 0, 0, 0]] {
                packets.extend([0, 43, 60].map(|number| packets::with_extension(packet, number, &header)));
            }
            // A routing header with hops left, and with a hop of the sender's own.
            packets.push(packets::with_extension(packet, 43, &[0, 0, 0, 255, 0, 0, 0, 0]));
            // Hop-by-hop options behind destination options.
            packets.push(chain(&chain(packet, 0, PADDING, 1), 60, PADDING, 1));
            let cut: Vec<_> = packets.iter().map(|packet| packet[..packet.len() - 25].to_vec()).collect();
            packets.extend(cut);
            packets
        })
    })
    .about("170 extension headers in a packet, and headers that are too long, cut, or in the wrong order")
    .expects("The stack does not crash or hang: the connection goes on, and new ones open.")
    .ipv6(),
];

/// Sends the packets that `make` returns for a segment and for a SYN. Checks that an open connection and new ones work.
/// The segment has bytes that the server has read already, so that a stack may take a part of it.
fn survives(lab: &mut Lab, make: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> Step {
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(120, 100);
    let old = client.packet(client.part(&bytes, 0..100));
    client.data(&bytes)?;
    served.reads(&bytes)?;
    client.acked(SOON)?;
    lab.flood(make(&old))?;
    named(exchange(&mut client, &mut served), || "after the segments".to_owned())?;
    let other = lab.client();
    lab.flood(make(&other.syn_packet(b"")))?;
    named(exchange(&mut client, &mut served), || "after the SYNs".to_owned())?;
    lab.still_serves()
}

/// Returns the packet with another length in its IP header, or without it if the header is not whole.
fn with_len(packet: &[u8], len: usize) -> Vec<u8> {
    let (at, header_len) = if packet[0] >> 4 == 6 { (4, 40) } else { (2, 20) };
    if packet.len() < header_len {
        packet.to_vec()
    } else {
        packets::with_ip_bytes(packet.to_vec(), at, &(len as u16).to_be_bytes())
    }
}

/// Offsets and flags of fragments of one packet, in units of 8 bytes, and their lengths.
const FRAGMENTS: [(u16, bool, usize); 12] = [
    (0, true, 40),
    (3, true, 8),
    (2, false, 4),
    (0, true, 24),
    (1, true, 40),
    (3, false, 40),
    (2, true, 0),
    (8191, false, 40),
    (8190, true, 64),
    (5, true, 7),
    (0, false, 16),
    (4, false, 8),
];
