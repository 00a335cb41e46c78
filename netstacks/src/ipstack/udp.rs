//! ipstack's UDP: one stream for each pair of addresses, until it is idle. It neither fragments nor reassembles.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use ipstack::IpStackUdpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::flow::Hub;
use crate::datagrams::{Deliveries, MAX_PAYLOAD_V4, Mailbox, check, max_payload};
use crate::{Datagram, Datagrams, FlowKey, FlowMap, lock};

/// Largest number of streams at the same time. The datagrams of further ones are dropped.
const MAX_FLOWS: usize = 4096;
/// Largest number of datagrams that wait in ipstack's queue to the device.
const MAX_LEAVING: usize = 256;

/// The streams, and the buffer that a datagram of one is read into.
#[derive(Debug, Default)]
pub(super) struct Streams {
    flows: FlowMap<IpStackUdpStream>,
    room: Vec<u8>,
}

impl Streams {
    /// Takes the next datagram of a stream; `None` when ipstack has ended it.
    fn poll_recv(&mut self, cx: &mut Context<'_>, key: FlowKey, deliveries: &Deliveries) -> Poll<Option<()>> {
        let Some(stream) = self.flows.get_mut(&key) else { return Poll::Ready(None) };
        let mut buffer = ReadBuf::new(&mut self.room);
        let received = ready!(Pin::new(stream).poll_read(cx, &mut buffer));
        Poll::Ready(received.ok().map(|()| deliveries.push(key.local, key.peer, buffer.filled(), None)))
    }
}

/// Receives the datagrams of a new stream, until ipstack ends it or nobody receives them.
pub(super) async fn receive(hub: Arc<Hub>, key: FlowKey, stream: IpStackUdpStream, deliveries: Arc<Deliveries>) {
    {
        let mut streams = lock(&hub.streams);
        if streams.flows.len() >= MAX_FLOWS {
            return;
        }
        streams.flows.insert(key, stream);
        streams.room.resize(u16::MAX.into(), 0);
    }
    let received = async { while poll_fn(|cx| lock(&hub.streams).poll_recv(cx, key, &deliveries)).await.is_some() {} };
    tokio::select! {
        () = received => {}
        () = deliveries.closed() => {}
    }
    lock(&hub.streams).flows.remove(&key);
}

/// ipstack's datagrams. It can only reply: it cannot send the first datagram of a flow.
#[derive(Clone)]
pub struct IpstackDatagrams {
    pub(super) mailbox: Mailbox,
    pub(super) hub: Arc<Hub>,
    pub(super) mtu: usize,
}

impl Datagrams for IpstackDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let received = self.mailbox.recv(|inbox| inbox.pop(buffer)).await;
        received.map_err(|error| if self.hub.failed.initialized() { self.hub.failure() } else { error })
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        if self.hub.failed.initialized() {
            return Err(self.hub.failure());
        }
        check(local, peer, payload.len(), max_payload(self.mtu, false).min(MAX_PAYLOAD_V4), self.mtu)?;
        let mut streams = lock(&self.hub.streams);
        let Some(stream) = streams.flows.get_mut(&FlowKey { local, peer }) else {
            let reason = format!("send a datagram from {local} to {peer}: ipstack only answers");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        };
        if self.hub.leaving.load(Ordering::Relaxed) >= MAX_LEAVING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.hub.leaving.fetch_add(1, Ordering::Relaxed);
        match Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), payload) {
            Poll::Ready(sent) => sent.map(drop),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}
