//! An inbox between a stack's task, which puts datagrams in, and those that receive them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Inbox;
use crate::Datagram;

/// What both ends share.
struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Notify,
}

impl Shared {
    /// No code that may panic runs under the lock in the middle of a change.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a stack puts its datagrams.
pub(crate) struct Deliveries(Arc<Shared>);

/// Where they are received. With the last clone, the inbox closes.
#[derive(Clone)]
pub(crate) struct Mailbox(Arc<Receiving>);

struct Receiving(Arc<Shared>);

/// The two ends of an empty inbox.
pub(crate) fn mailbox() -> (Deliveries, Mailbox) {
    let shared = Arc::new(Shared { inbox: Mutex::new(Inbox::new()), arrived: Notify::new() });
    (Deliveries(Arc::clone(&shared)), Mailbox(Arc::new(Receiving(shared))))
}

impl Deliveries {
    /// Puts a datagram in, or drops it: the inbox may be full or closed.
    pub(crate) fn push(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) {
        self.0.lock().push(local, peer, payload, None);
        self.0.arrived.notify_one();
    }
}

impl Mailbox {
    /// See [`crate::Datagrams::recv`].
    pub(crate) async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let shared = &self.0.0;
        loop {
            let (datagram, more) = {
                let mut inbox = shared.lock();
                (inbox.pop(buffer), !inbox.is_empty())
            };
            if more {
                shared.arrived.notify_one();
            }
            match datagram {
                Some(datagram) => return Ok(datagram),
                None => shared.arrived.notified().await,
            }
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.lock().close();
    }
}
