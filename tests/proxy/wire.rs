//! A client that makes its own packets, behind a TUN device in the client's network. It can send what no kernel sends,
//! and it says nothing by itself.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use platform::{Checksum, Link, Network, Offload, PacketBuffer, PacketMeta, TunConfig, TunDevice};
use tokio::runtime::Runtime;

use super::lab::Lab;
use super::process::PATIENCE;

/// The client's address. The lab has a route to it.
pub(crate) const ADDRESS: &str = "10.4.0.2";

/// A segment that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) port: u16,
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) len: u32,
}

/// One end of a connection, as far as the packets show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) port: u16,
    /// The numbers of the next byte to send and of the next one to receive.
    pub(crate) next: u32,
    pub(crate) expected: u32,
}

/// The client.
pub(crate) struct Wire {
    device: TunDevice,
    server: SocketAddr,
    buffers: Vec<PacketBuffer>,
    /// The device belongs to it.
    _runtime: Runtime,
}

impl Wire {
    /// Opens the device. The client's packets go to one server.
    pub(crate) fn new(lab: &Lab, server: (&str, u16)) -> Self {
        let (device, runtime) = lab.client.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let entered = runtime.enter();
            let address = |text: &str| text.parse().unwrap();
            let config = TunConfig {
                name: "wire".to_owned(),
                or_next: false,
                network: Network::new(address("10.4.0.1"), address(ADDRESS), address("255.255.255.0")).unwrap(),
                mtu: 1500,
                tx_queue_len: 5000,
                offload: Offload::Off,
                fd: None,
                tuning: platform::Tuning::default(),
            };
            let device = TunDevice::open(&config).unwrap();
            drop(entered);
            (device, runtime)
        });
        let server = SocketAddr::new(server.0.parse().unwrap(), server.1);
        Self { device, server, buffers: vec![PacketBuffer::new(1500)], _runtime: runtime }
    }

    /// Sends a segment. The device takes it at once.
    pub(crate) fn send(&mut self, end: End, flags: u8, payload: &[u8]) {
        let headers = TcpHeaders::new(SocketAddr::new(ADDRESS.parse().unwrap(), end.port), self.server).unwrap();
        let acknowledgement = if flags & ACK == 0 { 0 } else { end.expected };
        let fields = TcpFields { sequence: end.next, acknowledgement, flags, window: 0xffff };
        let mut packet = [0; MAX_HEADERS_LEN];
        let len = headers.write(fields, &[], payload, Checksum::Filled, &mut packet);
        let slices = [IoSlice::new(&packet[..len]), IoSlice::new(payload)];
        self.device.try_send(PacketMeta::default(), &slices).unwrap();
    }

    /// Sends a SYN.
    pub(crate) fn syn(&mut self, port: u16, sequence: u32) {
        self.send(End { port, next: sequence, expected: 0 }, SYN, &[]);
    }

    /// The next segment, if one comes in time.
    pub(crate) fn arrived(&mut self, within: Duration) -> Option<Arrived> {
        let until = Instant::now() + within;
        loop {
            if self.device.try_recv(&mut self.buffers).is_ok() {
                if let Some(segment) = TcpSegment::parse(self.buffers[0].packet()) {
                    return Some(Arrived {
                        port: segment.destination_port(),
                        flags: segment.flags() & (SYN | ACK | RST | FIN),
                        sequence: segment.sequence(),
                        acknowledgement: segment.acknowledgement(),
                        len: segment.payload().len() as u32,
                    });
                }
            } else if Instant::now() > until {
                return None;
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits for a segment to a port with these flags, and drops the others.
    pub(crate) fn expect(&mut self, port: u16, flags: u8) -> Arrived {
        let until = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        while let Some(arrived) = self.arrived(until.saturating_duration_since(Instant::now())) {
            if (arrived.port, arrived.flags) == (port, flags) {
                return arrived;
            }
            others.push(arrived);
        }
        panic!("no segment to port {port} with flags {flags:#x}, but {others:?}");
    }

    /// Connects from a port. A SYN without an answer is sent again, with the same number.
    pub(crate) fn connect(&mut self, port: u16, sequence: u32) -> Option<End> {
        for _ in 0..4 {
            self.syn(port, sequence);
            let until = Instant::now() + Duration::from_secs(1);
            while let Some(arrived) = self.arrived(until.saturating_duration_since(Instant::now())) {
                if arrived.port != port {
                    continue;
                }
                let end = End { port, next: sequence.wrapping_add(1), expected: arrived.sequence.wrapping_add(1) };
                if arrived.flags == SYN | ACK && arrived.acknowledgement == end.next {
                    self.send(end, ACK, &[]);
                    return Some(end);
                }
                if arrived.flags & RST == 0 && arrived.acknowledgement != end.next {
                    // Of an earlier connection (RFC 9293, 3.10.7.3).
                    self.send(End { next: arrived.acknowledgement, ..end }, RST, &[]);
                }
            }
        }
        None
    }

    /// Sends six bytes and waits until they have come back.
    pub(crate) fn exchange(&mut self, end: &mut End) {
        self.send(*end, ACK, b"hello!");
        end.next = end.next.wrapping_add(6);
        let arrived = loop {
            let arrived = self.expect(end.port, ACK);
            if arrived.len > 0 {
                break arrived;
            }
        };
        assert_eq!((arrived.sequence, arrived.len), (end.expected, 6));
        end.expected = end.expected.wrapping_add(6);
        self.send(*end, ACK, &[]);
    }
}
