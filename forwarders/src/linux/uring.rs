//! Packets as the device delivers them, of which `io_uring` reads and writes several in a call.

use std::io;
use std::os::fd::AsFd;

use platform::Error;
use platform::linux::PacketRing;
use tun_rs::SyncDevice;

use super::counters::Counter;
use super::device::Port;
use super::failure::{failed, is_refused};
use super::packets::{Batch, Format};
use super::pipe::{Sink, Source};

/// The fewest packets that are asked for at once: one more than a single one, to know that no other waits.
const FEWEST: usize = 2;

/// Reads packets.
pub(super) struct UringSource {
    port: Port<SyncDevice>,
    format: Format,
    counter: Counter,
    ring: PacketRing,
    /// How many packets to ask for next. A read that finds none costs time, too.
    next: usize,
}

impl UringSource {
    pub(super) fn new(port: Port<SyncDevice>, format: Format, counter: Counter) -> Result<Self, Error> {
        Ok(Self { port, format, counter, ring: PacketRing::new(format.batch as u32)?, next: FEWEST })
    }
}

impl Source for UringSource {
    type Device = SyncDevice;
    type Burst = Batch;

    const BATCHES: bool = true;

    fn port(&self) -> &Port<SyncDevice> {
        &self.port
    }

    fn try_fill(&mut self, batch: &mut Batch) -> Result<usize, Error> {
        let Format { header_len, max_len, batch: most } = self.format;
        let asked = self.next.min(most);
        batch.lens.clear();
        batch.written = 0;
        batch.buffers.resize_with(asked.max(batch.buffers.len()), || vec![0; max_len]);
        let buffers = batch.buffers.get_mut(..asked).unwrap_or_default();
        let failed = |error| failed("read from", &self.port.name, error);
        let results = self.ring.read(self.port.device.as_fd(), buffers).map_err(failed)?;
        for (place, result) in results.enumerate() {
            match result {
                // One may have come after a read that found none.
                Ok(len) => {
                    batch.buffers.swap(batch.lens.len(), place);
                    batch.lens.push(len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let packets = batch.lens.len();
        self.next = (2 * packets).max(FEWEST);
        if packets > 0 {
            let bytes: usize = batch.lens.iter().map(|len| len.saturating_sub(header_len)).sum();
            self.counter.carried(packets as u64, bytes as u64);
        }
        Ok(packets)
    }
}

/// Writes packets.
pub(super) struct UringSink {
    port: Port<SyncDevice>,
    format: Format,
    counter: Counter,
    ring: PacketRing,
}

impl UringSink {
    pub(super) fn new(port: Port<SyncDevice>, format: Format, counter: Counter) -> Result<Self, Error> {
        Ok(Self { port, format, counter, ring: PacketRing::new(format.batch as u32)? })
    }
}

impl Sink for UringSink {
    type Device = SyncDevice;
    type Burst = Batch;

    fn port(&self) -> &Port<SyncDevice> {
        &self.port
    }

    /// It does not wait for room in the device, because the packets behind one without room have already been written.
    fn try_write(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        let failed = |error| failed("write to", &self.port.name, error);
        let results = self.ring.write(self.port.device.as_fd(), batch.packets()).map_err(failed)?;
        let (mut packets, mut bytes, mut refused) = (0, 0, 0);
        for (packet, result) in batch.packets().zip(results) {
            match result {
                Ok(_) => {
                    let naked = packet.get(self.format.header_len..).unwrap_or_default();
                    self.counter.order(naked);
                    packets += 1;
                    bytes += naked.len();
                }
                Err(error) if is_refused(&error) => refused += 1,
                Err(error) => return Err(failed(error)),
            }
        }
        self.counter.carried(packets, bytes as u64);
        self.counter.lost(refused);
        Ok(true)
    }
}
