//! A worker: a source, a sink, and the loops that carry bursts from the one to the other.
//!
//! ```text
//! Direct             source ──► sink
//! Channel            source ──► channel ──► sink
//! Pool    ┌────────► source ──► channel ──► sink ───┐
//!         └──────────────── channel ◄───────────────┘
//! ```
//!
//! A burst is the packets that were read before any of them is written.

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

/// Packets of the MTU's size that one worker reads, where that many wait, before it writes any. A batch is cheaper
/// than one packet at a time: the code of reading and that of writing each run longer in the processor's caches, and
/// the peer is woken less often.
const PACKETS: usize = 64;

/// The longest IP packet.
pub(super) const LARGEST: usize = Capabilities::MAX_SUPER_PACKET;

/// The same in bytes, for the longest packets: four super-packets, which still fit into the second cache.
const BATCH_LEN: usize = 4 * LARGEST;

/// Full bursts that a channel has room for. One has some 300 KB at most, so this is at most 2.5 MB for each
/// worker and direction, which is little beside the device's queue.
const ROOM: usize = 8;

/// The origin of packets.
pub(super) trait Source: Send + 'static {
    /// The device that is read.
    type Device: Device;

    /// Packets, and the memory that they are in.
    type Burst: Default + Send + 'static;

    /// Whether a burst can have several packets that were waiting.
    const BATCHES: bool;

    /// The device that is read.
    fn port(&self) -> &Port<Self::Device>;

    /// Puts the packets that are waiting into `burst`, in place of the packets that it holds. Returns how many it has
    /// read from the device: none, if there are none.
    fn try_fill(&mut self, burst: &mut Self::Burst) -> Result<usize, Error>;
}

/// The destination of packets.
pub(super) trait Sink: Send + 'static {
    /// The device that is written.
    type Device: Device;

    /// See [`Source::Burst`].
    type Burst: Send + 'static;

    /// The device that is written.
    fn port(&self) -> &Port<Self::Device>;

    /// Writes the packets of a burst. Those that the kernel does not take are lost. Returns `false` if the device has
    /// no room for one: the next call goes on with that.
    fn try_write(&mut self, burst: &mut Self::Burst) -> Result<bool, Error>;
}

/// Where a reader takes empty bursts from.
pub(super) enum Supply<R> {
    /// Each is new.
    New,
    /// The writer returns them. While none is back, this many more may be made.
    Pool(R, usize),
}

impl<R> Supply<R> {
    /// The supply of a reader whose channel to the writer has this room, and the channel by which bursts return.
    pub(super) fn new<T>(handoff: Handoff, room: usize, channel: impl FnOnce(usize) -> (T, R)) -> (Self, Option<T>) {
        if handoff != Handoff::Pool {
            return (Self::New, None);
        }
        // A full channel, and one burst in each hand.
        let bursts = room + 2;
        let (back, returned) = channel(bursts);
        (Self::Pool(returned, bursts), Some(back))
    }
}

/// Runs loops side by side: in threads or in tasks.
pub(super) trait Executor {
    /// The devices that its loops read and write.
    type Device: Device;

    /// Prepares a device for its loops.
    fn adopt(&self, device: tun_rs::SyncDevice, name: &str) -> std::io::Result<Port<Self::Device>>;

    /// Starts the loop of a worker, or two with a channel between them that has room for so many bursts. The end of
    /// each will be an [`Event`](super::Event).
    fn start<S: Source<Device = Self::Device>>(
        &mut self,
        name: &str,
        handoff: Handoff,
        room: usize,
        source: S,
        sink: impl Sink<Device = Self::Device, Burst = S::Burst>,
    ) -> Result<(), Error>;

    /// Stops the loops that still run and waits for the end of all. Returns whether none has panicked.
    fn end(self) -> bool;
}

/// The task of a worker.
pub(super) struct WorkerSpec<D> {
    /// The end that packets are carried to.
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
    // Workers that take whole batches by turns reorder packets by as much, and are slower for it.
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
