//! ICMP echo, and the names of hosts.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::Instant;

use socket2::{Protocol, SockAddr, Socket, Type};

use super::ends::NO_ROUTE;
use super::lab::{Lab, SOON, TRIES, datagram, receive, send, stuck, words};
use super::{Manner, Of};
use crate::{Step, Stop, same};

const QUERIES: &str = "MUST RFC 5508, 3.1: queries and their answers pass";
const NAMES: &str = "MUST RFC 7766, 5: DNS is over UDP and TCP";

pub(super) const CASES: &[Manner] = &[
    Manner::new("ping", QUERIES, Of::Packets, ping).expects("An ICMP echo request of the client is answered."),
    Manner::new("ping-fragments", QUERIES, Of::Packets, ping_fragments)
        .expects("An ICMP echo request of 3,000 bytes, in fragments, is answered."),
    Manner::new("ping-nobody", "ours", Of::Packets, ping_nobody)
        .expects("Nobody answers for a host that is not there."),
    Manner::new("dns-udp", NAMES, Of::Udp, dns_udp)
        .expects("A question to a name server is answered over UDP, at port 53."),
    Manner::new("dns-tcp", NAMES, Of::All, dns_tcp)
        .expects("A question to a name server is answered over TCP, at port 53."),
];

const DNS: u16 = 53;

/// Sends an echo request and returns the answer's payload, or nothing in time.
fn echo(lab: &Lab<'_>, to: SocketAddr, len: usize) -> io::Result<Option<Vec<u8>>> {
    let is_ipv6 = to.is_ipv6();
    let protocol = if is_ipv6 { Protocol::ICMPV6 } else { Protocol::ICMPV4 };
    let socket = Socket::new(lab.domain(), Type::RAW, Some(protocol))?;
    socket.set_read_timeout(Some(SOON))?;
    let (request, answer, header_len) = if is_ipv6 { (128, 129, 0) } else { (8, 0, 20) };
    let mut packet = vec![0; 8 + len];
    packet[0] = request;
    packet[4..8].copy_from_slice(b"rt\0\x01");
    packet[8..].fill(b'x');
    if !is_ipv6 {
        // The kernel computes that of ICMPv6 (RFC 3542, 3.1).
        let sum = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
        let sum = sum.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        packet[2..4].copy_from_slice(&(!((sum + (sum >> 16)) as u16)).to_be_bytes());
    }
    socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0)))?;
    let begun = Instant::now();
    let mut buffer = vec![0; 8192];
    while begun.elapsed() < SOON {
        let Ok(got) = (&socket).read(&mut buffer) else { break };
        let Some(echo) = buffer.get(header_len..got).filter(|echo| echo.len() >= 8) else { continue };
        if echo[0] == answer && echo[4..8] == packet[4..8] {
            return Ok(Some(echo[8..].to_vec()));
        }
    }
    Ok(None)
}

fn answers(lab: &Lab<'_>, len: usize) -> Step {
    for _ in 0..TRIES {
        match echo(lab, lab.server(0), len) {
            Ok(Some(payload)) => return same(&payload, &vec![b'x'; len]),
            Ok(None) => {}
            Err(error) => return fail!("the echo request: {}", words(&error)),
        }
    }
    fail!(Hang, "no answer came, {TRIES} times for {} s", SOON.as_secs())
}

fn ping(lab: &mut Lab<'_>) -> Step {
    answers(lab, 56)
}

fn ping_fragments(lab: &mut Lab<'_>) -> Step {
    answers(lab, 3000)
}

fn ping_nobody(lab: &mut Lab<'_>) -> Step {
    let Some(nobody) = lab.nobody else { return Err(Stop::NotApplicable(NO_ROUTE.to_owned())) };
    match echo(lab, SocketAddr::new(nobody, 0), 56) {
        Ok(Some(_)) => fail!(Data, "an answer came for a host that is not there"),
        // An error is an answer of the network, and no echo.
        Ok(None) | Err(_) => Ok(()),
    }
}

/// A question for the address of `test.`, and its answer (RFC 1035, 4).
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04test\0\0\x01\0\x01";
const ANSWER: &[u8] =
    b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0\x04test\0\0\x01\0\x01\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01";

fn dns_udp(lab: &mut Lab<'_>) -> Step {
    let (client, [server]) = lab.datagrams([(0, DNS)])?;
    let mut buffer = [0; 512];
    for attempt in 1..=TRIES {
        client.send_to(QUESTION, lab.server(DNS)).map_err(stuck("the question"))?;
        let asked = datagram(&server, &mut buffer, "the name server").and_then(|(len, from)| {
            same(&buffer[..len], QUESTION)?;
            server.send_to(ANSWER, from).map_err(stuck("the answer"))?;
            let (len, _) = datagram(&client, &mut buffer, "the client")?;
            same(&buffer[..len], ANSWER)
        });
        if asked.is_ok() || attempt == TRIES {
            return asked;
        }
    }
    Ok(())
}

fn dns_tcp(lab: &mut Lab<'_>) -> Step {
    let listener = lab.listen_on(DNS, 16)?;
    let mut pair = lab.pair_to(&listener)?;
    // A length of two bytes is before each message (RFC 1035, 4.2.2).
    let framed = |message: &[u8]| [&(message.len() as u16).to_be_bytes()[..], message].concat();
    send(&mut pair.client, &framed(QUESTION))?;
    receive(&mut pair.server, &framed(QUESTION), "the name server")?;
    send(&mut pair.server, &framed(ANSWER))?;
    receive(&mut pair.client, &framed(ANSWER), "the client")
}
