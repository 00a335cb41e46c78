//! Ports that are used again at once, with and without a proxy.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use platform::packet::flags::{ACK, FIN, RST};
use socket2::{Domain, Protocol, Socket, Type};

use super::lab::{Between, Lab, SERVER, SERVER_V6};
use super::process::PATIENCE;
use super::servers::{echo_streams, reset};
use super::wire::{End, Wire};

const PORT: u16 = 7000;

/// The client's port.
const SAME: u16 = 40_000;

/// How often it is used.
const TIMES: u32 = 60;

/// Connects from one port, which may have been used before.
fn connect_from(port: u16, server: &str) -> io::Result<TcpStream> {
    let server = SocketAddr::new(server.parse::<IpAddr>().unwrap(), PORT);
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    let any = if server.is_ipv4() { "0.0.0.0" } else { "::" };
    socket.bind(&SocketAddr::new(any.parse().unwrap(), port).into())?;
    let until = Instant::now() + PATIENCE;
    while let Err(error) = socket.connect_timeout(&server.into(), PATIENCE) {
        // The kernel has not freed the old socket: its last packets are under way, or a process that another test starts
        // holds a copy until its exec.
        if error.kind() != ErrorKind::AddrNotAvailable || Instant::now() > until {
            return Err(error);
        }
        thread::yield_now();
    }
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn exchange(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(b"hello!")?;
    stream.read_exact(&mut [0; 6])
}

/// Tries something often, and expects that it always works.
fn repeat(lab: &Lab, what: &str, mut attempt: impl FnMut() -> io::Result<()> + Send + 'static) {
    let failures: Vec<_> =
        lab.client.run(move || (0..TIMES).filter_map(|_| attempt().err().map(|error| error.kind())).collect());
    assert!(failures.is_empty(), "{what}: {} of {TIMES} failed: {failures:?}", failures.len());
}

/// Runs a test with a proxy and servers, and waits until the proxy has closed all sockets.
fn with_servers(between: Between, test: impl FnOnce(&Lab)) {
    let lab = Lab::new(between, &[]);
    echo_streams(&lab, PORT);
    test(&lab);
    lab.assert_freed();
}

/// A kernel client resets, and connects again from the same port.
pub(crate) fn a_port_is_used_again_after_a_reset(between: Between) {
    with_servers(between, |lab| {
        for server in [SERVER, SERVER_V6] {
            repeat(lab, server, move || {
                let stream = connect_from(SAME, server)?;
                exchange(&stream)?;
                reset(stream);
                Ok(())
            });
        }
    });
}

/// The RST and the next SYN are in one batch.
pub(crate) fn a_reset_and_a_syn_back_to_back(between: Between) {
    with_servers(between, |lab| {
        let mut wire = Wire::new(lab, (SERVER, PORT));
        let mut failed = 0;
        for time in 0..TIMES {
            let sequence = 1000 + time * 100_000;
            match wire.connect(SAME, sequence) {
                Some(mut end) => {
                    wire.exchange(&mut end);
                    wire.send(end, RST | ACK, &[]);
                }
                None => failed += 1,
            }
        }
        assert_eq!(failed, 0, "connections of {TIMES}");
    });
}

/// The client closes first, and is not held up by TIME-WAIT.
pub(crate) fn a_port_is_used_again_after_the_clients_fin(between: Between) {
    with_servers(between, |lab| {
        let mut wire = Wire::new(lab, (SERVER, PORT));
        let mut failed = 0;
        for time in 0..TIMES {
            let Some(mut end) = wire.connect(SAME, 1000 + time * 100_000) else {
                failed += 1;
                continue;
            };
            wire.exchange(&mut end);
            wire.send(end, FIN | ACK, &[]);
            let fin = wire.expect(SAME, FIN | ACK);
            let (next, expected) = (end.next.wrapping_add(1), fin.sequence.wrapping_add(1));
            wire.send(End { port: SAME, next, expected }, ACK, &[]);
        }
        assert_eq!(failed, 0, "connections of {TIMES}");
    });
}
