//! Async loops, each in a task of tokio's runtime.

use std::io;
use std::sync::mpsc;

use platform::Error;
use tokio::runtime::{EnterGuard, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use tun_rs::{AsyncDevice, SyncDevice};

use super::device::Port;
use super::failure::failed;
use super::pipe::{Executor, Sink, Source, Supply};
use super::{Event, ExitGuard};
use crate::Handoff;

/// An async source: any [`Source`] of an [`AsyncDevice`], or the stream of tun-rs.
pub(super) trait AsyncSource: Send + 'static {
    /// See [`Source::Burst`].
    type Burst: Default + Send + 'static;

    /// Waits for packets and puts them into `burst`, in place of the packets that it holds.
    fn fill(&mut self, burst: &mut Self::Burst) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<S: Source<Device = AsyncDevice>> AsyncSource for S {
    type Burst = S::Burst;

    async fn fill(&mut self, burst: &mut S::Burst) -> Result<(), Error> {
        loop {
            let packets = self.try_fill(burst)?;
            // Nothing else suspends the task while there are packets. Each packet costs as much of the task's budget as
            // an async call of tun-rs.
            for _ in 0..packets {
                consume_budget().await;
            }
            if packets > 0 {
                return Ok(());
            }
            let Port { device, name } = self.port();
            device.readable().await.map_err(|error| failed("wait for", name, error))?;
        }
    }
}

/// An async sink: any [`Sink`] of an [`AsyncDevice`], or the sink of tun-rs.
pub(super) trait AsyncSink: Send + 'static {
    /// See [`Source::Burst`].
    type Burst: Send + 'static;

    /// Writes the packets of a burst. Packets that the kernel does not accept are lost.
    fn write(&mut self, burst: &mut Self::Burst) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<S: Sink<Device = AsyncDevice>> AsyncSink for S {
    type Burst = S::Burst;

    async fn write(&mut self, burst: &mut S::Burst) -> Result<(), Error> {
        while !self.try_write(burst)? {
            let Port { device, name } = self.port();
            device.writable().await.map_err(|error| failed("wait for", name, error))?;
        }
        Ok(())
    }
}

/// A task for each loop.
pub(super) struct Tasks {
    events: mpsc::Sender<Event>,
    runtime: Runtime,
    handles: Vec<JoinHandle<()>>,
}

impl Tasks {
    pub(super) fn new(events: mpsc::Sender<Event>, runtime: Runtime) -> Self {
        Self { events, runtime, handles: Vec::new() }
    }

    /// Makes the runtime the current one.
    pub(super) fn context(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Starts a loop.
    fn spawn(&mut self, name: &str, work: impl Future<Output = Result<(), Error>> + Send + 'static) {
        let guard = ExitGuard::new(&self.events, name);
        self.handles.push(self.runtime.spawn(async move { guard.end(work.await) }));
    }

    /// Starts the loop or loops of a worker.
    pub(super) fn spawn_worker<S: AsyncSource>(
        &mut self,
        name: &str,
        handoff: Handoff,
        room: usize,
        source: S,
        sink: impl AsyncSink<Burst = S::Burst>,
    ) {
        if handoff == Handoff::Direct {
            return self.spawn(&format!("{name} both"), direct(source, sink));
        }
        let (bursts, received) = channel(room);
        let (supply, back) = Supply::new(handoff, room, channel);
        self.spawn(&format!("{name} read"), read(source, supply, bursts));
        self.spawn(&format!("{name} write"), write(received, sink, back));
    }
}

impl Executor for Tasks {
    type Device = AsyncDevice;

    fn adopt(&self, device: SyncDevice, name: &str) -> io::Result<Port<AsyncDevice>> {
        let _context = self.context();
        Ok(Port::new(AsyncDevice::new(device)?, name))
    }

    fn start<S: Source<Device = AsyncDevice>>(
        &mut self,
        name: &str,
        handoff: Handoff,
        room: usize,
        source: S,
        sink: impl Sink<Device = AsyncDevice, Burst = S::Burst>,
    ) -> Result<(), Error> {
        self.spawn_worker(name, handoff, room, source, sink);
        Ok(())
    }

    fn end(self) -> bool {
        for handle in &self.handles {
            handle.abort();
        }
        let ends: Vec<_> = self.handles.into_iter().map(|handle| self.runtime.block_on(handle)).collect();
        ends.into_iter().all(|end| end.is_ok() || end.is_err_and(|error| error.is_cancelled()))
    }
}

/// Reads and writes in turns until one of them fails.
async fn direct<S: AsyncSource>(mut source: S, mut sink: impl AsyncSink<Burst = S::Burst>) -> Result<(), Error> {
    let mut burst = S::Burst::default();
    loop {
        source.fill(&mut burst).await?;
        sink.write(&mut burst).await?;
    }
}

/// Reads until a read fails or the writer has ended.
pub(super) async fn read<S: AsyncSource>(
    mut source: S,
    mut supply: Supply<Receiver<S::Burst>>,
    bursts: Sender<S::Burst>,
) -> Result<(), Error> {
    while let Some(mut burst) = take(&mut supply).await {
        source.fill(&mut burst).await?;
        if bursts.send(burst).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes until a write fails or the reader has ended.
pub(super) async fn write<S: AsyncSink>(
    mut bursts: Receiver<S::Burst>,
    mut sink: S,
    back: Option<Sender<S::Burst>>,
) -> Result<(), Error> {
    while let Some(mut burst) = bursts.recv().await {
        sink.write(&mut burst).await?;
        if let Some(back) = &back
            && back.send(burst).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// A burst to fill. `None` if the writer has ended and returns no more bursts.
async fn take<B: Default + Send>(supply: &mut Supply<Receiver<B>>) -> Option<B> {
    match supply {
        Supply::New => Some(B::default()),
        Supply::Pool(returned, 0) => returned.recv().await,
        Supply::Pool(returned, unmade) => returned.try_recv().ok().or_else(|| {
            *unmade -= 1;
            Some(B::default())
        }),
    }
}
