//! Sockets of the kernel behind the interface of a stack.

use std::future::{self, poll_fn};
use std::io;
use std::net::{self, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use platform::Received;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::addressed::{Addressed, Inner};
use crate::udp::segment_len_of;
use crate::{Datagram, DatagramBatch, Datagrams, Listener};

/// Several listeners as one. Each is polled only when it has become ready: there may be thousands.
pub struct KernelListener {
    accepting: FuturesUnordered<Accepting>,
    given: Option<UnboundedReceiver<(net::TcpStream, SocketAddr)>>,
}

/// Waits for the next connection of a listener, and returns the listener with it.
type Accepting = Pin<Box<dyn Future<Output = (TcpListener, io::Result<(TcpStream, SocketAddr)>)> + Send>>;

impl KernelListener {
    /// Takes over sockets that listen, and connections that another server has accepted for it, which do not block, each with the
    /// address that it is for. Must be called within a tokio runtime.
    pub fn new(
        sockets: impl IntoIterator<Item = net::TcpListener>,
        given: Option<UnboundedReceiver<(net::TcpStream, SocketAddr)>>,
    ) -> io::Result<Self> {
        let accepting = |socket: net::TcpListener| {
            socket.set_nonblocking(true)?;
            Ok(Self::accepting(TcpListener::from_std(socket)?))
        };
        let accepting = sockets.into_iter().map(accepting).collect::<io::Result<_>>()?;
        Ok(Self { accepting, given })
    }

    fn accepting(listener: TcpListener) -> Accepting {
        Box::pin(async move {
            let accepted = listener.accept().await;
            (listener, accepted)
        })
    }
}

impl Listener for KernelListener {
    type Stream = KernelStream;

    async fn accept(&mut self) -> io::Result<KernelStream> {
        let given = OptionFuture::from(self.given.as_mut().map(UnboundedReceiver::recv));
        let (socket, local, peer) = tokio::select! {
            Some(Some((socket, local))) = given => {
                // It may have ended already, as one in the queue of a listener may have.
                let peer = socket.peer_addr().unwrap_or(local);
                (TcpStream::from_std(socket)?, local, peer)
            }
            Some((listener, accepted)) = self.accepting.next() => {
                self.accepting.push(Self::accepting(listener));
                let (socket, peer) = accepted?;
                let local = socket.local_addr()?;
                (socket, local, peer)
            }
            else => return future::pending().await,
        };
        socket.set_nodelay(true)?;
        Ok(KernelStream { local, stream: socket, peer, beside: () })
    }
}

/// A connection of a [`KernelListener`]. The kernel reports a failure at the next read or write.
pub type KernelStream = Addressed<TcpStream>;

impl Addressed<TcpStream> {
    /// Its socket.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

impl Inner for TcpStream {
    type Beside = ();

    fn make_abrupt(&self) {
        // If that fails, the drop closes the connection with a FIN.
        let _abrupt = self.set_zero_linger();
    }
}

/// A few UDP sockets as one. Only one task may receive.
#[derive(Clone)]
pub struct KernelDatagrams(Arc<[(SocketAddr, UdpSocket)]>);

impl KernelDatagrams {
    /// Takes over sockets, each bound to an address of its own. Must be called within a tokio runtime.
    pub fn new(sockets: impl IntoIterator<Item = net::UdpSocket>) -> io::Result<Self> {
        let bound = |socket: net::UdpSocket| {
            socket.set_nonblocking(true)?;
            Ok((socket.local_addr()?, UdpSocket::from_std(socket)?))
        };
        sockets.into_iter().map(bound).collect::<io::Result<_>>().map(Self)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<DatagramBatch>> {
        for (local, socket) in &*self.0 {
            while socket.poll_recv_ready(cx)?.is_ready() {
                let receive = || platform::recv_datagrams(&SockRef::from(socket), buffer);
                match socket.try_io(Interest::READABLE, receive) {
                    // The next call waits.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => {
                        let Received { len, segment_len, from } = received?;
                        let unknown = || io::Error::other("the kernel does not say where a datagram came from");
                        let (local, peer) = (*local, from.ok_or_else(unknown)?);
                        return Poll::Ready(Ok(DatagramBatch { len, segment_len, local, peer }));
                    }
                }
            }
        }
        Poll::Pending
    }
}

impl Datagrams for KernelDatagrams {
    /// Not for sockets that coalesce datagrams ([`platform::coalesce_datagrams`]).
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let DatagramBatch { len, local, peer, .. } = self.recv_batch(buffer).await?;
        Ok(Datagram { len, local, peer })
    }

    async fn recv_batch(&self, buffer: &mut [u8]) -> io::Result<DatagramBatch> {
        poll_fn(|cx| self.poll_recv(cx, buffer)).await
    }

    fn try_send_batch(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        let (_, socket) = self.0.iter().find(|(own, _)| *own == local).ok_or(io::ErrorKind::InvalidInput)?;
        // Not tokio's `try_send_to`: tokio does not know yet that a new socket is writable.
        let segment_len = segment_len_of(payloads, segment_len);
        platform::send_datagrams(&SockRef::from(socket), Some(peer), payloads, segment_len).map_err(platform::unsent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_length_of_zero_means_one_datagram() {
        let [server, client] = [(); 2].map(|()| net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let [local, peer] = [&server, &client].map(|socket| socket.local_addr().unwrap());
        let datagrams = KernelDatagrams::new([server]).unwrap();
        assert_eq!(datagrams.try_send_batch(local, peer, b"whole", 0).unwrap(), 5);
        datagrams.try_send(local, peer, b"").unwrap();
        let mut buffer = [0; 16];
        assert_eq!([(); 2].map(|()| client.recv(&mut buffer).unwrap()), [5, 0]);
    }
}
