//! ipstack's UDP: a stream for each pair of a peer and an address that it sends to.
//!
//! ipstack makes the stream when the first datagram comes, and ends it when it is idle. It neither fragments nor
//! reassembles, and sends nothing between addresses of which it has no stream.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use ipstack::IpStackUdpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::flow::Hub;
use crate::datagrams::{Inbox, MAX_PAYLOAD_V4, Receivers, check, max_payload};
use crate::{Datagram, Datagrams, FlowKey};

/// Streams at once. A datagram of a further one is dropped.
const MAX_FLOWS: usize = 4096;
/// Datagrams that may wait in ipstack's queue to the device.
const MAX_LEAVING: usize = 256;

/// What the driver, the streams' tasks and the receivers share of UDP.
#[derive(Debug)]
pub(super) struct Exchange {
    inbox: Inbox,
    receivers: Receivers,
    flows: HashMap<FlowKey, IpStackUdpStream>,
    /// Where a stream's datagram is put for a moment.
    room: Box<[u8]>,
    /// The link's.
    mtu: usize,
    /// Datagrams that ipstack has and the device has not.
    leaving: usize,
}

impl Exchange {
    pub(super) fn new(mtu: usize) -> Self {
        let room = vec![0; usize::from(u16::MAX)].into_boxed_slice();
        Self { inbox: Inbox::new(), receivers: Receivers::default(), flows: HashMap::new(), room, mtu, leaving: 0 }
    }

    pub(super) fn wake(&mut self) {
        self.receivers.wake();
    }

    /// A packet that is not TCP has left.
    pub(super) fn left(&mut self) {
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Takes in a stream that has come out of ipstack. Returns whether it may be used.
    pub(super) fn insert(&mut self, key: FlowKey, stream: IpStackUdpStream) -> bool {
        let takes = self.inbox.is_open() && self.flows.len() < MAX_FLOWS;
        if takes {
            self.flows.insert(key, stream);
        }
        takes
    }

    /// Receives the datagrams of a stream until ipstack ends it.
    pub(super) async fn receive(hub: Arc<Hub>, key: FlowKey) {
        while poll_fn(|cx| hub.exchange().poll_stream(cx, key)).await.is_some() {}
        hub.exchange().flows.remove(&key);
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, key: FlowKey) -> Poll<Option<()>> {
        let Some(stream) = self.flows.get_mut(&key) else { return Poll::Ready(None) };
        let mut buffer = ReadBuf::new(&mut self.room);
        let polled = ready!(Pin::new(stream).poll_read(cx, &mut buffer));
        if polled.is_ok() {
            self.inbox.push(key.local, key.peer, buffer.filled(), None);
            self.receivers.wake();
        }
        Poll::Ready(polled.ok())
    }

    fn send(&mut self, key: FlowKey, payload: &[u8]) -> io::Result<()> {
        check(key.local, key.peer, payload.len(), max_payload(self.mtu, false).min(MAX_PAYLOAD_V4), self.mtu)?;
        let Some(stream) = self.flows.get_mut(&key) else {
            let reason = format!("send a datagram from {} to {}: ipstack only answers", key.local, key.peer);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        };
        if self.leaving >= MAX_LEAVING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.leaving += 1;
        // It never waits.
        match Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), payload) {
            Poll::Ready(sent) => sent.map(drop),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Nobody receives any more.
    fn close(&mut self) {
        self.inbox.close();
        self.flows.clear();
    }
}

/// ipstack's datagrams. It answers; it cannot send the first one.
#[derive(Clone, Debug)]
pub struct IpstackDatagrams(Arc<Receiving>);

/// What all clones share; the last closes the exchange.
#[derive(Debug)]
struct Receiving(Arc<Hub>);

impl IpstackDatagrams {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self(Arc::new(Receiving(hub)))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Datagram>> {
        let budget = ready!(coop::poll_proceed(cx));
        let hub = &self.0.0;
        let mut exchange = hub.exchange();
        if let Some(datagram) = exchange.inbox.pop(buffer) {
            budget.made_progress();
            return Poll::Ready(Ok(datagram));
        }
        exchange.receivers.park(cx);
        // Behind the parking: a failure from now on wakes.
        if hub.has_failed() { Poll::Ready(Err(hub.failure())) } else { Poll::Pending }
    }
}

impl Datagrams for IpstackDatagrams {
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send {
        poll_fn(move |cx| self.poll_recv(cx, buffer))
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let hub = &self.0.0;
        if hub.has_failed() {
            return Err(hub.failure());
        }
        hub.exchange().send(FlowKey { local, peer }, payload)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.exchange().close();
    }
}
