//! A gate in front of a stack, which reports a connection after its handshake, too late for a proxy whose server
//! refuses. A [`Gated`] link makes a [`Request`] of each SYN first, which the proxy admits, refuses with a RST, or
//! rejects with an ICMP message. It also replies to ICMP echo requests to any address (RFC 792, RFC 4443, 4.2).

mod flows;
mod reply;

use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{ICMP, ICMPV6, Ipv4Fragment, TCP, TcpSegment, Transport, UDP, addresses, is_checksum_right};
use platform::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::flows::{State, Verdict};
pub use self::reply::Unreachable;
use crate::{FlowKey, is_host};

const MAX_REPLIES: usize = 256;

/// Largest number of batches that one call takes from the link: the caller may hold the stack's lock.
const MAX_BATCHES: usize = 8;

/// How long a stack may take to answer an admitted SYN. It drops a SYN if it has no room.
const ANSWER: Duration = Duration::from_secs(1);

/// How long a client may take to complete its handshake. The stacks give up after the same time.
const HANDSHAKE: Duration = Duration::from_secs(20);

/// A packet that every host takes whole (RFC 791, 3.1), in bytes.
const SHORT: usize = 576;

/// The flag, in the byte of an IPv4 header that has the flags (RFC 791, 3.1).
const DONT_FRAGMENT: u8 = 0x40;

/// A segment opens a connection if SYN is the only one of these that is set (RFC 9293, 3.5). ECN sets other flags.
const DECIDING: u8 = FIN | SYN | RST | ACK;

/// Puts a gate in front of a stack: start the stack on the link that this returns. At most `backlog`
/// connections wait for a decision; further SYNs are dropped, and their peers retransmit them.
///
/// ```
/// # use netstacks::peer::Client;
/// use netstacks::{Listener, Netstack, Smoltcp, StackConfig, gate};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let (gated, mut gate) = gate(link, 128);
/// let mut stack = Smoltcp::start(gated, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
/// # let client = tokio::task::spawn_blocking(|| {
/// #     let (local, remote) = ([10, 0, 0, 1].into(), ([192, 0, 2, 7], 443).into());
/// #     Client::connect(other_end, local, remote, std::time::Duration::from_secs(10))
/// # });
/// // A client connects to 192.0.2.7:443 now.
/// let request = gate.request().await.ok_or("the link is gone")?;
/// assert_eq!(request.key().local, "192.0.2.7:443".parse()?);
/// // Here a proxy connects to that address. If it succeeds:
/// let admission = request.admit();
/// let stream = stack.listener.accept().await?;
/// // ...
/// drop(stream);
/// drop(admission);
/// # client.await??;
/// # Ok(())
/// # }
/// ```
pub fn gate<L: Link>(link: L, backlog: usize) -> (Gated<L>, Gate) {
    let (requests, requested) = mpsc::channel(backlog.max(1));
    let shared = Arc::new(Shared::default());
    let verify = !link.capabilities().checksum.rx;
    let gated = Gated { link, requests, shared: Arc::clone(&shared), verify, opening: false };
    (gated, Gate { requests: requested, answers: Answers(shared) })
}

/// Yields the requests of clients; see [`gate()`].
#[derive(Debug)]
pub struct Gate {
    requests: mpsc::Receiver<Request>,
    answers: Answers,
}

impl Gate {
    /// Waits for the next request. `None` when the link is gone.
    pub async fn request(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// A handle that sends replies for datagrams that cannot be delivered.
    pub fn answers(&self) -> Answers {
        self.answers.clone()
    }
}

/// Sends ICMP messages about undelivered datagrams.
#[derive(Clone, Debug)]
pub struct Answers(Arc<Shared>);

impl Answers {
    /// Tells the peer that its datagram was not delivered.
    pub fn unreachable(&self, key: FlowKey, reason: Unreachable) {
        self.0.answer(reply::unreachable(key, None, reason));
    }

    /// Tells the peer that its datagram is longer than the MTU of its path, in bytes.
    pub fn too_big(&self, key: FlowKey, mtu: u16) {
        self.0.answer(reply::too_big(key, mtu));
    }

    /// Whether the peer lets routers fragment its datagrams: its last long one came without "don't fragment".
    pub fn may_fragment(&self, peer: SocketAddr) -> bool {
        self.0.fragmenting.load(Ordering::Relaxed) && self.0.lock().fragmenting.contains(&peer)
    }
}

/// A connection that a peer wants to open. Dropping it drops the SYN; a retransmitted SYN makes a new request.
#[derive(Debug)]
pub struct Request(Admission);

impl Request {
    /// The addresses of the connection.
    pub fn key(&self) -> FlowKey {
        self.0.key
    }

    /// Waits until the client has sent a RST, or has not retransmitted its SYN for too long. Safe to cancel.
    pub async fn abandoned(&mut self) {
        loop {
            let until = self.0.shared.lock().silent_until(self.0.key, self.0.number);
            let Some(until) = until.filter(|until| *until > Instant::now()) else { return };
            if tokio::time::timeout_at(until, &mut self.0.opened).await.is_ok() {
                return;
            }
        }
    }

    /// Passes the SYN to the stack, which gets all packets of this connection until the admission is dropped.
    #[must_use = "without its admission, a retransmitted SYN would be a new request"]
    pub fn admit(self) -> Admission {
        let mut state = self.0.shared.lock();
        state.admit(self.0.key, self.0.number);
        self.0.shared.wake(state);
        self.0
    }

    /// Refuses the connection with a RST (RFC 9293, 3.10.7.1).
    pub fn refuse(self) {
        self.reply(reply::refusal);
    }

    /// Rejects the connection with an ICMP message.
    pub fn unreachable(self, reason: Unreachable) {
        self.reply(|key, sequence| reply::unreachable(key, Some(sequence), reason));
    }

    fn reply(self, reply: impl FnOnce(FlowKey, u32) -> Option<Vec<u8>>) {
        let Admission { key, number, ref shared, .. } = self.0;
        let sequence = shared.lock().first(key, number);
        shared.answer(sequence.and_then(|sequence| reply(key, sequence)));
    }
}

/// Lets the packets of a connection reach the stack. After it is dropped, after a RST, and after the FINs of both
/// sides, the next SYN of these addresses makes a new [`Request`].
#[derive(Debug)]
pub struct Admission {
    key: FlowKey,
    number: u64,
    opened: oneshot::Receiver<()>,
    is_reset: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Admission {
    /// Waits until the client has completed its handshake. Returns `false` if it resets or takes too long, or the stack
    /// has not answered. After `true`, the stack yields the connection, even if it is reset. Call it once.
    pub async fn opened(&mut self) -> bool {
        let until = Instant::now() + HANDSHAKE;
        if self.opened.is_terminated() {
            return false;
        }
        if let Ok(opened) = tokio::time::timeout(ANSWER, &mut self.opened).await {
            return opened.is_ok();
        }
        if self.shared.lock().is_unanswered(self.key, self.number) {
            return false;
        }
        matches!(tokio::time::timeout_at(until, &mut self.opened).await, Ok(Ok(())))
    }

    /// Whether the client has sent a RST. Some stacks report it as the end of the client's bytes.
    pub fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Acquire)
    }

    /// Lets the client see a RST where the stack sends a FIN. Call it before [`Stream::reset`](crate::Stream::reset),
    /// which only closes the connection on a stack that has no call for a RST.
    pub fn reset(self) {
        let mut state = self.shared.lock();
        state.abort(self.key, self.number);
        self.shared.wake(state);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.lock().forget(self.key, self.number);
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Whether there is work for the owner of the link. If there is none, it need not take the lock.
    pending: AtomicBool,
    /// Whether there is anyone in `State::fragmenting`.
    fragmenting: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        crate::lock(&self.state)
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        self.pending.store(true, Ordering::Release);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn answer(&self, reply: Option<Vec<u8>>) {
        let mut state = self.lock();
        if let Some(reply) = reply
            && state.replies.len() < MAX_REPLIES
        {
            state.replies.push_back(reply);
            self.wake(state);
        }
    }
}

/// A link behind a gate, for a stack to start on; see [`gate()`].
#[derive(Debug)]
pub struct Gated<L> {
    link: L,
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    verify: bool,
    opening: bool,
}

impl<L: Link> Gated<L> {
    /// Sends the replies, and puts admitted SYNs into `buffers`. Returns the number of SYNs.
    fn settle(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if !self.shared.pending.swap(false, Ordering::Acquire) {
            return Ok(0);
        }
        let mut state = self.shared.lock();
        for reply in mem::take(&mut state.replies) {
            send_or_lose(&mut self.link, &reply)?;
        }
        let count = state.deliver(buffers)?;
        self.opening = state.opening > 0;
        if !state.admitted.is_empty() || !state.resets.is_empty() {
            self.shared.pending.store(true, Ordering::Release);
        }
        Ok(count)
    }

    fn screen(&mut self, batch: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut kept = 0;
        for index in 0..batch.len() {
            if !self.take(&mut batch[index])? {
                batch.swap(kept, index);
                kept += 1;
            }
        }
        Ok(kept)
    }

    fn take(&mut self, buffer: &mut PacketBuffer) -> io::Result<bool> {
        if let Some(segment) = TcpSegment::parse(buffer.packet()) {
            let flags = segment.flags() & DECIDING;
            // The completing segments of handshakes matter, too.
            if flags & !ACK == 0 && !self.opening {
                return Ok(false);
            }
            if self.verify && buffer.meta().checksum == Checksum::Filled && !is_checksum_right(buffer.packet()) {
                return Ok(true);
            }
            // No client sends a SYN with other flags, and some stacks would take it for a SYN.
            if flags & SYN != 0 && flags != SYN {
                return Ok(true);
            }
            let Some(key) = flow_key(&segment) else { return Ok(flags == SYN) };
            if flags == SYN {
                return Ok(self.hold_back(key, segment.sequence(), buffer));
            }
            let mut state = self.shared.lock();
            state.client_sent(key, &segment);
            self.opening = state.opening > 0;
            return Ok(false);
        }
        if reply::echo(buffer.packet_mut()) {
            send_or_lose(&mut self.link, buffer.packet())?;
            return Ok(true);
        }
        self.note_fragmentation(buffer.packet());
        Ok(may_hide_a_syn(buffer.packet()))
    }

    /// Remembers whether the sender of a long datagram lets routers fragment it. No router has to fragment a short one.
    fn note_fragmentation(&self, packet: &[u8]) {
        if packet.len() <= SHORT || packet[0] >> 4 != 4 {
            return;
        }
        let allowed = packet[6] & DONT_FRAGMENT == 0;
        let is_noted = self.shared.fragmenting.load(Ordering::Relaxed);
        if (allowed || is_noted)
            && let Some(peer) = sender(packet)
        {
            let count = self.shared.lock().note_fragmentation(peer, allowed);
            self.shared.fragmenting.store(count > 0, Ordering::Relaxed);
        }
    }

    /// Makes a request of a SYN, unless it already made one. Returns `false` if the stack must get it.
    fn hold_back(&mut self, key: FlowKey, sequence: u32, buffer: &PacketBuffer) -> bool {
        // The lock ends with this statement: a request that is dropped takes it, too.
        let verdict = self.shared.lock().syn(key, sequence, buffer);
        match verdict {
            Verdict::Pass => return false,
            Verdict::Hold => {}
            Verdict::Ask { number, opened, is_reset } => {
                let admission = Admission { key, number, opened, is_reset, shared: Arc::clone(&self.shared) };
                let _full = self.requests.try_send(Request(admission));
            }
        }
        true
    }

    /// Notes a packet of the stack. Returns whether it may be sent.
    fn note(&mut self, slices: &[IoSlice<'_>]) -> bool {
        // All stacks put the headers into the first slice.
        let Some(segment) = slices.first().and_then(|headers| TcpSegment::parse(headers)) else { return true };
        if segment.flags() & (SYN | FIN | RST) == 0 {
            return true;
        }
        let Some((local, peer)) = segment.endpoints() else { return true };
        let len = slices.iter().map(|slice| slice.len()).sum::<usize>() - segment.layout.payload_at;
        let mut state = self.shared.lock();
        let passes = state.stack_sent(FlowKey { local, peer }, &segment, len);
        if !passes {
            self.shared.wake(state);
        }
        passes
    }
}

/// The sender of a datagram over IPv4, or of its first fragment.
fn sender(packet: &[u8]) -> Option<SocketAddr> {
    let (protocol, at) = match Transport::parse(packet) {
        Some(Transport { protocol, at, .. }) => (protocol, at),
        None => Ipv4Fragment::parse(packet).filter(|it| it.is_first).map(|it| (it.protocol, it.header_len))?,
    };
    let port = u16::from_be_bytes(*packet.get(at..)?.first_chunk().filter(|_| protocol == UDP)?);
    Some(SocketAddr::new(addresses(packet)?.0, port))
}

/// Whether a stack may find a SYN in a packet that the gate cannot parse: a fragment, or behind an unknown header.
fn may_hide_a_syn(packet: &[u8]) -> bool {
    match Transport::parse(packet) {
        Some(transport) => !matches!(transport.protocol, UDP | ICMP | ICMPV6),
        None => Ipv4Fragment::parse(packet).is_none_or(|fragment| fragment.protocol == TCP),
    }
}

fn flow_key(segment: &TcpSegment<'_>) -> Option<FlowKey> {
    let (peer, local) = segment.endpoints()?;
    (is_host(peer.ip()) && is_host(local.ip())).then_some(FlowKey { local, peer })
}

fn send_or_lose(link: &mut impl Link, packet: &[u8]) -> io::Result<()> {
    match link.try_send(PacketMeta::default(), &[IoSlice::new(packet)]) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => link.flush(),
    }
}

impl<L: Link> Link for Gated<L> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        self.link.enable_udp_segmentation()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut kept = self.settle(buffers)?;
        // Returning fewer packets than buffers means that no more packets wait.
        let mut rounds = 0;
        while kept < buffers.len() && rounds < MAX_BATCHES {
            rounds += 1;
            let rest = &mut buffers[kept..];
            let room = rest.len();
            let count = match self.link.try_recv(rest) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && kept > 0 => break,
                count => count?,
            };
            kept += self.screen(&mut buffers[kept..][..count])?;
            if count < room {
                break;
            }
            if rounds == MAX_BATCHES {
                // More packets may wait, and the link does not report them again.
                self.shared.pending.store(true, Ordering::Release);
            }
        }
        if kept == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(kept) }
    }

    fn has_passed_on(&mut self) -> bool {
        self.link.has_passed_on()
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        if self.note(slices) { self.link.try_send(meta, slices) } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The waker is stored before the check, so no wake is lost in between.
        let mut state = self.shared.lock();
        match &mut state.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(state);
        if self.shared.pending.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

#[cfg(test)]
mod tests;
