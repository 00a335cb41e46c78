//! The application above the stack, driven step by step by a case.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use netstacks::{
    Datagram, Datagrams, Driver, Effective, Listener, Netstack, Spread, StackConfig, StartError, Started, Stream,
    Visitor, sharded, steer,
};
use platform::Child;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{AnyLink, LATE, Step, Stop, patient, same};

/// Timeout of a read of bytes that have been sent to the stack.
const READ: Duration = Duration::from_secs(2);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A stream of any stack.
pub(crate) trait AnyStream: AsyncRead + AsyncWrite + Unpin + Send {
    fn addresses(&self) -> [SocketAddr; 2];
    fn abort(self: Box<Self>);
}

impl<S: Stream> AnyStream for S {
    fn addresses(&self) -> [SocketAddr; 2] {
        [self.local_addr(), self.peer_addr()]
    }

    fn abort(self: Box<Self>) {
        (*self).reset();
    }
}

/// A listener of any stack.
pub(crate) trait AnyListener: Send {
    fn accept(&mut self) -> Boxed<'_, Box<dyn AnyStream>>;
}

impl<L: Listener> AnyListener for L {
    fn accept(&mut self) -> Boxed<'_, Box<dyn AnyStream>> {
        Box::pin(async { Ok(Box::new(Listener::accept(self).await?) as Box<dyn AnyStream>) })
    }
}

/// Datagrams of any stack.
pub(crate) trait AnyDatagrams: Send {
    fn recv<'a>(&'a self, buffer: &'a mut [u8]) -> Boxed<'a, Datagram>;
    fn send(&self, ends: [SocketAddr; 2], payloads: &[u8], segment_len: usize) -> io::Result<usize>;
}

impl<D: Datagrams> AnyDatagrams for D {
    fn recv<'a>(&'a self, buffer: &'a mut [u8]) -> Boxed<'a, Datagram> {
        Box::pin(Datagrams::recv(self, buffer))
    }

    fn send(&self, [local, peer]: [SocketAddr; 2], payloads: &[u8], segment_len: usize) -> io::Result<usize> {
        self.try_send_batch(local, peer, payloads, segment_len)
    }
}

/// Starts a stack.
pub(crate) struct Start {
    /// One for each shard.
    pub(crate) links: Vec<AnyLink>,
    pub(crate) config: StackConfig,
}

/// A running stack.
pub(crate) struct Running {
    pub(crate) listener: Box<dyn AnyListener>,
    pub(crate) datagrams: Box<dyn AnyDatagrams>,
    pub(crate) driver: Driver,
    /// Its settings, if it reports them.
    pub(crate) effective: Option<Effective>,
    /// Its process, if it has one of its own.
    pub(crate) process: Option<Child>,
}

impl Visitor<AnyLink> for Start {
    type Output = Result<Running, StartError>;

    fn visit<S: Netstack<AnyLink>>(self) -> Self::Output {
        let Self { mut links, config } = self;
        let spread = Spread::default();
        if links.len() > 1 {
            links = steer(&spread, links).0.into_iter().map(AnyLink::new).collect();
        }
        let first = links.remove(0);
        Ok(Running::of(sharded::<S, _>(&spread, first, links, &config)?))
    }
}

impl Running {
    fn of(started: Started<impl Listener + 'static, impl Datagrams>) -> Self {
        let Started { listener, datagrams, driver, effective } = started;
        let (listener, datagrams) = (Box::new(listener), Box::new(datagrams));
        Self { listener, datagrams, driver, effective: Some(effective), process: None }
    }
}

/// An accepted connection.
pub(crate) struct Served {
    stream: Box<dyn AnyStream>,
    runtime: Handle,
}

/// The action after a write.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    Keep,
    Shutdown,
    Drop,
}

impl Served {
    pub(crate) fn new(stream: Box<dyn AnyStream>, runtime: Handle) -> Self {
        Self { stream, runtime }
    }

    /// Returns the address that the peer connected to, and the peer's address.
    pub(crate) fn addresses(&self) -> [SocketAddr; 2] {
        self.stream.addresses()
    }

    pub(crate) fn read(&mut self, len: usize) -> Step<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut got = 0;
        while got < len {
            match self.read_some(&mut bytes[got..], patient(READ))? {
                Ok(0) => return fail!(Data, "the stream ended after {got} of {len} bytes"),
                Ok(more) => got += more,
                Err(error) => return fail!(Hang, "a read failed: {error}"),
            }
        }
        Ok(bytes)
    }

    pub(crate) fn reads(&mut self, bytes: &[u8]) -> Step {
        same(&self.read(bytes.len())?, bytes)
    }

    pub(crate) fn reads_to_end(&mut self, bytes: &[u8]) -> Step {
        same(&self.read_to_end()?, bytes)
    }

    /// Reads until the connection is reset.
    pub(crate) fn reads_reset(&mut self) -> Step {
        let kind = self.read_error()?;
        check!(kind == io::ErrorKind::ConnectionReset, "the error is \"{kind}\"")
    }

    pub(crate) fn read_to_end(&mut self) -> Step<Vec<u8>> {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.read_some(&mut buffer, patient(READ))? {
                Ok(0) => return Ok(bytes),
                Ok(len) => bytes.extend_from_slice(&buffer[..len]),
                Err(error) => return fail!(Hang, "a read failed after {} bytes: {error}", bytes.len()),
            }
        }
    }

    /// Reads until the connection fails, and returns the error.
    pub(crate) fn read_error(&mut self) -> Step<io::ErrorKind> {
        let mut buffer = [0; 4096];
        loop {
            match self.read_some(&mut buffer, patient(READ))? {
                Ok(0) => return fail!(Data, "the stream ended as if by a FIN"),
                Ok(_) => {}
                Err(error) => return Ok(error.kind()),
            }
        }
    }

    /// Returns whether a read waits for this long: no byte, no end, no error.
    pub(crate) fn is_quiet(&mut self, during: Duration) -> bool {
        self.read_some(&mut [0; 1], during).is_err()
    }

    fn read_some(&mut self, buffer: &mut [u8], within: Duration) -> Step<io::Result<usize>> {
        let read = async { timeout(within, self.stream.read(buffer)).await };
        self.runtime.block_on(read).map_err(|_| Stop::hang(format!("a read waited {within:?} in vain")))
    }

    /// Writes bytes, which the stack must have room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Step {
        let write = async { timeout(patient(LATE), self.stream.write_all(bytes)).await };
        match self.runtime.block_on(write) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => fail!(Hang, "a write failed: {error}"),
            Err(_) => fail!(Hang, "a write of {} bytes waited {LATE:?} in vain", bytes.len()),
        }
    }

    /// Writes in the background. The stack need not have room.
    pub(crate) fn send(mut self, bytes: Vec<u8>, then: Then) -> Sending {
        let runtime = self.runtime.clone();
        let task = runtime.spawn(async move {
            self.stream.write_all(&bytes).await?;
            match then {
                Then::Keep => {}
                Then::Shutdown => self.stream.shutdown().await?,
                Then::Drop => return Ok(None),
            }
            Ok(Some(self))
        });
        Sending { task, runtime }
    }

    pub(crate) fn shutdown(&mut self) -> Step {
        let shutdown = async { timeout(patient(LATE), self.stream.shutdown()).await };
        match self.runtime.block_on(shutdown) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => fail!(Hang, "the shutdown failed: {error}"),
            Err(_) => fail!(Hang, "the shutdown waits"),
        }
    }

    /// Ends the connection with a RST.
    pub(crate) fn reset(self) {
        self.stream.abort();
    }
}

/// A write in the background.
pub(crate) struct Sending {
    task: JoinHandle<io::Result<Option<Served>>>,
    runtime: Handle,
}

impl Sending {
    /// Waits until all is written.
    pub(crate) fn finish(self) -> Step {
        self.finished().map(drop)
    }

    /// The same. Returns the server's side, which still holds its stream.
    pub(crate) fn served(self) -> Step<Served> {
        self.finished()?.ok_or_else(|| Stop::hang("the server has dropped its stream"))
    }

    /// The same. Returns the server's side, unless it has dropped its stream.
    pub(crate) fn finished(self) -> Step<Option<Served>> {
        self.result()?.map_err(|error| Stop::hang(format!("the server's write failed: {error}")))
    }

    /// Waits until the write fails, because the client has vanished.
    pub(crate) fn times_out(self) -> Step {
        match self.result()? {
            Ok(_) => fail!(Hang, "all was written to a peer that does not answer"),
            Err(error) => check!(error.kind() == io::ErrorKind::TimedOut, "the error is \"{}\"", error.kind()),
        }
    }

    pub(crate) fn result(mut self) -> Step<io::Result<Option<Served>>> {
        let task = &mut self.task;
        let finish = async { timeout(patient(LATE), task).await };
        match self.runtime.block_on(finish) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => fail!(Hang, "the stack panicked"),
            Err(_) => fail!(Hang, "the server's write waits"),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.task.abort();
    }
}
