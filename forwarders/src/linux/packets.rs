//! Packets as the device delivers them, with nothing or a `virtio_net_hdr` in front. They pass through unchanged.

use std::io;
use std::mem;

use platform::Error;

use super::counters::Counter;
use super::device::{Device, Port};
use super::failure::{failed, is_refused};
use super::pipe::{Sink, Source};

/// The framing and size of packets.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// Bytes in front of each packet.
    pub(super) header_len: usize,
    /// The most bytes that a packet has, including these.
    pub(super) max_len: usize,
    /// The most packets that are read before any is written.
    pub(super) batch: usize,
}

/// Packets, each in a separate buffer.
#[derive(Default)]
pub(super) struct Batch {
    /// Each buffer is as long as the longest packet, so it is reused without resizing or clearing.
    pub(super) buffers: Vec<Vec<u8>>,
    /// The lengths of the packets. They are in the first buffers.
    pub(super) lens: Vec<usize>,
    /// How many of the packets have been written.
    pub(super) written: usize,
}

impl Batch {
    /// A buffer for the next packet: one of the batch, or the spare one, or a new one.
    fn room(&mut self, len: usize, spare: &mut Vec<u8>) -> &mut [u8] {
        let next = self.lens.len();
        if self.buffers.len() == next {
            let spare = mem::take(spare);
            self.buffers.push(if spare.is_empty() { vec![0; len] } else { spare });
        }
        self.buffers.get_mut(next).map(Vec::as_mut_slice).unwrap_or_default()
    }

    /// Makes an unused last buffer the spare one, if there is no spare one.
    fn give_back(&mut self, spare: &mut Vec<u8>) {
        if spare.is_empty() && self.buffers.len() > self.lens.len() {
            *spare = self.buffers.pop().unwrap_or_default();
        }
    }

    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().zip(&self.lens).filter_map(|(buffer, len)| buffer.get(..*len))
    }
}

/// Reads packets.
pub(super) struct PacketSource<D> {
    pub(super) port: Port<D>,
    pub(super) format: Format,
    pub(super) counter: Counter,
    /// A buffer for a packet that may not come. Without it, each burst of a channel would allocate one for nothing.
    pub(super) spare: Vec<u8>,
}

impl<D: Device> Source for PacketSource<D> {
    type Device = D;
    type Burst = Batch;

    const BATCHES: bool = true;

    fn port(&self) -> &Port<D> {
        &self.port
    }

    fn try_fill(&mut self, batch: &mut Batch) -> Result<usize, Error> {
        let Format { header_len, max_len, batch: most } = self.format;
        batch.lens.clear();
        batch.written = 0;
        while batch.lens.len() < most {
            match self.port.device.try_recv(batch.room(max_len, &mut self.spare)) {
                Ok(len) => batch.lens.push(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(failed("read from", &self.port.name, error)),
            }
        }
        batch.give_back(&mut self.spare);
        let packets = batch.lens.len();
        if packets > 0 {
            let bytes: usize = batch.lens.iter().map(|len| len.saturating_sub(header_len)).sum();
            self.counter.carried(packets as u64, bytes as u64);
        }
        Ok(packets)
    }
}

/// Writes packets.
pub(super) struct PacketSink<D> {
    pub(super) port: Port<D>,
    pub(super) format: Format,
    pub(super) counter: Counter,
}

impl<D: Device> Sink for PacketSink<D> {
    type Device = D;
    type Burst = Batch;

    fn port(&self) -> &Port<D> {
        &self.port
    }

    fn try_write(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        let (mut packets, mut bytes, mut refused, mut outcome) = (0, 0, 0, Ok(true));
        for packet in batch.packets().skip(batch.written) {
            let naked = packet.get(self.format.header_len..).unwrap_or_default();
            match self.port.device.try_send(packet) {
                Ok(_) => {
                    self.counter.order(naked);
                    packets += 1;
                    bytes += naked.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outcome = Ok(false);
                    break;
                }
                Err(error) if is_refused(&error) => refused += 1,
                Err(error) => {
                    outcome = Err(failed("write to", &self.port.name, error));
                    break;
                }
            }
        }
        batch.written += packets + refused;
        self.counter.carried(packets as u64, bytes as u64);
        self.counter.lost(refused as u64);
        outcome
    }
}
