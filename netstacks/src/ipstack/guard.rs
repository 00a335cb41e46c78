//! The guard between the link and ipstack: it decides which segments ipstack reads, replaces connections that have
//! ended, and bounds those that are half-open.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use platform::Checksum;
use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpLayout, TcpSegment, offset, write_ip_len};
use tokio::time::{Instant, Sleep};

use super::check::{Piece, Verdict, stray};
use super::stream::{Flow, Hub};
use crate::{FlowKey, Workaround};

/// A SYN is given to ipstack again after this time, until it has made a connection of it, and at most so many times.
/// ipstack ignores a SYN while it has not removed the connection before.
const AGAIN: Duration = Duration::from_millis(2);
const TRIES: u32 = 100;

/// A packet that the adapter sends itself.
pub(super) type Reply = (FlowKey, TcpFields);

pub(super) struct Guard {
    hub: Arc<Hub>,
    /// The connection of the last packet. Packets come in trains, so that it saves most look-ups.
    last: Option<Arc<Flow>>,
    /// Packets without payload that ipstack reads before the next packet of the batch.
    pub(super) queue: VecDeque<Vec<u8>>,
    /// SYNs of which ipstack has not made a connection yet.
    waiting: Vec<(Arc<Flow>, Vec<u8>, u32)>,
    again: Pin<Box<Sleep>>,
    /// The last connections that were opened, the oldest first.
    opened: VecDeque<Arc<Flow>>,
}

impl Guard {
    /// Must be called within a runtime.
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        let again = Box::pin(tokio::time::sleep(AGAIN));
        Self { hub, last: None, queue: VecDeque::new(), waiting: Vec::new(), again, opened: VecDeque::new() }
    }

    /// Returns the connection of a packet.
    pub(super) fn flow(&mut self, key: FlowKey) -> Option<Arc<Flow>> {
        if !self.last.as_ref().is_some_and(|flow| flow.is_for(&key)) {
            self.last = self.hub.flow(key);
        }
        self.last.clone()
    }

    /// Decides about a segment. Returns the part that ipstack reads, and a packet to send.
    pub(super) fn admit(&mut self, segment: &TcpSegment<'_>, headers: &[u8]) -> (Option<Piece>, Option<Reply>) {
        let Some(key) = flow_key(segment) else { return (None, None) };
        let Some(flow) = self.flow(key) else {
            return match stray(segment) {
                Verdict::Replace if !self.hub.is_listening() => (None, Some(refusal(key, segment))),
                Verdict::Replace => (self.replace(key, None, segment, headers), None),
                _ if !self.hub.workarounds.has(Workaround::ChecksSegments) => (Some(Piece::whole(segment)), None),
                verdict => (None, reset(key, verdict)),
            };
        };
        let ack = |flags| Some((key, flow.fields(flags)));
        match flow.check(segment, || self.hub.has_room()) {
            Verdict::Drop => (None, None),
            Verdict::Pass(piece) => (Some(self.pass(&flow, piece, segment, headers)), None),
            Verdict::PassAndAck(piece) => (Some(self.pass(&flow, piece, segment, headers)), ack(ACK)),
            Verdict::Establish(_) if !self.hub.is_listening() => {
                self.end(&flow);
                (None, reset(key, Verdict::Rst(segment.acknowledgement())))
            }
            Verdict::Establish(piece) => (Some(self.establish(&flow, piece, segment, headers)), None),
            Verdict::Nudge => {
                self.nudge(&flow, segment.window());
                (None, None)
            }
            Verdict::Ack => (None, ack(ACK)),
            Verdict::SynAck => (None, ack(SYN | ACK)),
            verdict @ Verdict::Rst(_) => (None, reset(key, verdict)),
            Verdict::End => {
                self.end(&flow);
                (None, None)
            }
            Verdict::Replace => (self.replace(key, Some(&flow), segment, headers), None),
        }
    }

    /// Keeps the FIN of a segment that ipstack reads.
    fn pass(&mut self, flow: &Flow, piece: Piece, segment: &TcpSegment<'_>, headers: &[u8]) -> Piece {
        for _ in 0..piece.nudges {
            self.nudge(flow, segment.window());
        }
        let is_apart = self.hub.workarounds.has(Workaround::HandsFinApart) || segment.payload().is_empty();
        if segment.flags() & FIN != 0 && is_apart {
            let mut fin = headers.to_vec();
            patch(&mut fin, segment, segment.payload().len(), 0, FIN | ACK);
            self.queue.extend(flow.hold(fin));
        }
        piece
    }

    /// Completes a handshake.
    fn establish(&mut self, flow: &Flow, piece: Piece, segment: &TcpSegment<'_>, headers: &[u8]) -> Piece {
        if let Some(stream) = flow.establish() {
            self.hub.offer(stream);
        }
        self.pass(flow, piece, segment, headers)
    }

    /// Gives ipstack two bytes that it already has. It drops them, and then delivers the bytes that are in order. The packet
    /// has headers of its own, because options may fill the peer's.
    fn nudge(&mut self, flow: &Flow, window: u16) {
        let sequence = flow.fields(ACK).acknowledgement.wrapping_sub(2);
        self.give(flow, TcpFields { sequence, acknowledgement: flow.acknowledged(), flags: ACK, window }, &[0; 2]);
    }

    /// Gives ipstack a packet in the place of the peer.
    fn give(&mut self, flow: &Flow, fields: TcpFields, payload: &[u8]) {
        if let Some(template) = TcpHeaders::new(flow.key.peer, flow.key.local) {
            let mut headers = [0; MAX_HEADERS_LEN];
            let len = template.write(fields, &[], payload, Checksum::Filled, &mut headers);
            self.queue.push_back([&headers[..len], payload].concat());
        }
    }

    /// Ends a connection in the adapter and in ipstack, which ends its task at the packet after a RST.
    fn end(&mut self, flow: &Arc<Flow>) {
        flow.end(ErrorKind::ConnectionReset);
        let times = if self.hub.workarounds.has(Workaround::RepeatsReset) { 2 } else { 1 };
        for _ in 0..times {
            self.give(flow, TcpFields { flags: RST, ..TcpFields::default() }, &[]);
        }
    }

    /// Opens a connection, and ends the one before it. Returns the SYN if ipstack may read it now.
    fn replace(
        &mut self,
        key: FlowKey,
        old: Option<&Arc<Flow>>,
        segment: &TcpSegment<'_>,
        headers: &[u8],
    ) -> Option<Piece> {
        let is_ready = old.is_none_or(|old| old.is_taken());
        if !is_ready
            || !self.hub.has_room()
            || self.hub.len() >= self.hub.most
            || self.waiting.len() >= self.hub.most_half_open
        {
            return None;
        }
        let mut syn = headers.to_vec();
        patch(&mut syn, segment, 0, 0, SYN);
        if let Some(old) = old {
            self.end(old);
            self.queue.push_back(syn.clone());
        }
        if self.opened.len() >= self.hub.most_half_open
            && let Some(oldest) = self.opened.pop_front()
            && oldest.is_half_open()
        {
            self.end(&oldest);
            self.hub.forget(&oldest);
        }
        let flow = self.hub.open(key, segment.sequence());
        if self.waiting.is_empty() {
            self.again.as_mut().reset(Instant::now() + AGAIN);
        }
        if self.hub.workarounds.has(Workaround::RepeatsSyn) {
            self.waiting.push((Arc::clone(&flow), syn, TRIES));
        }
        self.opened.push_back(flow);
        old.is_none().then_some(Piece::default())
    }

    /// Gives ipstack the SYNs again of which it has made no connection. Call it before the device waits.
    pub(super) fn poll_again(&mut self, cx: &mut Context<'_>) {
        if self.waiting.is_empty() || self.again.as_mut().poll(cx).is_pending() {
            return;
        }
        let Self { hub, queue, waiting, again, .. } = self;
        waiting.retain_mut(|(flow, syn, tries)| {
            if flow.is_taken() {
                return false;
            }
            *tries -= 1;
            if *tries == 0 {
                hub.forget(flow);
                return false;
            }
            if flow.is_half_open() {
                queue.push_back(syn.clone());
            }
            true
        });
        again.as_mut().reset(Instant::now() + AGAIN);
        // The waker of the next time.
        if !waiting.is_empty() {
            let _pending: Poll<()> = again.as_mut().poll(cx);
        }
    }

    /// Notes a TCP packet of ipstack. Returns the window to send, or `None` if it must not be sent.
    pub(super) fn leave(&mut self, segment: &TcpSegment<'_>) -> Option<u16> {
        let flow =
            flow_key(segment).and_then(|FlowKey { local, peer }| self.flow(FlowKey { local: peer, peer: local }));
        let Some(flow) = flow else { return Some(segment.window()) };
        let (window, fin) = flow.note(segment);
        self.queue.extend(fin);
        window
    }
}

/// The connection of a segment from the peer.
pub(super) fn flow_key(segment: &TcpSegment<'_>) -> Option<FlowKey> {
    segment.endpoints().map(|(peer, local)| FlowKey { local, peer })
}

/// Changes `headers` to the headers of a part of the segment: `len` bytes of payload from `from` on. The checksum is
/// wrong afterwards; ipstack does not verify it.
pub(super) fn patch(headers: &mut [u8], segment: &TcpSegment<'_>, from: usize, len: usize, flags: u8) {
    let TcpLayout { ipv6, tcp_at, payload_at } = segment.layout;
    write_ip_len(headers, ipv6, payload_at + len);
    let sequence = segment.sequence().wrapping_add(from as u32);
    headers[tcp_at + offset::SEQUENCE..][..4].copy_from_slice(&sequence.to_be_bytes());
    headers[tcp_at + offset::FLAGS] = flags;
}

/// The RST for a segment of no connection.
fn reset(key: FlowKey, verdict: Verdict) -> Option<Reply> {
    let Verdict::Rst(sequence) = verdict else { return None };
    Some((key, TcpFields { sequence, flags: RST, ..TcpFields::default() }))
}

/// The RST for a SYN that nobody listens for.
fn refusal(key: FlowKey, segment: &TcpSegment<'_>) -> Reply {
    let len = segment.payload().len() as u32 + 1;
    let acknowledgement = segment.sequence().wrapping_add(len);
    (key, TcpFields { acknowledgement, flags: RST | ACK, ..TcpFields::default() })
}

/// The flags of a segment that ipstack reads. It ignores data with others, and with PSH if the data is out of order.
pub(super) const KNOWN: u8 = SYN | ACK;
