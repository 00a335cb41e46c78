//! Clients that do not complete a connection, and resets in each of its states.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, FIN, RST, SYN};

use super::lab::{Between, Lab, SERVER, SILENT};
use super::process::{PATIENCE, wait_until};
use super::servers::{answer_of, echo_streams, reset, serve_once};
use super::wire::{Arrived, End, Wire};

const PORT: u16 = 7000;

/// Longer than the proxy takes to notice, also on a busy machine, and shorter than any time-out.
const SOON: Duration = Duration::from_secs(10);

/// The proxy closes its sockets soon.
fn assert_freed(lab: &Lab) {
    let begun = Instant::now();
    while lab.descriptors() > lab.idle {
        assert!(begun.elapsed() < SOON, "{} sockets are left", lab.descriptors() - lab.idle);
        thread::sleep(Duration::from_millis(5));
    }
}

/// SYN, SYN-ACK, RST, a thousand times.
pub(crate) fn a_half_open_scan(between: Between) {
    const PORTS: u16 = 1000;
    let lab = Lab::new(between, &[]);
    echo_streams(&lab, PORT);
    let mut wire = Wire::new(&lab, (SERVER, PORT));
    for first in (0..PORTS).step_by(50) {
        let mut ports: HashSet<u16> = (first..first + 50).map(|port| 20_000 + port).collect();
        for port in &ports {
            wire.syn(*port, 1000);
        }
        while !ports.is_empty() {
            // The stack may send a SYN-ACK twice.
            let Arrived { port, flags, .. } = wire.arrived(PATIENCE).unwrap();
            if flags == SYN | ACK {
                ports.remove(&port);
                wire.send(End { port, next: 1001, expected: 0 }, RST, &[]);
            }
        }
    }
    assert_freed(&lab);
}

/// The clients send a RST while the proxy still waits for the server.
pub(crate) fn a_client_gives_up_while_the_server_is_silent(between: Between) {
    let lab = Lab::new(between, &[]);
    let mut wire = Wire::new(&lab, (SILENT[0], PORT));
    let ports = 20_000..20_060;
    ports.clone().for_each(|port| wire.syn(port, 1000));
    if let Between::Proxy(_) = between {
        wait_until("the proxy tries all", || lab.descriptors() >= lab.idle + ports.len());
    }
    for (port, next) in ports.zip([1000, 1001].into_iter().cycle()) {
        wire.send(End { port, next, expected: 0 }, RST, &[]);
    }
    assert_freed(&lab);
}

/// A RST ends the connection in each state, and the port works at once.
pub(crate) fn resets_in_each_state(between: Between) {
    let lab = Lab::new(between, &[]);
    echo_streams(&lab, PORT);
    let mut wire = Wire::new(&lab, (SERVER, PORT));
    for (state, port) in (0..5).zip(30_000..) {
        let mut end = if state == 0 {
            // The SYN-ACK is under way.
            wire.syn(port, 1000);
            let syn_ack = wire.expect(port, SYN | ACK);
            End { port, next: 1001, expected: syn_ack.sequence.wrapping_add(1) }
        } else {
            wire.connect(port, 1000).unwrap()
        };
        if state > 1 {
            wire.exchange(&mut end);
        }
        if state == 3 {
            wire.send(end, FIN | ACK, &[]);
            end.next = end.next.wrapping_add(1);
        }
        if state == 4 {
            // The server closes.
            wire.send(end, ACK, b"goodby");
            end.next = end.next.wrapping_add(6);
            let fin = wire.expect(port, FIN | ACK);
            end.expected = fin.sequence.wrapping_add(1);
        }
        wire.send(end, RST | ACK, &[]);
        let mut again = wire.connect(port, 500_000).unwrap_or_else(|| panic!("no second connection in state {state}"));
        wire.exchange(&mut again);
        wire.send(again, RST | ACK, &[]);
    }
    assert_freed(&lab);
}

/// The server reads nothing, so the proxy waits to write to it.
pub(crate) fn a_client_resets_while_the_server_does_not_read(between: Between) {
    let lab = Lab::new(between, &[]);
    let (keep, kept) = mpsc::channel();
    let server = serve_once(&lab, PORT, move |stream| {
        // It stays open until the end of the test.
        kept.recv().unwrap();
        drop(stream);
    });
    lab.client.run(|| {
        let mut stream = TcpStream::connect((SERVER, PORT)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        // More than the sockets between the proxy and the server hold, and less than fills smoltcp's window too: smoltcp moves
        // the edge of a window back by less than a unit of its scale, and a RST at the old edge is then outside of it.
        let _full = stream.write_all(&vec![7; 1_000_000]);
        reset(stream);
    });
    assert_freed(&lab);
    keep.send(()).unwrap();
    answer_of(&server);
}
