//! The connections that a server accepts, behind the interface of a stack.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::task::{Context, Poll};

use netstacks::{Listener, Stream};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf, join};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::Quic;

/// Several sockets as one. Its tasks end with the runtime, as quinn's do.
pub(crate) struct QuicListener(UnboundedReceiver<QuicStream>);

/// The stream of a connection.
pub(crate) struct QuicStream {
    pub(crate) connection: Connection,
    local: SocketAddr,
    stream: Join<RecvStream, SendStream>,
}

impl QuicListener {
    /// Takes over sockets, each bound to a port of its own. Must be called within a tokio runtime.
    pub(crate) fn new(sockets: Vec<UdpSocket>, quic: &Quic) -> io::Result<Self> {
        let (streams, accepted) = mpsc::unbounded_channel();
        for socket in sockets {
            let local = socket.local_addr()?;
            let endpoint = quic.endpoint(socket, Some(quic.server.clone()))?;
            tokio::spawn(accept(endpoint, local, streams.clone()));
        }
        Ok(Self(accepted))
    }
}

impl Listener for QuicListener {
    type Stream = QuicStream;

    async fn accept(&mut self) -> io::Result<QuicStream> {
        self.0.recv().await.ok_or_else(|| io::Error::other("the server of QUIC has ended"))
    }
}

async fn accept(endpoint: Endpoint, local: SocketAddr, streams: UnboundedSender<QuicStream>) {
    while let Some(incoming) = endpoint.accept().await {
        let streams = streams.clone();
        tokio::spawn(async move {
            // The client reports what ends here. Its stream is there with its first byte.
            if let Ok(connection) = incoming.await
                && let Ok((send, receive)) = connection.accept_bi().await
            {
                let stream = join(receive, send);
                let _ended = streams.send(QuicStream { connection: connection.clone(), local, stream });
                // A connection ends with its last handle, and what is under way would be lost. So it ends with the client's.
                connection.closed().await;
            }
        });
    }
}

impl Stream for QuicStream {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.connection.remote_address()
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
