//! UDP and ping.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use super::lab::{Between, Lab, SERVER, SERVER_V6};
use super::process::{PATIENCE, wait_until};
use super::servers::{TEXT_LEN, TEXTS, dnsmasq, echo_datagrams};

const PORT: u16 = 7000;

/// How many clients there are at once.
const FLOWS: u8 = 100;

/// A socket in the client's network that talks to one port of the server.
pub(crate) fn socket(lab: &Lab, server: &'static str, port: u16) -> UdpSocket {
    lab.client.run(move || {
        let any = if server.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect((server, port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    })
}

/// Returns what dig prints in the client's network, without its remarks about retries.
pub(crate) fn dig(lab: &Lab, words: &[&str]) -> String {
    let said = lab.client.call(&[&["dig", "+short"], words].concat());
    said.split_inclusive('\n').filter(|line| !line.starts_with(";;")).collect()
}

pub(crate) fn a_name_is_looked_up(between: Between) {
    let lab = Lab::new(between, &[]);
    let _server = dnsmasq(&lab);
    for transport in ["+notcp", "+tcp"] {
        let answer = dig(&lab, &[&format!("@{SERVER}"), transport, "host.test", "A"]);
        assert_eq!(answer, "192.0.2.1\n", "{transport}");
    }
}

/// Returns whether datagrams larger than a packet pass. They need fragments, which ipstack does not support. The other
/// stacks support them only over IPv4.
fn fragments(between: Between, server: &str) -> bool {
    match between {
        Between::Nothing => true,
        Between::Proxy("ipstack") => false,
        Between::Proxy(_) => server == SERVER,
    }
}

pub(crate) fn a_datagram_larger_than_a_packet(between: Between) {
    let lab = Lab::new(between, &[]);
    echo_datagrams(&lab, PORT);
    for server in [SERVER, SERVER_V6] {
        let socket = socket(&lab, server, PORT);
        let arrives = fragments(between, server);
        if !arrives {
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        }
        let mut answer = [0; 4000];
        socket.send(&[7; 3000]).unwrap();
        match socket.recv(&mut answer) {
            Ok(len) => assert!(arrives && answer[..len] == [7; 3000], "{server}: {len} bytes"),
            // smoltcp reports unknown fragments of IPv6 by ICMP (RFC 4443, 3.4); the other stacks drop them.
            Err(error) => assert!(!arrives, "{server}: {error}"),
        }
        // The proxy still works.
        let socket = self::socket(&lab, server, PORT);
        socket.send(&[8; 1000]).unwrap();
        assert_eq!(socket.recv(&mut answer).unwrap(), 1000, "{server}");
    }
}

/// Without fragments a client that accepts 4,096 bytes gets no answer. One that accepts 1,232 bytes tries again over
/// TCP.
pub(crate) fn an_answer_larger_than_a_packet(between: Between) {
    let lab = Lab::new(between, &[]);
    let _server = dnsmasq(&lab);
    for server in [SERVER, SERVER_V6] {
        let at = format!("@{server}");
        let large = |options: &[&str]| {
            lab.client.end_of(&[&["dig", &at, "+notcp", "+short", "large.test", "TXT"], options].concat())
        };
        let texts = |said: &str| said.lines().filter(|line| line.len() == TEXT_LEN + 2).count();
        if fragments(between, server) {
            let ended = large(&["+ignore", "+bufsize=4096"]);
            assert_eq!(texts(&ended.stdout), TEXTS, "{server}: {}", ended.stdout);
        } else {
            let ended = large(&["+ignore", "+bufsize=4096", "+tries=1", "+time=1"]);
            assert_eq!(ended.status.code(), Some(9), "{server}: {}", ended.stdout);
            assert!(ended.stdout.contains("timed out"), "{server}: {}", ended.stdout);
        }
        let ended = large(&["+bufsize=1232"]);
        assert_eq!(texts(&ended.stdout), TEXTS, "{server}: {}", ended.stdout);
    }
}

/// Each flow gets its own answers, and has a socket in the proxy until it has been idle for a while.
pub(crate) fn a_hundred_flows_of_datagrams(between: Between) {
    let lab = Lab::new(between, &["--udp-idle", "3"]);
    echo_datagrams(&lab, PORT);
    let sockets: Vec<_> = (0..FLOWS).map(|_| socket(&lab, SERVER, PORT)).collect();
    for round in 0..3 {
        for (number, socket) in (0..FLOWS).zip(&sockets) {
            socket.send(&[number, round]).unwrap();
        }
        for (number, socket) in (0..FLOWS).zip(&sockets) {
            let mut answer = [0; 3];
            assert_eq!(socket.recv(&mut answer).unwrap(), 2, "flow {number}");
            assert_eq!(answer[..2], [number, round]);
        }
    }
    if let Between::Proxy(_) = between {
        assert!(lab.descriptors() >= lab.idle + usize::from(FLOWS), "{} descriptors", lab.descriptors());
    }
    wait_until("idle flows end", || lab.descriptors() <= lab.idle);
}

pub(crate) fn a_udp_port_without_a_listener(between: Between) {
    let lab = Lab::new(between, &[]);
    for server in [SERVER, SERVER_V6] {
        let socket = socket(&lab, server, PORT);
        socket.send(b"anybody?").unwrap();
        assert_eq!(socket.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{server}");
    }
}

/// The proxy answers for every address; without it the server answers for its own.
pub(crate) fn ping_is_answered(between: Between) {
    let lab = Lab::new(between, &[]);
    let addresses = match between {
        Between::Nothing => [SERVER, SERVER_V6],
        Between::Proxy(_) => ["192.0.2.77", "2001:db8::77"],
    };
    for address in addresses {
        for size in ["56", "1400"] {
            // Succeeds if three answers come within the time.
            lab.client.call(&["ping", "-n", "-c", "3", "-i", "0.2", "-w", "5", "-s", size, address]);
        }
    }
}
