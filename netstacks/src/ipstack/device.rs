//! The device for ipstack. Each read and each write moves one packet.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{TcpLayout, TcpSegment, write_ip_len};
use platform::{Link, PacketBuffer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::flow::{Hub, Left};
use crate::FlowKey;
use crate::offload::Offload;

/// Largest payload that ipstack takes from one packet, in bytes.
const PIECE: usize = 8192;
/// The flags that the device handles.
const MARKS: u8 = SYN | FIN | RST;
/// The longest headers that ipstack makes, in bytes: IPv6, TCP, MSS option.
const MAX_HEADER: usize = 40 + 20 + 4;

pub(super) struct Device<L> {
    link: L,
    offload: Offload,
    hub: Arc<Hub>,
    buffers: Vec<PacketBuffer>,
    filled: usize,
    /// The current packet of the batch, and how many bytes of its payload ipstack has read.
    next: usize,
    taken: usize,
    /// The connection of the last ACK that ipstack has read.
    acked: Option<FlowKey>,
    /// Packets without payload that ipstack reads before the next packet of the batch.
    queue: VecDeque<Vec<u8>>,
    /// Whether the link had no more packets at the last call.
    drained: bool,
    /// Whether packets were sent since the last flush.
    unflushed: bool,
}

/// No field is pinned.
impl<L> Unpin for Device<L> {}

impl<L: Link> Device<L> {
    pub(super) fn new(link: L, offload: Offload, hub: Arc<Hub>) -> Self {
        let capabilities = link.capabilities();
        let buffers = (0..capabilities.batch.max(1)).map(|_| PacketBuffer::new(capabilities.max_packet_len));
        Self {
            link,
            offload,
            hub,
            buffers: buffers.collect(),
            filled: 0,
            next: 0,
            taken: 0,
            acked: None,
            queue: VecDeque::new(),
            drained: false,
            unflushed: false,
        }
    }

    /// Receives the next batch, or waits for it.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // ipstack reads after each packet that it sends. Once the link is empty, this polls the link's readiness
            // first, which costs no system call.
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.drained = true,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Gives ipstack the next packet, or the next piece of one. Returns whether there was one.
    fn emit(&mut self, out: &mut ReadBuf<'_>) -> bool {
        if self.taken == 0
            && let Some(packet) = self.queue.pop_front()
        {
            out.put_slice(&packet);
            return true;
        }
        let Some(packet) = self.buffers[..self.filled].get(self.next).map(PacketBuffer::packet) else { return false };
        let segment = TcpSegment::parse(packet);
        let special = segment.filter(|tcp| tcp.flags() & MARKS != 0 || tcp.payload().len() > PIECE);
        let Some(segment) = special else {
            self.next += 1;
            self.acked = segment.filter(|tcp| tcp.payload().is_empty()).as_ref().and_then(flow_key);
            let fits = packet.len() <= out.remaining();
            out.put_slice(if fits { packet } else { &[] });
            return fits;
        };
        let (headers, payload) = packet.split_at(segment.layout.payload_at);
        if self.taken == 0 && segment.flags() & MARKS != 0 {
            self.queue.extend(arrive(&self.hub, &segment, headers));
        }
        let rest = &payload[self.taken..];
        let len = rest.len().min(PIECE).min(out.remaining() - headers.len());
        let cut = if len < rest.len() { FIN | PSH } else { FIN };
        // The FIN goes into the queue, or is held back. The rest of its segment must not wait: data, or the ACK of our
        // last byte.
        out.put_slice(headers);
        patch(out.filled_mut(), &segment, self.taken, len, segment.flags() & !cut);
        out.put_slice(&rest[..len]);
        self.taken += len;
        if len == rest.len() {
            (self.taken, self.next) = (0, self.next + 1);
            self.acked = flow_key(&segment);
        }
        true
    }

    /// Notes a packet that was sent.
    fn leave(&mut self, packet: &[u8]) -> Option<()> {
        let Some(segment) = TcpSegment::parse(packet) else {
            self.hub.exchange().left();
            return None;
        };
        if segment.flags() & (SYN | FIN) == 0 {
            return None;
        }
        let (local, peer) = segment.endpoints()?;
        let flow = self.hub.flow(FlowKey { local, peer })?;
        if segment.flags() & SYN != 0 {
            flow.see(|seen| seen.left = seen.left.max(Left::SynAck));
            return None;
        }
        let mut fin = flow.see(|seen| {
            seen.left = Left::Fin;
            seen.held.take()
        })?;
        // By now the peer has acknowledged everything before our FIN. ipstack ignores a lower acknowledgement number.
        let at = TcpLayout::parse(&fin)?.tcp_at + 8;
        fin[at..at + 4].copy_from_slice(&segment.sequence().to_be_bytes());
        self.queue.push_back(fin);
        Some(())
    }
}

/// Handles a segment with SYN, FIN or RST. Returns a packet that ipstack must get after it.
fn arrive(hub: &Hub, segment: &TcpSegment<'_>, headers: &[u8]) -> Option<Vec<u8>> {
    let key = flow_key(segment)?;
    let mut behind = headers.to_vec();
    let len = segment.payload().len();
    if segment.flags() & RST != 0 {
        patch(&mut behind, segment, len, 0, RST);
        return Some(behind);
    }
    if segment.flags() & SYN != 0 {
        hub.open(key, segment.sequence().wrapping_add(1));
        return None;
    }
    patch(&mut behind, segment, len, 0, FIN | ACK);
    let Some(flow) = hub.flow(key) else { return Some(behind) };
    flow.see(|seen| {
        seen.end = Some(segment.sequence().wrapping_add(len as u32));
        if seen.left == Left::Fin {
            return Some(behind);
        }
        seen.held = Some(behind);
        None
    })
}

/// The connection of a segment from the peer.
fn flow_key(segment: &TcpSegment<'_>) -> Option<FlowKey> {
    segment.endpoints().map(|(peer, local)| FlowKey { local, peer })
}

/// Changes `headers` to the headers of a part of the segment: `len` bytes of payload from `from` on. The checksum is
/// wrong afterwards; ipstack does not verify it.
fn patch(headers: &mut [u8], segment: &TcpSegment<'_>, from: usize, len: usize, flags: u8) {
    let TcpLayout { ipv6, tcp_at, payload_at } = segment.layout;
    write_ip_len(headers, ipv6, payload_at + len);
    let sequence = segment.sequence().wrapping_add(from as u32);
    headers[tcp_at + 4..tcp_at + 8].copy_from_slice(&sequence.to_be_bytes());
    headers[tcp_at + 13] = flags;
}

impl<L: Link> AsyncRead for Device<L> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let device = self.get_mut();
        let coop = ready!(coop::poll_proceed(cx));
        // By now ipstack has passed the last ACK on. A `shutdown` may wait for it.
        if let Some(flow) = device.acked.take().and_then(|key| device.hub.flow(key)) {
            flow.pass_ack();
        }
        while !device.emit(buf) {
            if device.next < device.filled {
                continue;
            }
            if let Err(error) = ready!(device.poll_batch(cx)) {
                // ipstack would ignore the error.
                device.hub.fail(&error);
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
        let meta = device.offload.prepare(&mut headers[..len], packet.len(), None);
        let slices = [IoSlice::new(&headers[..len]), IoSlice::new(&packet[len..])];
        while let Err(error) = device.link.try_send(meta, &slices) {
            if error.kind() == io::ErrorKind::WouldBlock {
                device.link.flush()?;
                ready!(device.link.poll_writable(cx))?;
                continue;
            }
            device.hub.fail(&error);
            return Poll::Ready(Err(error));
        }
        device.unflushed = true;
        device.leave(packet);
        Poll::Ready(Ok(packet.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().link.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::future::poll_fn;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};
    use platform::{Checksum, MemoryLink, PacketMeta};

    use super::super::datagrams::Exchange;
    use super::*;

    const ISN: u32 = u32::MAX - 5;

    fn packet(from: SocketAddr, to: SocketAddr, fields: TcpFields, payload: &[u8]) -> Vec<u8> {
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = TcpHeaders::new(from, to).unwrap().write(fields, &[], payload, Checksum::Partial, &mut headers);
        [&headers[..len], payload].concat()
    }

    /// The next packet that ipstack would get.
    async fn next(device: &mut Device<MemoryLink>) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 16_000];
        let mut buffer = ReadBuf::new(&mut buffer);
        let read = poll_fn(|cx| Pin::new(&mut *device).poll_read(cx, &mut buffer));
        tokio::time::timeout(Duration::from_millis(20), read).await.ok()?.unwrap();
        Some(buffer.filled().to_vec())
    }

    /// A super-packet with a FIN arrives in pieces. The FIN comes after them, once our FIN was sent.
    #[tokio::test]
    async fn a_super_packet_is_cut_and_its_fin_is_held() {
        for [peer, local] in [["10.0.0.1:4000", "10.0.0.2:80"], ["[fd00::1]:4000", "[fd00::2]:80"]] {
            let (peer, local): (SocketAddr, SocketAddr) = (peer.parse().unwrap(), local.parse().unwrap());
            let (link, mut other_end) = MemoryLink::offloading_pair(1500, MemoryLink::DEFAULT_DEPTH);
            let hub = Arc::new(Hub::new(Duration::from_secs(1), Exchange::new(1500)));
            let offload = Offload::of(&link.capabilities());
            let mut device = Device::new(link, offload, Arc::clone(&hub));
            let payload: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
            let first = ISN.wrapping_add(1);
            let fields = |sequence, flags| TcpFields { sequence, acknowledgement: 100, flags, window: 500 };
            let syn = packet(peer, local, fields(ISN, SYN), &[]);
            let data = packet(peer, local, fields(first, ACK | PSH | FIN), &payload);
            let whole = PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(1440) };
            for (meta, packet) in [(PacketMeta::default(), &syn), (whole, &data)] {
                other_end.try_send(meta, &[IoSlice::new(packet)]).unwrap();
            }
            other_end.flush().unwrap();
            assert_eq!(next(&mut device).await.unwrap(), syn);
            let mut at = 0;
            for (len, flags) in [(PIECE, ACK), (PIECE, ACK), (20_000 - 2 * PIECE, ACK | PSH)] {
                let piece = next(&mut device).await.unwrap();
                let segment = TcpSegment::parse(&piece).unwrap();
                assert_eq!((segment.sequence(), segment.flags()), (first.wrapping_add(at as u32), flags));
                assert_eq!(segment.payload(), &payload[at..at + len]);
                assert_eq!(platform::packet::ip_len(&piece), Some(piece.len()));
                at += len;
            }
            assert!(next(&mut device).await.is_none(), "the FIN is held");
            let fin = packet(local, peer, fields(700, ACK | FIN), &[]);
            poll_fn(|cx| Pin::new(&mut device).poll_write(cx, &fin)).await.unwrap();
            let released = next(&mut device).await.unwrap();
            let segment = TcpSegment::parse(&released).unwrap();
            assert_eq!((segment.sequence(), segment.flags()), (first.wrapping_add(20_000), ACK | FIN));
            assert_eq!((segment.acknowledgement(), segment.payload()), (700, &[][..]));
            let flow = hub.flow(FlowKey { local, peer }).unwrap();
            assert!(poll_fn(|cx| Poll::Ready(flow.poll_end(cx, 20_000).is_ready())).await);
        }
    }
}
