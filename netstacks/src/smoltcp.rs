//! smoltcp 0.14, driven directly.
//!
//! smoltcp has no backlog and no listener for all ports: each socket listens for one connection, and has two rings of a
//! window each. So the adapter parses a packet first. A SYN makes a [half-open](half_open) connection without a socket.
//! The ACK that completes its handshake makes a socket, which gets the SYN first.
//!
//! smoltcp offers each packet to all sockets of a set, and polls all of them. So each connection has its own set, and
//! the cost of a packet does not depend on their number. Closed sockets that have carried few bytes are used again.
//!
//! A byte is copied twice: between the packet and the socket's ring, and between the ring and the caller's buffer.

mod connection;
mod datagrams;
mod device;
mod engine;
mod half_open;
mod handshake;
mod numbers;
mod screen;
#[cfg(test)]
mod tests;

use std::time::Duration;

use platform::packet::flags::{ACK, SYN};
use platform::packet::{Ipv4Fragment, MAX_HEADERS_LEN, TCP, TcpFields, TcpHeaders, Transport};
use platform::{Checksum, Link};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::socket::tcp::State;
use smoltcp::wire::HardwareAddress;
use tokio::time::Instant;

use self::connection::{Connection, Fin, Place, Socket};
use self::datagrams::Datagrams;
use self::device::Device;
use self::screen::{Verdict, screen, trim};
use crate::datagrams::Arrival;
use crate::driven::isn::InitialNumbers;
use crate::driven::segment::{self, Segment};
use crate::driven::{self, DrivenDatagrams, DrivenListener, Flow, FlowId, Stage, Table};
use crate::mss_rewrite;
use crate::offload::header_len;
use crate::{Effective, FlowKey, Netstack, StackConfig, StackKind, StartError, Started, Workaround, is_host};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "0.14.0";

/// The `smoltcp` crate. Over IPv4 it fragments datagrams, and reassembles four at once.
pub struct Smoltcp;

impl<L: Link> Netstack<L> for Smoltcp {
    type Stream = Flow<SmoltcpEngine<L>>;
    type Listener = DrivenListener<SmoltcpEngine<L>>;
    type Datagrams = DrivenDatagrams<SmoltcpEngine<L>>;

    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError> {
        if !(StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(&config.window) {
            return Err(StartError::Unfit {
                stack: StackKind::Smoltcp,
                reason: format!("a window of {} bytes; it takes 4 KiB to less than 1 GiB", config.window),
            });
        }
        let capabilities = link.capabilities();
        let offload = mss_rewrite::offload(&capabilities, config.workarounds);
        let effective = Effective {
            congestion: config.congestion.name().into(),
            checksum_verified: !capabilities.checksum.rx,
            checksum_computed: !capabilities.checksum.tx,
            ..Effective::of(StackKind::Smoltcp, config, &offload)
        };
        let (listener, datagrams, driver) = driven::start(SmoltcpEngine::new(link, config.clone()), config.workarounds);
        Ok(Started { listener, datagrams, driver, effective })
    }
}

/// Largest number of closed sockets that are kept for new connections. A new socket costs system calls and page faults.
const MAX_SPARE: usize = 64;

/// Largest number of packets that one egress sends, so that received packets do not wait too long.
const EGRESS_PACKETS: usize = 256;

/// Largest number of packets of one connection that are sent before the next connection.
const FLOW_PACKETS: usize = 8;

/// The shortest timer. smoltcp may ask for a poll at once although it has nothing to send.
const SHORTEST_TIMER: Duration = Duration::from_millis(1);

/// smoltcp's interface, and the connections.
pub struct SmoltcpEngine<L> {
    device: Device<L>,
    /// In a box, because it contains a buffer for a fragmented datagram, and the engine is moved.
    interface: Box<Interface>,
    table: Table<Place>,
    /// An empty set, for packets that belong to no connection.
    no_sockets: SocketSet<'static>,
    /// Closed sockets, for new connections.
    spare: Vec<Socket>,
    initial_numbers: InitialNumbers,
    datagrams: Datagrams,
    config: StackConfig,
    /// The payload of a segment on the wire, in bytes.
    mss: usize,
    started: Instant,
}

impl<L: Link> SmoltcpEngine<L> {
    fn new(link: L, config: StackConfig) -> Self {
        let (mss, now) = (link.capabilities().mtu.saturating_sub(header_len(false)), Instant::now());
        let mut device = Device::new(link, config.workarounds);
        let mut interface_config = Config::new(HardwareAddress::Ip);
        interface_config.random_seed = random_seed();
        let mut interface = Box::new(Interface::new(interface_config, &mut device, smoltcp::time::Instant::ZERO));
        interface.set_any_ip(true);
        Self {
            device,
            interface,
            table: Table::new(&config),
            no_sockets: SocketSet::new(Vec::new()),
            spare: Vec::new(),
            initial_numbers: InitialNumbers::new(now),
            datagrams: Datagrams::new(),
            config,
            mss,
            started: now,
        }
    }

    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        smoltcp::time::Instant::from_micros(now.saturating_duration_since(self.started).as_micros() as i64)
    }

    fn time(&self, clock: smoltcp::time::Instant) -> Instant {
        self.started + Duration::from_micros(clock.total_micros().max(0) as u64)
    }

    fn classify(&mut self, now: Instant) -> Class {
        let Some(packet) = self.device.next_packet() else { return Class::Other };
        let Some(segment) = segment::parse(packet) else {
            return match Arrival::parse(packet) {
                Some(arrival) => Class::Datagram(arrival),
                None if is_tcp(packet) => Class::Unwelcome,
                None => Class::Other,
            };
        };
        if !self.device.is_next_intact() {
            return Class::Unwelcome;
        }
        if segment.flags & SYN != 0 {
            self.device.raise_next_mss();
        }
        let Some(flow) = self.table.find(&segment.key) else {
            return match segment.key {
                // RFC 9293, 3.9.2.3; RFC 1122, 3.2.1.3: groups and loopback addresses have no connections.
                FlowKey { local, peer } if !is_host(local.ip()) || !is_host(peer.ip()) => Class::Unwelcome,
                key if segment.opens => self.begin(key, now, None),
                _ => Class::Other,
            };
        };
        match &self.table[flow] {
            Place::HalfOpen(half_open) => {
                let next = half_open.next(&segment, self.config.window);
                self.continue_handshake(flow, next, now)
            }
            Place::Open(connection) => {
                let edges = connection.edges();
                match screen(connection, &edges, &segment) {
                    Verdict::Pass => {
                        if let Some(packet) = self.device.next_packet_mut() {
                            trim(&edges, &segment, packet);
                        }
                        Class::Segment(flow)
                    }
                    Verdict::Drop => Class::Unwelcome,
                    Verdict::Challenge => self.challenge(flow, &segment),
                    Verdict::Reopen => {
                        if matches!(self.table.stage(flow), Some(Stage::Orphaned | Stage::TimeWait)) {
                            self.forget(flow);
                        } else {
                            self.table.detach(flow);
                        }
                        self.begin(segment.key, now, Some(edges.sent))
                    }
                }
            }
        }
    }

    /// Puts a segment in the place of the next packet, to which smoltcp replies with an acknowledgement. In TIME-WAIT
    /// it has data: else smoltcp replies once a second (RFC 5961, 7), which would also delay that of the peer's FIN.
    fn challenge(&mut self, flow: FlowId, segment: &Segment) -> Class {
        let Some(connection) = self.table[flow].open() else { return Class::Unwelcome };
        let edges = connection.edges();
        let fields = TcpFields {
            sequence: edges.expected.wrapping_sub(1),
            acknowledgement: edges.unacknowledged,
            flags: ACK,
            window: edges.peer_window,
        };
        let Some(headers) = TcpHeaders::new(segment.key.peer, segment.key.local) else { return Class::Unwelcome };
        let mut packet = [0; MAX_HEADERS_LEN];
        let data: &[u8] = if connection.socket.state() == State::TimeWait { &[0] } else { &[] };
        let len = headers.write(fields, &[], data, Checksum::Partial, &mut packet);
        self.device.replace(&packet[..len + data.len()]);
        Class::Segment(flow)
    }

    /// Updates a connection after smoltcp has handled a packet for it.
    fn received(&mut self, flow: FlowId) {
        let Some(stage) = self.table.stage(flow) else { return };
        self.table.set_due(flow);
        let Some(connection) = self.table[flow].open_mut() else { return };
        let socket = &mut connection.socket;
        if connection.fin == Fin::Due && socket.send_queue() == 0 {
            connection.fin = Fin::Asked;
            socket.close();
        }
        let tcp_state = socket.state();
        connection.peer_finished |=
            matches!(tcp_state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
        match stage {
            Stage::Handshake => match tcp_state {
                State::SynReceived => {}
                // The handshake has failed.
                State::Listen | State::Closed => self.forget(flow),
                _ => {
                    socket.set_timeout(Some(self.config.user_timeout.into()));
                    self.table.established(flow);
                }
            },
            Stage::Ready | Stage::Accepted => {
                connection.reset |= tcp_state == State::Closed;
                self.table.set_changed(flow);
            }
            Stage::Orphaned | Stage::TimeWait => {
                if socket.can_recv() {
                    // No task will read the data, so the peer gets a RST (RFC 1122, 4.2.2.13).
                    socket.abort();
                }
            }
        }
    }

    /// Sends at most `most` packets of a connection, and returns how many. To give memory back counts as a packet.
    fn send_due(&mut self, flow: FlowId, now: Instant, most: usize) -> usize {
        let clock = self.clock(now);
        let Some(Place::Open(Connection { socket, numbers, .. })) = self.table.get_mut(flow) else { return 0 };
        let mut sent = 0;
        while sent < most && !self.device.sender.is_blocked() {
            let result =
                self.device.numbered(numbers, |device| self.interface.poll_egress(clock, device, socket.set()));
            if result == PollResult::None {
                sent += usize::from(self.rest(flow, now));
                self.sent_all(flow, now);
                return sent;
            }
            sent += 1;
        }
        self.table.set_due(flow);
        sent
    }

    /// Gives the memory of a connection's rings back, or sets the timer for that. Returns whether it did.
    fn rest(&mut self, flow: FlowId, now: Instant) -> bool {
        let Some(connection) = self.table[flow].open_mut() else { return false };
        match connection.rests_until(self.started, now) {
            Some(until) if until <= now => {
                connection.give_back();
                true
            }
            Some(until) => {
                self.table.set_timer(flow, until);
                false
            }
            None => false,
        }
    }

    /// Handles a connection that has nothing more to send now. It may have timed out or ended. Sets its timer.
    fn sent_all(&mut self, flow: FlowId, now: Instant) {
        let clock = self.clock(now);
        let Some(stage) = self.table.stage(flow) else { return };
        let Some(connection) = self.table[flow].open_mut() else { return };
        let tcp_state = connection.socket.state();
        let (edges, fits) = (connection.edges(), connection.is_first_within_window());
        let late_at = connection.recovery.next(&edges, fits, now);
        let stuck_at = (stage == Stage::Orphaned).then(|| connection.stuck_at(now));
        let stack_timer = self.interface.poll_at(clock, connection.socket.set()).map(|at| self.time(at));
        let mut timer = [late_at.ok().flatten(), stack_timer].into_iter().flatten().min();
        if late_at.is_err() && self.retransmit(flow, clock) {
            return;
        }
        match stage {
            Stage::Handshake | Stage::Orphaned | Stage::TimeWait if tcp_state == State::Closed => {
                return self.forget(flow);
            }
            Stage::Orphaned if tcp_state == State::TimeWait => {
                if let Some(oldest) = self.table.wait(flow) {
                    self.forget(oldest);
                }
            }
            Stage::Orphaned if stuck_at.is_some_and(|stuck_at| now >= stuck_at) => return self.abort(flow),
            Stage::Orphaned => timer = timer.into_iter().chain(stuck_at).min(),
            Stage::Ready | Stage::Accepted if tcp_state == State::Closed => self.table.set_changed(flow),
            _ => {}
        }
        if let Some(at) = timer {
            self.table.set_timer(flow, at.max(now + SHORTEST_TIMER));
        }
    }

    /// Ends a connection with a RST.
    fn abort(&mut self, flow: FlowId) {
        if let Some(connection) = self.table[flow].open_mut() {
            connection.fin = Fin::Asked;
            connection.socket.abort();
            self.table.set_due(flow);
        }
    }

    /// Removes a connection without a word to its peer.
    fn forget(&mut self, flow: FlowId) {
        if let Place::Open(connection) = self.table.remove(flow)
            && connection.is_fresh()
        {
            self.reuse(connection.socket);
        }
    }

    /// Keeps a socket for a new connection.
    fn reuse(&mut self, mut socket: Socket) {
        if self.spare.len() < MAX_SPARE && self.config.workarounds.has(Workaround::SpareSockets) {
            socket.abort();
            self.spare.push(socket);
        }
    }

    fn input(&mut self, now: Instant) {
        let clock = self.clock(now);
        loop {
            let result = match self.classify(now) {
                Class::Segment(flow) => self.input_segment(flow, now),
                Class::Other => self.interface.poll_ingress_single(clock, &mut self.device, &mut self.no_sockets),
                Class::Unwelcome => {
                    self.device.skip_packet();
                    continue;
                }
                Class::Datagram(arrival) => {
                    self.datagrams.input(arrival, &mut self.device, clock);
                    continue;
                }
            };
            if result == PollIngressSingleResult::None {
                return;
            }
        }
    }

    /// Passes the next packet to the socket of its connection.
    fn input_segment(&mut self, flow: FlowId, now: Instant) -> PollIngressSingleResult {
        let clock = self.clock(now);
        let Some(connection) = self.table[flow].open_mut() else { return PollIngressSingleResult::None };
        let edges = connection.edges();
        let mut lost = None;
        if let Some(packet) = self.device.next_packet_mut() {
            connection.note_arrived(packet, &edges);
            let Connection { recovery, peer_window, .. } = connection;
            if let Some(segment) = edges.accept(packet) {
                *peer_window = segment.window();
                lost = recovery.on_segment(&segment, &edges, now);
            }
            connection.numbers.incoming(packet);
        }
        let Connection { socket, numbers, .. } = connection;
        let result =
            self.device.numbered(numbers, |device| self.interface.poll_ingress_single(clock, device, socket.set()));
        if lost.is_some() {
            self.retransmit(flow, clock);
        }
        self.received(flow);
        result
    }

    /// Makes smoltcp retransmit the first unacknowledged segment, by three forged duplicates after another window.
    /// Returns `false` for a FIN alone: it is not retransmitted, and smoltcp would forget its timer.
    fn retransmit(&mut self, flow: FlowId, clock: smoltcp::time::Instant) -> bool {
        let FlowKey { local, peer } = *self.table.key(flow);
        let Some(headers) = TcpHeaders::new(peer, local) else { return false };
        let Some(connection) = self.table[flow].open_mut() else { return false };
        if connection.socket.send_queue() == 0 || !connection.socket.is_active() {
            return false;
        }
        let edges = connection.edges();
        let Connection { socket, numbers, peer_window: window, .. } = connection;
        for window in [*window ^ 1, *window, *window, *window, *window] {
            let fields =
                TcpFields { sequence: edges.expected, acknowledgement: edges.unacknowledged, flags: ACK, window };
            let mut packet = [0; MAX_HEADERS_LEN];
            let len = headers.write(fields, &[], &[], Checksum::Partial, &mut packet);
            numbers.incoming(&mut packet[..len]);
            self.device.put(&packet[..len]);
            self.device.numbered(numbers, |device| self.interface.poll_ingress_single(clock, device, socket.set()));
        }
        self.table.set_due(flow);
        true
    }
}

enum Class {
    Segment(FlowId),
    Datagram(Arrival),
    /// A packet that smoltcp must not see, or need not.
    Unwelcome,
    /// Any other packet, or none: smoltcp handles it.
    Other,
}

/// Whether a packet is TCP although it is no segment. smoltcp would join fragments, and reset the connection.
fn is_tcp(packet: &[u8]) -> bool {
    let whole = Transport::parse(packet).map(|transport| transport.protocol);
    whole.or_else(|| Ipv4Fragment::parse(packet).map(|fragment| fragment.protocol)) == Some(TCP)
}

/// A random seed for smoltcp, from the standard library's hash keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
