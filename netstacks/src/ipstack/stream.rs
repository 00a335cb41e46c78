//! The streams and where they come out.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::events::{Inner, Owner};
use super::flow::{Flow, State};
use super::hub::Hub;
use crate::{Listener, Stream};

/// Where ipstack's connections come out.
#[derive(Debug)]
pub struct IpstackListener {
    hub: Arc<Hub>,
}

impl IpstackListener {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }
}

impl Listener for IpstackListener {
    type Stream = IpstackStream;

    async fn accept(&mut self) -> io::Result<IpstackStream> {
        loop {
            let flow = poll_fn(|cx| self.hub.poll_accept(cx)).await?;
            // One that has ended meanwhile is no longer to be had.
            if let Some(stream) = IpstackStream::accept(flow, &self.hub) {
                return Ok(stream);
            }
        }
    }
}

impl Drop for IpstackListener {
    fn drop(&mut self) {
        for flow in self.hub.stop_listening() {
            drop(IpstackStream::accept(flow, &self.hub));
        }
    }
}

/// A connection of ipstack's.
#[derive(Debug)]
pub struct IpstackStream {
    /// There until the stream is dropped.
    inner: Option<Inner>,
    flow: Arc<Flow>,
    hub: Arc<Hub>,
    /// The sequence number behind what was written.
    written: u32,
}

impl IpstackStream {
    /// Takes a connection that waits to be accepted.
    pub(super) fn accept(flow: Arc<Flow>, hub: &Arc<Hub>) -> Option<Self> {
        let mut state = flow.lock();
        let Owner::Waiting(inner) = &mut state.owner else { return None };
        let inner = Some(*inner.take()?);
        state.owner = Owner::Held;
        hub.leave();
        let written = state.send.start();
        drop(state);
        Some(Self { inner, flow, hub: Arc::clone(hub), written })
    }

    /// Has the bridge look at the connection.
    fn request(&self, state: &mut State) {
        self.hub.request(&self.flow, state);
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
        self.flow.lock().check().is_err()
    }

    /// The drop that follows has the bridge send the RST.
    fn reset(self) {
        let mut state = self.flow.lock();
        state.reset();
        let wakes = state.wakes();
        drop(state);
        wakes.wake();
    }
}

impl AsyncRead for IpstackStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let Some(inner) = &mut stream.inner else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        {
            let state = stream.flow.lock();
            state.check()?;
            if state.receive.is_drained() || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut **inner).poll_read(cx, buf);
        let len = buf.filled().len() - before;
        let mut state = stream.flow.lock();
        match polled {
            Poll::Ready(Ok(())) if len > 0 => {
                if state.read(len) {
                    stream.hub.request(&stream.flow, &mut state);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(state.check().err().unwrap_or(error))),
            Poll::Ready(Ok(())) => {
                // ipstack's task has ended under a reader, which the record knows of, if anyone.
                Poll::Ready(state.check().and(Err(io::ErrorKind::ConnectionAborted.into())))
            }
            Poll::Pending => {
                // What happened since the first look woke nobody.
                state.check()?;
                if state.receive.is_drained() {
                    return Poll::Ready(Ok(()));
                }
                state.park_reader(cx);
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for IpstackStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let coop = ready!(coop::poll_proceed(cx));
        let stream = self.get_mut();
        let Some(inner) = &mut stream.inner else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let len = {
            let mut state = stream.flow.lock();
            state.check()?;
            if !state.is_writable() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let len = state.send.room(stream.written, buf.len().min(state.send.largest));
            if len == 0 {
                state.park_writer(cx);
                return Poll::Pending;
            }
            len
        };
        // ipstack copies all that it is given, whatever of it goes into one segment.
        match Pin::new(&mut **inner).poll_write(cx, &buf[..len]) {
            Poll::Ready(Ok(len)) => {
                stream.written = stream.written.wrapping_add(len as u32);
                coop.made_progress();
                Poll::Ready(Ok(len))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(stream.flow.lock().check().err().unwrap_or(error))),
            Poll::Pending => {
                // An acknowledgement is on its way to ipstack, which then wakes us.
                let mut state = stream.flow.lock();
                state.check()?;
                state.park_writer(cx);
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.flow.lock().check())
    }

    /// Ready once our FIN was handed to the link.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let mut state = stream.flow.lock();
        state.check()?;
        if state.is_fin_sent() {
            return Poll::Ready(Ok(()));
        }
        state.finish(stream.written);
        stream.request(&mut state);
        state.park_writer(cx);
        Poll::Pending
    }
}

impl Drop for IpstackStream {
    /// The bridge goes on with the connection until what was written is delivered and our FIN is
    /// acknowledged, or the peer has been silent for the user time-out.
    fn drop(&mut self) {
        let mut state = self.flow.lock();
        state.owner = Owner::Dropped;
        state.finish(self.written);
        state.receive.discard();
        self.hub.request(&self.flow, &mut state);
        drop(state);
        if let Some(inner) = self.inner.take() {
            self.hub.retire(inner);
        }
    }
}
