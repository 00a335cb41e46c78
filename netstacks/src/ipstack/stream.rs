//! ipstack's listener and streams.

use std::future::poll_fn;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ipstack::IpStackTcpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep};

use super::flow::{Flow, Hub};
use crate::{Listener, Stream};

/// How long a stream in `shutdown` waits before it polls ipstack again. The wait doubles each time, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct IpstackListener {
    pub(super) accepted: Receiver<IpstackStream>,
    pub(super) hub: Arc<Hub>,
}

impl Listener for IpstackListener {
    type Stream = IpstackStream;

    async fn accept(&mut self) -> io::Result<IpstackStream> {
        let stream = self.accepted.recv().await;
        stream.filter(|_| !self.hub.failed.initialized()).ok_or_else(|| self.hub.failure())
    }
}

/// A connection of ipstack. [`Stream::reset`] closes it, because ipstack cannot send a RST.
#[derive(Debug)]
pub struct IpstackStream {
    /// `None` only while the stream is dropped.
    session: Option<Session>,
    flow: Arc<Flow>,
    hub: Arc<Hub>,
    /// The most bytes of a write that ipstack gets.
    pub(super) most: usize,
    closing: bool,
}

/// ipstack's stream. Only [`retire`] may drop it. So it leaks if the runtime ends before that.
#[derive(Debug)]
struct Session {
    inner: ManuallyDrop<IpStackTcpStream>,
    retry: Pin<Box<Sleep>>,
    wait: Duration,
}

impl IpstackStream {
    pub(super) fn new(inner: IpStackTcpStream, flow: Arc<Flow>, most: usize, hub: &Arc<Hub>) -> Self {
        let (inner, retry) = (ManuallyDrop::new(inner), Box::pin(tokio::time::sleep(FIRST_WAIT)));
        let session = Some(Session { inner, retry, wait: FIRST_WAIT });
        Self { session, flow, hub: Arc::clone(hub), most, closing: false }
    }

    fn session(&mut self) -> io::Result<&mut Session> {
        self.session.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The error that has ended the connection: an earlier one, or else this.
    fn fail(&self, failure: io::ErrorKind) -> io::Error {
        self.flow.end(failure);
        if self.hub.failed.initialized() {
            self.hub.failure()
        } else {
            self.flow.seen().failure.unwrap_or(failure).into()
        }
    }
}

impl Session {
    /// Ready when our FIN was sent, or the connection has ended. ipstack does not wake the task, so this asks again.
    fn poll_close(&mut self, cx: &mut Context<'_>, flow: &Flow) -> Poll<()> {
        while flow.poll_closed(cx).is_pending() && Pin::new(&mut *self.inner).poll_shutdown(cx).is_pending() {
            ready!(self.retry.as_mut().poll(cx));
            self.wait = (self.wait * 2).min(LONGEST_WAIT);
            self.retry.as_mut().reset(Instant::now() + self.wait);
        }
        Poll::Ready(())
    }
}

impl Stream for IpstackStream {
    fn local_addr(&self) -> SocketAddr {
        self.flow.key.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.flow.key.peer
    }

    fn has_failed(&self) -> bool {
        self.flow.seen().failure.is_some()
    }
}

impl AsyncRead for IpstackStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut *stream.session()?.inner).poll_read(cx, buf);
        let len = buf.filled().len() - before;
        if len > 0 && stream.flow.note_read(len, &stream.hub) {
            let _device_is_gone = stream.hub.reopened.send(Arc::clone(&stream.flow));
        }
        match polled {
            Poll::Ready(Ok(())) if len > 0 => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(stream.fail(error.kind()))),
            ended => match stream.flow.poll_end(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(stream.fail(error.kind()))),
                // ipstack reports the end, but no FIN has arrived.
                Poll::Pending if ended.is_ready() => Poll::Ready(Err(stream.fail(io::ErrorKind::ConnectionReset))),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl AsyncWrite for IpstackStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // ipstack may not have handled the RST yet.
        let failure = stream.flow.seen().failure;
        if let Some(failure) = failure {
            return Poll::Ready(Err(stream.fail(failure)));
        }
        // The workaround `short-writes`: ipstack copies the whole slice, even if only a part of it fits into a segment.
        let buf = &buf[..buf.len().min(stream.most)];
        match Pin::new(&mut *stream.session()?.inner).poll_write(cx, buf) {
            Poll::Ready(written) => Poll::Ready(written.map_err(|error| stream.fail(error.kind()))),
            Poll::Pending => Poll::Ready(Err(stream.fail(ready!(stream.flow.poll_failed(cx))))),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        stream.closing = true;
        let flow = Arc::clone(&stream.flow);
        stream.session()?.poll_close(cx, &flow).map(Ok)
    }
}

impl Drop for IpstackStream {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.hub.runtime.spawn(retire(session, Arc::clone(&self.flow), Arc::clone(&self.hub)));
        }
    }
}

/// Closes a connection, and drops its stream after ipstack's task: an earlier drop would wait for it, or panic.
async fn retire(mut session: Session, flow: Arc<Flow>, hub: Arc<Hub>) {
    let ended = async {
        poll_fn(|cx| session.poll_close(cx, &flow)).await;
        // No further packet ends the task.
        if hub.failed.initialized() || flow.seen().failure == Some(io::ErrorKind::ConnectionAborted) {
            return false;
        }
        session.inner.stream_sender().closed().await;
        // The task drops its receiver in its last poll. That poll may still run on another thread.
        tokio::task::yield_now().await;
        true
    };
    let ended = tokio::time::timeout(hub.config.user_timeout, ended).await.unwrap_or(false);
    hub.forget(&flow);
    let inner = session.inner;
    if ended {
        drop(ManuallyDrop::into_inner(inner));
    } else {
        // On a blocking thread the drop may wait until it has ended the task.
        tokio::task::spawn_blocking(move || drop(ManuallyDrop::into_inner(inner)));
    }
}
