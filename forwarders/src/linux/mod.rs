//! Carries packets between two TUN devices: see [`crate`].
//!
//! A direction has as many workers as the way wants; each of them is one loop, or two with a channel between
//! them (`carry`). What a loop reads and writes is the way's affair (`packets`, `segments`, `framed`), how it
//! waits the executor's (`port`, `channel`, `executor`).

mod carry;
mod channel;
mod counters;
mod devices;
mod executor;
mod failure;
mod framed;
mod order;
mod packets;
mod port;
mod segments;
#[cfg(test)]
mod tests;
mod workers;

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use tokio::runtime::{Builder, Runtime};

pub use self::counters::Counters;
use self::counters::DirectionCounters;
use self::devices::End;
use self::executor::{Event, Executor, Tasks, Threads};
use self::workers::{WorkerSpec, start, start_framed};
use crate::{DevicePair, ForwardConfig, Io};
use platform::{Class, Error};

/// Two TUN devices, and the way to carry packets between them.
pub struct Forwarder {
    way: ForwardConfig,
    near: End,
    far: End,
    counters: Counters,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

/// Ends a forwarder that runs elsewhere.
#[derive(Clone, Debug)]
pub struct Stopper(mpsc::Sender<Event>);

impl Stopper {
    /// Has [`Forwarder::run`] come back without an error.
    pub fn stop(&self) {
        // It has ended already.
        let _over = self.0.send(Event::Stop);
    }
}

impl Forwarder {
    /// Makes both devices, down and without addresses.
    ///
    /// # Errors
    ///
    /// [`Class::Invalid`] for a way that cannot be and for a name that is taken or wrong,
    /// [`Class::Unavailable`] where the device node, a right, or offload is missing, else [`Class::Failed`].
    pub fn open(ends: &DevicePair, way: &ForwardConfig) -> Result<Self, Error> {
        way.check().map_err(|reason| {
            Error::new(Class::Invalid, "forward", "packets", io::Error::new(io::ErrorKind::InvalidInput, reason))
        })?;
        let [near, far] = End::open(ends, way.offload)?;
        let counters = Counters::new(way.workers.get());
        Ok(Self { way: *way, near, far, counters, events: mpsc::channel() })
    }

    /// What has been carried, to be read at any time.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Ends [`Forwarder::run`].
    pub fn stopper(&self) -> Stopper {
        Stopper(self.events.0.clone())
    }

    /// Carries packets until it is stopped. To be called by the thread that has opened it, when the devices
    /// have their MTU. When it comes back, whatever it has started has ended, and the devices are gone.
    ///
    /// A packet that the kernel does not take, for want of memory or because a device is down, is lost, and
    /// counted.
    ///
    /// # Errors
    ///
    /// A device was deleted, or failed otherwise; the first such error.
    pub fn run(self) -> Result<(), Error> {
        let failed = |source| Error::new(Class::Failed, "start", "the forwarder", source);
        if self.way.io == Io::Sync {
            let threads = Threads::new(self.events.0.clone()).map_err(failed)?;
            return self.run_by(threads, start);
        }
        let tasks = Tasks::new(self.events.0.clone(), runtime(self.way).map_err(failed)?);
        if self.way.io == Io::Framed { self.run_by(tasks, start_framed) } else { self.run_by(tasks, start) }
    }

    fn run_by<C: Executor>(
        self,
        mut executor: C,
        start: impl Fn(&mut C, ForwardConfig, &WorkerSpec<C::Port>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { way, near, far, counters, events: (_, events) } = self;
        let mtus = [near.mtu()?, far.mtu()?];
        let [near, far] = [near, far].map(|end| {
            let adopted = executor.adopt(end.device, &end.name);
            adopted
                .map_err(|source| Error::new(Class::Failed, "prepare", format!("TUN interface {}", end.name), source))
        });
        let (near, far) = (near?, far?);
        let started = (0..usize::from(way.workers.get())).try_for_each(|worker| {
            let spec = |toward, [from, to]: [&C::Port; 2], mtu, direction: &Arc<DirectionCounters>| WorkerSpec {
                toward,
                from: from.clone(),
                to: to.clone(),
                mtu,
                direction: Arc::clone(direction),
                worker,
            };
            start(&mut executor, way, &spec("far", [&near, &far], mtus[0], &counters.to_far))?;
            start(&mut executor, way, &spec("near", [&far, &near], mtus[1], &counters.to_near))
        });
        let outcome = started.and_then(|()| outcome(&events));
        let sound = executor.end();
        if outcome.is_ok() && !sound {
            return Err(Error::new(Class::Failed, "stop", "the forwarder", io::Error::other("a loop has panicked")));
        }
        outcome
    }
}

/// Waits until a loop fails or the user has had enough. A loop whose channel's other end is gone ends without
/// an error, since that end has one.
fn outcome(events: &mpsc::Receiver<Event>) -> Result<(), Error> {
    loop {
        match events.recv() {
            Ok(Event::Ended(Ok(()))) => {}
            Ok(Event::Ended(error)) => return error,
            Ok(Event::Stop) | Err(mpsc::RecvError) => return Ok(()),
        }
    }
}

fn runtime(way: ForwardConfig) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = way.threads {
        builder.worker_threads(threads.get().into());
    }
    builder.enable_io().thread_name("forwarder").build()
}
