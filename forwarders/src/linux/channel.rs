//! Bounded channels, for threads and for tasks, of the shape that [`super::port`] has.

use std::sync::mpsc::{Receiver as BlockingReceiver, SyncSender};

use tokio::sync::mpsc;

/// The receiver is no more.
pub(super) struct Closed;

/// The end that packets go into.
pub(super) trait Sender<T>: Send + 'static {
    /// Waits for room.
    fn send(&mut self, item: T) -> impl Future<Output = Result<(), Closed>> + Send;
}

/// The end that they come out of.
pub(super) trait Receiver<T>: Send + 'static {
    /// Waits for an item; `None` where nobody sends any more.
    fn recv(&mut self) -> impl Future<Output = Option<T>> + Send;

    /// An item that is there already.
    fn try_recv(&mut self) -> Option<T>;
}

impl<T: Send + 'static> Sender<T> for SyncSender<T> {
    async fn send(&mut self, item: T) -> Result<(), Closed> {
        Self::send(self, item).map_err(|_| Closed)
    }
}

impl<T: Send + 'static> Receiver<T> for BlockingReceiver<T> {
    async fn recv(&mut self) -> Option<T> {
        Self::recv(self).ok()
    }

    fn try_recv(&mut self) -> Option<T> {
        Self::try_recv(self).ok()
    }
}

impl<T: Send + 'static> Sender<T> for mpsc::Sender<T> {
    async fn send(&mut self, item: T) -> Result<(), Closed> {
        Self::send(self, item).await.map_err(|_| Closed)
    }
}

impl<T: Send + 'static> Receiver<T> for mpsc::Receiver<T> {
    async fn recv(&mut self) -> Option<T> {
        Self::recv(self).await
    }

    fn try_recv(&mut self) -> Option<T> {
        Self::try_recv(self).ok()
    }
}
