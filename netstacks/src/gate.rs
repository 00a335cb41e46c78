//! A gate in front of a stack, at which connections are decided upon before the stack hears of them.
//!
//! A stack completes the handshake by itself and tells of a connection afterwards. That is too late for a
//! proxy: its client would be connected to a server that refuses. So a [`Gated`] link holds a SYN back,
//! and the [`Request`] that comes of it is admitted, refused by a RST or answered by an ICMP message once
//! the way to the server is known. The stack behind it needs nothing for that, whichever it is.
//!
//! The gate answers ICMP echo requests to any address too (RFC 792, RFC 4443, 4.2): it is the link that
//! is alive, not the host that was asked for.

mod reply;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use platform::vnet::TcpLayout;
use platform::{Capabilities, Link, PacketBuffer, PacketMeta};
use tokio::sync::mpsc;

use self::reply::Undelivered;
pub use self::reply::Unreachable;
use crate::Ends;

/// Answers that wait for the link; those beyond are lost, as on any network.
const MAX_REPLIES: usize = 256;

/// FIN, SYN, RST and ACK, and of these SYN alone: it opens a connection (RFC 9293, 3.5). ECN sets
/// others beside it (RFC 3168, 6.1.1).
const DECIDING: u8 = 0x17;
const SYN: u8 = 0x02;

/// Puts a gate in front of whatever is started on the link that it answers. At most `backlog`
/// connections wait for a decision; a SYN beyond them is dropped, and its peer asks again.
pub fn gate<L: Link>(link: L, backlog: usize) -> (Gated<L>, Gate) {
    let (requests, requested) = mpsc::channel(backlog.max(1));
    let shared = Arc::new(Shared { state: Mutex::default(), pending: AtomicBool::new(false) });
    let gated = Gated { link, requests, shared: Arc::clone(&shared) };
    (gated, Gate { requests: requested, answers: Answers(shared) })
}

/// Where requests come out.
#[derive(Debug)]
pub struct Gate {
    requests: mpsc::Receiver<Request>,
    answers: Answers,
}

impl Gate {
    /// Waits for the next connection that somebody wants. `None` once the link has gone.
    pub async fn request(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// What datagrams are answered by that are not delivered.
    pub fn answers(&self) -> Answers {
        self.answers.clone()
    }
}

/// Tells peers on the link what became of what they sent.
#[derive(Clone, Debug)]
pub struct Answers(Arc<Shared>);

impl Answers {
    /// Tells the peer that its datagram has not been delivered.
    pub fn unreachable(&self, ends: Ends, reason: Unreachable) {
        self.0.answer(reply::unreachable(ends, Undelivered::Datagram, reason));
    }
}

/// A connection that a peer wants: its SYN waits. Dropped, it is as if the SYN had been lost, and the next
/// one is a new request.
#[derive(Debug)]
pub struct Request {
    admission: Admission,
    syn: Vec<u8>,
    meta: PacketMeta,
    sequence: u32,
}

impl Request {
    /// Who wants to go where.
    pub fn ends(&self) -> Ends {
        self.admission.ends
    }

    /// Lets the stack have the SYN. Until the admission is dropped, what else these ends send goes to the
    /// stack, a repeated SYN included.
    #[must_use = "without its admission, a repeated SYN would be a new request"]
    pub fn admit(self) -> Admission {
        let Self { admission, syn, meta, .. } = self;
        let mut state = admission.shared.lock();
        state.flows.insert(admission.ends, Flow::Admitted);
        state.admitted.push_back((syn, meta));
        admission.shared.wake(state);
        admission
    }

    /// Refuses the connection by a RST (RFC 9293, 3.10.7.1).
    pub fn refuse(self) {
        self.admission.shared.answer(reply::reset(self.admission.ends, self.sequence));
    }

    /// Tells the peer why there can be no connection.
    pub fn unreachable(self, reason: Unreachable) {
        self.admission.shared.answer(reply::unreachable(self.admission.ends, Undelivered::Syn(self.sequence), reason));
    }
}

/// The right of two ends to reach the stack.
#[derive(Debug)]
pub struct Admission {
    ends: Ends,
    shared: Arc<Shared>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.lock().flows.remove(&self.ends);
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something waits for the link's owner, who need not take the lock to see that nothing does.
    pending: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    flows: HashMap<Ends, Flow>,
    /// SYNs on their way to the stack.
    admitted: VecDeque<(Vec<u8>, PacketMeta)>,
    /// Packets on their way to the link.
    replies: VecDeque<Vec<u8>>,
    /// Whoever waits for the link to become readable.
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

    /// Has the link's owner look what waits.
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
    /// Sends what is to be answered, and delivers SYNs that were admitted: how many.
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

    /// Takes out of a batch what is not for the stack, and moves the rest to its head: how many are left.
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

    /// Whether a packet is the gate's.
    fn take(&mut self, buffer: &mut PacketBuffer) -> io::Result<bool> {
        if let Some(layout) = opening(buffer.packet()) {
            // A connection to a group, or from one, there cannot be.
            let syn = ends(buffer.packet(), &layout);
            return Ok(syn.is_none_or(|(ends, sequence)| self.hold_back(ends, sequence, buffer)));
        }
        let echoed = reply::echo(buffer.packet_mut());
        if echoed {
            send_or_lose(&mut self.link, buffer.packet())?;
        }
        Ok(echoed)
    }

    /// Makes a request of a SYN, once. Not of one that the stack is to have.
    fn hold_back(&mut self, ends: Ends, sequence: u32, buffer: &PacketBuffer) -> bool {
        match self.shared.lock().flows.entry(ends) {
            Entry::Occupied(flow) => return *flow.get() == Flow::Undecided,
            Entry::Vacant(place) => place.insert(Flow::Undecided),
        };
        let admission = Admission { ends, shared: Arc::clone(&self.shared) };
        let request = Request { admission, syn: buffer.packet().to_vec(), meta: buffer.meta(), sequence };
        // Where there is no room for it, the request goes, and its entry with it.
        let _full = self.requests.try_send(request);
        true
    }
}

/// The layout of a packet that opens a connection.
#[inline]
fn opening(packet: &[u8]) -> Option<TcpLayout> {
    TcpLayout::parse(packet).filter(|layout| packet[layout.tcp_at + 13] & DECIDING == SYN)
}

/// The ends of a TCP packet between two hosts, and its sequence number.
fn ends(packet: &[u8], layout: &TcpLayout) -> Option<(Ends, u32)> {
    let tcp = packet.get(layout.tcp_at..layout.payload_at)?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let (source, destination) = reply::one_to_one(packet)?;
    let ends = Ends { local: SocketAddr::new(destination, port(2)), peer: SocketAddr::new(source, port(0)) };
    Some((ends, u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])))
}

/// Sends a packet that may be lost where the link is full.
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

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let settled = self.settle(buffers)?;
        if settled > 0 {
            return Ok(settled);
        }
        let count = self.link.try_recv(buffers)?;
        match self.screen(&mut buffers[..count])? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            kept => Ok(kept),
        }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // First the waker, then the look: what comes between the two wakes.
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
