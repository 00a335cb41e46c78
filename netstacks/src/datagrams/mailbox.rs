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
    closed: Notify,
}

impl Shared {
    /// No code that may panic runs under the lock in the middle of a change.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a stack puts its datagrams. When it is dropped, the stack has ended: receiving fails.
pub(crate) struct Deliveries(Arc<Shared>);

/// Where they are received. With the last clone, the inbox closes.
#[derive(Clone)]
pub(crate) struct Mailbox(Arc<Receiving>);

struct Receiving(Arc<Shared>);

/// The two ends of an empty inbox.
pub(crate) fn mailbox() -> (Deliveries, Mailbox) {
    let shared = Arc::new(Shared { inbox: Mutex::new(Inbox::new()), arrived: Notify::new(), closed: Notify::new() });
    (Deliveries(Arc::clone(&shared)), Mailbox(Arc::new(Receiving(shared))))
}

impl Deliveries {
    /// Puts a datagram in, or drops it: the inbox may be full or closed.
    pub(crate) fn push(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) {
        self.0.lock().push(local, peer, payload, None);
        self.0.arrived.notify_one();
    }

    /// Ready once nobody can receive datagrams any more.
    pub(crate) async fn closed(&self) {
        // It is notified from now on, so it misses nothing between the look and the wait.
        let closed = self.0.closed.notified();
        if self.0.lock().is_open() {
            closed.await;
        }
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.0.lock().close();
        self.0.arrived.notify_one();
    }
}

impl Mailbox {
    /// See [`crate::Datagrams::recv`].
    pub(crate) async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let shared = &self.0.0;
        loop {
            let (datagram, more, ended) = {
                let mut inbox = shared.lock();
                (inbox.pop(buffer), !inbox.is_empty(), !inbox.is_open())
            };
            if more || ended {
                shared.arrived.notify_one();
            }
            match datagram {
                Some(datagram) => return Ok(datagram),
                None if ended => return Err(io::Error::new(io::ErrorKind::NotConnected, "the stack has ended")),
                None => shared.arrived.notified().await,
            }
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.lock().close();
        self.0.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::iter::repeat_with;
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// Runs several copies of a future until all wait, and then ends one side of the mailbox. Returns their results.
    async fn all_end<T: Send + 'static>(
        futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
        side: impl Sized,
    ) -> Vec<T> {
        let futures: JoinSet<_> = futures.take(3).collect();
        tokio::task::yield_now().await;
        drop(side);
        timeout(DEADLINE, futures.join_all()).await.unwrap()
    }

    #[tokio::test]
    async fn all_receivers_fail_when_the_stack_has_ended() {
        let (deliveries, mailbox) = mailbox();
        let receivers = repeat_with(move || {
            let mailbox = mailbox.clone();
            async move { mailbox.recv(&mut []).await }
        });
        let received = all_end(receivers, deliveries).await;
        assert!(received.iter().all(|end| end.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotConnected)));
    }

    #[tokio::test]
    async fn a_stack_learns_that_nobody_receives() {
        let (deliveries, mailbox) = mailbox();
        let deliveries = Arc::new(deliveries);
        let wait = || {
            let deliveries = Arc::clone(&deliveries);
            async move { deliveries.closed().await }
        };
        all_end(repeat_with(wait), mailbox).await;
        timeout(DEADLINE, deliveries.closed()).await.unwrap();
    }
}
