//! The `netstack-smoltcp` crate behind the common interface: smoltcp 0.12 with one runner for all connections. The
//! difference from `smoltcp` shows the cost of an adapter. This one moves packets as the crate's examples do.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ::netstack_smoltcp::udp::{ReadHalf, UdpMsg, WriteHalf};
use ::netstack_smoltcp::{AnyIpPktFrame, Stack, StackBuilder, TcpListener, TcpStream};
use futures_util::stream::SplitSink;
use futures_util::{Sink, SinkExt, StreamExt};
use platform::Link;
use tokio::io::AsyncWrite;

use crate::addressed::{Addressed, Inner};
use crate::datagrams::{Deliveries, MAX_PAYLOAD_V4, Mailbox, check, mailbox, max_payload};
use crate::mss_rewrite;
use crate::port::{Port, leave, run_together};
use crate::{
    Datagram, Datagrams, Effective, Listener, Netstack, StackConfig, StackKind, StartError, Started, lock, window_scale,
};

/// As in `Cargo.lock`; the crate has no constant for it.
pub(crate) const VERSION: &str = "0.2.4";

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
        let capabilities = link.capabilities();
        let mtu = capabilities.mtu;
        let unfit = |reason: &str| StartError::Unfit { stack: StackKind::NetstackSmoltcp, reason: reason.to_owned() };
        let offload = mss_rewrite::offload(&capabilities, config.workarounds);
        let port = Arc::new(Port::new(link, offload, true));
        let window = config.window.clamp(StackConfig::MIN_WINDOW, StackConfig::MAX_WINDOW);
        let builder = StackBuilder::default().enable_tcp(true).enable_udp(true).enable_icmp(true);
        let builder = builder.tcp_recv_buffer_size(window as u32).tcp_send_buffer_size(window as u32);
        let built = builder.mtu(offload.largest_packet()).build();
        let (stack, runner, socket, listener) = built.map_err(|error| unfit(&error.to_string()))?;
        let (Some(runner), Some(socket), Some(listener)) = (runner, socket, listener) else {
            return Err(unfit("it has no TCP or no UDP"));
        };
        let (read, write) = socket.split();
        let (input, mut output) = stack.split();
        let (deliveries, mailbox) = mailbox();
        Ok(Started {
            listener: NetstackSmoltcpListener(listener),
            datagrams: NetstackSmoltcpDatagrams { mailbox, write: Arc::new(Mutex::new(write)), mtu },
            driver: run_together(vec![
                Box::pin(runner),
                Box::pin(arrive(Arc::clone(&port), input)),
                Box::pin(leave(port, move |cx| output.poll_next_unpin(cx))),
                Box::pin(receive(deliveries, read)),
            ]),
            effective: Effective {
                receive_buffer_bytes: window,
                send_buffer_bytes: window,
                window_scale: Some(window_scale(window)),
                ..Effective::of(StackKind::NetstackSmoltcp, config, &offload)
            },
        })
    }
}

async fn arrive<L: Link>(port: Arc<Port<L>>, mut input: SplitSink<Stack, AnyIpPktFrame>) -> io::Result<()> {
    let mut buffers = port.buffers();
    loop {
        let count = port.recv(&mut buffers).await?;
        for buffer in &buffers[..count] {
            match input.send(buffer.packet().to_vec()).await {
                // The stack cannot parse this packet.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                sent => sent?,
            }
        }
    }
}

/// The listener of netstack-smoltcp. It yields a connection at its SYN, before the handshake is complete.
pub struct NetstackSmoltcpListener(TcpListener);

impl Listener for NetstackSmoltcpListener {
    type Stream = NetstackSmoltcpStream;

    async fn accept(&mut self) -> io::Result<NetstackSmoltcpStream> {
        match self.0.next().await {
            // In the crate, the peer's address is the local one.
            Some((stream, peer, local)) => Ok(NetstackSmoltcpStream { stream, local, peer, beside: () }),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "netstack-smoltcp has ended")),
        }
    }
}

/// A connection of netstack-smoltcp. [`Stream::reset`](crate::Stream::reset) closes it: the crate cannot send a RST.
type NetstackSmoltcpStream = Addressed<TcpStream>;

impl Inner for TcpStream {
    type Beside = ();

    /// Sends the FIN behind the written bytes. It does not wait for the rest of the close.
    fn shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(self).poll_shutdown(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }
}

/// Takes datagrams out of the stack, even if the program does not use UDP: the stack ends when its receiver is dropped.
async fn receive(deliveries: Deliveries, mut read: ReadHalf) -> io::Result<()> {
    loop {
        if let Some((payload, peer, local)) = read.next().await {
            deliveries.push(local, peer, &payload, None);
        } else {
            // A packet that the stack cannot parse looks like the end.
            tokio::task::yield_now().await;
        }
    }
}

#[derive(Clone)]
pub struct NetstackSmoltcpDatagrams {
    mailbox: Mailbox,
    write: Arc<Mutex<WriteHalf>>,
    mtu: usize,
}

impl Datagrams for NetstackSmoltcpDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        self.mailbox.recv(|inbox| inbox.pop(buffer)).await
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        check(local, peer, payload.len(), max_payload(self.mtu, false).min(MAX_PAYLOAD_V4), self.mtu)?;
        let mut write = lock(&self.write);
        let mut context = Context::from_waker(Waker::noop());
        let mut write = Pin::new(&mut *write);
        match Sink::<UdpMsg>::poll_ready(write.as_mut(), &mut context) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
        }
        // It never waits once it is ready.
        write.start_send((payload.to_vec(), local, peer))
    }
}
