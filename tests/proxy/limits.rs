//! The limits of the proxy, and what it keeps.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::lab::{Between, Lab, SERVER, SILENT};
use super::process::PATIENCE;
use super::servers::{answer_of, echo_streams, note_datagrams, reset, serve_once};
use super::wire::Wire;

const PORT: u16 = 7000;

fn connect(lab: &Lab, within: Duration) -> Result<TcpStream, ErrorKind> {
    lab.client.run(move || {
        let address = SocketAddr::new(SERVER.parse::<IpAddr>().unwrap(), PORT);
        let stream = TcpStream::connect_timeout(&address, within).map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Ok(stream)
    })
}

fn exchange(mut stream: &TcpStream) {
    stream.write_all(b"hello!").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
}

/// Fills the proxy with connections. One more gets no answer, the others go on, and the end of one makes room.
fn connections_up_to(between: Between, options: &[&str], most: usize) {
    let lab = Lab::new(between, options);
    echo_streams(&lab, PORT);
    let mut streams: Vec<_> = (0..most).map(|_| connect(&lab, PATIENCE).unwrap()).collect();
    streams.iter().for_each(exchange);
    if let Between::Proxy(_) = between {
        assert_eq!(connect(&lab, Duration::from_millis(1500)).unwrap_err(), ErrorKind::TimedOut);
        streams.iter().for_each(exchange);
    }
    streams.pop().into_iter().for_each(reset);
    exchange(&connect(&lab, PATIENCE).unwrap());
    streams.into_iter().for_each(reset);
    lab.assert_freed();
}

pub(crate) fn connections_beyond_max_flows_are_refused(between: Between) {
    connections_up_to(between, &["--max-flows", "8"], 8);
}

/// A connection counts with two buffers of the relay, and two windows. ipstack's have 64 KiB.
pub(crate) fn connections_beyond_max_memory_are_refused(between: Between) {
    let size = match between {
        Between::Proxy("ipstack") => "5MiB",
        _ => "12MiB",
    };
    connections_up_to(between, &["--window", "512KiB", "--max-memory", size], 8);
}

/// Clients that never complete anything take only places from each other.
pub(crate) fn a_flood_of_syns_locks_nobody_out(between: Between) {
    let lab = Lab::new(between, &["--max-flows", "64"]);
    echo_streams(&lab, PORT);
    let mut wire = Wire::new(&lab, (SILENT[0], PORT));
    for round in 0..10 {
        for port in 0..100 {
            wire.syn(20_000 + round * 100 + port, 1000);
        }
        // Shards read at the same time, so a SYN may overtake those of other clients, and then be the oldest.
        thread::sleep(Duration::from_millis(50));
        let stream = connect(&lab, PATIENCE).unwrap();
        exchange(&stream);
        reset(stream);
    }
    assert!(lab.descriptors() <= lab.idle + 64, "{} sockets", lab.descriptors() - lab.idle);
}

/// A scan of datagrams without answers does not displace a flow that got one.
pub(crate) fn a_scan_of_datagrams_displaces_no_flow_with_an_answer(between: Between) {
    let lab = Lab::new(between, &["--max-flows", "100", "--nat", "symmetric"]);
    let (seen, ports) = mpsc::channel();
    note_datagrams(&lab, PORT, seen);
    lab.client.run(|| {
        let live = UdpSocket::bind("0.0.0.0:0").unwrap();
        live.set_read_timeout(Some(PATIENCE / 10)).unwrap();
        // A busy machine may lose a datagram, but then no flow.
        let ask = || {
            live.send_to(b"live", (SERVER, PORT)).unwrap();
            live.recv(&mut [0; 4]).is_ok()
        };
        for _ in 0..2 {
            assert!((0..10).any(|_| ask()), "no answer");
            let scan = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 1..2000 {
                scan.send_to(b"?", (SILENT[0], port)).unwrap();
                if port % 100 == 0 {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    });
    let live: HashSet<_> = ports.try_iter().map(|(_, port)| port).collect();
    assert_eq!(live.len(), 1, "the ports of the live flow");
}

/// Half-closed connections at rest cost no processor time.
pub(crate) fn half_closed_connections_rest(between: Between) {
    const REST: u32 = 3;
    let lab = Lab::new(between, &[]);
    echo_streams(&lab, PORT);
    let streams: Vec<_> = (0..50).map(|_| connect(&lab, PATIENCE).unwrap()).collect();
    for mut stream in &streams {
        stream.write_all(b"keepit").unwrap();
        stream.read_exact(&mut [0; 6]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    thread::sleep(Duration::from_secs(2));
    let before = lab.activity();
    thread::sleep(Duration::from_secs(REST.into()));
    let after = lab.activity();
    let (ticks, wakes) = (after.0 - before.0, after.1 - before.1);
    // A tick is a hundredth of a second.
    assert!(ticks <= 3 && wakes < u64::from(REST) * 10, "{ticks} ticks, {wakes} wake-ups in {REST} seconds");
    streams.into_iter().for_each(reset);
    lab.assert_freed();
}

/// Connections that end in several ways leave no memory: the first rounds make the proxy allocate all that it needs.
pub(crate) fn connections_that_end_badly_leave_nothing(between: Between) {
    const MOST_BYTES: u64 = 3 << 20;
    let lab = Lab::new(between, &[]);
    echo_streams(&lab, PORT);
    let round = || {
        let streams: Vec<_> = (0..200).map(|_| connect(&lab, PATIENCE).unwrap()).collect();
        streams.iter().for_each(exchange);
        streams.into_iter().for_each(reset);
        lab.assert_freed();
    };
    (0..2).for_each(|_| round());
    let early = lab.peak_bytes();
    (0..3).for_each(|_| round());
    let late = lab.peak_bytes();
    assert!(late <= early + MOST_BYTES, "{late} bytes after {early}");
}

/// The device goes down and comes up again under load. The download stalls meanwhile, and goes on.
pub(crate) fn a_device_that_is_down_for_a_moment(between: Between) {
    const LEN: usize = 60_000_000;
    let lab = Lab::new(between, &[]);
    let server = serve_once(&lab, PORT, |mut stream| {
        let sent = stream.write_all(&vec![7; LEN]);
        // Until the client has read everything.
        let _ended = stream.read(&mut [0; 1]);
        sent.map_err(|error| error.kind())
    });
    let mut stream = connect(&lab, PATIENCE).unwrap();
    let mut bytes = vec![0; LEN / 6];
    for _ in 0..5 {
        stream.read_exact(&mut bytes).unwrap();
        lab.device_down_for(Duration::from_millis(300));
    }
    stream.read_exact(&mut bytes).unwrap();
    reset(stream);
    assert_eq!(answer_of(&server), Ok(()));
}

/// The server's network is gone. The client resets, and the proxy keeps nothing.
pub(crate) fn a_server_that_vanishes(between: Between) {
    let lab = Lab::new(between, &["--connect-timeout", "2"]);
    echo_streams(&lab, PORT);
    let streams: Vec<_> = (0..20).map(|_| connect(&lab, PATIENCE).unwrap()).collect();
    streams.iter().for_each(exchange);
    lab.server.ip("link set eth0 down");
    for mut stream in streams {
        stream.write_all(b"hello!").unwrap();
        reset(stream);
    }
    assert!(connect(&lab, Duration::from_secs(1)).is_err());
    lab.assert_freed();
}
