//! An engine's datagrams. A task that receives drives the engine, as a reader of a stream does, unless a
//! datagram already waits.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;
use tokio::time::Instant;

use super::{Engine, Shared, Waiter, Wakes};
use crate::datagrams::Receivers;
use crate::{Datagram, Datagrams};

/// The datagrams of an engine.
pub struct DrivenDatagrams<E: Engine>(Arc<Receiving<E>>);

/// What all clones share; the last closes the engine's datagrams.
struct Receiving<E: Engine>(Shared<E>);

impl<E: Engine> DrivenDatagrams<E> {
    pub(super) fn new(shared: Shared<E>) -> Self {
        Self(Arc::new(Receiving(shared)))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Datagram>> {
        let budget = ready!(coop::poll_proceed(cx));
        let mut wakes = Wakes::default();
        let mut state = self.0.0.lock()?;
        let receive = |engine: &mut E| engine.recv_datagram(buffer);
        let polled = state.poll_operation(Waiter::Datagrams, cx, &mut wakes, receive);
        if polled.is_ready() {
            budget.made_progress();
        } else {
            state.receivers.park(cx);
        }
        polled
    }
}

impl<E: Engine> Clone for DrivenDatagrams<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Engine> Datagrams for DrivenDatagrams<E> {
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send {
        poll_fn(move |cx| self.poll_recv(cx, buffer))
    }

    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let mut wakes = Wakes::default();
        let mut state = self.0.0.lock()?;
        let result = state.engine.send_datagram(Instant::now(), local, peer, payload);
        // The driver has to wait for room on the link.
        if state.engine.is_blocked() {
            state.call_driver(&mut wakes);
        }
        match result {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidInput) => Err(error),
            result => state.failed(result, &mut wakes),
        }
    }
}

impl<E: Engine> Drop for Receiving<E> {
    fn drop(&mut self) {
        // A stack that has failed receives nothing.
        let Ok(mut state) = self.0.lock() else { return };
        state.receivers = Receivers::default();
        state.engine.close_datagrams();
    }
}
