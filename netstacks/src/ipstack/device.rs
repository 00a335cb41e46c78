//! The device for ipstack. Each read and each write moves one packet.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use platform::packet::checksum::{sum, update};
use platform::packet::flags::{ACK, FIN, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpHeaders, TcpSegment, Transport, UDP, offset};
use platform::{Checksum, Link, PacketBuffer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::check::{PIECE, Piece, write_acknowledgement};
use super::guard::{Guard, KNOWN, Reply, flow_key, patch};
use super::stream::{Flow, Hub};
use crate::driven::segment::are_checksums_right;
use crate::offload::{Offload, header_len};
use crate::{FlowKey, Workaround};

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
    /// Where the payload ends that ipstack reads.
    end: usize,
    /// The acknowledgement number that it reads.
    acknowledgement: Option<u32>,
    /// The connection of the last ACK that ipstack has read.
    acked: Option<Arc<Flow>>,
    guard: Guard,
    /// A packet to send behind the current one.
    pending: Option<Reply>,
    /// Whether checksums are verified.
    verifies: bool,
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
            verifies: hub.workarounds.has(Workaround::VerifiesChecksums) && !capabilities.checksum.rx,
            link,
            offload,
            guard: Guard::new(Arc::clone(&hub)),
            hub,
            buffers: buffers.collect(),
            filled: 0,
            next: 0,
            taken: 0,
            end: 0,
            acknowledgement: None,
            acked: None,
            pending: None,
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
            && let Some(packet) = self.guard.queue.pop_front()
        {
            out.put_slice(&packet);
            return true;
        }
        let Some(buffer) = self.buffers[..self.filled].get(self.next) else { return false };
        let packet = buffer.packet();
        self.next += 1;
        let is_partial = buffer.meta().checksum == Checksum::Partial;
        if self.taken == 0
            && !is_partial
            && (self.lacks_checksum(packet) || (self.verifies && !are_checksums_right(packet, true)))
        {
            return false;
        }
        let Some(segment) = TcpSegment::parse(packet) else {
            let fits = packet.len() <= out.remaining();
            out.put_slice(if fits { packet } else { &[] });
            return fits;
        };
        let (headers, payload) = packet.split_at(segment.layout.payload_at);
        if self.taken == 0 {
            let (admitted, reply) = self.guard.admit(&segment, headers);
            let Some(Piece { skip, len, acknowledgement, .. }) = admitted else {
                self.reply(reply);
                return false;
            };
            (self.taken, self.end, self.acknowledgement, self.pending) = (skip, skip + len, acknowledgement, reply);
        }
        let rest = &payload[self.taken..self.end];
        let most = if self.hub.workarounds.has(Workaround::CutsSuperPackets) { PIECE } else { usize::MAX };
        let len = rest.len().min(most).min(out.remaining().saturating_sub(headers.len()));
        // The FIN goes into the queue, or is held back. The rest of its segment must not wait: data, or the ACK of our
        // last byte. With PSH, ipstack drops data that is out of order.
        out.put_slice(headers);
        patch(out.filled_mut(), &segment, self.taken, len, self.flags(&segment));
        if let Some(number) = self.acknowledgement {
            write_acknowledgement(out.filled_mut(), segment.layout.tcp_at, number);
        }
        out.put_slice(&rest[..len]);
        if len < rest.len() {
            (self.taken, self.next) = (self.taken + len, self.next - 1);
        } else {
            // The segment is checked again if it has bytes behind those that ipstack has already.
            self.next -= usize::from(self.end < payload.len() && len > 0);
            self.taken = 0;
            self.acked = flow_key(&segment).and_then(|key| self.guard.flow(key));
        }
        let reply = self.pending.take();
        self.reply(reply);
        true
    }

    /// Whether a packet is to be dropped because it is UDP over IPv6 without a checksum (RFC 8200, 8.1).
    fn lacks_checksum(&self, packet: &[u8]) -> bool {
        let Some(Transport { ipv6: true, protocol: UDP, at }) = Transport::parse(packet) else { return false };
        packet.get(at + 6..at + 8) == Some(&[0; 2]) && self.hub.workarounds.has(Workaround::VerifiesChecksums)
    }

    /// The flags of a segment that ipstack reads: those that it knows. The FIN becomes a packet of its own, unless that
    /// workaround is off and the segment has data.
    fn flags(&self, segment: &TcpSegment<'_>) -> u8 {
        let workarounds = self.hub.workarounds;
        let known = if workarounds.has(Workaround::ChecksSegments) { KNOWN } else { !FIN };
        let is_apart = workarounds.has(Workaround::HandsFinApart) || segment.payload().is_empty();
        segment.flags() & if is_apart { known } else { known | FIN }
    }

    /// Sends a packet of the adapter. It is lost if the link is full.
    fn reply(&mut self, reply: Option<Reply>) {
        let Some((FlowKey { local, peer }, fields)) = reply else { return };
        let Some(template) = TcpHeaders::new(local, peer) else { return };
        let [high, low] = self.offload.mss(header_len(true)).to_be_bytes();
        let options: &[u8] = if fields.flags & SYN == 0 { &[] } else { &[2, 4, high, low] };
        let mut packet = [0; MAX_HEADERS_LEN];
        let len = template.write(fields, options, &[], Checksum::Filled, &mut packet);
        let meta = self.offload.prepare(&mut packet[..len], len, None);
        let _lost = self.link.try_send(meta, &[IoSlice::new(&packet[..len])]);
        self.unflushed = true;
    }
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
        // By now ipstack has passed the last ACK on. A `shutdown` may wait for it.
        if let Some(flow) = device.acked.take() {
            flow.pass_ack();
        }
        device.guard.poll_again(cx);
        while let Some(flow) = device.hub.poll_reopened(cx) {
            device.reply(Some((flow.key, flow.fields(ACK))));
        }
        while !device.emit(buf) {
            if device.next < device.filled || !device.guard.queue.is_empty() {
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
        let segment = TcpSegment::parse(packet);
        if let Some(segment) = &segment {
            let Some(window) = device.guard.leave(segment) else { return Poll::Ready(Ok(packet.len())) };
            if window < segment.window() {
                write_window(&mut headers[..len], segment.layout.tcp_at, window);
            }
        }
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
        if segment.is_none() {
            device.hub.exchange().left();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::future::poll_fn;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    use platform::packet::TcpFields;
    use platform::packet::flags::{PSH, RST};
    use platform::{MemoryLink, PacketMeta};
    use tokio::sync::mpsc;

    use super::super::exchange::Exchange;
    use super::*;
    use crate::{StackConfig, Workarounds};

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

    async fn leave(device: &mut Device<MemoryLink>, packet: &[u8]) {
        poll_fn(|cx| Pin::new(&mut *device).poll_write(cx, packet)).await.unwrap();
    }

    /// A device for ipstack, whose listener exists.
    fn device(link: MemoryLink, workarounds: Workarounds) -> (Device<MemoryLink>, Arc<Hub>) {
        let (offer, accepted) = mpsc::channel(1);
        // The receiver must live as long as the device.
        mem::forget(accepted);
        let config = StackConfig { workarounds, ..StackConfig::default() };
        let hub = Arc::new(Hub::new(&config, Exchange::new(1500, workarounds), offer));
        let offload = Offload::of(&link.capabilities());
        (Device::new(link, offload, Arc::clone(&hub)), hub)
    }

    /// A super-packet with a FIN arrives in pieces. The FIN comes after them, once our FIN was sent.
    #[tokio::test]
    async fn a_super_packet_is_cut_and_its_fin_is_held() {
        for [peer, local] in [["10.0.0.1:4000", "10.0.0.2:80"], ["[fd00::1]:4000", "[fd00::2]:80"]] {
            let (peer, local): (SocketAddr, SocketAddr) = (peer.parse().unwrap(), local.parse().unwrap());
            let (link, mut other_end) = MemoryLink::offloading_pair(1500, MemoryLink::DEFAULT_DEPTH);
            let (mut device, hub) = device(link, Workarounds::ALL);
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
            let syn_ack = TcpFields { sequence: 99, acknowledgement: first, flags: SYN | ACK, window: u16::MAX };
            leave(&mut device, &packet(local, peer, syn_ack, &[])).await;
            let _taken = hub.take(FlowKey { local, peer });
            let mut at = 0;
            for len in [PIECE, PIECE, 20_000 - 2 * PIECE] {
                let piece = next(&mut device).await.unwrap();
                let segment = TcpSegment::parse(&piece).unwrap();
                assert_eq!((segment.sequence(), segment.flags()), (first.wrapping_add(at as u32), ACK));
                assert_eq!(segment.payload(), &payload[at..at + len]);
                assert_eq!(platform::packet::ip_len(&piece), Some(piece.len()));
                at += len;
            }
            assert!(next(&mut device).await.is_none(), "the FIN is held");
            let acknowledgement = first.wrapping_add(20_000);
            let fin = TcpFields { sequence: 100, acknowledgement, flags: ACK | FIN, window: u16::MAX };
            leave(&mut device, &packet(local, peer, fin, &[])).await;
            let released = next(&mut device).await.unwrap();
            let segment = TcpSegment::parse(&released).unwrap();
            assert_eq!((segment.sequence(), segment.flags()), (first.wrapping_add(20_000), ACK | FIN));
            assert_eq!((segment.acknowledgement(), segment.payload()), (100, &[][..]));
            let flow = hub.flow(FlowKey { local, peer }).unwrap();
            assert!(poll_fn(|cx| Poll::Ready(flow.poll_end(cx, 20_000).is_ready())).await);
        }
    }

    /// The packets that ipstack gets of a connection whose peer sends this after its SYN.
    async fn given(off: Workaround, flags: u8, payload: &[u8]) -> Vec<(u8, usize)> {
        let [peer, local] = ["10.0.0.1:4000", "10.0.0.2:80"].map(|address| address.parse::<SocketAddr>().unwrap());
        let (link, mut other_end) = MemoryLink::offloading_pair(1500, MemoryLink::DEFAULT_DEPTH);
        let (mut device, hub) = device(link, format!("-{}", off.name()).parse().unwrap());
        let first = ISN.wrapping_add(1);
        let fields = |sequence, flags| TcpFields { sequence, acknowledgement: 100, flags, window: 500 };
        let meta = PacketMeta { checksum: Checksum::Partial, gso_size: None };
        other_end.try_send(meta, &[IoSlice::new(&packet(peer, local, fields(ISN, SYN), &[]))]).unwrap();
        next(&mut device).await.unwrap();
        let syn_ack = TcpFields { sequence: 99, acknowledgement: first, flags: SYN | ACK, window: u16::MAX };
        leave(&mut device, &packet(local, peer, syn_ack, &[])).await;
        let _taken = hub.take(FlowKey { local, peer });
        let gso_size = NonZeroU16::new(1440).filter(|_| payload.len() > 1440);
        let data = packet(peer, local, fields(first, flags), payload);
        other_end.try_send(PacketMeta { gso_size, ..meta }, &[IoSlice::new(&data)]).unwrap();
        let mut given = Vec::new();
        while let Some(packet) = next(&mut device).await {
            let segment = TcpSegment::parse(&packet).unwrap();
            given.push((segment.flags(), segment.payload().len()));
        }
        given
    }

    #[tokio::test]
    async fn each_repair_is_off_when_it_is_off() {
        let large = [0; 10_000];
        assert_eq!(given(Workaround::ShortWrites, ACK, &large).await, [(ACK, PIECE), (ACK, 10_000 - PIECE)]);
        assert_eq!(given(Workaround::CutsSuperPackets, ACK, &large).await, [(ACK, 10_000)]);
        assert_eq!(given(Workaround::ShortWrites, ACK | FIN, b"end").await, [(ACK, 3)], "the FIN is held");
        assert_eq!(given(Workaround::HandsFinApart, ACK | FIN, b"end").await, [(ACK | FIN, 3)]);
        assert_eq!(given(Workaround::HoldsFin, ACK | FIN, b"end").await, [(ACK, 3), (ACK | FIN, 0)]);
        assert_eq!(given(Workaround::ShortWrites, RST, &[]).await, [(RST, 0); 2]);
        assert_eq!(given(Workaround::RepeatsReset, RST, &[]).await, [(RST, 0)]);
    }

    /// With the peer's headers, the packet that makes ipstack deliver its bytes would be longer than the MTU.
    #[tokio::test]
    async fn a_packet_full_of_options_fills_a_hole() {
        const MTU: usize = 1501;
        let [peer, local] = ["[fd00::1]:4000", "[fd00::2]:80"].map(|address| address.parse::<SocketAddr>().unwrap());
        let (link, mut other_end) = MemoryLink::pair(MTU, MemoryLink::DEFAULT_DEPTH);
        let (mut device, hub) = device(link, Workarounds::ALL);
        let first = ISN.wrapping_add(1);
        let mut put = |sequence, flags, payload: &[u8], options: usize| {
            let fields = TcpFields { sequence, acknowledgement: 100, flags, window: 500 };
            let mut headers = [0; MAX_HEADERS_LEN];
            let template = TcpHeaders::new(peer, local).unwrap();
            let len = template.write(fields, &[], payload, Checksum::Filled, &mut headers);
            let mut packet = [&headers[..len], payload].concat();
            if options > 0 {
                let mut extension = vec![packet[6], (options / 8 - 1) as u8];
                // PadN (RFC 8200, 4.2), each of 255 bytes at most.
                while extension.len() < options {
                    let len = (options - extension.len()).min(250);
                    extension.extend([1, len as u8 - 2]);
                    extension.resize(extension.len() + len - 2, 0);
                }
                packet[6] = 60;
                packet.splice(40..40, extension);
                let len = (packet.len() - 40) as u16;
                packet[4..6].copy_from_slice(&len.to_be_bytes());
            }
            other_end.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
        };
        put(ISN, SYN, &[], 0);
        let mut buffer = vec![0; MTU];
        let mut next = async |device: &mut Device<MemoryLink>| {
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = poll_fn(|cx| Pin::new(&mut *device).poll_read(cx, &mut buffer));
            let read = tokio::time::timeout(Duration::from_millis(20), read).await;
            read.is_ok().then(|| TcpSegment::parse(buffer.filled()).unwrap().payload().to_vec())
        };
        assert_eq!(next(&mut device).await, Some(vec![]));
        let syn_ack = TcpFields { sequence: 99, acknowledgement: first, flags: SYN | ACK, window: u16::MAX };
        leave(&mut device, &packet(local, peer, syn_ack, &[])).await;
        let _taken = hub.take(FlowKey { local, peer });
        put(first.wrapping_add(1), ACK, b"b", 0);
        put(first, ACK, b"a", 1440);
        let mut payloads = Vec::new();
        while let Some(payload) = next(&mut device).await {
            payloads.push(payload);
        }
        assert_eq!(payloads, [&b"b"[..], b"a", &[0; 2]]);
    }

    /// ipstack has not made a connection of the first SYN.
    #[tokio::test]
    async fn a_syn_is_not_repeated() {
        for (workarounds, is_on) in [(Workarounds::ALL, true), ("-repeats-syn".parse().unwrap(), false)] {
            let [peer, local] = ["10.0.0.1:4000", "10.0.0.2:80"].map(|address| address.parse().unwrap());
            let (link, mut other_end) = MemoryLink::offloading_pair(1500, MemoryLink::DEFAULT_DEPTH);
            let (mut device, _hub) = device(link, workarounds);
            let fields = TcpFields { sequence: ISN, acknowledgement: 0, flags: SYN, window: 500 };
            let meta = PacketMeta { checksum: Checksum::Partial, gso_size: None };
            other_end.try_send(meta, &[IoSlice::new(&packet(peer, local, fields, &[]))]).unwrap();
            next(&mut device).await.unwrap();
            assert_eq!(next(&mut device).await.is_some(), is_on);
        }
    }

    #[test]
    fn datagrams_are_not_limited() {
        for (workarounds, is_on) in [(Workarounds::ALL, true), ("-limits-datagrams".parse().unwrap(), false)] {
            assert_eq!(Exchange::new(1500, workarounds).most_leaving < usize::MAX, is_on);
        }
    }
}
