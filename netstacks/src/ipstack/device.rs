//! The device for ipstack: each read and write moves a packet. A guard decides which segments ipstack reads.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use platform::packet::checksum::{sum, update};
use platform::packet::flags::{ACK, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpLayout, TcpSegment, offset, write_ip_len};
use platform::{Checksum, Link, PacketBuffer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::coop;

use super::flow::{Admission, Flow, Hub};
use crate::FlowKey;
use crate::driven::most_half_open;
use crate::offload::Offload;

/// The longest headers that ipstack makes, in bytes: IPv6, TCP, MSS option.
const MAX_HEADER: usize = 40 + 20 + 4;

/// Most bytes that ipstack moves to the reader for one packet. It keeps the others until the next packet.
pub(super) const PIECE: usize = 8192;

pub(super) struct Device<L> {
    link: L,
    offload: Offload,
    guard: Guard,
    reopened: UnboundedReceiver<Arc<Flow>>,
    buffers: Vec<PacketBuffer>,
    filled: usize,
    /// The current packet of the batch, and what is left of it for ipstack.
    next: usize,
    rest: Option<Piece>,
    /// The connection of the last packet that ipstack has read.
    read: Option<Arc<Flow>>,
    /// Whether the link had no more packets at the last call.
    drained: bool,
    unflushed: bool,
}

/// No field is pinned.
impl<L> Unpin for Device<L> {}

impl<L: Link> Device<L> {
    pub(super) fn new(link: L, offload: Offload, hub: Arc<Hub>, reopened: UnboundedReceiver<Arc<Flow>>) -> Self {
        let capabilities = link.capabilities();
        let buffers = (0..capabilities.batch.max(1)).map(|_| PacketBuffer::new(capabilities.max_packet_len));
        Self {
            link,
            offload,
            guard: Guard { hub, own: VecDeque::new(), opened: VecDeque::new() },
            reopened,
            buffers: buffers.collect(),
            filled: 0,
            next: 0,
            rest: None,
            read: None,
            drained: false,
            unflushed: false,
        }
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // ipstack reads after each packet that it sends. Polling the readiness of an empty link costs no system
            // call.
            if self.drained {
                if mem::take(&mut self.unflushed) {
                    self.link.flush()?;
                }
                ready!(self.link.poll_readable(cx))?;
                self.drained = false;
            }
            match self.link.try_recv(&mut self.buffers) {
                Ok(count) => {
                    (self.filled, self.next) = (count, 0);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.drained = true,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Gives ipstack the next packet, or the next piece of one. Returns whether there was one.
    fn emit(&mut self, out: &mut ReadBuf<'_>) -> bool {
        if self.rest.is_none()
            && let Some(packet) = self.guard.own.pop_front()
        {
            out.put_slice(&packet);
            return true;
        }
        let Some(buffer) = self.buffers[..self.filled].get(self.next) else { return false };
        let packet = buffer.packet();
        self.next += 1;
        let Some(segment) = TcpSegment::parse(packet) else {
            let fits = packet.len() <= out.remaining();
            out.put_slice(if fits { packet } else { &[] });
            return fits;
        };
        let (piece, reply) = match self.rest.take() {
            Some(rest) => (Some(rest), None),
            None => self.guard.admit(&segment),
        };
        let taken = piece.is_some_and(|piece| self.put(piece, out));
        if let Some(packet) = reply {
            self.reply(packet);
        }
        taken
    }

    /// Gives ipstack a piece of the current packet. Returns whether it fits.
    fn put(&mut self, mut piece: Piece, out: &mut ReadBuf<'_>) -> bool {
        let packet = self.buffers[self.next - 1].packet();
        let Some(segment) = TcpSegment::parse(packet) else { return false };
        let (headers, payload) = packet.split_at(segment.layout.payload_at);
        let Range { start, end } = piece.bytes;
        let room = out.remaining().saturating_sub(headers.len());
        let len = (end - start).min(PIECE).min(room);
        if headers.len() > out.remaining() || (len == 0 && start < end) {
            return false;
        }
        out.put_slice(headers);
        patch(out.filled_mut(), &segment, &piece, len);
        out.put_slice(&payload[start..start + len]);
        piece.bytes.start += len;
        // Behind bytes that ipstack has already, a segment may have further ones: the guard looks at it again.
        let has_more = start < end && end < payload.len();
        if piece.bytes.is_empty() {
            self.read = piece.flow;
            self.next -= usize::from(has_more);
        } else {
            self.rest = Some(piece);
            self.next -= 1;
        }
        true
    }

    /// Sends a packet of the adapter. It is lost if the link is full.
    fn reply(&mut self, mut packet: Vec<u8>) {
        let len = packet.len();
        let meta = self.offload.prepare(&mut packet, len, None);
        let _lost = self.link.try_send(meta, &[IoSlice::new(&packet)]);
        self.unflushed = true;
    }
}

/// The part of a segment that ipstack reads.
struct Piece {
    bytes: Range<usize>,
    /// The flags that it reads. It ignores data with others, and takes a FIN with data for a FIN alone.
    flags: u8,
    /// The acknowledgement number, if it is not that of the segment.
    acknowledgement: Option<u32>,
    flow: Option<Arc<Flow>>,
}

/// The guard between the link and ipstack.
struct Guard {
    hub: Arc<Hub>,
    /// Packets that ipstack reads before the next one of the batch.
    own: VecDeque<Vec<u8>>,
    /// The last connections that were opened, the oldest first.
    opened: VecDeque<Arc<Flow>>,
}

impl Guard {
    /// Decides about a segment. Returns the part that ipstack reads, and a packet to send.
    fn admit(&mut self, segment: &TcpSegment<'_>) -> (Option<Piece>, Option<Vec<u8>>) {
        let Some((peer, local)) = segment.endpoints() else { return (None, None) };
        let key = FlowKey { local, peer };
        let flags = segment.flags() & (SYN | ACK | RST);
        let whole = |flags| Some(Piece { bytes: 0..0, flags, acknowledgement: None, flow: None });
        match self.hub.flow(&key).filter(|flow| flow.seen().failure.is_none()) {
            None if flags == SYN => (self.open(key).then(|| whole(SYN)).flatten(), None),
            // ipstack would open a connection at any SYN. It answers the others with a RST.
            None if flags & SYN != 0 => (None, None),
            None => (whole(flags), None),
            Some(flow) if flags & RST != 0 => {
                flow.end(ErrorKind::ConnectionReset);
                // ipstack ends the task of the connection at the packet after a RST.
                self.own.push_back(make(key.peer, key.local, TcpFields { flags: RST, ..TcpFields::default() }, &[]));
                (whole(RST), None)
            }
            // ipstack ignores a SYN while it has not removed the connection before, and repeats no SYN-ACK.
            Some(flow) if flags == SYN && flow.is_half_open() => match flow.seen().syn_ack.clone() {
                packet if packet.is_empty() => (whole(SYN), None),
                packet => (None, Some(packet)),
            },
            Some(flow) if flags == ACK => self.pass(flow, segment),
            Some(_) => (None, None),
        }
    }

    fn pass(&mut self, flow: Arc<Flow>, segment: &TcpSegment<'_>) -> (Option<Piece>, Option<Vec<u8>>) {
        let Admission { bytes, acknowledgement, replies, opened, own } = flow.admit(segment, &self.hub);
        if let Some(stream) = opened {
            self.hub.offer(stream);
        }
        self.own.extend(own.into_iter().map(|(fields, payload)| make(flow.key.peer, flow.key.local, fields, payload)));
        let reply = replies.then(|| self.acknowledge(&flow));
        (bytes.map(|bytes| Piece { bytes, flags: ACK, acknowledgement, flow: Some(flow) }), reply)
    }

    /// Opens a connection, unless there are too many. The oldest one that is half-open makes room for another.
    fn open(&mut self, key: FlowKey) -> bool {
        if !self.hub.has_room() || self.hub.len() >= self.hub.config.connections {
            return false;
        }
        if self.opened.len() >= most_half_open(&self.hub.config)
            && let Some(oldest) = self.opened.pop_front()
            && oldest.is_half_open()
        {
            oldest.end(ErrorKind::ConnectionAborted);
            self.hub.forget(&oldest);
        }
        self.opened.push_back(self.hub.open(key));
        true
    }

    /// Notes a TCP packet of ipstack. Returns the window to send, or `None` if it must not be sent.
    fn leave(&mut self, segment: &TcpSegment<'_>, packet: &[u8]) -> Option<u16> {
        let key = segment.endpoints().map(|(local, peer)| FlowKey { local, peer });
        let Some(flow) = key.and_then(|key| self.hub.flow(&key)) else { return Some(segment.window()) };
        let (window, fin) = flow.note(segment, packet, &self.hub);
        self.own.extend(fin.map(|fin| make(flow.key.peer, flow.key.local, fin, &[])));
        window
    }

    fn acknowledge(&self, flow: &Flow) -> Vec<u8> {
        make(flow.key.local, flow.key.peer, flow.acknowledgement(&self.hub), &[])
    }
}

/// A packet; empty if the IP versions of the ends differ.
fn make(from: SocketAddr, to: SocketAddr, fields: TcpFields, payload: &[u8]) -> Vec<u8> {
    let Some(template) = TcpHeaders::new(from, to) else { return Vec::new() };
    let mut headers = [0; MAX_HEADERS_LEN];
    let len = template.write(fields, &[], payload, Checksum::Filled, &mut headers);
    [&headers[..len], payload].concat()
}

/// Changes `headers` to those of `len` bytes of a piece. The checksum is wrong afterwards; ipstack does not verify it.
fn patch(headers: &mut [u8], segment: &TcpSegment<'_>, piece: &Piece, len: usize) {
    let TcpLayout { ipv6, tcp_at, payload_at } = segment.layout;
    write_ip_len(headers, ipv6, payload_at + len);
    let sequence = segment.sequence().wrapping_add(piece.bytes.start as u32);
    let acknowledgement = piece.acknowledgement.unwrap_or(segment.acknowledgement());
    let tcp = &mut headers[tcp_at..];
    tcp[offset::SEQUENCE..][..4].copy_from_slice(&sequence.to_be_bytes());
    tcp[offset::ACKNOWLEDGEMENT..][..4].copy_from_slice(&acknowledgement.to_be_bytes());
    tcp[offset::FLAGS] = piece.flags;
}

/// Changes the window of a TCP header, and its checksum.
fn write_window(headers: &mut [u8], tcp_at: usize, window: u16) {
    let Some(fields) = headers.get_mut(tcp_at + offset::WINDOW..tcp_at + offset::CHECKSUM + 2) else { return };
    let (old, checksum) = fields.split_at_mut(2);
    let sums = [&*old, &*checksum].map(sum);
    old.copy_from_slice(&window.to_be_bytes());
    checksum.copy_from_slice(&update(sums[1], sums[0], window).to_be_bytes());
}

impl<L: Link> AsyncRead for Device<L> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let device = self.get_mut();
        let coop = ready!(coop::poll_proceed(cx));
        // By now ipstack has passed the last packet on.
        if let Some(flow) = device.read.take() {
            flow.wake_closer();
        }
        while let Poll::Ready(Some(flow)) = device.reopened.poll_recv(cx) {
            device.reply(device.guard.acknowledge(&flow));
        }
        while !device.emit(buf) {
            if device.next < device.filled || !device.guard.own.is_empty() {
                continue;
            }
            if let Err(error) = ready!(device.poll_batch(cx)) {
                // ipstack would ignore the error.
                device.guard.hub.fail(&error);
                return Poll::Pending;
            }
        }
        coop.made_progress();
        Poll::Ready(Ok(()))
    }
}

impl<L: Link> AsyncWrite for Device<L> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, packet: &[u8]) -> Poll<io::Result<usize>> {
        let device = self.get_mut();
        let len = packet.len().min(MAX_HEADER);
        let mut headers = [0; MAX_HEADER];
        headers[..len].copy_from_slice(&packet[..len]);
        let segment = TcpSegment::parse(packet);
        if let Some(segment) = &segment {
            let Some(window) = device.guard.leave(segment, packet) else { return Poll::Ready(Ok(packet.len())) };
            if window < segment.window() {
                write_window(&mut headers[..len], segment.layout.tcp_at, window);
            }
        }
        let meta = device.offload.prepare(&mut headers[..len], packet.len(), None);
        let slices = [IoSlice::new(&headers[..len]), IoSlice::new(&packet[len..])];
        while let Err(error) = device.link.try_send(meta, &slices) {
            if error.kind() == ErrorKind::WouldBlock {
                device.link.flush()?;
                ready!(device.link.poll_writable(cx))?;
                continue;
            }
            device.guard.hub.fail(&error);
            return Poll::Ready(Err(error));
        }
        device.unflushed = true;
        if segment.is_none() {
            let less = |leaving: usize| leaving.checked_sub(1);
            let _before = device.guard.hub.leaving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        Poll::Ready(Ok(packet.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().link.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
