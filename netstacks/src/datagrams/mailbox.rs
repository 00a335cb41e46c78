//! An inbox between a stack's task, which puts datagrams in, and those that receive them.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::Inbox;

struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Notify,
    closed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        crate::lock(&self.inbox)
    }
}

/// Where a stack puts its datagrams. When it is dropped, the stack has ended: receiving fails.
pub(crate) struct Deliveries(Arc<Shared>);

/// Where they are received. With the last clone, the inbox closes.
#[derive(Clone)]
pub(crate) struct Mailbox(Arc<Receiving>);

struct Receiving(Arc<Shared>);

pub(crate) fn mailbox() -> (Deliveries, Mailbox) {
    let shared = Arc::new(Shared { inbox: Mutex::new(Inbox::new()), arrived: Notify::new(), closed: Notify::new() });
    (Deliveries(Arc::clone(&shared)), Mailbox(Arc::new(Receiving(shared))))
}

impl Deliveries {
    /// Puts the datagrams of a packet in, or drops them: the inbox may be full or closed. See [`Inbox::push`].
    pub(crate) fn push(&self, local: SocketAddr, peer: SocketAddr, payloads: &[u8], segment_len: Option<NonZeroU16>) {
        self.0.lock().push(local, peer, payloads, segment_len);
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
    /// Waits for datagrams, and takes those that `pop` does.
    pub(crate) async fn recv<T>(&self, mut pop: impl FnMut(&mut Inbox) -> Option<T>) -> io::Result<T> {
        let shared = &self.0.0;
        loop {
            let (taken, more, ended) = {
                let mut inbox = shared.lock();
                (pop(&mut inbox), !inbox.is_empty(), !inbox.is_open())
            };
            if more || ended {
                shared.arrived.notify_one();
            }
            match taken {
                Some(taken) => return Ok(taken),
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
    async fn the_datagrams_of_a_packet_are_taken_together_or_one_by_one() {
        let (deliveries, mailbox) = mailbox();
        let address = SocketAddr::from(([10, 0, 0, 1], 53));
        for _ in 0..2 {
            deliveries.push(address, address, b"oneto", NonZeroU16::new(3));
        }
        let mut buffer = [0; 8];
        let batch = mailbox.recv(|inbox| inbox.pop_batch(&mut buffer)).await.unwrap();
        assert!(batch.payloads(&buffer).eq([&b"one"[..], b"to"]));
        assert_eq!(mailbox.recv(|inbox| inbox.pop(&mut buffer)).await.unwrap().len, 3);
        assert_eq!(mailbox.recv(|inbox| inbox.pop(&mut buffer)).await.unwrap().len, 2);
    }

    #[tokio::test]
    async fn all_receivers_fail_when_the_stack_has_ended() {
        let (deliveries, mailbox) = mailbox();
        let receivers = repeat_with(move || {
            let mailbox = mailbox.clone();
            async move { mailbox.recv(|inbox| inbox.pop(&mut [])).await }
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
