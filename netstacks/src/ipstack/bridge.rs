//! The device that ipstack is given: it sees every packet both ways.
//!
//! ipstack's run task owns it and polls it, so it is also where the connections' clock ticks and
//! where what is due is done. ipstack gets freshly composed headers: 20 bytes of TCP, no options,
//! no flag but ACK, since its states compare flags for equality and stumble over PSH, ECN or a FIN
//! beside data. It verifies no checksum of what arrives.

mod datagrams;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use platform::packet::flags::{ACK, RST, SYN};
use platform::{Link, PacketMeta};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;
use tokio::time::{Instant, Sleep};

use self::datagrams::UdpHandoff;
use super::events::{Due, Forged, OPEN_WINDOW, Owner, Stage, Verdict};
use super::flow::{Flow, State};
use super::hub::Hub;
use super::port::Port;
use super::segment::{self, Header, MAX_HEADER, Segment};
use crate::FlowKey;
use crate::offload::header_len;

/// Largest payload of which ipstack takes all: it takes no more of its queue at a packet's arrival.
const PIECE: usize = 8192;
/// Longest time between two looks at the connections' timers, while there are connections.
const TICK: Duration = Duration::from_millis(200);
/// What a peer takes that names no MSS (RFC 9293, 3.7.1), and the least that is believed.
const DEFAULT_MSS: [u16; 2] = [536, 1220];
const SMALLEST_MSS: u16 = 64;

/// Where the packet in hand lies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the batch.
    Batch(usize),
    /// In `replay`.
    Replay,
}

/// A packet that ipstack is getting, in pieces.
#[derive(Clone, Copy, Debug)]
struct PendingSegment {
    place: Place,
    key: FlowKey,
    seq: u32,
    ack: u32,
    /// Where the rest of the payload begins, and how long it is.
    at: usize,
    left: usize,
}

/// See the module.
pub(super) struct Bridge<L> {
    hub: Arc<Hub>,
    port: Port<L>,
    flows: HashMap<FlowKey, Arc<Flow>>,
    /// The connection of the packet before: mostly the next one's too.
    recent: Option<Arc<Flow>>,
    /// Connections for which something is due.
    work: VecDeque<Arc<Flow>>,
    forged: VecDeque<(FlowKey, Forged)>,
    /// Stored packets whose turn has come, and the one in hand.
    replays: VecDeque<Vec<u8>>,
    replay: Vec<u8>,
    pending: Option<PendingSegment>,
    handoff: UdpHandoff,
    now: Instant,
    /// Time has passed since `now` was read.
    slept: bool,
    period: Duration,
    timer: Pin<Box<Sleep>>,
    /// A batch has come since others last had their turn.
    unserved: bool,
    failed: bool,
}

impl<L: Link> Bridge<L> {
    pub(super) fn new(link: L, hub: Arc<Hub>) -> Self {
        let now = Instant::now();
        let period = (hub.limits.user_timeout / 16).clamp(Duration::from_millis(5), TICK);
        Self {
            hub,
            port: Port::new(link),
            flows: HashMap::new(),
            recent: None,
            work: VecDeque::new(),
            forged: VecDeque::new(),
            replays: VecDeque::new(),
            replay: Vec::new(),
            pending: None,
            handoff: UdpHandoff::default(),
            now,
            slept: false,
            period,
            timer: Box::pin(tokio::time::sleep_until(now + period)),
            unserved: false,
            failed: false,
        }
    }

    fn refresh_clock(&mut self) {
        if self.slept {
            self.slept = false;
            self.now = Instant::now();
        }
    }

    fn packet(&self, place: Place) -> &[u8] {
        match place {
            Place::Batch(index) => self.port.packet(index),
            Place::Replay => &self.replay,
        }
    }

    fn find(&mut self, key: FlowKey) -> Option<Arc<Flow>> {
        if let Some(flow) = &self.recent
            && flow.key == key
        {
            return Some(Arc::clone(flow));
        }
        let flow = Arc::clone(self.flows.get(&key)?);
        self.recent = Some(Arc::clone(&flow));
        Some(flow)
    }

    fn list(&mut self, flow: &Arc<Flow>, state: &mut State) {
        if !mem::replace(&mut state.listed, true) {
            self.work.push_back(Arc::clone(flow));
        }
    }

    /// A packet that has arrived.
    fn inbound(&mut self, place: Place) {
        let Some(segment) = Segment::parse(self.packet(place)) else { return self.inbound_datagram(place) };
        let key = FlowKey { peer: segment.source, local: segment.destination };
        let flow = self.find(key);
        if segment.flags & (SYN | ACK | RST) == SYN && flow.as_ref().is_none_or(|flow| flow.lock().is_replaceable()) {
            return self.open(key, place, &segment);
        }
        let Some(flow) = flow else { return self.refuse(&segment) };
        let mut state = flow.lock();
        let before = state.stage;
        match state.inbound(&segment, self.now) {
            Verdict::Done => {}
            Verdict::Refuse => self.refuse(&segment),
            Verdict::Store => state.receive.store(segment.seq, self.packet(place)),
            Verdict::Hand { seq, ack, skip, len } => {
                self.pending = Some(PendingSegment { place, key, seq, ack, at: segment.payload_at + skip, left: len });
                while let Some(packet) = state.receive.release() {
                    self.replays.push_back(packet);
                }
            }
        }
        if before != state.stage && matches!(state.owner, Owner::Waiting(Some(_))) {
            self.hub.offer(&flow);
        }
        if state.has_work() {
            self.list(&flow, &mut state);
        }
        let wakes = state.wakes();
        drop(state);
        wakes.wake();
    }

    /// A new connection, if it may be one.
    fn open(&mut self, key: FlowKey, place: Place, syn: &Segment) {
        if !self.hub.is_listening() {
            return self.refuse(syn);
        }
        // RFC 1122, 4.2.3.10.
        if key.local.ip().is_multicast() || key.peer.ip().is_multicast() || key.peer.ip().is_unspecified() {
            return;
        }
        let offload = &self.port.offload;
        let own_mss = offload.mss(header_len(key.local.is_ipv6()));
        let default = DEFAULT_MSS[usize::from(key.local.is_ipv6())];
        let named = segment::maximum_segment_size(self.packet(place)).unwrap_or(default);
        let mss = named.max(SMALLEST_MSS).min(own_mss);
        let mut state = State::new(syn, self.hub.limits, mss, own_mss, self.now);
        if mss == own_mss {
            state.send.largest = offload.largest_payload(key.local.is_ipv6()).into();
        }
        state.listed = true;
        let flow = Arc::new(Flow::new(key, state));
        if self.hub.admit(&flow) {
            self.work.push_back(Arc::clone(&flow));
            self.recent = Some(Arc::clone(&flow));
            self.flows.insert(key, flow);
        }
    }

    /// Answers with a reset what belongs to no connection (RFC 9293, 3.10.7.1).
    fn refuse(&mut self, segment: &Segment) {
        if segment.has(RST) || self.port.is_stalled() {
            return;
        }
        let (seq, ack, flags) = if segment.has(ACK) { (segment.ack, 0, RST) } else { (0, segment.end(), RST | ACK) };
        let (source, destination) = (segment.destination, segment.source);
        self.send(&Header { source, destination, seq, ack, flags, window: 0, mss: None });
    }

    /// Sends a packet without payload. A link that has failed is dealt with at the next turn: a
    /// connection's lock may be held here.
    fn send(&mut self, header: &Header) {
        let mut bytes = [0; MAX_HEADER];
        let len = header.write_sealed(&mut bytes);
        if let Err(error) = self.port.send(PacketMeta::default(), &bytes[..len], &[]) {
            self.hub.fail(&error);
        }
    }

    /// Where the stack has ended, lets the link go and ends all connections. The bridge itself goes
    /// on until ipstack's tasks have ended too.
    fn look_for_failure(&mut self) {
        if self.failed {
            return;
        }
        let Some(error) = self.hub.failure() else { return };
        self.failed = true;
        self.port.close();
        self.pending = None;
        self.handoff.stop();
        self.replays.clear();
        for flow in self.flows.values() {
            let mut state = flow.lock();
            state.fail(error.kind());
            if !mem::replace(&mut state.listed, true) {
                self.work.push_back(Arc::clone(flow));
            }
            let wakes = state.wakes();
            drop(state);
            wakes.wake();
        }
    }

    /// Does what is due for the connections on the list.
    fn serve(&mut self) {
        self.handoff.stream_requested |= self.hub.take_requests(&mut self.work);
        while !self.port.is_stalled()
            && let Some(flow) = self.work.pop_front()
        {
            self.attend(&flow);
        }
    }

    fn attend(&mut self, flow: &Arc<Flow>) {
        let mut state = flow.lock();
        state.listed = false;
        state.settle(self.now);
        while let Some(due) = state.next_due(flow.key, self.now) {
            match due {
                Due::Send(header) => self.send(&header),
                Due::Forge(Forged::Reset) => {
                    // The first makes ipstack's task see the state that ends it at the second.
                    self.forged.extend([(flow.key, Forged::Reset); 2]);
                }
                Due::Forge(forged) => self.forged.push_back((flow.key, forged)),
            }
            if self.port.is_stalled() {
                self.list(flow, &mut state);
                break;
            }
        }
        if state.check().is_err() {
            self.disown(flow, &mut state);
        }
        if state.is_over(self.now) {
            self.remove(flow);
        }
        let wakes = state.wakes();
        drop(state);
        wakes.wake();
    }

    /// A connection has ended before it was accepted.
    fn disown(&mut self, flow: &Arc<Flow>, state: &mut State) {
        let Owner::Waiting(inner) = &mut state.owner else { return };
        let inner = inner.take();
        state.owner = Owner::Dropped;
        self.hub.leave();
        if let Some(inner) = inner {
            self.hub.retire(*inner);
        } else if state.stage == Stage::Opening {
            self.hub.leave_syn_queue(flow);
        }
    }

    fn remove(&mut self, flow: &Arc<Flow>) {
        if self.flows.get(&flow.key).is_some_and(|current| Arc::ptr_eq(current, flow)) {
            self.flows.remove(&flow.key);
            self.recent = None;
        }
    }

    /// A packet from ipstack, with other numbers and another window, to the link.
    fn outbound(&mut self, packet: &[u8]) {
        let Some(segment) = Segment::parse(packet) else { return self.outbound_datagram(packet) };
        let Some(flow) = self.find(FlowKey { peer: segment.destination, local: segment.source }) else { return };
        let mut state = flow.lock();
        let patched = state.outbound(&segment, self.now);
        if state.has_work() {
            self.list(&flow, &mut state);
        }
        drop(state);
        let Some((seq, ack, window)) = patched else { return };
        let mut header = [0; MAX_HEADER];
        let (Some(header), Some(original)) = (header.get_mut(..segment.payload_at), packet.get(..segment.payload_at))
        else {
            return;
        };
        header.copy_from_slice(original);
        let tcp = &mut header[segment.tcp_at..];
        segment::patch(tcp, seq, ack, window);
        let meta = self.port.offload.prepare(header, segment.payload_at + segment.payload_len);
        let payload = &packet[segment.payload_at..segment.payload_at + segment.payload_len];
        if let Err(error) = self.port.send(meta, header, payload) {
            self.hub.fail(&error);
        }
    }

    /// Gives ipstack its next packet, if there is one.
    fn emit(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if let Some((key, forged)) = self.forged.pop_front() {
            let len = forged.header(key).write(buf.initialize_unfilled(), 0);
            buf.advance(len);
            return len > 0;
        }
        let Some(pending) = self.pending.take() else { return self.emit_datagram(buf) };
        let PendingSegment { place, key: FlowKey { peer, local }, seq, ack, at, left } = pending;
        let header = Header { source: peer, destination: local, seq, ack, flags: ACK, window: OPEN_WINDOW, mss: None };
        let len = left.min(PIECE).min(buf.remaining().saturating_sub(header.len()));
        let out = buf.initialize_unfilled();
        let header_len = header.write(out, len);
        let Some(payload) = self.packet(place).get(at..at + len) else { return false };
        let Some(out) = out.get_mut(header_len..header_len + len) else { return false };
        out.copy_from_slice(payload);
        buf.advance(header_len + len);
        if len > 0 && len < left {
            let seq = seq.wrapping_add(len as u32);
            self.pending = Some(PendingSegment { seq, at: at + len, left: left - len, ..pending });
        }
        true
    }

    /// Looks at the next packet that has arrived, if there is one.
    fn look(&mut self) -> bool {
        if let Some(packet) = self.replays.pop_front() {
            self.replay = packet;
            self.inbound(Place::Replay);
            true
        } else if let Some(index) = self.port.take() {
            self.inbound(Place::Batch(index));
            true
        } else {
            false
        }
    }

    /// Ready when a batch has come or room has.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.port.poll_receive(cx)?.is_ready() {
            self.now = Instant::now();
            self.look_for_failure();
            if self.now >= self.timer.deadline() {
                let _ = self.poll_clock(cx);
            }
            return Poll::Ready(Ok(()));
        }
        if self.port.is_stalled() { self.port.poll_unstalled(cx) } else { Poll::Pending }
    }

    /// Whether there is something left to do without anybody's help.
    fn is_busy(&self) -> bool {
        !self.forged.is_empty() || (!self.work.is_empty() && !self.port.is_stalled())
    }

    /// Parks until a stream asks for something or the clock does. `false`: there is something.
    fn park(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.hub.park_bridge(cx, self.failed) {
            return false;
        }
        self.slept = true;
        (self.flows.is_empty() && self.hub.exchange().is_idle()) || self.poll_clock(cx).is_pending()
    }

    /// Ready when the connections' timers were looked at.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(cx));
        self.now = Instant::now();
        self.timer.as_mut().reset(self.now + self.period);
        self.hub.exchange().sweep(self.now);
        for flow in self.flows.values() {
            let mut state = flow.lock();
            state.tick(self.now);
            if !mem::replace(&mut state.listed, true) {
                self.work.push_back(Arc::clone(flow));
            }
        }
        Poll::Ready(())
    }
}

/// Nothing in it is pinned in place, whatever the link is.
impl<L> Unpin for Bridge<L> {}

impl<L: Link> AsyncRead for Bridge<L> {
    /// One packet. Never fails and never ends: ipstack would swallow the error, and read again at
    /// once.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let bridge = self.get_mut();
        let coop = ready!(coop::poll_proceed(cx));
        bridge.refresh_clock();
        loop {
            bridge.serve();
            if bridge.emit(buf) {
                coop.made_progress();
                return Poll::Ready(Ok(()));
            }
            if bridge.look() {
                bridge.unserved = true;
                continue;
            }
            // Before the next batch the others have their turn: the connections' tasks with their
            // ACKs, the readers who open the window. Or a window's worth would come in before one
            // ACK leaves.
            if mem::take(&mut bridge.unserved) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match bridge.poll_link(cx) {
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(error)) => bridge.hub.fail(&error),
                Poll::Pending => {}
            }
            bridge.look_for_failure();
            if !bridge.is_busy() {
                if bridge.failed {
                    bridge.hub.emptied.notify_one();
                }
                if bridge.park(cx) {
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<L: Link> AsyncWrite for Bridge<L> {
    /// One packet. Never fails: an error would end ipstack's run task, and its connections' tasks
    /// could no longer be ended.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let bridge = self.get_mut();
        bridge.refresh_clock();
        loop {
            bridge.look_for_failure();
            match bridge.port.poll_unstalled(cx) {
                Poll::Ready(Ok(())) => break,
                Poll::Ready(Err(error)) => bridge.hub.fail(&error),
                Poll::Pending => {
                    bridge.handoff.stream_requested |= bridge.hub.take_requests(&mut bridge.work);
                    if bridge.park(cx) {
                        return Poll::Pending;
                    }
                }
            }
        }
        bridge.outbound(buf);
        bridge.serve();
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
