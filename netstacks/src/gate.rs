//! A gate in front of a stack: the program decides about a connection before the stack sees it.
//!
//! A stack completes the handshake by itself and reports the connection afterwards. That is too late for a
//! proxy: its client would be connected to a server that refuses. So a [`Gated`] link holds a SYN back and makes
//! a [`Request`] of it. Once the proxy knows whether it reaches the server, it admits the request, refuses it
//! with a RST, or rejects it with an ICMP message. This works with every stack.
//!
//! The gate also replies to ICMP echo requests to any address (RFC 792, RFC 4443, 4.2). Such a reply says that
//! the link works; it says nothing about the host.

mod reply;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::io::{self, IoSlice};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{ICMP, ICMPV6, Ipv4Fragment, TCP, TcpSegment, Transport, UDP};
use platform::{Capabilities, Link, PacketBuffer, PacketMeta};
use tokio::sync::mpsc;

use self::reply::Undelivered;
pub use self::reply::Unreachable;
use crate::{FlowKey, is_host};

/// Largest number of replies that wait for the link; further ones are dropped.
const MAX_REPLIES: usize = 256;

/// Batches that one call takes from the link when nothing is left of them for the stack, whose lock may be held.
const MAX_BATCHES: usize = 8;

/// A segment that has SYN of these flags, and no other, opens a connection (RFC 9293, 3.5). ECN sets other
/// flags beside it (RFC 3168, 6.1.1).
const DECIDING: u8 = FIN | SYN | RST | ACK;

/// Puts a gate in front of a stack: start the stack on the link that this returns. At most `backlog`
/// connections wait for a decision; further SYNs are dropped, and their peers retransmit them.
pub fn gate<L: Link>(link: L, backlog: usize) -> (Gated<L>, Gate) {
    let (requests, requested) = mpsc::channel(backlog.max(1));
    let shared = Arc::new(Shared { state: Mutex::default(), pending: AtomicBool::new(false) });
    let gated = Gated { link, requests, shared: Arc::clone(&shared) };
    (gated, Gate { requests: requested, answers: Answers(shared) })
}

/// The source of requests.
#[derive(Debug)]
pub struct Gate {
    requests: mpsc::Receiver<Request>,
    answers: Answers,
}

impl Gate {
    /// Waits for the next request. `None` once the link has gone.
    pub async fn request(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// Replies for datagrams that cannot be delivered.
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
        self.0.answer(reply::unreachable(key, Undelivered::Datagram, reason));
    }
}

/// A connection that a peer wants to open: its SYN waits. Dropping the request drops the SYN; a retransmitted
/// SYN makes a new request.
#[derive(Debug)]
pub struct Request {
    admission: Admission,
    syn: Vec<u8>,
    meta: PacketMeta,
    sequence: u32,
}

impl Request {
    /// The addresses of the connection.
    pub fn key(&self) -> FlowKey {
        self.admission.key
    }

    /// Passes the SYN to the stack. Until the admission is dropped, the stack gets all packets of this
    /// connection, a retransmitted SYN included.
    #[must_use = "without its admission, a repeated SYN would be a new request"]
    pub fn admit(self) -> Admission {
        let Self { admission, syn, meta, .. } = self;
        let mut state = admission.shared.lock();
        state.flows.insert(admission.key, Flow::Admitted);
        state.admitted.push_back((syn, meta));
        admission.shared.wake(state);
        admission
    }

    /// Refuses the connection with a RST (RFC 9293, 3.10.7.1).
    pub fn refuse(self) {
        self.admission.shared.answer(reply::reset(self.admission.key, self.sequence));
    }

    /// Rejects the connection with an ICMP message.
    pub fn unreachable(self, reason: Unreachable) {
        self.admission.shared.answer(reply::unreachable(self.admission.key, Undelivered::Syn(self.sequence), reason));
    }
}

/// Lets the packets of a connection reach the stack until it is dropped.
#[derive(Debug)]
pub struct Admission {
    key: FlowKey,
    shared: Arc<Shared>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.lock().flows.remove(&self.key);
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Whether there is work for the owner of the link. It saves taking the lock if there is none.
    pending: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    flows: HashMap<FlowKey, Flow>,
    /// SYNs on their way to the stack.
    admitted: VecDeque<(Vec<u8>, PacketMeta)>,
    /// Packets on their way to the link.
    replies: VecDeque<Vec<u8>>,
    /// The task that waits for the link to become readable.
    reader: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Undecided,
    Admitted,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the owner of the link.
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

/// A link behind a gate.
#[derive(Debug)]
pub struct Gated<L> {
    link: L,
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
}

impl<L: Link> Gated<L> {
    /// Sends the replies, and delivers SYNs that were admitted. Returns the number of these.
    fn settle(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if !self.shared.pending.swap(false, Ordering::Acquire) {
            return Ok(0);
        }
        let mut state = self.shared.lock();
        for reply in mem::take(&mut state.replies) {
            send_or_lose(&mut self.link, &reply)?;
        }
        let count = state.admitted.len().min(buffers.len());
        for (buffer, (syn, meta)) in buffers.iter_mut().zip(state.admitted.drain(..count)) {
            buffer.storage_mut()[..syn.len()].copy_from_slice(&syn);
            buffer.filled(syn.len(), meta)?;
        }
        if !state.admitted.is_empty() {
            self.shared.pending.store(true, Ordering::Release);
        }
        Ok(count)
    }

    /// Removes packets that are not for the stack from a batch, and moves the rest to its front. Returns how many
    /// are left.
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

    /// Whether the gate keeps a packet, or drops it.
    fn take(&mut self, buffer: &mut PacketBuffer) -> io::Result<bool> {
        if let Some(segment) = TcpSegment::parse(buffer.packet()) {
            if segment.flags() & DECIDING != SYN {
                return Ok(false);
            }
            let sequence = segment.sequence();
            // A multicast address has no connections.
            return Ok(flow_key(&segment).is_none_or(|key| self.hold_back(key, sequence, buffer)));
        }
        if reply::echo(buffer.packet_mut()) {
            send_or_lose(&mut self.link, buffer.packet())?;
            return Ok(true);
        }
        Ok(may_hide_a_syn(buffer.packet()))
    }

    /// Makes a request of a SYN, once. Returns `false` if the connection was admitted.
    fn hold_back(&mut self, key: FlowKey, sequence: u32, buffer: &PacketBuffer) -> bool {
        match self.shared.lock().flows.entry(key) {
            Entry::Occupied(flow) => return *flow.get() == Flow::Undecided,
            Entry::Vacant(place) => place.insert(Flow::Undecided),
        };
        let admission = Admission { key, shared: Arc::clone(&self.shared) };
        let request = Request { admission, syn: buffer.packet().to_vec(), meta: buffer.meta(), sequence };
        // If the queue is full, the request is dropped, and its entry with it.
        let _full = self.requests.try_send(request);
        true
    }
}

/// Whether a stack may read a SYN from a packet that is no whole segment to the gate: from a fragment, or behind an
/// extension header that the gate does not know, such as an authentication header (RFC 4302).
fn may_hide_a_syn(packet: &[u8]) -> bool {
    match Transport::parse(packet) {
        Some(transport) => !matches!(transport.protocol, UDP | ICMP | ICMPV6),
        None => Ipv4Fragment::parse(packet).is_none_or(|fragment| fragment.protocol == TCP),
    }
}

/// The addresses of a segment from a peer, if both are unicast.
fn flow_key(segment: &TcpSegment<'_>) -> Option<FlowKey> {
    let (peer, local) = segment.endpoints()?;
    (is_host(peer.ip()) && is_host(local.ip())).then_some(FlowKey { local, peer })
}

/// Sends a packet, or drops it if the link is full.
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
        // Fewer packets than buffers would mean that no more wait.
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
                // More may wait, and the link does not say so again.
                self.shared.pending.store(true, Ordering::Release);
            }
        }
        if kept == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(kept) }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The waker is stored before the check, so nothing is missed between the two.
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
