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
fn socket(lab: &Lab, server: &'static str, port: u16) -> UdpSocket {
    lab.client.run(move || {
        let any = if server.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect((server, port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    })
}

/// What dig answers in the client's network, without its remarks, as that it had to ask again.
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
    lab.end();
}

/// Whether datagrams larger than a packet of this version pass: in fragments, which ipstack knows nothing of, and the
/// others only over IPv4.
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
            // smoltcp says that it does not know fragments of IPv6 (RFC 4443, 3.4); the others nothing.
            Err(error) => assert!(!arrives, "{server}: {error}"),
        }
        // The proxy is none the worse.
        let socket = self::socket(&lab, server, PORT);
        socket.send(&[8; 1000]).unwrap();
        assert_eq!(socket.recv(&mut answer).unwrap(), 1000, "{server}");
    }
    lab.end();
}

/// Where one that takes 4,096 bytes gets nothing, one that takes what fits into any packet gets it by TCP.
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
    lab.end();
}

/// Each has the answers to its own questions, and a socket of the proxy's until it falls silent.
pub(crate) fn a_hundred_flows_of_datagrams(between: Between) {
    let lab = Lab::new(between, &["--udp-idle", "5"]);
    echo_datagrams(&lab, PORT);
    let idle = lab.descriptors();
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
        assert!(lab.descriptors() >= idle + usize::from(FLOWS), "{} descriptors", lab.descriptors());
    }
    wait_until("idle flows end", || lab.descriptors() <= idle);
    lab.end();
}

pub(crate) fn a_port_at_which_nobody_takes_datagrams(between: Between) {
    let lab = Lab::new(between, &[]);
    for server in [SERVER, SERVER_V6] {
        let socket = socket(&lab, server, PORT);
        socket.send(b"anybody?").unwrap();
        assert_eq!(socket.recv(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{server}");
    }
    lab.end();
}

/// The proxy answers for every address that there may be; without it only the server does for its own.
pub(crate) fn ping_is_answered(between: Between) {
    let lab = Lab::new(between, &[]);
    let addresses = match between {
        Between::Nothing => [SERVER, SERVER_V6],
        Between::Proxy(_) => ["192.0.2.77", "2001:db8::77"],
    };
    for address in addresses {
        for size in ["56", "1400"] {
            // Succeeds where so many answers have come in that time.
            lab.client.call(&["ping", "-n", "-c", "3", "-i", "0.2", "-w", "5", "-s", size, address]);
        }
    }
    lab.end();
}
