//! The `netstack-smoltcp` crate behind the common interface: smoltcp 0.12 with one runner for all connections, which
//! the published programs use. Beside `smoltcp` it shows what an adapter costs.
//!
//! The adapter moves packets as the crate's examples do, with one workaround:
//!
//! | workaround | netstack-smoltcp alone |
//! |---|---|
//! | `does-not-wait-for-close` | a shutdown waits until the connection is closed both ways, and TIME-WAIT is over |

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ::netstack_smoltcp::udp::{ReadHalf, UdpMsg, WriteHalf};
use ::netstack_smoltcp::{AnyIpPktFrame, Stack, StackBuilder, TcpListener, TcpStream};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, Sink, SinkExt, StreamExt};
use platform::Link;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::datagrams::{Inbox, MAX_PAYLOAD_V4, check, max_payload};
use crate::port::{Port, run_together};
use crate::{
    Datagram, Datagrams, Effective, Listener, Netstack, StackConfig, StackKind, StartError, Started, Stream,
    window_scale,
};

/// As in `Cargo.lock`; the crate does not say it itself.
pub(crate) const VERSION: &str = "0.2.4";

/// What the adapter does in the stack's place; see the module.
const WORKAROUND: &str = "does-not-wait-for-close";

/// The `netstack-smoltcp` crate, version 0.2.4.
#[derive(Clone, Copy, Debug)]
pub struct NetstackSmoltcp;

impl<L: Link> Netstack<L> for NetstackSmoltcp {
    type Stream = NetstackSmoltcpStream;
    type Listener = NetstackSmoltcpListener;
    type Datagrams = NetstackSmoltcpDatagrams;

    fn start(
        link: L,
        config: &StackConfig,
    ) -> Result<Started<NetstackSmoltcpListener, NetstackSmoltcpDatagrams>, StartError> {
        let mtu = link.capabilities().mtu;
        let unfit = |reason: &str| StartError::Unfit { stack: StackKind::NetstackSmoltcp, reason: reason.to_owned() };
        let port = Arc::new(Port::new(link, true));
        let offload = port.offload();
        let window = config.window.clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW);
        let builder = StackBuilder::default().enable_tcp(true).enable_udp(true).enable_icmp(true);
        let builder = builder.tcp_recv_buffer_size(window as u32).tcp_send_buffer_size(window as u32);
        let built = builder.mtu(offload.largest_packet()).build();
        let (stack, runner, socket, listener) = built.map_err(|error| unfit(&error.to_string()))?;
        let (Some(runner), Some(socket), Some(listener)) = (runner, socket, listener) else {
            return Err(unfit("it has no TCP or no UDP"));
        };
        let (read, write) = socket.split();
        let (input, output) = stack.split();
        let exchange = Arc::new(Exchange {
            inbox: Mutex::new(Inbox::new()),
            arrived: Notify::new(),
            write: Mutex::new(write),
            mtu,
        });
        Ok(Started {
            listener: NetstackSmoltcpListener(listener),
            datagrams: NetstackSmoltcpDatagrams(Arc::new(Receiving(Arc::clone(&exchange)))),
            driver: run_together(vec![
                Box::pin(runner),
                Box::pin(arrive(Arc::clone(&port), input)),
                Box::pin(leave(port, output)),
                Box::pin(receive(exchange, read)),
            ]),
            effective: Effective {
                stack_version: VERSION.into(),
                receive_buffer_bytes: window,
                send_buffer_bytes: window,
                window_scale: Some(window_scale(window)),
                largest_packet_bytes: offload.largest_tcp_packet(),
                congestion: "none".into(),
                checksum_verified: true,
                checksum_computed: true,
                workarounds: vec![WORKAROUND.into()],
            },
        })
    }
}

/// Moves packets from the link into the stack.
async fn arrive<L: Link>(port: Arc<Port<L>>, mut input: SplitSink<Stack, AnyIpPktFrame>) -> io::Result<()> {
    let mut buffers = port.buffers();
    loop {
        let count = port.recv(&mut buffers).await?;
        for buffer in &buffers[..count] {
            match input.send(buffer.packet().to_vec()).await {
                // A packet that it cannot read.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                sent => sent?,
            }
        }
    }
}

/// Moves packets from the stack to the link.
async fn leave<L: Link>(port: Arc<Port<L>>, mut output: SplitStream<Stack>) -> io::Result<()> {
    loop {
        let next = if let Some(next) = output.next().now_or_never() {
            next
        } else {
            port.flush()?;
            output.next().await
        };
        let Some(packet) = next else { return Ok(()) };
        port.send(&mut packet?).await?;
    }
}

/// The source of netstack-smoltcp's connections. They come out at their SYN, before the handshake.
pub struct NetstackSmoltcpListener(TcpListener);

impl Listener for NetstackSmoltcpListener {
    type Stream = NetstackSmoltcpStream;

    async fn accept(&mut self) -> io::Result<NetstackSmoltcpStream> {
        match self.0.next().await {
            // It calls the peer's end the local one.
            Some((stream, peer, local)) => Ok(NetstackSmoltcpStream { stream, local, peer }),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "netstack-smoltcp has ended")),
        }
    }
}

/// A connection of netstack-smoltcp's. [`Stream::reset`] closes it: netstack-smoltcp cannot be told to send a RST.
pub struct NetstackSmoltcpStream {
    stream: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Stream for NetstackSmoltcpStream {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl AsyncRead for NetstackSmoltcpStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for NetstackSmoltcpStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // It sends the FIN behind what was written. Only the wait for the rest is left out.
        match Pin::new(&mut self.stream).poll_shutdown(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }
}

/// What the task and the datagrams share.
struct Exchange {
    inbox: Mutex<Inbox>,
    arrived: Notify,
    write: Mutex<WriteHalf>,
    /// The link's.
    mtu: usize,
}

/// No code that may panic runs under a lock in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes datagrams out of the stack, whether anybody wants them or not: it ends when nobody takes them.
async fn receive(exchange: Arc<Exchange>, mut read: ReadHalf) -> io::Result<()> {
    loop {
        if let Some((payload, peer, local)) = read.next().await {
            lock(&exchange.inbox).push(local, peer, &payload);
            exchange.arrived.notify_one();
        } else {
            // A packet that it cannot read looks like the end.
            tokio::task::yield_now().await;
        }
    }
}

/// netstack-smoltcp's datagrams.
#[derive(Clone)]
pub struct NetstackSmoltcpDatagrams(Arc<Receiving>);

/// What all clones share; the last closes the inbox.
struct Receiving(Arc<Exchange>);

impl Drop for Receiving {
    fn drop(&mut self) {
        lock(&self.0.inbox).close();
    }
}

impl Datagrams for NetstackSmoltcpDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let exchange = &self.0.0;
        loop {
            let (datagram, more) = {
                let mut inbox = lock(&exchange.inbox);
                (inbox.pop(buffer), !inbox.is_empty())
            };
            if more {
                exchange.arrived.notify_one();
            }
            match datagram {
                Some(datagram) => return Ok(datagram),
                None => exchange.arrived.notified().await,
            }
        }
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let Exchange { write, mtu, .. } = &*self.0.0;
        check(local, peer, payload.len(), max_payload(*mtu, false).min(MAX_PAYLOAD_V4), *mtu)?;
        let (mut write, mut context) = (lock(write), Context::from_waker(Waker::noop()));
        let mut write = Pin::new(&mut *write);
        match Sink::<UdpMsg>::poll_ready(write.as_mut(), &mut context) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
        }
        // It never waits once it is ready.
        write.start_send((payload.to_vec(), local, peer))
    }
}
