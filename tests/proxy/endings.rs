//! How connections end, and how connection attempts fail.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::lab::{Between, Lab, SERVER, SERVER_V6, SILENT, UNREACHABLE};
use super::process::{PATIENCE, wait_until};
use super::servers::{answer_of, reset, serve_once, write_last};

const PORT: u16 = 7000;

/// A port without a listener.
const CLOSED_PORT: u16 = 9;

/// Connects from the client's network, and calls a function with the stream.
fn with_stream<T: Send + 'static>(lab: &Lab, talk: impl FnOnce(TcpStream) -> T + Send + 'static) -> T {
    lab.client.run(|| {
        let stream = TcpStream::connect((SERVER, PORT)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        talk(stream)
    })
}

/// Returns the error of a connection attempt from the client's network, which gives up after this time.
fn error_of_connect(lab: &Lab, address: &str, port: u16, within: Duration) -> ErrorKind {
    let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
    lab.client.run(move || TcpStream::connect_timeout(&address, within)).unwrap_err().kind()
}

/// ncat closes its half at the end of its input. The server reads all of it before it answers.
pub(crate) fn an_answer_comes_after_the_clients_half_is_closed(between: Between) {
    let lab = Lab::new(between, &[]);
    let server = serve_once(&lab, PORT, |mut stream| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        write_last(&stream, &bytes).unwrap();
        bytes.len()
    });
    let echoed = format!("seq 400000 | ncat {SERVER} {PORT} | sha256sum");
    assert_eq!(lab.client.shell(&echoed), lab.client.shell("seq 400000 | sha256sum"));
    assert!(answer_of(&server) > 2_000_000);
}

pub(crate) fn the_client_goes_on_after_the_servers_half_is_closed(between: Between) {
    let lab = Lab::new(between, &[]);
    let heard = serve_once(&lab, PORT, |mut stream| {
        write_last(&stream, b"that is all").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).map(|_| bytes)
    });
    let last = with_stream(&lab, |mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        write_last(&stream, &vec![7; 300_000]).unwrap();
        text
    });
    assert_eq!(last, "that is all");
    assert!(answer_of(&heard).unwrap() == vec![7; 300_000]);
}

/// The proxy answers the client's SYN with a RST, and does not accept first.
pub(crate) fn a_server_that_refuses(between: Between) {
    let lab = Lab::new(between, &[]);
    for server in [SERVER, SERVER_V6] {
        for _ in 0..20 {
            assert_eq!(error_of_connect(&lab, server, CLOSED_PORT, PATIENCE), ErrorKind::ConnectionRefused, "{server}");
        }
    }
}

pub(crate) fn a_destination_that_is_unreachable(between: Between) {
    let lab = Lab::new(between, &[]);
    for address in UNREACHABLE {
        let kind = error_of_connect(&lab, address, PORT, PATIENCE);
        assert!(matches!(kind, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable), "{address}: {kind}");
    }
}

/// The client gets no answer either, and the proxy gives up after its timeout.
pub(crate) fn a_destination_that_does_not_answer(between: Between) {
    let lab = Lab::new(between, &["--connect-timeout", "3"]);
    thread::scope(|scope| {
        let connect = |address| error_of_connect(&lab, address, PORT, Duration::from_secs(1));
        let clients = SILENT.map(|address| scope.spawn(move || connect(address)));
        if let Between::Proxy(_) = between {
            wait_until("the proxy tries both", || lab.descriptors() >= lab.idle + SILENT.len());
        }
        for (client, address) in clients.into_iter().zip(SILENT) {
            assert_eq!(client.join().unwrap(), ErrorKind::TimedOut, "{address}");
        }
    });
    wait_until("the proxy gives up", || lab.descriptors() <= lab.idle);
}

/// However much the server has sent before the RST, the client must not take it for the complete answer. Some of these
/// lengths fill the memory that a stack lends.
pub(crate) fn a_server_that_resets(between: Between) {
    let lab = Lab::new(between, &[]);
    for len in [0, 1000, 65_535, 65_536, 131_070, 131_072] {
        let server = serve_once(&lab, PORT, move |mut stream| {
            stream.read_exact(&mut [0; 1000]).unwrap();
            stream.write_all(&vec![7; len]).unwrap();
            reset(stream);
        });
        let error = with_stream(&lab, |mut stream| {
            stream.write_all(&[7; 1000]).unwrap();
            stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind())
        });
        answer_of(&server);
        assert_eq!(error, Err(ErrorKind::ConnectionReset), "after {len} bytes");
    }
}

/// The client's read or its write fails with "connection reset", or both do.
pub(crate) fn a_server_that_resets_while_the_client_sends(between: Between) {
    let lab = Lab::new(between, &[]);
    for _ in 0..20 {
        let server = serve_once(&lab, PORT, |mut stream| {
            stream.read_exact(&mut vec![0; 100_000]).unwrap();
            stream.write_all(&[7; 1000]).unwrap();
            reset(stream);
        });
        let errors = with_stream(&lab, |mut stream| {
            let mut sender = stream.try_clone().unwrap();
            let sends = thread::spawn(move || {
                loop {
                    if let Err(error) = sender.write_all(&[7; 10_000]) {
                        return error.kind();
                    }
                }
            });
            let read = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            (read, sends.join().unwrap())
        });
        answer_of(&server);
        let (read, written) = errors;
        let heard = read == Err(ErrorKind::ConnectionReset) || written == ErrorKind::ConnectionReset;
        assert!(heard, "read: {read:?}, write: {written}");
    }
}

/// They are a part of the stream (RFC 6093, 6). The kernel ends a read before an urgent byte.
pub(crate) fn urgent_bytes_arrive_in_their_place(between: Between) {
    const ROUNDS: usize = 50;
    let exchange = |mut stream: &TcpStream, is_first: bool| {
        let socket = SockRef::from(stream);
        socket.set_out_of_band_inline(true).unwrap();
        let mut bytes = [0; 5];
        for round in 0..2 * ROUNDS {
            if is_first == round.is_multiple_of(2) {
                stream.write_all(b"abc0").unwrap();
                socket.send_out_of_band(b"!").unwrap();
            } else {
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(&bytes, b"abc0!", "round {round}");
            }
        }
    };
    let lab = Lab::new(between, &[]);
    let server = serve_once(&lab, PORT, move |stream| exchange(&stream, true));
    with_stream(&lab, move |stream| exchange(&stream, false));
    answer_of(&server);
}

/// The client waits for a server that is gone.
pub(crate) fn a_dead_server_is_noticed(between: Between) {
    let lab = Lab::new(between, &["--keepalive", "1"]);
    let (keep, kept) = mpsc::channel::<()>();
    let server = serve_once(&lab, PORT, move |mut stream| {
        stream.write_all(b"x").unwrap();
        let _ended = kept.recv();
    });
    let stream = with_stream(&lab, move |mut stream| {
        stream.read_exact(&mut [0; 1]).unwrap();
        if matches!(between, Between::Nothing) {
            let second = Duration::from_secs(1);
            let probe = TcpKeepalive::new().with_time(second).with_interval(second).with_retries(3);
            SockRef::from(&stream).set_tcp_keepalive(&probe).unwrap();
        }
        stream
    });
    // Longer than the idle time: the probes are answered.
    thread::sleep(Duration::from_secs(3));
    lab.server.ip("link set eth0 down");
    let read = (&stream).read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(matches!(read, Err(kind) if kind != ErrorKind::WouldBlock), "{read:?}");
    drop(keep);
    answer_of(&server);
}

pub(crate) fn a_client_that_resets(between: Between) {
    let lab = Lab::new(between, &[]);
    let error = serve_once(&lab, PORT, |mut stream| {
        stream.read_exact(&mut [0; 1000]).unwrap();
        stream.write_all(&[7; 1]).unwrap();
        stream.read(&mut [0; 1]).map_err(|error| error.kind())
    });
    with_stream(&lab, |mut stream| {
        stream.write_all(&[7; 1000]).unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        reset(stream);
    });
    assert_eq!(answer_of(&error), Err(ErrorKind::ConnectionReset));
}

/// Bytes in flight when both sides close still arrive.
pub(crate) fn both_sides_close_at_once(between: Between) {
    // This fits into the first window, because neither side reads before it has written.
    const LEN: usize = 60_000;
    let lab = Lab::new(between, &[]);
    let finish = |mut stream: TcpStream| {
        write_last(&stream, &vec![7; LEN]).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let _gone = stream.shutdown(Shutdown::Both);
        bytes.len()
    };
    let server = serve_once(&lab, PORT, finish);
    assert_eq!(with_stream(&lab, finish), LEN);
    assert_eq!(answer_of(&server), LEN);
}
