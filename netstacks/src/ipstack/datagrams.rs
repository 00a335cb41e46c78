//! ipstack's UDP: one stream for each pair of addresses.
//!
//! ipstack makes the stream when the first datagram arrives, and ends it when it is idle. It neither fragments nor
//! reassembles. It can only send between addresses that have a stream.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::stream::Hub;
use crate::{Datagram, Datagrams, FlowKey};

/// Receives the datagrams of a stream until ipstack ends it.
pub(super) async fn receive(hub: Arc<Hub>, key: FlowKey) {
    while poll_fn(|cx| hub.exchange().poll_stream(cx, key)).await.is_some() {}
    hub.exchange().remove(&key);
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
        if let Some(datagram) = exchange.receive(cx, buffer) {
            budget.made_progress();
            return Poll::Ready(Ok(datagram));
        }
        // The task is registered before this check: a failure from now on wakes it.
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
