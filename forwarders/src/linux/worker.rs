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

use platform::Error;
use tun_rs::{SyncDevice, VIRTIO_NET_HDR_LEN};

use super::counters::{Counter, DirectionCounters};
use super::device::Port;
use super::framed::{FramedSink, FramedSource};
use super::packets::{Format, PacketSink, PacketSource};
use super::pipe::{Executor, LARGEST};
use super::segments::{SegmentSink, SegmentSource};
use super::tasks::Tasks;
use super::threads::Threads;
use super::uring::{UringSink, UringSource};
use crate::{ForwardConfig, Offload};

/// The most packets of the MTU's size that one worker reads before it writes any. A batch is cheaper than one packet at
/// a time: the read code and the write code stay longer in the processor's caches, and the peer is woken less often.
const PACKETS: usize = 64;

/// The most bytes in a batch, for long packets: four super-packets, which still fit the second-level cache.
const BATCH_LEN: usize = 4 * LARGEST;

/// The number of full bursts that a channel has room for. A burst has at most some 300 KB, so a channel has at most
/// 2.5 MB for each worker and direction. This is little, compared with the device's queue.
const ROOM: usize = 8;

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
    fn reader(&self) -> Counter {
        Counter::of_reader(&self.counters, self.worker)
    }

    fn writer(&self) -> Counter {
        Counter::of_writer(&self.counters, self.worker)
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
    if config.offload == Offload::On {
        let source = SegmentSource::new(spec.from.clone(), spec.mtu, spec.reader());
        let sink = SegmentSink::new(spec.to.clone(), spec.writer());
        return executor.start(&spec.name(), config.hop, ROOM, source, sink);
    }
    let (format, room) = format(config, spec);
    let source = PacketSource { port: spec.from.clone(), format, counter: spec.reader(), spare: Vec::new() };
    let sink = PacketSink { port: spec.to.clone(), format, counter: spec.writer() };
    executor.start(&spec.name(), config.hop, room, source, sink)
}

/// The framing and size of packets, and how many bursts a channel has room for.
fn format<D>(config: ForwardConfig, spec: &WorkerSpec<D>) -> (Format, usize) {
    let (header_len, longest) =
        if config.offload == Offload::Whole { (VIRTIO_NET_HDR_LEN, LARGEST) } else { (0, spec.mtu) };
    // Several workers that each take whole batches reorder packets by whole batches, and are slower because of that.
    let most = (BATCH_LEN / longest).clamp(1, PACKETS);
    let batch = if config.workers.get() == 1 { most } else { 1 };
    (Format { header_len, max_len: header_len + longest, batch }, ROOM * most / batch)
}

/// Starts a worker that reads and writes several packets in a call.
pub(super) fn start_uring(
    threads: &mut Threads,
    config: ForwardConfig,
    spec: &WorkerSpec<SyncDevice>,
) -> Result<(), Error> {
    let (format, room) = format(config, spec);
    let source = UringSource::new(spec.from.clone(), format, spec.reader())?;
    let sink = UringSink::new(spec.to.clone(), format, spec.writer())?;
    threads.start(&spec.name(), config.hop, room, source, sink)
}

/// Starts a worker that reads tun-rs's stream and writes its sink.
pub(super) fn start_framed(tasks: &mut Tasks, config: ForwardConfig, spec: &WorkerSpec<tun_rs::AsyncDevice>) {
    let (source, sink) = {
        let _context = tasks.context();
        let source = FramedSource::new(spec.from.clone(), spec.mtu, spec.reader());
        (source, FramedSink::new(spec.to.clone(), spec.writer()))
    };
    tasks.spawn_worker(&spec.name(), config.hop, ROOM, source, sink);
}
