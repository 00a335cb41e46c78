//! A source and a sink over the stream and sink of tun-rs. If the device has super-packets, tun-rs splits and coalesces
//! them itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use platform::Error;
use tun_rs::AsyncDevice;
use tun_rs::async_framed::{BytesCodec, DeviceFramedRead, DeviceFramedWrite};

use super::counters::Counter;
use super::device::Port;
use super::failure::{failed, is_malformed, is_refused};
use super::tasks::{AsyncSink, AsyncSource};

/// The most packets that are read before any is written.
const BATCH: usize = 64;

/// Packets in memory that the stream has allocated.
pub(super) type Frames = Vec<BytesMut>;

/// Reads from the stream.
pub(super) struct FramedSource {
    port: Port<AsyncDevice>,
    stream: DeviceFramedRead<BytesCodec, Arc<AsyncDevice>>,
    counter: Counter,
}

impl FramedSource {
    /// `mtu` is the MTU of the device. The stream itself would look for it in the calling thread's namespace.
    pub(super) fn new(port: Port<AsyncDevice>, mtu: usize, counter: Counter) -> Self {
        let mut stream = DeviceFramedRead::new(Arc::clone(&port.device), BytesCodec::new());
        stream.set_read_buffer_size(mtu);
        Self { port, stream, counter }
    }
}

impl AsyncSource for FramedSource {
    type Burst = Frames;

    async fn fill(&mut self, frames: &mut Frames) -> Result<(), Error> {
        frames.clear();
        let Self { port, stream, counter } = self;
        poll_fn(|cx| {
            while frames.len() < BATCH {
                match stream.poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(frame))) => frames.push(frame),
                    Poll::Ready(Some(Err(error))) if !is_malformed(&error) => {
                        return Poll::Ready(Err(failed("read from", &port.name, error)));
                    }
                    // The stream never ends: `None` means a packet that it cannot decode.
                    Poll::Ready(None | Some(Err(_))) => counter.lost(1),
                    Poll::Pending if frames.is_empty() => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
            Poll::Ready(Ok(()))
        })
        .await?;
        self.counter.carried(frames.len() as u64, len_of(frames));
        Ok(())
    }
}

fn len_of(frames: &Frames) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

type FrameSink = DeviceFramedWrite<BytesCodec, Arc<AsyncDevice>>;

/// Writes to the sink.
pub(super) struct FramedSink {
    port: Port<AsyncDevice>,
    sink: FrameSink,
    counter: Counter,
}

impl FramedSink {
    pub(super) fn new(port: Port<AsyncDevice>, counter: Counter) -> Self {
        let sink = DeviceFramedWrite::new(Arc::clone(&port.device), BytesCodec::new());
        Self { port, sink, counter }
    }

    /// Returns whether the kernel has refused a packet. The next call of the sink continues with the next packet.
    fn outcome(&self, sent: std::io::Result<()>) -> Result<bool, Error> {
        match sent {
            Ok(()) => Ok(false),
            Err(error) if is_refused(&error) && !is_malformed(&error) => {
                self.counter.lost(1);
                Ok(true)
            }
            Err(error) => Err(failed("write to", &self.port.name, error)),
        }
    }

    /// Takes a step of the sink until the kernel refuses no packet.
    async fn step(
        &mut self,
        step: fn(&mut FrameSink, &mut Context<'_>) -> Poll<std::io::Result<()>>,
    ) -> Result<(), Error> {
        loop {
            let done = poll_fn(|cx| step(&mut self.sink, cx)).await;
            if !self.outcome(done)? {
                return Ok(());
            }
        }
    }
}

impl AsyncSink for FramedSink {
    type Burst = Frames;

    async fn write(&mut self, frames: &mut Frames) -> Result<(), Error> {
        for frame in frames.iter() {
            self.counter.order(frame);
        }
        for frame in frames.drain(..) {
            self.step(SinkExt::<BytesMut>::poll_ready_unpin).await?;
            let bytes = frame.len() as u64;
            let accepted = self.sink.start_send_unpin(frame);
            if !self.outcome(accepted)? {
                self.counter.carried(1, bytes);
            }
        }
        self.step(SinkExt::<BytesMut>::poll_flush_unpin).await
    }
}
