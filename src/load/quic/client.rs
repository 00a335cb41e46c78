//! The connections of a client thread, which also does the work of quinn's tasks: they run while it waits.

use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use platform::TcpStatistics;
use quinn::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::{Quic, SERVER, statistics};
use crate::load::sockets::kernel::any_port;
use crate::load::sockets::{Cancel, Sockets, Turns};

pub(crate) struct QuicSockets {
    quic: Quic,
    turns: Turns,
    sockets: Vec<Socket>,
    wakers: Vec<Waker>,
    woken: Arc<Woken>,
    /// `None` only in its drop.
    runtime: Option<Runtime>,
}

enum Socket {
    Closed,
    Opening(BoxFuture<'static, io::Result<Open>>),
    Open(Open),
}

struct Open {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
}

/// The numbers of the sockets that can go on.
#[derive(Default)]
struct Woken {
    numbers: Mutex<Vec<usize>>,
    any: Notify,
}

impl Woken {
    fn numbers(&self) -> MutexGuard<'_, Vec<usize>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Number {
    number: usize,
    woken: Arc<Woken>,
}

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        self.woken.numbers().push(self.number);
        self.woken.any.notify_one();
    }
}

impl QuicSockets {
    pub(crate) fn new(quic: &Quic, turns: Turns, count: usize) -> io::Result<Self> {
        let woken = Arc::<Woken>::default();
        let waker = |number| Waker::from(Arc::new(Number { number, woken: Arc::clone(&woken) }));
        Ok(Self {
            quic: quic.clone(),
            turns,
            sockets: (0..count).map(|_| Socket::Closed).collect(),
            wakers: (0..count).map(waker).collect(),
            runtime: Some(Builder::new_current_thread().enable_all().build()?),
            woken,
        })
    }

    fn open(&mut self, index: usize) -> io::Result<(&mut Open, Context<'_>)> {
        match &mut self.sockets[index] {
            Socket::Open(open) => Ok((open, Context::from_waker(&self.wakers[index]))),
            Socket::Closed | Socket::Opening(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// The sockets of a client are dropped in a task, which must not wait for a runtime to end.
impl Drop for QuicSockets {
    fn drop(&mut self) {
        self.sockets.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Open {
    /// The result of a read or write. A stream does not say why its connection has ended.
    fn done<T>(&self, result: Poll<io::Result<T>>) -> io::Result<T> {
        match result {
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            Poll::Ready(Err(error)) => Err(self.connection.close_reason().map_or(error, io::Error::from)),
            Poll::Ready(done) => done,
        }
    }
}

impl Sockets for QuicSockets {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        let target = self.turns.target_of(index, target);
        let _entered = self.runtime.as_ref().map(Runtime::enter);
        let endpoint = self.quic.endpoint(UdpSocket::bind(any_port(target))?, None)?;
        let client = self.quic.client.clone();
        let connecting = endpoint.connect_with(client, target, SERVER).map_err(io::Error::other)?;
        let opening = async move {
            let connection = connecting.await?;
            let (send, receive) = connection.open_bi().await?;
            Ok(Open { connection, send, receive })
        };
        self.sockets[index] = Socket::Opening(opening.boxed());
        // It wakes nobody before it was polled.
        self.wakers[index].wake_by_ref();
        Ok(())
    }

    fn is_connected(&mut self, index: usize) -> io::Result<bool> {
        let opening = match &mut self.sockets[index] {
            Socket::Closed => return Err(io::ErrorKind::NotConnected.into()),
            Socket::Open(_) => return Ok(true),
            Socket::Opening(opening) => opening,
        };
        let Poll::Ready(opened) = opening.as_mut().poll(&mut Context::from_waker(&self.wakers[index])) else {
            return Ok(false);
        };
        self.sockets[index] = Socket::Open(opened?);
        Ok(true)
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let (open, mut context) = self.open(index)?;
        let mut room = ReadBuf::new(buffer);
        let read = AsyncRead::poll_read(Pin::new(&mut open.receive), &mut context, &mut room);
        open.done(read)?;
        Ok(room.filled().len())
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        let (open, mut context) = self.open(index)?;
        let written = AsyncWrite::poll_write(Pin::new(&mut open.send), &mut context, bytes);
        open.done(written)
    }

    fn end_writing(&mut self, index: usize) -> io::Result<()> {
        let (open, _) = self.open(index)?;
        Ok(open.send.finish()?)
    }

    fn close(&mut self, index: usize) {
        self.sockets[index] = Socket::Closed;
    }

    fn statistics(&self, index: usize) -> TcpStatistics {
        match &self.sockets[index] {
            Socket::Open(open) => statistics(&open.connection),
            Socket::Closed | Socket::Opening(_) => TcpStatistics::default(),
        }
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        let (until, woken) = (due.map_or(end, |due| due.min(end)), &self.woken);
        let turn = async {
            if !woken.numbers().is_empty() || until <= Instant::now() {
                // quinn's tasks have a turn, too.
                yield_now().await;
            } else {
                let _in_time = timeout_at(until.into(), woken.any.notified()).await;
            }
        };
        if let Some(runtime) = &self.runtime {
            runtime.block_on(turn);
        }
        ready.extend(mem::take(&mut *self.woken.numbers()));
        Ok(())
    }

    fn canceller(&self) -> Cancel {
        let woken = Arc::clone(&self.woken);
        Box::new(move || woken.any.notify_one())
    }
}
