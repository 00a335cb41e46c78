//! smoltcp 0.14, driven directly.
//!
//! smoltcp has no listener that takes any port and no backlog: each socket listens for one
//! connection. So the adapter looks at a packet before smoltcp does, makes a socket for the address
//! and port of a SYN that opens a connection, and hands the packet over. Connections are found by
//! their addresses in a map.
//!
//! UDP has an interface and a socket of its own, which `smoltcp/datagrams.rs` describes. Over IPv4 it fragments.
//!
//! A byte is copied twice in user space: between the device's packet and the socket's ring, and
//! between the ring and the caller's buffer.

mod connection;
mod datagrams;
mod device;
mod segment;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use platform::Link;
use slab::Slab;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{HardwareAddress, IpEndpoint};
use tokio::time::Instant;

use self::connection::{Connection, Fin, MAX_FIN_WAIT, Stage};
use self::datagrams::Datagrams;
use self::device::Device;
use crate::datagrams::Arrival;
use crate::driven::{self, Accepted, DrivenDatagrams, DrivenListener, Engine, Flow, FlowId, Intake};
use crate::offload::Offload;
use crate::{Datagram, Effective, Netstack, Sink, Source, StackConfig, StackKind, StartError, Started};

/// As in `Cargo.lock`; the crate does not say it itself.
pub(crate) const VERSION: &str = "0.14.0";

/// The `smoltcp` crate. Its datagrams are fragmented over IPv4, and put together; four at once.
pub struct Smoltcp;

impl<L: Link> Netstack<L> for Smoltcp {
    type Stream = Flow<SmoltcpEngine<L>>;
    type Listener = DrivenListener<SmoltcpEngine<L>>;
    type Datagrams = DrivenDatagrams<SmoltcpEngine<L>>;

    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError> {
        if !(StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(&config.window) {
            return Err(StartError::Unfit {
                stack: StackKind::Smoltcp,
                reason: format!("a window of {} bytes; it takes 4 KiB to 1 GiB", config.window),
            });
        }
        let capabilities = link.capabilities();
        let effective = Effective {
            stack_version: VERSION.into(),
            receive_buffer_bytes: config.window,
            send_buffer_bytes: config.window,
            window_scale: Some(window_scale(config.window)),
            largest_packet_bytes: Offload::of(&capabilities).largest_tcp_packet(),
            congestion: "none".into(),
            checksum_verified: !capabilities.checksum.rx,
            checksum_computed: !capabilities.checksum.tx,
            workarounds: Vec::new(),
        };
        let (listener, datagrams, driver) = driven::start(SmoltcpEngine::new(link, config.clone()));
        Ok(Started { listener, datagrams, driver, effective })
    }
}

/// The shift that smoltcp derives from the size of its receive buffer (`socket/tcp.rs`,
/// `Socket::new`).
fn window_scale(window: usize) -> u8 {
    (usize::BITS - window.leading_zeros()).saturating_sub(16) as u8
}

/// TIME-WAIT holds a connection's buffers for ten seconds; the oldest beyond so many are forgotten
/// early. Their peers have acknowledged our FIN; what is lost is the answer to a repeated one.
const MAX_TIME_WAIT: usize = 16;

/// Beyond so many released connections, each that is released has them all looked at: their buffers are large.
const MAX_UNSWEPT: usize = 2 * MAX_TIME_WAIT;

/// How often connections are looked at for what no packet tells of: a timeout, or that one may be
/// forgotten.
const SWEEP: Duration = Duration::from_millis(500);

/// One egress ends after so many rounds over the sockets, so that input is not left waiting.
const EGRESS_ROUNDS: usize = 4096;

/// smoltcp's interface, its sockets, and the connections that the sockets are.
pub struct SmoltcpEngine<L> {
    device: Device<L>,
    /// In a box, since it has room for a datagram in fragments in itself, and is moved with the engine.
    interface: Box<Interface>,
    sockets: SocketSet<'static>,
    connections: Slab<Connection>,
    by_key: HashMap<(SocketAddr, SocketAddr), FlowId>,
    /// Connections whose handshake is done, for `accept`.
    accept_queue: VecDeque<FlowId>,
    /// How many connections nobody has accepted yet, half open ones included.
    unaccepted: usize,
    /// How many connections are nobody's any more.
    released: usize,
    touched: Vec<FlowId>,
    datagrams: Datagrams,
    config: StackConfig,
    started: Instant,
    next_sweep: Instant,
}

impl<L: Link> SmoltcpEngine<L> {
    fn new(link: L, config: StackConfig) -> Self {
        let started = Instant::now();
        let mut device = Device::new(link);
        let mut interface_config = Config::new(HardwareAddress::Ip);
        interface_config.random_seed = random_seed();
        let mut interface = Box::new(Interface::new(interface_config, &mut device, smoltcp::time::Instant::ZERO));
        interface.set_any_ip(true);
        Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            connections: Slab::new(),
            by_key: HashMap::new(),
            accept_queue: VecDeque::new(),
            unaccepted: 0,
            released: 0,
            touched: Vec::new(),
            datagrams: Datagrams::new(),
            config,
            started,
            next_sweep: started + SWEEP,
        }
    }

    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        smoltcp::time::Instant::from_micros(now.saturating_duration_since(self.started).as_micros() as i64)
    }

    /// What the next packet is; for a SYN there is a new connection.
    fn classify(&mut self) -> Class {
        let Some(packet) = self.device.next_packet() else { return Class::Other };
        let Some(segment) = segment::parse(packet) else {
            return Arrival::parse(packet).map_or(Class::Other, Class::Datagram);
        };
        let known = self.by_key.get(&(segment.local, segment.peer)).copied();
        if !segment.opens {
            return known.map_or(Class::Other, Class::Segment);
        }
        if let Some(flow) = known {
            let socket = self.sockets.get::<tcp::Socket>(self.connections[flow.0].socket);
            // RFC 9293, 3.6.1: a new SYN may take the place of a connection in TIME-WAIT.
            if !matches!(socket.state(), State::TimeWait | State::Closed) {
                return Class::Segment(flow);
            }
            self.by_key.remove(&(segment.local, segment.peer));
            self.detach(flow);
        }
        if self.unaccepted >= self.config.backlog {
            return Class::Unwelcome;
        }
        Class::Segment(self.listen(segment.local, segment.peer))
    }

    /// A socket that waits for the SYN from `peer` to `local`.
    fn listen(&mut self, local: SocketAddr, peer: SocketAddr) -> FlowId {
        let ring = || tcp::SocketBuffer::new(vec![0; self.config.window]);
        let mut socket = tcp::Socket::new(ring(), ring());
        // The 10 ms that an ACK may otherwise wait would stall a peer whose one packet fills the window.
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(self.config.user_timeout.into()));
        socket.set_keep_alive(Some((self.config.user_timeout / 3).into()));
        // Only an open socket or port 0 is refused. A SYN to port 0 then finds no listener, and
        // smoltcp answers it with a RST.
        let _refused = socket.listen(IpEndpoint::from(local));
        let socket = self.sockets.add(socket);
        let connection = Connection {
            socket,
            local,
            peer,
            stage: Stage::Handshake,
            segment_len: self.device.sender.segment_len(local.is_ipv6()),
            reset: false,
            peer_finished: false,
            fin: Fin::Open,
            unsent: 0,
            orphaned_until: self.started,
        };
        let flow = FlowId(self.connections.insert(connection));
        self.by_key.insert((local, peer), flow);
        self.unaccepted += 1;
        flow
    }

    /// Looks at what a packet has made of a connection.
    fn observe(&mut self, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(flow.0) else { return };
        let socket = self.sockets.get_mut::<tcp::Socket>(connection.socket);
        if connection.fin == Fin::Due && socket.send_queue() == 0 {
            connection.fin = Fin::Asked;
            socket.close();
        }
        let state = socket.state();
        connection.peer_finished |=
            matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
        match connection.stage {
            Stage::Handshake => match state {
                State::SynReceived => {}
                // Back to listening, or not even that: there will be no connection.
                State::Listen | State::Closed => self.forget(flow),
                _ => {
                    connection.stage = Stage::Ready;
                    self.accept_queue.push_back(flow);
                }
            },
            Stage::Ready | Stage::Accepted => {
                connection.reset |= state == State::Closed;
                if self.touched.last() != Some(&flow) {
                    self.touched.push(flow);
                }
            }
            Stage::Released => {
                if state == State::Closed {
                    self.forget(flow);
                } else if socket.can_recv() {
                    // Nobody will read it, and the peer is to know (RFC 1122, 4.2.2.13).
                    socket.abort();
                }
            }
        }
    }

    /// Sends a FIN behind what is queued.
    ///
    /// After the peer's own FIN it waits until all else is acknowledged: in LAST-ACK smoltcp 0.14 ignores
    /// an ACK that does nothing but open the window (`socket/tcp.rs`, `process`), and would send the rest
    /// byte by byte, by probes, until the connection times out.
    fn close(&mut self, flow: FlowId) {
        let connection = &mut self.connections[flow.0];
        let socket = self.sockets.get_mut::<tcp::Socket>(connection.socket);
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            connection.fin = Fin::Due;
        } else {
            connection.fin = Fin::Asked;
            socket.close();
        }
    }

    /// Takes a connection that is over out of the map, where a new one takes its place.
    fn detach(&mut self, flow: FlowId) {
        if self.connections[flow.0].stage == Stage::Released {
            self.forget(flow);
        }
    }

    fn forget(&mut self, flow: FlowId) {
        let connection = self.connections.remove(flow.0);
        self.sockets.remove(connection.socket);
        let key = (connection.local, connection.peer);
        if self.by_key.get(&key) == Some(&flow) {
            self.by_key.remove(&key);
        }
        match connection.stage {
            Stage::Handshake => self.unaccepted -= 1,
            Stage::Released => self.released -= 1,
            Stage::Ready | Stage::Accepted => {}
        }
    }

    /// Finds what no packet tells of: connections that timed out, and those to be forgotten.
    fn sweep(&mut self, now: Instant) {
        let mut gone = Vec::new();
        let mut time_wait = Vec::new();
        for (index, connection) in &mut self.connections {
            let socket = self.sockets.get_mut::<tcp::Socket>(connection.socket);
            let state = socket.state();
            let stuck = connection.is_stuck(socket, now);
            match connection.stage {
                Stage::Handshake | Stage::Released if state == State::Closed => gone.push(FlowId(index)),
                Stage::Released if state == State::TimeWait => time_wait.push(FlowId(index)),
                Stage::Released if stuck => socket.abort(),
                Stage::Accepted if state == State::Closed => self.touched.push(FlowId(index)),
                _ => {}
            }
        }
        let surplus = time_wait.len().saturating_sub(MAX_TIME_WAIT);
        for flow in gone.into_iter().chain(time_wait.into_iter().take(surplus)) {
            self.forget(flow);
        }
    }

    fn socket_of(&mut self, flow: FlowId) -> (&mut tcp::Socket<'static>, &Connection) {
        let connection = &self.connections[flow.0];
        (self.sockets.get_mut(connection.socket), connection)
    }
}

/// What a packet is.
enum Class {
    /// A segment of a connection.
    Segment(FlowId),
    /// UDP's.
    Datagram(Arrival),
    /// A SYN that there is no room for.
    Unwelcome,
    /// Anything else, or none at all: smoltcp knows what to do.
    Other,
}

/// A seed for initial sequence numbers, from the standard library's source of hash keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

impl<L: Link> Engine for SmoltcpEngine<L> {
    fn ingress(&mut self, now: Instant) -> io::Result<Intake> {
        let clock = self.clock(now);
        let full = self.device.fill()?;
        loop {
            let flow = match self.classify() {
                Class::Segment(flow) => Some(flow),
                Class::Other => None,
                Class::Unwelcome => {
                    self.device.skip_packet();
                    continue;
                }
                Class::Datagram(arrival) => {
                    self.datagrams.input(arrival, &mut self.device, clock);
                    continue;
                }
            };
            let result = self.interface.poll_ingress_single(clock, &mut self.device, &mut self.sockets);
            if result == PollIngressSingleResult::None {
                break;
            }
            if let Some(flow) = flow {
                self.observe(flow);
            }
        }
        Ok(if full { Intake::Full } else { Intake::Drained })
    }

    fn egress(&mut self, now: Instant) -> io::Result<()> {
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            self.sweep(now);
        }
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.flush(&mut self.device, clock);
        for _ in 0..EGRESS_ROUNDS {
            if self.device.sender.is_blocked()
                || self.interface.poll_egress(clock, &mut self.device, &mut self.sockets) == PollResult::None
            {
                break;
            }
        }
        self.device.sender.settle()?;
        self.device.sender.link.flush()
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let clock = self.clock(now);
        self.interface.poll_delay(clock, &self.sockets).map(|delay| now + Duration::from(delay))
    }

    fn accept(&mut self) -> Option<Accepted> {
        let flow = self.accept_queue.pop_front()?;
        let connection = &mut self.connections[flow.0];
        connection.stage = Stage::Accepted;
        self.unaccepted -= 1;
        Some(Accepted { flow, local: connection.local, peer: connection.peer })
    }

    fn can_accept(&self) -> bool {
        !self.accept_queue.is_empty()
    }

    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize> {
        let (socket, connection) = self.socket_of(flow);
        connection.lend(socket, sink)
    }

    fn has_failed(&self, flow: FlowId) -> bool {
        let connection = &self.connections[flow.0];
        let closed = self.sockets.get::<tcp::Socket>(connection.socket).state() == State::Closed;
        closed && !(connection.fin != Fin::Open && connection.peer_finished)
    }

    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        let (socket, connection) = self.socket_of(flow);
        connection.fill(socket, most, source)
    }

    fn finish(&mut self, flow: FlowId) {
        self.close(flow);
    }

    fn release(&mut self, flow: FlowId) {
        let connection = &mut self.connections[flow.0];
        connection.stage = Stage::Released;
        self.released += 1;
        if self.released > MAX_UNSWEPT {
            self.next_sweep = self.started;
        }
        connection.orphaned_until = Instant::now() + MAX_FIN_WAIT;
        connection.unsent = usize::MAX;
        let socket = self.sockets.get_mut::<tcp::Socket>(connection.socket);
        // RFC 2525, 2.17: a close with data unread says so, with a RST.
        if socket.can_recv() {
            socket.abort();
        } else {
            self.close(flow);
        }
    }

    fn reset(&mut self, flow: FlowId) {
        self.connections[flow.0].fin = Fin::Asked;
        self.socket_of(flow).0.abort();
    }

    fn recv_datagram(&mut self, buffer: &mut [u8]) -> io::Result<Datagram> {
        self.datagrams.inbox.pop(buffer).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn has_datagram(&self) -> bool {
        !self.datagrams.inbox.is_empty()
    }

    fn send_datagram(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.send(&mut self.device, clock, (local, peer), payload)?;
        self.device.sender.settle()?;
        self.device.sender.link.flush()
    }

    fn close_datagrams(&mut self) {
        self.datagrams.close();
    }

    fn touched(&mut self) -> Option<FlowId> {
        self.touched.pop()
    }

    fn is_idle(&self) -> bool {
        self.connections.is_empty()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.sender.link.poll_readable(cx)
    }

    fn is_blocked(&self) -> bool {
        self.device.sender.is_blocked()
    }

    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_blocked() { self.device.sender.link.poll_writable(cx) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_one_smoltcp_derives() {
        for (window, scale) in
            [(4 << 10, 0), (65_535, 0), (65_536, 1), (256 << 10, 3), (4 << 20, 7), (StackConfig::MAX_WINDOW, 14)]
        {
            assert_eq!(window_scale(window), scale, "{window}");
        }
    }
}
