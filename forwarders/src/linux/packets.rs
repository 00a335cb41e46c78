//! Packets as the device gives them, with nothing or a `virtio_net_hdr` in front: they go on byte for byte.

use std::io;
use std::mem;

use super::carry::{Sink, Source};
use super::counters::Counter;
use super::failure::{failed, is_refused};
use super::port::Port;
use platform::Error;

/// How packets of a way look.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// What is in front of each, in bytes.
    pub(super) header_len: usize,
    /// The most that one takes, with that.
    pub(super) max_len: usize,
    /// How many are read, where so many are there, before any is written.
    pub(super) batch: usize,
}

/// Packets, each in a buffer of its own.
#[derive(Default)]
pub(super) struct Batch {
    /// All of them as long as the longest packet, so that none has to be cleared before it is used again.
    buffers: Vec<Vec<u8>>,
    /// Of the first of these, how much is used.
    lens: Vec<usize>,
}

impl Batch {
    /// The buffer of the next packet: one of the batch, or else the spare one, or a new one.
    fn room(&mut self, len: usize, spare: &mut Vec<u8>) -> &mut [u8] {
        let next = self.lens.len();
        if self.buffers.len() == next {
            let spare = mem::take(spare);
            self.buffers.push(if spare.is_empty() { vec![0; len] } else { spare });
        }
        self.buffers.get_mut(next).map(Vec::as_mut_slice).unwrap_or_default()
    }

    /// Gives the buffer back that no packet came for, where there is none already.
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
pub(super) struct PacketSource<P> {
    pub(super) port: P,
    pub(super) format: Format,
    pub(super) counter: Counter,
    /// A buffer for a packet that may not come: each burst of a channel would need another.
    pub(super) spare: Vec<u8>,
}

impl<P: Port> Source for PacketSource<P> {
    type Burst = Batch;

    async fn fill(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let Format { header_len, max_len, batch: most } = self.format;
        let failed = |error| failed("read from", self.port.name(), error);
        batch.lens.clear();
        let len = self.port.recv(batch.room(max_len, &mut self.spare)).await.map_err(failed)?;
        batch.lens.push(len);
        while batch.lens.len() < most {
            match self.port.try_recv(batch.room(max_len, &mut self.spare)) {
                Ok(len) => batch.lens.push(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(failed(error)),
            }
        }
        batch.give_back(&mut self.spare);
        let bytes: usize = batch.lens.iter().map(|len| len.saturating_sub(header_len)).sum();
        self.counter.read(batch.lens.len() as u64, bytes as u64);
        Ok(())
    }
}

/// Writes packets.
pub(super) struct PacketSink<P> {
    pub(super) port: P,
    pub(super) format: Format,
    pub(super) counter: Counter,
}

impl<P: Port> Sink for PacketSink<P> {
    type Burst = Batch;

    async fn write(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let (mut packets, mut bytes, mut outcome) = (0, 0, Ok(()));
        for packet in batch.packets() {
            let naked = packet.get(self.format.header_len..).unwrap_or_default();
            self.counter.order(naked);
            match self.port.send(packet).await {
                Ok(_) => {
                    packets += 1;
                    bytes += naked.len() as u64;
                }
                Err(error) if is_refused(&error) => self.counter.unwritten(1),
                Err(error) => {
                    outcome = Err(failed("write to", self.port.name(), error));
                    break;
                }
            }
        }
        self.counter.written(packets, bytes);
        outcome
    }
}
