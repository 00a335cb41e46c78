//! Carries packets between two TUN devices on Linux.
//!
//! The configuration sets the number of workers in each direction. A worker has a source, a sink, and one loop, or two
//! loops with a channel between them ([`worker`]). There are three kinds of source and sink: for single packets
//! ([`packets`]), for super-packets that tun-rs splits and coalesces ([`segments`]), and for the stream and sink of
//! tun-rs ([`framed`]). The loops block in threads ([`threads`]) or are awaited in tasks ([`tasks`]). Single packets may also
//! be read and written several at once ([`uring`]).

mod counters;
mod device;
mod devices;
mod failure;
mod framed;
mod order;
mod packets;
mod pipe;
mod segments;
mod tasks;
#[cfg(test)]
mod tests;
mod threads;
mod uring;
mod worker;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc;

use platform::linux::PacketRing;
use platform::{Class, Error};
use tokio::runtime::{Builder, Runtime};

pub use self::counters::Counters;
use self::counters::DirectionCounters;
use self::device::Port;
use self::devices::NamedDevice;
use self::pipe::Executor;
use self::tasks::Tasks;
use self::threads::Threads;
use self::worker::{WorkerSpec, start, start_framed, start_uring};
use crate::{DevicePair, ForwardConfig, Io};

/// Two TUN devices, and the way to carry packets between them.
pub struct Forwarder {
    config: ForwardConfig,
    near: NamedDevice,
    far: NamedDevice,
    counters: Counters,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

/// Ends a forwarder that runs in another thread.
#[derive(Clone, Debug)]
pub struct Stopper(mpsc::Sender<Event>);

impl Stopper {
    /// Makes [`Forwarder::run`] return without an error.
    pub fn stop(&self) {
        // It fails if the forwarder has already ended.
        let _over = self.0.send(Event::Stop);
    }
}

impl Forwarder {
    /// Creates both devices, down and without addresses. [`Class::Invalid`] for an impossible configuration and for a name
    /// that is taken or wrong, [`Class::Unavailable`] if the device node, a right, or offload is missing.
    pub fn open(devices: &DevicePair, config: &ForwardConfig) -> Result<Self, Error> {
        config.check().map_err(|reason| {
            Error::new(Class::Invalid, "forward", "packets", io::Error::new(io::ErrorKind::InvalidInput, reason))
        })?;
        let [near, far] = NamedDevice::open(devices, *config)?;
        if config.io == Io::Uring {
            PacketRing::check(near.device.as_fd())?;
        }
        let counters = Counters::new(config.workers.get());
        Ok(Self { config: *config, near, far, counters, events: mpsc::channel() })
    }

    /// A handle to the traffic counters. It can be read at any time.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// A handle that ends [`Forwarder::run`].
    pub fn stopper(&self) -> Stopper {
        Stopper(self.events.0.clone())
    }

    /// Carries packets until it is stopped, or a device fails, for instance because it was deleted. Set the MTU of the devices
    /// first, and call this in the thread that called [`Forwarder::open`]. When it returns, its threads and tasks have ended,
    /// and the devices are gone. A packet that the kernel does not accept is lost and counted.
    pub fn run(self) -> Result<(), Error> {
        let failed = |source| Error::new(Class::Failed, "start", "the forwarder", source);
        if matches!(self.config.io, Io::Sync | Io::Uring) {
            let threads = Threads::new(self.events.0.clone()).map_err(failed)?;
            return if self.config.io == Io::Sync {
                self.run_by(threads, start)
            } else {
                self.run_by(threads, start_uring)
            };
        }
        let tasks = Tasks::new(self.events.0.clone(), runtime(self.config).map_err(failed)?);
        if self.config.io == Io::Async {
            return self.run_by(tasks, start);
        }
        self.run_by(tasks, |tasks, config, spec| {
            start_framed(tasks, config, spec);
            Ok(())
        })
    }

    fn run_by<E: Executor>(
        self,
        mut executor: E,
        start: impl Fn(&mut E, ForwardConfig, &WorkerSpec<E::Device>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { config, near, far, counters, events: (_, events) } = self;
        let mtus = [near.mtu()?, far.mtu()?];
        let adopt = |NamedDevice { device, name, .. }: NamedDevice| {
            executor
                .adopt(device, &name)
                .map_err(|source| Error::new(Class::Failed, "prepare", format!("TUN interface {name}"), source))
        };
        let (near, far) = (adopt(near)?, adopt(far)?);
        let started = (0..usize::from(config.workers.get())).try_for_each(|worker| {
            let spec = |toward, [from, to]: [&Port<E::Device>; 2], mtu, counters: &Arc<DirectionCounters>| WorkerSpec {
                toward,
                from: from.clone(),
                to: to.clone(),
                mtu,
                counters: Arc::clone(counters),
                worker,
            };
            start(&mut executor, config, &spec("far", [&near, &far], mtus[0], &counters.to_far))?;
            start(&mut executor, config, &spec("near", [&far, &near], mtus[1], &counters.to_near))
        });
        let outcome = started.and_then(|()| outcome(&events));
        let sound = executor.end();
        if outcome.is_ok() && !sound {
            return Err(Error::new(Class::Failed, "stop", "the forwarder", io::Error::other("a loop has panicked")));
        }
        outcome
    }
}

/// A message to the thread that waits for the loops.
enum Event {
    /// A loop has ended: with an error, or without one because the other end of its channel is gone.
    Ended(Result<(), Error>),
    /// The user stops the forwarder.
    Stop,
}

/// Waits until a loop fails or the user stops the forwarder. If the other end of its channel is gone, a loop ends
/// without an error: the loop at the other end reports one.
fn outcome(events: &mpsc::Receiver<Event>) -> Result<(), Error> {
    loop {
        match events.recv() {
            Ok(Event::Ended(Ok(()))) => {}
            Ok(Event::Ended(error)) => return error,
            Ok(Event::Stop) | Err(mpsc::RecvError) => return Ok(()),
        }
    }
}

/// Reports the end of a loop when it is dropped, also if the loop panics.
struct ExitGuard {
    events: mpsc::Sender<Event>,
    name: String,
    result: Option<Result<(), Error>>,
}

impl ExitGuard {
    fn new(events: &mpsc::Sender<Event>, name: &str) -> Self {
        Self { events: events.clone(), name: name.to_owned(), result: None }
    }

    /// The loop has ended with this result.
    fn end(mut self, result: Result<(), Error>) {
        self.result = Some(result);
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| {
            let source = io::Error::other("it ended before its time");
            Err(Error::new(Class::Failed, "run", format!("the loop {}", self.name), source))
        });
        // Without a receiver, the forwarder is already ending.
        let _over = self.events.send(Event::Ended(result));
    }
}

fn runtime(config: ForwardConfig) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = config.threads {
        builder.worker_threads(threads.get().into());
    }
    builder.enable_io().thread_name("forwarder").build()
}
