//! smoltcp 0.14, driven directly.
//!
//! smoltcp has no listener that takes any port and no backlog: each socket listens for one
//! connection. So the adapter looks at a packet before smoltcp does, takes a socket for the address
//! and port of a SYN that opens a connection, and hands the packet over.
//!
//! smoltcp offers each packet to all sockets of a set, and polls all of them. So each connection has a set of its
//! own, and the adapter's table finds it. Then a packet and a poll cost the same with one connection and with ten
//! thousand.
//!
//! A socket has both its rings from the start. To bound their memory, few handshakes are under way at once: further
//! SYNs wait in a queue. Sockets that have carried little are used again.
//!
//! UDP has an interface and a socket of its own, which `smoltcp/datagrams.rs` describes. Over IPv4 it fragments.
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
use platform::{Checksum, Link};
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

/// As in `Cargo.lock`; the crate does not say it itself.
pub(crate) const VERSION: &str = "0.14.0";

/// What the adapter does in smoltcp's place.
///
/// - `mss-rewrite`: super-packets come from a larger MSS, see `mss_rewrite.rs`.
/// - `duplicate-ack-window`: duplicate acknowledgements keep their window, see `recovery.rs`.
/// - `partial-ack`: a window with several losses is repaired without a timeout, see `recovery.rs`.
/// - `tail-loss-probe`: the loss of a flight's last segments, or of its only acknowledgement, is repaired without a timeout,
///   see `recovery.rs`.
/// - `late-fin`: a FIN waits behind the bytes before it, see `SmoltcpEngine::close`.
/// - `reset-unread`: a stream that is dropped with bytes unread is reset.
const WORKAROUNDS: [&str; 6] =
    ["mss-rewrite", "duplicate-ack-window", "partial-ack", "tail-loss-probe", "late-fin", "reset-unread"];

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

/// A peer has so long to complete the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// The rings of all half-open connections together, in bytes. Most of it is never touched.
const MAX_HALF_OPEN_BYTES: usize = 256 << 20;

/// Handshakes that may be under way at once, whatever their rings take.
const MIN_HALF_OPEN: usize = 16;

/// Closed sockets that are kept for new connections. A new one costs system calls and page faults.
const MAX_SPARE: usize = 64;

/// A socket is kept only if it has carried no more bytes: all its memory that was ever touched stays in use.
const MAX_SPARE_BYTES: usize = 64 << 10;

/// One egress sends so many packets at most, so that input is not left waiting.
const EGRESS_PACKETS: usize = 256;

/// So many packets of one connection are sent before the others have their turn.
const FLOW_PACKETS: usize = 8;

/// The shortest timer. smoltcp may want to be polled at once though it has nothing to send.
const SHORTEST_TIMER: Duration = Duration::from_millis(1);

/// smoltcp's interface, and the connections.
pub struct SmoltcpEngine<L> {
    device: Device<L>,
    /// In a box, since it has room for a datagram in fragments in itself, and is moved with the engine.
    interface: Box<Interface>,
    table: Table<Connection>,
    /// The sockets for packets that belong to no connection: none.
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
        // Each connection has two rings of the window's size, of which most connections need a page or two.
        platform::return_large_buffers();
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

    /// What the next packet is; for a SYN there is a new connection.
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
            // RFC 9293, 3.6.1: a new SYN may take the place of a connection in TIME-WAIT.
            if !matches!(self.table[flow].socket.state(), State::TimeWait | State::Closed) {
                return Class::Segment(flow);
            }
            if matches!(self.table.stage(flow), Some(Stage::Orphaned | Stage::TimeWait)) {
                self.forget(flow);
            } else {
                self.table.detach(flow);
            }
        }
        // smoltcp answers with a RST: there is no socket.
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
        Class::Segment(self.listen(segment.key))
    }

    /// A socket that waits for the SYN of a connection.
    fn listen(&mut self, key: FlowKey) -> FlowId {
        let mut socket = self.spare.pop().unwrap_or_else(|| Socket::new(self.config.window));
        // The 10 ms that an ACK may otherwise wait would stall a peer whose one packet fills the window.
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(HANDSHAKE_TIMEOUT.min(self.config.user_timeout).into()));
        // Set later, it would send a probe at once.
        socket.set_keep_alive(Some((self.config.user_timeout / 3).into()));
        // Only an open socket or port 0 is refused. A SYN to port 0 then finds no listener, and
        // smoltcp answers it with a RST.
        let _refused = socket.listen(IpEndpoint::from(key.local));
        let segment_len = self.device.sender.segment_len(key.local.is_ipv6());
        self.table.open(key, Connection::new(socket, segment_len, self.mss))
    }

    /// Looks at what a packet has made of a connection.
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
                // Back to listening, or not even that: there will be no connection.
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
                    // Nobody will read it, and the peer is to know (RFC 1122, 4.2.2.13).
                    socket.abort();
                }
            }
        }
    }

    /// Sends packets of a connection, `most` at most, and returns how many.
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

    /// Looks at a connection that has nothing more to send now: it may have timed out, and may be over.
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

    /// Sends a FIN behind what is queued.
    ///
    /// After the peer's own FIN it waits until all else is acknowledged: in LAST-ACK smoltcp 0.14 ignores
    /// an ACK that does nothing but open the window (`socket/tcp.rs`, `process`), and would send the rest
    /// byte by byte, by probes, until the connection times out.
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

    /// Hands smoltcp the packets of the batch.
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

    /// Makes smoltcp retransmit the first unacknowledged segment. It does so at the third duplicate of an acknowledgement,
    /// and begins to count anew when the window changes.
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

    /// Makes smoltcp retransmit a segment of which no acknowledgement has come for long.
    fn retransmit_late(&mut self, flow: FlowId, now: Instant) {
        let Connection { socket, segment_len, recovery, .. } = &mut self.table[flow];
        let queued = socket.send_queue();
        // smoltcp retransmits a whole super-packet, even one that is larger than the peer's window.
        let fits = queued.min(*segment_len) <= recovery.window_len();
        let lost = recovery.expire(queued, now).filter(|lost| fits || *lost != Lost::Probe);
        if lost.is_some() && socket.is_active() {
            self.retransmit(flow, self.clock(now));
        }
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
        // The window may be worth an update.
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
        // RFC 2525, 2.17: a close with data unread says so, with a RST.
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

    fn udp_segmentation(&self) -> Option<usize> {
        let sender = &self.device.sender;
        sender.udp_segmentation.then(|| sender.link.capabilities().mtu)
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
        self.device.sender.link.flush()
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
