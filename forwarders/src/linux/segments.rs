//! Super-packets that tun-rs splits into packets of the MTU's size and coalesces again.

use std::io;

use bytes::BytesMut;
use platform::{Error, packet};
use tun_rs::{GROTable, IDEAL_BATCH_SIZE, VIRTIO_NET_HDR_LEN};

use super::counters::Counter;
use super::device::{Device, Port};
use super::failure::{failed, is_malformed, is_refused};
use super::pipe::{LARGEST, Sink, Source};

/// The capacity that tun-rs needs in a buffer to coalesce packets in: the largest packet and two headers
/// (`src/platform/linux/offload.rs`, `coalesce_tcp_packets`). It ignores the buffer's length.
const JOINED: usize = 2 * VIRTIO_NET_HDR_LEN + LARGEST;

/// Marks a packet that was not sent, in the place of the flags of its `virtio_net_hdr`. tun-rs writes valid flags to
/// each packet that it sends. It does not send a packet that it has coalesced into another one.
const UNSENT: u8 = 0xFF;

/// Packets, each with room for a `virtio_net_hdr` in front. The first one also has room for the others after it.
pub(super) type Cut = Vec<BytesMut>;

/// Reads super-packets and splits them.
pub(super) struct SegmentSource<D> {
    port: Port<D>,
    counter: Counter,
    /// The longest packet, in bytes, with the header.
    segment_len: usize,
    /// The buffer for a super-packet.
    whole: Vec<u8>,
    /// Buffers for its packets, as many as tun-rs demands.
    stock: Vec<BytesMut>,
    sizes: Vec<usize>,
}

impl<D> SegmentSource<D> {
    pub(super) fn new(port: Port<D>, mtu: usize, counter: Counter) -> Self {
        Self {
            port,
            counter,
            segment_len: VIRTIO_NET_HDR_LEN + mtu,
            whole: vec![0; VIRTIO_NET_HDR_LEN + LARGEST],
            stock: Vec::with_capacity(2 * IDEAL_BATCH_SIZE),
            sizes: vec![0; IDEAL_BATCH_SIZE],
        }
    }

    /// Takes the buffers of written packets back, allocates the missing ones, and moves a buffer with room for a
    /// coalesced packet to the front.
    fn restock(&mut self, cut: &mut Cut) {
        let len = self.segment_len;
        let returned = cut.drain(..).map(|mut packet| {
            packet.resize(len, 0);
            packet
        });
        // To the front, so that they are used next, while the processor's caches still hold them.
        self.stock.splice(..0, returned);
        self.stock.truncate(IDEAL_BATCH_SIZE);
        while self.stock.len() < IDEAL_BATCH_SIZE {
            self.stock.push(BytesMut::zeroed(self.segment_len));
        }
        let is_large = |packet: &BytesMut| packet.capacity() >= JOINED;
        if self.stock.first().is_some_and(is_large) {
            return;
        }
        if let Some(index) = self.stock.iter().rposition(is_large) {
            self.stock.swap(0, index);
        } else if let Some(first) = self.stock.first_mut() {
            *first = BytesMut::with_capacity(JOINED);
            first.resize(self.segment_len, 0);
        }
    }
}

impl<D: Device> Source for SegmentSource<D> {
    type Device = D;
    type Burst = Cut;

    /// A read takes one super-packet.
    const BATCHES: bool = false;

    fn port(&self) -> &Port<D> {
        &self.port
    }

    fn try_fill(&mut self, cut: &mut Cut) -> Result<usize, Error> {
        self.restock(cut);
        let count = loop {
            match self.port.device.try_recv_multiple(&mut self.whole, &mut self.stock, &mut self.sizes) {
                Ok(0) => self.counter.lost(1),
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if is_malformed(&error) => self.counter.lost(1),
                Err(error) => return Err(failed("read from", &self.port.name, error)),
            }
        };
        for (packet, size) in self.stock.iter_mut().zip(&self.sizes).take(count) {
            packet.truncate(VIRTIO_NET_HDR_LEN + size);
        }
        cut.extend(self.stock.drain(..count));
        let whole = self.whole.get(VIRTIO_NET_HDR_LEN..).unwrap_or_default();
        // A packet that was split has its length in its header. Any other packet may be of any kind.
        let len = if count == 1 { self.sizes.first().copied() } else { packet::ip_len(whole) };
        self.counter.carried(1, len.unwrap_or_default() as u64);
        Ok(1)
    }
}

/// Coalesces packets and writes them.
pub(super) struct SegmentSink<D> {
    port: Port<D>,
    counter: Counter,
    table: GROTable,
}

impl<D> SegmentSink<D> {
    pub(super) fn new(port: Port<D>, counter: Counter) -> Self {
        Self { port, counter, table: GROTable::new() }
    }
}

impl<D: Device> Sink for SegmentSink<D> {
    type Device = D;
    type Burst = Cut;

    fn port(&self) -> &Port<D> {
        &self.port
    }

    fn try_write(&mut self, cut: &mut Cut) -> Result<bool, Error> {
        if let (Some(first), Some(last)) = (cut.first(), cut.last()) {
            let naked = |packet| <[u8]>::get(packet, VIRTIO_NET_HDR_LEN..).unwrap_or_default();
            self.counter.order_of_run(naked(first), naked(last), cut.len());
        }
        for packet in cut.iter_mut() {
            if let Some(flags) = packet.first_mut() {
                *flags = UNSENT;
            }
        }
        let sent = self.port.device.try_send_multiple(&mut self.table, cut);
        let packets = cut.iter().filter(|packet| packet.first() != Some(&UNSENT)).count() as u64;
        match sent {
            Ok(bytes) => self.counter.carried(packets, bytes as u64 - packets * VIRTIO_NET_HDR_LEN as u64),
            // If the kernel does not accept a packet, tun-rs continues, and returns only the last error. So the whole
            // burst counts as lost.
            Err(error) if is_refused(&error) => self.counter.lost(packets),
            // The device is gone, and tun-rs does not report how many packets it has accepted.
            Err(error) => return Err(failed("write to", &self.port.name, error)),
        }
        Ok(true)
    }
}
