//! Exchanges of datagrams.
//!
//! A flow is one client's port, with one socket for all its servers (endpoint-independent mapping, RFC 4787, REQ-1). Only
//! hosts that the client has sent to may send to it (address-dependent filtering, REQ-8). With [`Nat::Symmetric`] a
//! flow is one client's port and one server's. No socket is connected, so none keeps an address that is gone.
//!
//! With a SOCKS5 server each flow has an association there, and its datagrams go to the server's relay.

mod association;
mod contacts;
mod flows;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, future};
use netstacks::{Answers, Datagrams, FlowKey, Spread};
use platform::{Received, Undelivered};
use socket2::{SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use self::association::{Association, unwrapped};
use self::contacts::Contacts;
pub(super) use self::flows::Flows;
use self::flows::Running;
use super::Nat;
use super::limits::Limits;
use super::upstream::{Upstream, is_local_failure, reason};

/// No datagram is longer (RFC 768).
const MAX_DATAGRAM_LEN: usize = 65_535;

/// How often one flow receives, and how many bytes it forwards at most, before the others have their turn.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 256 << 10;

/// How often datagrams are sent: each time may only return the error of an earlier one.
const TRIES: usize = 3;

/// How long a new socket is kept, even if it fails.
const RENEWAL: Duration = Duration::from_secs(1);

thread_local! {
    /// Room for the datagrams that a server has sent together. They are passed on before anything else is done.
    static DATAGRAM: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATAGRAM_LEN]);
}

/// One client's datagrams, and the answers.
struct Flow {
    socket: UdpSocket,
    /// With a SOCKS5 server.
    association: Option<Association>,
    /// The only server, if there is one.
    server: Option<SocketAddr>,
    state: Mutex<State>,
    is_answered: AtomicBool,
    /// Whether the socket lets routers fragment datagrams, as the client does.
    may_fragment: AtomicBool,
}

struct State {
    used: Instant,
    /// Where the last datagram was sent to.
    sent_to: SocketAddr,
    /// When the socket may give way to a new one.
    renewal: Instant,
    contacts: Contacts,
}

/// An instance of a stack, and what tells its clients of failures.
pub(super) struct Instance<D> {
    pub(super) datagrams: D,
    pub(super) answers: Answers,
}

/// All flows, which the instances of a stack share. `spread` has the instance of each client and server.
pub(super) struct Exchange<D> {
    pub(super) instances: Vec<Instance<D>>,
    pub(super) spread: Spread,
    pub(super) flows: Flows,
    pub(super) upstream: Arc<Upstream>,
    pub(super) limits: Arc<Limits>,
}

/// Carries every datagram of an instance on, and the answers back. Ends only with the stack.
pub(super) async fn serve<D: Datagrams>(exchange: Arc<Exchange<D>>, instance: usize) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATAGRAM_LEN];
    loop {
        let batch = exchange.instances[instance].datagrams.recv_batch(&mut buffer).await?;
        let key = FlowKey { local: batch.local, peer: batch.peer };
        // A group has no one host that answers, and nothing listens on port 0.
        if key.local.ip().is_multicast() || key.local.port() == 0 {
            continue;
        }
        if let Err(error) = exchange.forward(key, &buffer[..batch.len], batch.segment_len) {
            exchange.tell(key, &error);
        }
    }
}

impl Flow {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self) -> Instant {
        self.lock().used
    }

    /// Whether the client wants datagrams of this server. If so, they keep the flow (RFC 4787, REQ-6).
    fn expects(&self, server: SocketAddr) -> bool {
        let mut state = self.lock();
        let is_expected = self.server.map_or_else(|| state.contacts.contain(server.ip()), |only| only == server);
        if is_expected {
            state.used = Instant::now();
        }
        is_expected
    }

    /// Sends datagrams of `segment_len` bytes each. If the kernel has no room for one, the rest is lost.
    fn send(&self, to: SocketAddr, payloads: &[u8], segment_len: usize, may_fragment: bool) -> io::Result<()> {
        let mut state = self.lock();
        (state.used, state.sent_to) = (Instant::now(), to);
        state.contacts.add(to.ip());
        drop(state);
        // The runtime does not know yet that a new socket is writable, so the kernel is asked.
        let socket = SockRef::from(&self.socket);
        if let Some(association) = &self.association {
            return association.send(&socket, to, payloads, segment_len);
        }
        if self.may_fragment.swap(may_fragment, Ordering::Relaxed) != may_fragment {
            platform::set_dont_fragment(&socket, to.is_ipv6(), !may_fragment)?;
        }
        send(&socket, to, payloads, segment_len)
    }
}

fn send(socket: &Socket, to: SocketAddr, payloads: &[u8], segment_len: usize) -> io::Result<()> {
    let (mut sent, mut failures) = (0, 0);
    loop {
        match platform::send_datagrams(socket, Some(to), &payloads[sent..], segment_len) {
            Ok(len) => {
                sent += len;
                failures = 0;
                if sent >= payloads.len() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) if failures + 1 < TRIES => failures += 1,
            Err(error) => return Err(error),
        }
    }
}

impl State {
    /// The server that a datagram was sent to. Linux does not know the port of one over IPv4 that was too long to be sent.
    fn contact(&self, to: SocketAddr) -> Option<SocketAddr> {
        let port = if to.port() == 0 && to.ip() == self.sent_to.ip() { self.sent_to.port() } else { to.port() };
        self.contacts.contain(to.ip()).then_some(SocketAddr::new(to.ip(), port))
    }
}

impl<D: Datagrams> Exchange<D> {
    fn instance(&self, key: FlowKey) -> &Instance<D> {
        match &*self.instances {
            [one] => one,
            all => &all[self.spread.shard(key, all.len())],
        }
    }

    /// The flow of datagrams between a client and a server.
    fn flow_of(&self, key: FlowKey) -> FlowKey {
        match self.upstream.config.nat {
            Nat::EndpointIndependent => {
                FlowKey { local: SocketAddr::new(platform::unspecified(key.peer.is_ipv6()), 0), ..key }
            }
            Nat::Symmetric => key,
        }
    }

    fn forward(self: &Arc<Self>, key: FlowKey, payloads: &[u8], segment_len: usize) -> io::Result<()> {
        let name = self.flow_of(key);
        let Some(flow) = self.flows.get(name).map_or_else(|| self.open(name, key, None), |flow| Ok(Some(flow)))? else {
            return Ok(());
        };
        let may_fragment = self.instance(key).answers.may_fragment(key.peer);
        let sent = flow.send(key.local, payloads, segment_len, may_fragment);
        match sent {
            Err(error) if is_local_failure(&error) && self.may_renew(&flow) => {
                match self.open(name, key, Some(&flow))? {
                    Some(flow) => flow.send(key.local, payloads, segment_len, may_fragment),
                    None => Err(error),
                }
            }
            sent => sent,
        }
    }

    /// Whether a new socket may succeed where this one fails: its interface may be gone. A flow gets one
    /// new socket a second at most, and none because one of its servers is unreachable.
    fn may_renew(&self, flow: &Flow) -> bool {
        let is_stale = !platform::is_bound_to(&SockRef::from(&flow.socket), &self.upstream.config.interface);
        let (now, mut state) = (Instant::now(), flow.lock());
        let may_renew = is_stale && state.renewal <= now;
        if may_renew {
            state.renewal = now + RENEWAL;
        }
        may_renew
    }

    /// Makes a flow of this name that replaces `dead`. Returns `None` if there is no memory for it, and for the proxy's
    /// own datagrams.
    fn open(self: &Arc<Self>, name: FlowKey, key: FlowKey, dead: Option<&Arc<Flow>>) -> io::Result<Option<Arc<Flow>>> {
        if self.limits.own.sent(Type::DGRAM, key.peer) {
            return Ok(None);
        }
        self.flows.make_place(name, self.upstream.config.max_flows);
        let server = (name == key).then_some(key.local);
        let socket = self.upstream.datagrams(key)?;
        let of = SockRef::from(&socket);
        let bytes = of.recv_buffer_size()? + of.send_buffer_size()? + Contacts::MAX_BYTES;
        let charge = || self.limits.charge(bytes);
        let Some(memory) = charge().or_else(|| self.flows.evict_unanswered().then(charge).flatten()) else {
            return Ok(None);
        };
        let now = Instant::now();
        let state = State { used: now, sent_to: key.local, renewal: now + RENEWAL, contacts: Contacts::default() };
        let (state, is_answered, may_fragment) = (Mutex::new(state), AtomicBool::new(false), AtomicBool::new(false));
        let association = self.upstream.config.socks5.map(|_| Association::default());
        let flow = Arc::new(Flow { socket, association, server, state, is_answered, may_fragment });
        let task = tokio::spawn(Arc::clone(self).carry(name, Arc::clone(&flow)).boxed()).abort_handle();
        Ok(Some(self.flows.insert(name, Running { flow, task, _memory: memory }, dead)))
    }

    /// Tells the client that its datagram has not arrived, where there is more to say than that.
    fn tell(&self, key: FlowKey, error: &io::Error) {
        match reason(error) {
            Some(reason) => self.instance(key).answers.unreachable(key, reason),
            // The kernel has queued it with the MTU.
            None if platform::is_too_long(error) => {}
            None => self.upstream.report("send to", key.local, error),
        }
    }

    /// Carries answers back until there have been none, and nothing to answer, for too long, or the association has ended.
    async fn carry(self: Arc<Self>, name: FlowKey, flow: Arc<Flow>) {
        let ended = match (self.upstream.config.socks5, &flow.association) {
            (Some(socks5), Some(association)) => {
                association.keep(&flow.socket, self.upstream.associate(socks5)).right_future()
            }
            _ => future::pending().left_future(),
        };
        tokio::select! {
            () = self.carry_back(name, &flow) => {}
            error = ended => {
                let local = flow.lock().sent_to;
                self.tell(FlowKey { local, ..name }, &error);
            }
        }
        self.flows.remove(name, &flow);
    }

    async fn carry_back(&self, name: FlowKey, flow: &Flow) {
        loop {
            let until = flow.used() + self.upstream.config.udp_idle;
            // A refusal makes a socket of datagrams fail, but not readable.
            let ready = flow.socket.ready(Interest::READABLE | Interest::ERROR);
            match tokio::time::timeout_at(until, ready).await {
                Ok(Ok(ready)) => {
                    if ready.is_error() {
                        self.tell_failures(name.peer, flow);
                    }
                    self.pass(name, flow);
                    // The others' turn: nothing here waits for anything while there are datagrams.
                    tokio::task::yield_now().await;
                }
                Ok(Err(_)) => break,
                Err(_) if flow.used() + self.upstream.config.udp_idle <= Instant::now() => break,
                Err(_) => {}
            }
        }
    }

    /// Tells the client what the kernel has heard of its datagrams.
    fn tell_failures(&self, peer: SocketAddr, flow: &Flow) {
        let heard = || platform::undelivered(&SockRef::from(&flow.socket));
        let mut last = None;
        for _ in 0..BATCH {
            let Ok(Undelivered { error, to, mtu }) = flow.socket.try_io(Interest::ERROR, heard) else { return };
            let Some(local) = to.and_then(|to| flow.lock().contact(to)) else { continue };
            let key = FlowKey { local, peer };
            match mtu {
                // Each try has failed.
                Some(_) if last == Some((key, mtu)) => {}
                Some(bytes) => self.instance(key).answers.too_big(key, u16::try_from(bytes).unwrap_or(u16::MAX)),
                None if reason(&error).is_some() => self.tell(key, &error),
                None => {}
            }
            last = Some((key, mtu));
        }
    }

    /// Forwards datagrams that have arrived, up to [`BATCH_BYTES`].
    fn pass(&self, name: FlowKey, flow: &Flow) {
        DATAGRAM.with_borrow_mut(|buffer| {
            let mut bytes = 0;
            for _ in 0..BATCH {
                let receive = || platform::recv_datagrams(&SockRef::from(&flow.socket), buffer);
                match flow.socket.try_io(Interest::READABLE, receive) {
                    Ok(Received { len, segment_len, from }) => {
                        bytes += len;
                        let from = from.map(|from| SocketAddr::new(from.ip(), from.port()));
                        let arrived = &mut buffer[..len];
                        match (&flow.association, from) {
                            (None, Some(from)) => self.pass_on(name, flow, from, arrived, segment_len),
                            (Some(association), Some(from)) if association.is_with(from) => {
                                unwrapped(arrived, segment_len, |from, payloads, len| {
                                    self.pass_on(name, flow, from, payloads, len);
                                });
                            }
                            _ => {}
                        }
                        if bytes >= BATCH_BYTES {
                            return;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    // The error of an earlier datagram. Where the kernel queues those, it is in the queue, too.
                    Err(_) => {}
                }
            }
        });
    }

    /// Sends datagrams of a server to the client, if it expects them.
    fn pass_on(&self, name: FlowKey, flow: &Flow, local: SocketAddr, payloads: &[u8], segment_len: usize) {
        if !flow.expects(local) {
            return;
        }
        if !flow.is_answered.swap(true, Ordering::Relaxed) {
            self.flows.answered(name);
        }
        self.answer(FlowKey { local, ..name }, payloads, segment_len);
    }

    /// Sends datagrams to the client. If the device is full, the rest is lost.
    fn answer(&self, key: FlowKey, payloads: &[u8], segment_len: usize) {
        let datagrams = &self.instance(key).datagrams;
        let mut sent = 0;
        loop {
            match datagrams.try_send_batch(key.local, key.peer, &payloads[sent..], segment_len) {
                Ok(len) => sent += len,
                // It is too long for the client's network.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => sent += segment_len.max(1),
                Err(_) => return,
            }
            if sent >= payloads.len() {
                return;
            }
        }
    }
}
