//! The connections of crates that only know their stream.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Stream;

/// A stream of another crate, and what differs from its own `AsyncRead` and `AsyncWrite`.
pub trait Inner: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// State beside the stream.
    type Beside: Unpin + Send + 'static;

    fn read(
        &mut self,
        _beside: &mut Self::Beside,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self).poll_read(cx, buf)
    }

    fn shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_shutdown(cx)
    }

    /// Makes the drop that follows send a RST, if the stream can do that.
    fn make_abrupt(&self) {}
}

/// A connection: a stream, and the addresses of its ends.
pub struct Addressed<S: Inner> {
    pub(crate) stream: S,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Dropped after the stream.
    pub(crate) beside: S::Beside,
}

impl<S: Inner> Stream for Addressed<S> {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn reset(self) {
        self.stream.make_abrupt();
    }
}

impl<S: Inner> AsyncRead for Addressed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, beside, .. } = &mut *self;
        stream.read(beside, cx, buf)
    }
}

impl<S: Inner> AsyncWrite for Addressed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.shutdown(cx)
    }
}
