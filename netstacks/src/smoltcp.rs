//! smoltcp 0.14, driven directly.
//!
//! smoltcp has no backlog and no listener for all ports: each socket listens for one connection. So the adapter parses
//! a packet before smoltcp does. For a SYN that opens a connection, it makes a socket that listens on the SYN's address
//! and port. Then it passes the packet on.
//!
//! smoltcp offers each packet to all sockets of a set, and polls all of them. So each connection has its own set, and
//! the adapter's table finds it. Then the cost of a packet and of a poll does not depend on the number of connections.
//!
//! A socket allocates both rings at the start. To bound their memory, the number of half-open connections is limited,
//! and further SYNs wait in a queue. Sockets that have carried few bytes are reused.
//!
//! UDP has its own interface and socket; see `smoltcp/datagrams.rs`.
//!
//! A byte is copied twice in user space: between the device's packet and the socket's ring, and
//! between the ring and the caller's buffer.

mod connection;
mod datagrams;
mod device;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Poll};
use std::time::Duration;

use platform::packet::flags::ACK;
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};
use platform::{Capabilities, Checksum, Link};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::socket::tcp::State;
use smoltcp::wire::{HardwareAddress, IpEndpoint};
use tokio::time::Instant;

use self::connection::{Connection, Fin, Socket};
use self::datagrams::Datagrams;
use self::device::Device;
use crate::datagrams::{Arrival, Inbox};
use crate::driven::{
    self, Accepted, DrivenDatagrams, DrivenListener, Engine, Flow, FlowId, Intake, Stage, Table, segment,
};
use crate::offload::Offload;
use crate::recovery::{HEADERS, Lost};
use crate::{Effective, FlowKey, Netstack, Sink, Source, StackConfig, StackKind, StartError, Started};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "0.14.0";

/// The work that the adapter does in smoltcp's place.
///
/// - `mss-rewrite`: super-packets come from a larger MSS; see `mss_rewrite.rs`.
/// - `duplicate-ack-window`: duplicate acknowledgements keep their window; see `recovery.rs`.
/// - `partial-ack`: several losses in a window are recovered without a timeout; see `recovery.rs`.
/// - `tail-loss-probe`: the loss of the last segments in flight, or of their only acknowledgement, is recovered without
///   a timeout; see `recovery.rs`.
/// - `late-fin`: after the peer's FIN, our FIN waits until all bytes are acknowledged; see `SmoltcpEngine::close`.
/// - `reset-unread`: dropping a stream with unread bytes sends a RST.
const WORKAROUNDS: [&str; 6] =
    ["mss-rewrite", "duplicate-ack-window", "partial-ack", "tail-loss-probe", "late-fin", "reset-unread"];

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
        let effective = Effective {
            stack_version: VERSION.into(),
            receive_buffer_bytes: config.window,
            send_buffer_bytes: config.window,
            window_scale: Some(crate::window_scale(config.window)),
            largest_packet_bytes: Offload::of(&capabilities).largest_tcp_packet(),
            congestion: "none".into(),
            checksum_verified: !capabilities.checksum.rx,
            checksum_computed: !capabilities.checksum.tx,
            workarounds: WORKAROUNDS.map(Into::into).into(),
        };
        let (listener, datagrams, driver) = driven::start(SmoltcpEngine::new(link, config.clone()));
        Ok(Started { listener, datagrams, driver, effective })
    }
}

/// The timeout of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Limit for the rings of all half-open connections together, in bytes. Most of this memory is never touched.
const MAX_HALF_OPEN_BYTES: usize = 256 << 20;

/// At least this many connections may be half-open, whatever the size of their rings.
const MIN_HALF_OPEN: usize = 16;

/// Largest number of closed sockets that are kept for new connections. A new socket costs system calls and page faults.
const MAX_SPARE: usize = 64;

/// A socket is kept only if it has carried at most this many bytes: its touched memory stays allocated.
const MAX_SPARE_BYTES: usize = 64 << 10;

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
    table: Table<Connection>,
    /// An empty set, for packets that belong to no connection.
    no_sockets: SocketSet<'static>,
    /// SYNs that wait until fewer connections are half-open.
    syn_queue: VecDeque<(FlowKey, Box<[u8]>)>,
    max_half_open: usize,
    /// Closed sockets, for new connections.
    spare: Vec<Socket>,
    datagrams: Datagrams,
    config: StackConfig,
    /// The payload of a segment on the wire, in bytes.
    mss: usize,
    started: Instant,
}

impl<L: Link> SmoltcpEngine<L> {
    fn new(link: L, config: StackConfig) -> Self {
        let mss = link.capabilities().mtu.saturating_sub(HEADERS);
        let mut device = Device::new(link);
        let mut interface_config = Config::new(HardwareAddress::Ip);
        interface_config.random_seed = random_seed();
        let mut interface = Box::new(Interface::new(interface_config, &mut device, smoltcp::time::Instant::ZERO));
        interface.set_any_ip(true);
        Self {
            device,
            interface,
            table: Table::new(config.backlog),
            no_sockets: SocketSet::new(Vec::new()),
            syn_queue: VecDeque::new(),
            max_half_open: (MAX_HALF_OPEN_BYTES / (2 * config.window)).max(MIN_HALF_OPEN),
            spare: Vec::new(),
            datagrams: Datagrams::new(),
            config,
            mss,
            started: Instant::now(),
        }
    }

    fn clock(&self, now: Instant) -> smoltcp::time::Instant {
        smoltcp::time::Instant::from_micros(now.saturating_duration_since(self.started).as_micros() as i64)
    }

    fn time(&self, clock: smoltcp::time::Instant) -> Instant {
        self.started + Duration::from_micros(clock.total_micros().max(0) as u64)
    }

    /// Classifies the next packet. Opens a connection for a SYN.
    fn classify(&mut self) -> Class {
        let Some(packet) = self.device.next_packet() else { return Class::Other };
        let Some(segment) = segment::parse(packet) else {
            return Arrival::parse(packet).map_or(Class::Other, Class::Datagram);
        };
        let known = self.table.find(&segment.key);
        if !segment.opens {
            return known.map_or(Class::Other, Class::Segment);
        }
        if let Some(flow) = known {
            // RFC 9293, 3.6.1: a new SYN may replace a connection in TIME-WAIT.
            if !matches!(self.table[flow].socket.state(), State::TimeWait | State::Closed) {
                return Class::Segment(flow);
            }
            if matches!(self.table.stage(flow), Some(Stage::Orphaned | Stage::TimeWait)) {
                self.forget(flow);
            } else {
                self.table.detach(flow);
            }
        }
        // smoltcp finds no socket and replies with a RST.
        if !self.table.is_listening() {
            return Class::Other;
        }
        if self.syn_queue.len() >= self.table.room() {
            return Class::Unwelcome;
        }
        if self.table.half_open() >= self.max_half_open {
            if let Some(syn) = self.device.next_packet()
                && !self.syn_queue.iter().any(|(key, _)| *key == segment.key)
            {
                self.syn_queue.push_back((segment.key, syn.into()));
            }
            return Class::Unwelcome;
        }
        self.listen(segment.key).map_or(Class::Unwelcome, Class::Segment)
    }

    /// Adds a connection with a socket that listens for its SYN. `None` if the system refuses the
    /// memory of its rings.
    fn listen(&mut self, key: FlowKey) -> Option<FlowId> {
        let mut socket = self.spare.pop().or_else(|| Socket::new(self.config.window).ok())?;
        // By default an ACK may wait for 10 ms. That would stall a peer if a single packet fills the window.
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(HANDSHAKE_TIMEOUT.min(self.config.user_timeout).into()));
        // If this is set later, smoltcp sends a probe at once.
        socket.set_keep_alive(Some((self.config.user_timeout / 3).into()));
        // This fails only for an open socket or port 0. A SYN to port 0 then finds no listener, and smoltcp replies
        // with a RST.
        let _refused = socket.listen(IpEndpoint::from(key.local));
        let segment_len = self.device.sender.segment_len(key.local.is_ipv6());
        Some(self.table.open(key, Connection::new(socket, segment_len, self.mss)))
    }

    /// Updates a connection after smoltcp has handled a packet for it.
    fn received(&mut self, flow: FlowId) {
        let Some(stage) = self.table.stage(flow) else { return };
        self.table.set_due(flow);
        let connection = &mut self.table[flow];
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

    /// Sends at most `most` packets of a connection, and returns how many.
    fn send_due(&mut self, flow: FlowId, now: Instant, most: usize) -> usize {
        let clock = self.clock(now);
        let Some(connection) = self.table.get_mut(flow) else { return 0 };
        let mut sent = 0;
        while sent < most && !self.device.sender.is_blocked() {
            let sockets = connection.socket.set();
            if self.interface.poll_egress(clock, &mut self.device, sockets) == PollResult::None {
                self.sent_all(flow, now);
                return sent;
            }
            sent += 1;
        }
        self.table.set_due(flow);
        sent
    }

    /// Handles a connection that has nothing more to send now. It may have timed out or ended. Sets its timer.
    fn sent_all(&mut self, flow: FlowId, now: Instant) {
        let clock = self.clock(now);
        let Some(stage) = self.table.stage(flow) else { return };
        let connection = &mut self.table[flow];
        let tcp_state = connection.socket.state();
        let late_at = connection.recovery.deadline(connection.socket.send_queue(), now);
        let stack_timer = self.interface.poll_at(clock, connection.socket.set()).map(|at| self.time(at));
        let mut timer = [late_at, stack_timer].into_iter().flatten().min();
        match stage {
            Stage::Handshake | Stage::Orphaned | Stage::TimeWait if tcp_state == State::Closed => {
                return self.forget(flow);
            }
            Stage::Orphaned if tcp_state == State::TimeWait => {
                if let Some(oldest) = self.table.wait(flow) {
                    self.forget(oldest);
                }
            }
            Stage::Orphaned => {
                let stuck_at = self.table[flow].stuck_at(now);
                if now >= stuck_at {
                    self.table[flow].socket.abort();
                    return self.table.set_due(flow);
                }
                timer = Some(timer.map_or(stuck_at, |timer| timer.min(stuck_at)));
            }
            Stage::Ready | Stage::Accepted if tcp_state == State::Closed => self.table.set_changed(flow),
            _ => {}
        }
        if let Some(at) = timer {
            self.table.set_timer(flow, at.max(now + SHORTEST_TIMER));
        }
    }

    /// Sends a FIN behind the queued bytes.
    ///
    /// After the peer's FIN it waits until all bytes are acknowledged. In LAST-ACK, smoltcp 0.14 ignores an ACK that
    /// only opens the window (`socket/tcp.rs`, `process`). It would send the rest byte by byte, with window probes,
    /// until the connection times out.
    fn close(&mut self, flow: FlowId) {
        let Connection { socket, fin, .. } = &mut self.table[flow];
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            *fin = Fin::Due;
        } else {
            *fin = Fin::Asked;
            socket.close();
        }
        self.table.set_due(flow);
    }

    fn forget(&mut self, flow: FlowId) {
        let Connection { mut socket, carried, .. } = self.table.remove(flow);
        if carried + socket.recv_queue() <= MAX_SPARE_BYTES && self.spare.len() < MAX_SPARE {
            socket.abort();
            self.spare.push(socket);
        }
    }

    /// Passes the packets of the batch to smoltcp.
    fn input(&mut self, now: Instant) {
        let clock = self.clock(now);
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
            let mut lost = None;
            let sockets = match flow {
                Some(flow) => {
                    let Connection { socket, recovery, .. } = &mut self.table[flow];
                    if let Some(packet) = self.device.next_packet_mut() {
                        lost = recovery.on_packet(packet, socket.send_queue(), now);
                    }
                    socket.set()
                }
                None => &mut self.no_sockets,
            };
            let result = self.interface.poll_ingress_single(clock, &mut self.device, sockets);
            if result == PollIngressSingleResult::None {
                return;
            }
            if let Some(flow) = flow {
                if lost.is_some() {
                    self.retransmit(flow, clock);
                }
                self.received(flow);
            }
        }
    }

    /// Makes smoltcp retransmit the first unacknowledged segment. smoltcp does that at the third duplicate of an
    /// acknowledgement, and restarts the count when the window changes. So this forges these acknowledgements.
    fn retransmit(&mut self, flow: FlowId, clock: smoltcp::time::Instant) {
        let FlowKey { local, peer } = *self.table.key(flow);
        let Some(headers) = TcpHeaders::new(peer, local) else { return };
        let Connection { socket, recovery, .. } = &mut self.table[flow];
        let ((sequence, acknowledgement), window) = (recovery.numbers(), recovery.window());
        for window in [window ^ 1, window, window, window, window] {
            let fields = TcpFields { sequence, acknowledgement, flags: ACK, window };
            let mut packet = [0; MAX_HEADERS_LEN];
            let len = headers.write(fields, &[], &[], Checksum::Filled, &mut packet);
            self.device.put(&packet[..len]);
            self.interface.poll_ingress_single(clock, &mut self.device, socket.set());
        }
    }

    /// Makes smoltcp retransmit a segment if its acknowledgement is late.
    fn retransmit_late(&mut self, flow: FlowId, now: Instant) {
        let Connection { socket, segment_len, recovery, .. } = &mut self.table[flow];
        let queued = socket.send_queue();
        // smoltcp retransmits a whole super-packet, even if it is larger than the peer's window.
        let fits = queued.min(*segment_len) <= recovery.window_len();
        let lost = recovery.expire(queued, now).filter(|lost| fits || *lost != Lost::Probe);
        if lost.is_some() && socket.is_active() {
            self.retransmit(flow, self.clock(now));
        }
    }
}

/// The kinds of packets.
enum Class {
    /// A segment of a connection.
    Segment(FlowId),
    /// A UDP packet.
    Datagram(Arrival),
    /// A SYN for which there is no room or no memory: it is dropped, or its copy waits in the SYN queue.
    Unwelcome,
    /// Any other packet, or none: smoltcp handles it.
    Other,
}

/// A random seed for smoltcp, from the standard library's hash keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

impl<L: Link> Engine for SmoltcpEngine<L> {
    fn ingress(&mut self, now: Instant) -> io::Result<Intake> {
        let intake = self.device.fill()?;
        self.input(now);
        while self.table.half_open() < self.max_half_open
            && let Some((_, syn)) = self.syn_queue.pop_front()
        {
            self.device.put(&syn);
            self.input(now);
        }
        Ok(intake)
    }

    fn egress(&mut self, now: Instant) -> io::Result<()> {
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.flush(&mut self.device, clock);
        self.table.expire(now);
        let mut left = EGRESS_PACKETS;
        while left > 0
            && !self.device.sender.is_blocked()
            && let Some(flow) = self.table.next_due()
        {
            self.retransmit_late(flow, now);
            left -= self.send_due(flow, now, left.min(FLOW_PACKETS));
        }
        self.device.sender.settle()?;
        self.device.sender.link.flush()
    }

    fn has_due(&self) -> bool {
        self.table.has_due()
    }

    fn deadline(&mut self, _now: Instant) -> Option<Instant> {
        self.table.deadline()
    }

    fn accept(&mut self) -> Option<Accepted> {
        self.table.accept()
    }

    fn can_accept(&self) -> bool {
        self.table.can_accept()
    }

    fn close_listener(&mut self) {
        self.syn_queue.clear();
        for flow in self.table.close_listener() {
            self.table[flow].socket.abort();
            self.table.set_due(flow);
        }
    }

    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize> {
        let lent = self.table[flow].lend(sink)?;
        // A window update may be due.
        self.table.set_due(flow);
        Ok(lent)
    }

    fn has_failed(&self, flow: FlowId) -> bool {
        let connection = &self.table[flow];
        let closed = connection.socket.state() == State::Closed;
        closed && !(connection.fin != Fin::Open && connection.peer_finished)
    }

    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        let filled = self.table[flow].fill(most, source)?;
        self.table.set_due(flow);
        Ok(filled)
    }

    fn finish(&mut self, flow: FlowId) {
        self.close(flow);
    }

    fn release(&mut self, flow: FlowId) {
        self.table.orphan(flow);
        let connection = &mut self.table[flow];
        // RFC 2525, 2.17: a close with unread data sends a RST.
        if connection.socket.can_recv() {
            connection.socket.abort();
            self.table.set_due(flow);
        } else {
            self.close(flow);
        }
    }

    fn reset(&mut self, flow: FlowId) {
        self.table[flow].fin = Fin::Asked;
        self.table[flow].socket.abort();
        self.table.set_due(flow);
    }

    fn inbox(&mut self) -> &mut Inbox {
        &mut self.datagrams.inbox
    }

    fn udp_segmentation(&self) -> Option<Capabilities> {
        let sender = &self.device.sender;
        sender.udp_segmentation.then(|| sender.link.capabilities())
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()> {
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.send(&mut self.device, clock, ends, payload, segment_len)?;
        self.device.sender.settle()?;
        match self.device.sender.link.flush() {
            // The datagram was sent all the same.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }

    fn close_datagrams(&mut self) {
        self.datagrams.close();
    }

    fn touched(&mut self) -> Option<FlowId> {
        self.table.next_changed()
    }

    fn is_idle(&self) -> bool {
        self.table.is_empty()
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
