//! Those who run the loops: threads, or tasks of a runtime.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use tokio::runtime::{EnterGuard, Runtime};
use tokio::sync::mpsc as tasks;
use tokio::task;
use tun_rs::SyncDevice;

use super::channel::{Receiver, Sender};
use super::port::{Blocking, Port, Registered, Stop};
use platform::{Class, Error};

/// What the one who waits for the loops is told.
pub(super) enum Event {
    /// A loop has ended: by itself, since nobody was left at the other end of its channel, or by an error.
    Ended(Result<(), Error>),
    /// The user has had enough.
    Stop,
}

/// Runs loops side by side.
pub(super) trait Executor {
    /// What the loops do their calls with.
    type Port: Port;
    /// The ends of a channel between two of them.
    type Sender<T: Send + 'static>: Sender<T>;
    /// See [`Executor::Sender`].
    type Receiver<T: Send + 'static>: Receiver<T>;

    /// Takes a device.
    fn adopt(&self, device: SyncDevice, name: &str) -> io::Result<Self::Port>;

    /// Begins a loop, whose end will be an [`Event`].
    fn begin(
        &mut self,
        name: String,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error>;

    /// A channel with room for so many items.
    fn channel<T: Send + 'static>(room: usize) -> (Self::Sender<T>, Self::Receiver<T>);

    /// Stops the loops that still run and waits for the end of all. Whether none has panicked.
    fn end(self) -> bool;
}

/// Tells of the end of a loop, also of one that panics.
struct ExitGuard {
    events: mpsc::Sender<Event>,
    name: String,
    ended: bool,
}

impl ExitGuard {
    async fn run(mut self, work: impl Future<Output = Result<(), Error>>) {
        let result = work.await;
        self.ended = true;
        self.tell(result);
    }

    fn tell(&self, result: Result<(), Error>) {
        // Whoever does not listen any more has ended the loops himself.
        let _over = self.events.send(Event::Ended(result));
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        if !self.ended {
            let source = io::Error::other("it ended before its time");
            self.tell(Err(Error::new(Class::Failed, "run", format!("the loop {}", self.name), source)));
        }
    }
}

/// A thread for each loop.
pub(super) struct Threads {
    events: mpsc::Sender<Event>,
    stop: Arc<Stop>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn new(events: mpsc::Sender<Event>) -> io::Result<Self> {
        Ok(Self { events, stop: Arc::new(Stop::new()?), handles: Vec::new() })
    }
}

impl Executor for Threads {
    type Port = Blocking;
    type Sender<T: Send + 'static> = mpsc::SyncSender<T>;
    type Receiver<T: Send + 'static> = mpsc::Receiver<T>;

    fn adopt(&self, device: SyncDevice, name: &str) -> io::Result<Blocking> {
        Blocking::new(device, name, &self.stop)
    }

    fn begin(
        &mut self,
        name: String,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let guard = ExitGuard { events: self.events.clone(), name: name.clone(), ended: false };
        let thread = thread::Builder::new().name(name.clone()).spawn(move || complete(guard.run(work)));
        let thread = thread.map_err(|source| {
            Error::new(Class::Failed, "start a thread for", format!("the loop {name}"), source)
                .remedy("raise the limit of processes (ulimit -u), or lower --workers")
        })?;
        self.handles.push(thread);
        Ok(())
    }

    fn channel<T: Send + 'static>(room: usize) -> (Self::Sender<T>, Self::Receiver<T>) {
        mpsc::sync_channel(room)
    }

    fn end(self) -> bool {
        self.stop.stop();
        let ends: Vec<_> = self.handles.into_iter().map(JoinHandle::join).collect();
        ends.iter().all(Result::is_ok)
    }
}

/// Polls a future whose calls block, so that it is not pending.
pub(super) fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// A task for each loop.
pub(super) struct Tasks {
    events: mpsc::Sender<Event>,
    runtime: Runtime,
    handles: Vec<task::JoinHandle<()>>,
}

impl Tasks {
    pub(super) fn new(events: mpsc::Sender<Event>, runtime: Runtime) -> Self {
        Self { events, runtime, handles: Vec::new() }
    }

    /// Makes the runtime the current one.
    pub(super) fn context(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }
}

impl Executor for Tasks {
    type Port = Registered;
    type Sender<T: Send + 'static> = tasks::Sender<T>;
    type Receiver<T: Send + 'static> = tasks::Receiver<T>;

    fn adopt(&self, device: SyncDevice, name: &str) -> io::Result<Registered> {
        let _context = self.context();
        Registered::new(device, name)
    }

    fn begin(
        &mut self,
        name: String,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let guard = ExitGuard { events: self.events.clone(), name, ended: false };
        self.handles.push(self.runtime.spawn(guard.run(work)));
        Ok(())
    }

    fn channel<T: Send + 'static>(room: usize) -> (Self::Sender<T>, Self::Receiver<T>) {
        tasks::channel(room)
    }

    fn end(self) -> bool {
        for handle in &self.handles {
            handle.abort();
        }
        let ends: Vec<_> = self.handles.into_iter().map(|handle| self.runtime.block_on(handle)).collect();
        ends.into_iter().all(|end| end.is_ok() || end.is_err_and(|error| error.is_cancelled()))
    }
}
