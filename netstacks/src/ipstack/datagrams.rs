//! ipstack's UDP: one stream for each pair of addresses.
//!
//! ipstack makes the stream when the first datagram arrives, and ends it when it is idle. It neither fragments nor
//! reassembles. It can only send between addresses that have a stream.

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

/// Largest number of streams at the same time. The datagrams of further ones are dropped.
const MAX_FLOWS: usize = 4096;
/// Largest number of datagrams that wait in ipstack's queue to the device.
const MAX_LEAVING: usize = 256;

/// The UDP state that the driver, the streams' tasks and the receivers share.
#[derive(Debug)]
pub(super) struct Exchange {
    inbox: Inbox,
    receivers: Receivers,
    flows: HashMap<FlowKey, IpStackUdpStream>,
    /// The buffer that a stream's datagram is read into.
    room: Box<[u8]>,
    /// The MTU of the link.
    mtu: usize,
    /// Datagrams in ipstack's queue to the device.
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

    /// The device has sent a packet that is not TCP.
    pub(super) fn left(&mut self) {
        self.leaving = self.leaving.saturating_sub(1);
    }

    /// Adds a new stream of ipstack. Returns whether it is kept.
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
        // This never waits.
        match Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), payload) {
            Poll::Ready(sent) => sent.map(drop),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Drops all datagrams from now on: all receivers are gone.
    fn close(&mut self) {
        self.inbox.close();
        self.flows.clear();
    }
}

/// ipstack's datagrams. It can only reply: it cannot send the first datagram of a flow.
#[derive(Clone, Debug)]
pub struct IpstackDatagrams(Arc<Receiving>);

/// Shared by all clones. Dropping the last one closes the exchange.
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
        // This check comes after `park`: a failure from now on wakes the task.
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
