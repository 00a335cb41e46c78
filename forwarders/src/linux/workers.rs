//! What a worker is made of.

use std::sync::Arc;

use tun_rs::VIRTIO_NET_HDR_LEN;

use super::carry::{Sink, Source, Supply, direct, read, write};
use super::counters::{Counter, DirectionCounters};
use super::executor::{Executor, Tasks};
use super::framed::{FramedSink, FramedSource};
use super::packets::{Format, PacketSink, PacketSource};
use super::port::{Port, Registered};
use super::segments::{SegmentSink, SegmentSource};
use crate::{ForwardConfig, Handoff, Offload};
use platform::Error;

/// Packets of the MTU's size that one worker reads, where so many wait, before it writes any. They are cheaper
/// than one at a time: the code of reading and that of writing are each done with before the other wants the
/// processor's caches, and the peer is woken less often.
const PACKETS: usize = 64;

/// The longest IP packet.
const LARGEST: usize = 65_535;

/// The same in bytes, if all were as long as can be: four super-packets, which the second cache still holds.
const BATCH_LEN: usize = 4 * LARGEST;

/// Full bursts that a channel has room for. One has some 300 KB at most, so this is at most 2.5 MB for each
/// worker and direction, and what waits here is little against what waits in the device's queue.
const ROOM: usize = 8;

/// What a worker carries: from where, where to, and who counts.
pub(super) struct WorkerSpec<P> {
    pub(super) toward: &'static str,
    pub(super) from: P,
    pub(super) to: P,
    /// Of the device that is read.
    pub(super) mtu: usize,
    pub(super) direction: Arc<DirectionCounters>,
    pub(super) worker: usize,
}

impl<P: Port> WorkerSpec<P> {
    fn counter(&self) -> Counter {
        Counter::new(&self.direction, self.worker)
    }

    fn name(&self, part: &str) -> String {
        format!("to {} {} {part}", self.toward, self.worker)
    }
}

/// Begins a worker that reads and writes the devices.
pub(super) fn start<C: Executor>(
    executor: &mut C,
    way: ForwardConfig,
    spec: &WorkerSpec<C::Port>,
) -> Result<(), Error> {
    let (header_len, longest) = match way.offload {
        Offload::On => {
            let source = SegmentSource::new(spec.from.clone(), spec.mtu, spec.counter());
            let sink = SegmentSink::new(spec.to.clone(), spec.counter());
            return begin(executor, way.hop, spec, source, sink, ROOM);
        }
        Offload::Off => (0, spec.mtu),
        Offload::Whole => (VIRTIO_NET_HDR_LEN, LARGEST),
    };
    // Workers that take whole batches by turns reorder them by as much, and are slower for it.
    let most = (BATCH_LEN / longest).clamp(1, PACKETS);
    let batch = if way.workers.get() == 1 { most } else { 1 };
    let format = Format { header_len, max_len: header_len + longest, batch };
    let source = PacketSource { port: spec.from.clone(), format, counter: spec.counter(), spare: Vec::new() };
    let sink = PacketSink { port: spec.to.clone(), format, counter: spec.counter() };
    begin(executor, way.hop, spec, source, sink, ROOM * most / batch)
}

/// Begins a worker that has tun-rs's stream and sink do so.
pub(super) fn start_framed(
    executor: &mut Tasks,
    way: ForwardConfig,
    spec: &WorkerSpec<Registered>,
) -> Result<(), Error> {
    let _context = executor.context();
    let source = FramedSource::new(spec.from.clone(), spec.mtu, spec.counter());
    let sink = FramedSink::new(spec.to.clone(), spec.counter());
    begin(executor, way.hop, spec, source, sink, ROOM)
}

/// Begins the loop or the loops between a source and a sink, by a channel with room for so many bursts.
fn begin<C: Executor, S: Source>(
    executor: &mut C,
    hop: Handoff,
    spec: &WorkerSpec<C::Port>,
    source: S,
    sink: impl Sink<Burst = S::Burst>,
    room: usize,
) -> Result<(), Error> {
    if hop == Handoff::Direct {
        return executor.begin(spec.name("both"), direct(source, sink));
    }
    let (hop_in, hop_out) = C::channel(room);
    let (supply, back) = if hop == Handoff::Pool {
        // A full channel, and one in each hand.
        let bursts = room + 2;
        let (back, returned) = C::channel(bursts);
        (Supply::Returned(returned, bursts), Some(back))
    } else {
        (Supply::New, None)
    };
    executor.begin(spec.name("read"), read(source, supply, hop_in))?;
    executor.begin(spec.name("write"), write(hop_out, sink, back))
}
