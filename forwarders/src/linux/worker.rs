//! A worker: a source, a sink, and the loops that carry bursts from the source to the sink.
//!
//! ```text
//! Direct             source ──► sink
//! Channel            source ──► channel ──► sink
//! Pool    ┌────────► source ──► channel ──► sink ───┐
//!         └──────────────── channel ◄───────────────┘
//! ```
//!
//! A burst is a group of packets: all of them are read before the first one is written.

use std::sync::Arc;

use platform::{Capabilities, Error};
use tun_rs::VIRTIO_NET_HDR_LEN;

use super::counters::{Counter, DirectionCounters};
use super::device::{Device, Port};
use super::framed::{FramedSink, FramedSource};
use super::packets::{Format, PacketSink, PacketSource};
use super::segments::{SegmentSink, SegmentSource};
use super::tasks::Tasks;
use crate::{ForwardConfig, Handoff, Offload};

/// The most packets of the MTU's size that one worker reads before it writes any. A batch is cheaper than one packet at
/// a time: the read code and the write code stay longer in the processor's caches, and the peer is woken less often.
const PACKETS: usize = 64;

/// The length of the longest IP packet, in bytes.
pub(super) const LARGEST: usize = Capabilities::MAX_SUPER_PACKET;

/// The most bytes in a batch, for long packets: four super-packets, which still fit the second-level cache.
const BATCH_LEN: usize = 4 * LARGEST;

/// The number of full bursts that a channel has room for. A burst has at most some 300 KB, so a channel has at most
/// 2.5 MB for each worker and direction. This is little, compared with the device's queue.
const ROOM: usize = 8;

/// A source of packets.
pub(super) trait Source: Send + 'static {
    /// The device that is read.
    type Device: Device;

    /// Packets and their memory.
    type Burst: Default + Send + 'static;

    /// Whether a burst can hold several waiting packets.
    const BATCHES: bool;

    /// The device that is read.
    fn port(&self) -> &Port<Self::Device>;

    /// Reads the waiting packets into `burst`, in place of the packets that it holds. Returns the number of packets
    /// that it has read from the device: 0 if none is waiting.
    fn try_fill(&mut self, burst: &mut Self::Burst) -> Result<usize, Error>;
}

/// A destination of packets.
pub(super) trait Sink: Send + 'static {
    /// The device that is written.
    type Device: Device;

    /// See [`Source::Burst`].
    type Burst: Send + 'static;

    /// The device that is written.
    fn port(&self) -> &Port<Self::Device>;

    /// Writes the packets of a burst. Packets that the kernel does not accept are lost. Returns `false` if the device
    /// has no room for a packet: the next call continues with that packet.
    fn try_write(&mut self, burst: &mut Self::Burst) -> Result<bool, Error>;
}

/// The supply of bursts for a reader.
pub(super) enum Supply<R> {
    /// Each burst is new.
    New,
    /// The writer returns bursts. If none has come back yet, the reader may make this many more.
    Pool(R, usize),
}

impl<R> Supply<R> {
    /// The supply of a reader, and the sender with which the writer returns bursts. `room` is the capacity of the
    /// channel from the reader to the writer.
    pub(super) fn new<T>(handoff: Handoff, room: usize, channel: impl FnOnce(usize) -> (T, R)) -> (Self, Option<T>) {
        if handoff != Handoff::Pool {
            return (Self::New, None);
        }
        // A full channel, one burst at the reader, and one at the writer.
        let bursts = room + 2;
        let (back, returned) = channel(bursts);
        (Self::Pool(returned, bursts), Some(back))
    }
}

/// Runs loops concurrently, in threads or in tasks.
pub(super) trait Executor {
    /// The devices that its loops read and write.
    type Device: Device;

    /// Prepares a device for its loops.
    fn adopt(&self, device: tun_rs::SyncDevice, name: &str) -> std::io::Result<Port<Self::Device>>;

    /// Starts the loop of a worker, or two loops with a channel between them. `room` is the capacity of the channel, in
    /// bursts. Each loop reports its end as an [`Event`](super::Event).
    fn start<S: Source<Device = Self::Device>>(
        &mut self,
        name: &str,
        handoff: Handoff,
        room: usize,
        source: S,
        sink: impl Sink<Device = Self::Device, Burst = S::Burst>,
    ) -> Result<(), Error>;

    /// Stops the loops that still run, and waits until all have ended. Returns `false` if one has panicked.
    fn end(self) -> bool;
}

/// The task of a worker.
pub(super) struct WorkerSpec<D> {
    /// The direction: `far` or `near`.
    pub(super) toward: &'static str,
    pub(super) from: Port<D>,
    pub(super) to: Port<D>,
    /// MTU of the device that is read.
    pub(super) mtu: usize,
    pub(super) counters: Arc<DirectionCounters>,
    /// Its number among the workers of the direction.
    pub(super) worker: usize,
}

impl<D> WorkerSpec<D> {
    fn counter(&self) -> Counter {
        Counter::new(&self.counters, self.worker)
    }

    fn name(&self) -> String {
        format!("to {} {}", self.toward, self.worker)
    }
}

/// Starts a worker that reads and writes the devices.
pub(super) fn start<E: Executor>(
    executor: &mut E,
    config: ForwardConfig,
    spec: &WorkerSpec<E::Device>,
) -> Result<(), Error> {
    let (header_len, longest) = match config.offload {
        Offload::On => {
            let source = SegmentSource::new(spec.from.clone(), spec.mtu, spec.counter());
            let sink = SegmentSink::new(spec.to.clone(), spec.counter());
            return executor.start(&spec.name(), config.hop, ROOM, source, sink);
        }
        Offload::Off => (0, spec.mtu),
        Offload::Whole => (VIRTIO_NET_HDR_LEN, LARGEST),
    };
    // Several workers that each take whole batches reorder packets by whole batches, and are slower because of that.
    let most = (BATCH_LEN / longest).clamp(1, PACKETS);
    let batch = if config.workers.get() == 1 { most } else { 1 };
    let format = Format { header_len, max_len: header_len + longest, batch };
    let source = PacketSource { port: spec.from.clone(), format, counter: spec.counter(), spare: Vec::new() };
    let sink = PacketSink { port: spec.to.clone(), format, counter: spec.counter() };
    executor.start(&spec.name(), config.hop, ROOM * most / batch, source, sink)
}

/// Starts a worker that reads tun-rs's stream and writes its sink.
pub(super) fn start_framed(tasks: &mut Tasks, config: ForwardConfig, spec: &WorkerSpec<tun_rs::AsyncDevice>) {
    let (source, sink) = {
        let _context = tasks.context();
        let source = FramedSource::new(spec.from.clone(), spec.mtu, spec.counter());
        (source, FramedSink::new(spec.to.clone(), spec.counter()))
    };
    tasks.spawn_worker(&spec.name(), config.hop, ROOM, source, sink);
}
