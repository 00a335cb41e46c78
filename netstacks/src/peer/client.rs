//! A peer as a blocking connection.

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
/// A call that blocks for longer than the client's patience fails with [`io::ErrorKind::TimedOut`]. Dropping the client
/// also drops its end of the link.
///
/// ```
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// use netstacks::peer::{Client, Peer};
/// # use netstacks::{Listener, Netstack, Smoltcp, StackConfig};
/// # use platform::MemoryLink;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// # let runtime = tokio::runtime::Runtime::new()?;
/// # let mut stack = runtime.block_on(async { Smoltcp::start(link, &StackConfig::default()) })?;
/// # runtime.spawn(stack.driver);
/// # runtime.spawn(async move {
/// #     let (mut reader, mut writer) = tokio::io::split(stack.listener.accept().await?);
/// #     tokio::io::copy(&mut reader, &mut writer).await?;
/// #     tokio::io::AsyncWriteExt::shutdown(&mut writer).await
/// # });
/// // At the other end of the link is a stack with an echo server.
/// let peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:7".parse()?)?;
/// let mut client = Client::new(peer, Duration::from_secs(10));
/// client.connect()?;
/// client.write_all(b"hello")?;
/// client.shutdown_write()?;
/// let mut echo = String::new();
/// client.read_to_string(&mut echo)?;
/// assert_eq!(echo, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client<L> {
    peer: Peer<L>,
    patience: Duration,
    signal: Arc<Signal>,
    waker: Waker,
}

impl<L: Link> Client<L> {
    /// A client. Each of its calls blocks for at most `patience`.
    pub fn new(peer: Peer<L>, patience: Duration) -> Self {
        let signal = Arc::new(Signal::new());
        let waker = Waker::from(Arc::clone(&signal));
        Self { peer, patience, signal, waker }
    }

    /// Connects; see [`Peer::poll_connect`].
    ///
    /// # Errors
    ///
    /// The errors of [`Peer::poll_connect`] and of [`Client`].
    pub fn connect(&mut self) -> io::Result<()> {
        self.wait(Peer::poll_connect)
    }

    /// Ends the sending half; see [`Peer::poll_shutdown`].
    ///
    /// # Errors
    ///
    /// The errors of [`Peer::poll_shutdown`] and of [`Client`].
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

    /// Does nothing: all written bytes are already sent.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
