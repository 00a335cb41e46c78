//! Blocking loops, each in a separate thread.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use platform::{Cause, Error};
use tun_rs::SyncDevice;

use super::device::Port;
use super::failure::failed;
use super::pipe::{Executor, Sink, Source, Supply};
use super::{Event, ExitGuard};
use crate::Handoff;

/// A thread for each loop.
pub(super) struct Threads {
    events: Sender<Event>,
    stop: Arc<Stop>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn new(events: Sender<Event>) -> io::Result<Self> {
        Ok(Self { events, stop: Arc::new(Stop::new()?), handles: Vec::new() })
    }

    /// Starts a loop.
    fn spawn(&mut self, name: &str, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
        let guard = ExitGuard::new(&self.events, name);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || guard.end(work()));
        let thread = thread.map_err(|source| {
            Error::new(Cause::ProcessLimit, "start a thread for", format!("the loop {name}"), source)
        })?;
        self.handles.push(thread);
        Ok(())
    }
}

impl Executor for Threads {
    type Device = SyncDevice;

    /// The device is non-blocking, because nothing could end a blocking `read(2)`.
    fn adopt(&self, device: SyncDevice, name: &str) -> io::Result<Port<SyncDevice>> {
        device.set_nonblocking(true)?;
        Ok(Port::new(device, name))
    }

    fn start<S: Source<Device = SyncDevice>>(
        &mut self,
        name: &str,
        handoff: Handoff,
        room: usize,
        source: S,
        sink: impl Sink<Device = SyncDevice, Burst = S::Burst>,
    ) -> Result<(), Error> {
        let stop = Arc::clone(&self.stop);
        if handoff == Handoff::Direct {
            return self.spawn(&format!("{name} both"), move || direct(source, sink, &stop));
        }
        let (bursts, received) = sync_channel(room);
        let (supply, back) = Supply::new(handoff, room, sync_channel);
        let reader_stop = Arc::clone(&stop);
        self.spawn(&format!("{name} read"), move || read(source, supply, &bursts, &reader_stop))?;
        self.spawn(&format!("{name} write"), move || write(&received, sink, back.as_ref(), &stop))
    }

    fn end(self) -> bool {
        self.stop.set();
        let ends: Vec<_> = self.handles.into_iter().map(JoinHandle::join).collect();
        ends.iter().all(Result::is_ok)
    }
}

/// Stops threads, also threads that wait for a packet.
pub(super) struct Stop {
    stopped: AtomicBool,
    /// Becomes readable when the other end is shut down.
    asleep: UnixStream,
    awake: UnixStream,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let (asleep, awake) = UnixStream::pair()?;
        Ok(Self { stopped: AtomicBool::new(false), asleep, awake })
    }

    fn set(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // It fails only if it was shut down before.
        let _before = self.awake.shutdown(std::net::Shutdown::Both);
    }

    fn is_set(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits until the device is ready or the stop is set.
    fn wait<D: AsFd>(&self, port: &Port<D>, readiness: PollFlags) -> Result<(), Error> {
        let mut fds =
            [PollFd::new(port.device.as_fd(), readiness), PollFd::new(self.asleep.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(failed("wait for", &port.name, errno.into())),
        }
    }
}

/// Waits for packets. Returns `false` if the stop is set.
///
/// It yields the processor once before it sleeps, unless the source takes one packet at a time. If the sender of the
/// packets runs meanwhile, the next read finds several packets for one wake.
fn fill<S: Source<Device: AsFd>>(source: &mut S, burst: &mut S::Burst, stop: &Stop) -> Result<bool, Error> {
    let mut yields = S::BATCHES;
    while !stop.is_set() {
        if source.try_fill(burst)? > 0 {
            return Ok(true);
        }
        if mem::take(&mut yields) {
            thread::yield_now();
        } else {
            stop.wait(source.port(), PollFlags::POLLIN)?;
        }
    }
    Ok(false)
}

/// Writes a burst. Returns `false` if the stop is set.
fn drain<S: Sink<Device: AsFd>>(sink: &mut S, burst: &mut S::Burst, stop: &Stop) -> Result<bool, Error> {
    while !stop.is_set() {
        if sink.try_write(burst)? {
            return Ok(true);
        }
        stop.wait(sink.port(), PollFlags::POLLOUT)?;
    }
    Ok(false)
}

/// Reads and writes in turns until one of them fails or the stop is set.
pub(super) fn direct<S: Source<Device: AsFd>>(
    mut source: S,
    mut sink: impl Sink<Device: AsFd, Burst = S::Burst>,
    stop: &Stop,
) -> Result<(), Error> {
    let mut burst = S::Burst::default();
    while fill(&mut source, &mut burst, stop)? && drain(&mut sink, &mut burst, stop)? {}
    Ok(())
}

/// Reads until a read fails, the writer has ended, or the stop is set.
pub(super) fn read<S: Source<Device: AsFd>>(
    mut source: S,
    mut supply: Supply<Receiver<S::Burst>>,
    bursts: &SyncSender<S::Burst>,
    stop: &Stop,
) -> Result<(), Error> {
    while let Some(mut burst) = take(&mut supply) {
        if !fill(&mut source, &mut burst, stop)? || bursts.send(burst).is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes until a write fails, the reader has ended, or the stop is set.
pub(super) fn write<S: Sink<Device: AsFd>>(
    bursts: &Receiver<S::Burst>,
    mut sink: S,
    back: Option<&SyncSender<S::Burst>>,
    stop: &Stop,
) -> Result<(), Error> {
    for mut burst in bursts {
        if !drain(&mut sink, &mut burst, stop)? || back.is_some_and(|back| back.send(burst).is_err()) {
            break;
        }
    }
    Ok(())
}

/// A burst to fill. `None` if the writer has ended and returns no more bursts.
fn take<B: Default>(supply: &mut Supply<Receiver<B>>) -> Option<B> {
    match supply {
        Supply::New => Some(B::default()),
        Supply::Pool(returned, 0) => returned.recv().ok(),
        Supply::Pool(returned, unmade) => returned.try_recv().ok().or_else(|| {
            *unmade -= 1;
            Some(B::default())
        }),
    }
}
