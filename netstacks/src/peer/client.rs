//! A peer as a plain blocking connection.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use platform::Link;

use super::Peer;
use super::signal::Signal;

/// A [`Peer`] for a thread: each call blocks until it is done. It has the limits of [`Peer`].
///
/// Every call fails with [`io::ErrorKind::TimedOut`] after the client's patience, and with
/// [`io::ErrorKind::ConnectionAborted`] once a [`Canceller`] has ended it. Dropping it takes the link away
/// from the stack.
#[derive(Debug)]
pub struct Client<L> {
    peer: Peer<L>,
    patience: Duration,
    signal: Arc<Signal>,
    waker: Waker,
}

/// Ends the waiting of a [`Client`] from another thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Signal>);

impl Canceller {
    /// From now on every call of the client fails, and the one that waits does, too.
    pub fn cancel(&self) {
        self.0.raise();
    }
}

impl<L: Link> Client<L> {
    /// A client whose calls block at most so long.
    pub fn new(peer: Peer<L>, patience: Duration) -> Self {
        let signal = Arc::new(Signal::new());
        let waker = Waker::from(Arc::clone(&signal));
        Self { peer, patience, signal, waker }
    }

    /// A handle that ends its waiting.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.signal))
    }

    /// Connects; see [`Peer::poll_connect`].
    ///
    /// # Errors
    ///
    /// The peer's and the client's own.
    pub fn connect(&mut self) -> io::Result<()> {
        self.wait(Peer::poll_connect)
    }

    /// Ends the sending half; see [`Peer::poll_shutdown`].
    ///
    /// # Errors
    ///
    /// The peer's and the client's own.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.wait(Peer::poll_shutdown)
    }

    fn wait<T>(
        &mut self,
        mut poll: impl FnMut(&mut Peer<L>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        self.signal.attach();
        let mut deadline = None;
        loop {
            if self.signal.is_raised() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client was told to end"));
            }
            if let Poll::Ready(result) = poll(&mut self.peer, &mut Context::from_waker(&self.waker)) {
                return result;
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + self.patience);
            if now >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::park_timeout(deadline - now);
        }
    }
}

impl<L: Link> Read for Client<L> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|peer, cx| peer.poll_read(cx, buffer))
    }
}

impl<L: Link> Write for Client<L> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|peer, cx| peer.poll_write(cx, bytes))
    }

    /// Nothing is kept back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
