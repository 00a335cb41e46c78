//! The parts of a worker: a source, a sink, the supply of bursts between them, and their executor.

use platform::{Capabilities, Error};

use super::device::{Device, Port};
use crate::Handoff;

/// The length of the longest IP packet, in bytes.
pub(super) const LARGEST: usize = Capabilities::MAX_SUPER_PACKET;

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
