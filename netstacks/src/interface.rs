//! The interface of a stack: how it starts, and its connections.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use platform::Link;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Datagrams, Effective, StackConfig, StartError};

/// A running stack.
pub struct Started<Li, D> {
    /// Yields the connections.
    pub listener: Li,
    /// UDP. A program that does not use UDP drops this; the stack then drops all datagrams.
    pub datagrams: D,
    /// The future that keeps the stack running; see [`Driver`].
    pub driver: Driver,
    /// The configuration that the stack really uses. It may differ from the [`StackConfig`].
    pub effective: Effective,
}

/// Serves a stack's timers, and packets that arrive while no stream is polled. Poll it as long as the stack is used; it
/// ends only with an error. The stack is gone when this, the listener, the datagrams and all streams are dropped.
pub type Driver = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A TCP/IP stack that can be started on links of the type `L`.
///
/// A program that is generic over the stack works with all of them. The guide `docs/new-stack.md` implements the trait.
///
/// ```
/// use std::io;
///
/// use netstacks::{Listener, Netstack, StackConfig};
/// use platform::Link;
/// use tokio::io::{copy, split};
///
/// /// Sends back the bytes of each connection.
/// async fn echo<S: Netstack<L>, L: Link>(link: L) -> io::Result<()> {
///     let mut stack = S::start(link, &StackConfig::default()).map_err(io::Error::other)?;
///     tokio::spawn(stack.driver);
///     loop {
///         let stream = stack.listener.accept().await?;
///         tokio::spawn(async {
///             let (mut reader, mut writer) = split(stream);
///             copy(&mut reader, &mut writer).await
///         });
///     }
/// }
/// # let (link, other_end) = platform::MemoryLink::pair(1500, 1);
/// # drop(other_end);
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # assert!(runtime.block_on(echo::<netstacks::Smoltcp, _>(link)).is_err());
/// ```
pub trait Netstack<L: Link>: 'static {
    /// A connection.
    type Stream: Stream;
    /// Yields the connections.
    type Listener: Listener<Stream = Self::Stream>;
    /// UDP; [`NoDatagrams`](crate::NoDatagrams) for a stack without it.
    type Datagrams: Datagrams;

    /// Starts the stack on a link, within the tokio runtime that it then runs on.
    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError>;
}

/// Accepts connections to any address and port.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Stream;

    /// Waits for the next connection whose handshake is complete. Fails if the stack or its link has failed.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Takes bytes from the front of the slices, and returns how many it took; see [`Stream::poll_read_with`].
pub type Sink<'a> = dyn FnMut(&[IoSlice<'_>]) -> io::Result<usize> + 'a;

/// Fills a slice from the front, and returns how many bytes it wrote; see [`Stream::poll_write_with`].
pub type Source<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;

/// A TCP connection.
///
/// - A read returns 0 bytes after the peer's FIN. Writes still work (half-close).
/// - `shutdown` sends our FIN behind the written bytes and does not wait for its acknowledgement. Reads still work.
/// - After a RST from the peer, reads and writes fail with [`io::ErrorKind::ConnectionReset`].
/// - Dropping the stream closes it. Written bytes are still delivered, as long as the driver runs.
///
/// ```
/// # use std::io::{Read, Write};
/// # use netstacks::peer::Client;
/// # use netstacks::{Listener, Netstack, Smoltcp, StackConfig};
/// use netstacks::Stream;
/// # use platform::MemoryLink;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// # let mut stack = Smoltcp::start(link, &StackConfig::default())?;
/// # tokio::spawn(stack.driver);
/// # let client = tokio::task::spawn_blocking(|| -> std::io::Result<String> {
/// #     let (local, remote) = ([10, 0, 0, 1].into(), ([10, 0, 0, 2], 80).into());
/// #     let mut client = Client::connect(other_end, local, remote, std::time::Duration::from_secs(10))?;
/// #     client.write_all(b"request")?;
/// #     client.shutdown_write()?;
/// #     let mut response = String::new();
/// #     client.read_to_string(&mut response).map(|_| response)
/// # });
/// let mut stream = stack.listener.accept().await?;
/// assert_eq!(stream.local_addr(), "10.0.0.2:80".parse()?);
///
/// // The client sends a request and ends its half.
/// let mut request = String::new();
/// stream.read_to_string(&mut request).await?;
/// assert_eq!(request, "request");
///
/// // Our half is still open.
/// stream.write_all(b"response").await?;
/// stream.shutdown().await?;
/// assert_eq!(client.await??, "response");
/// # Ok(())
/// # }
/// ```
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The address that the peer connected to.
    fn local_addr(&self) -> SocketAddr;

    /// The peer's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Calls `sink` with received bytes in the stack's memory, which saves a copy, and again while it takes all.
    /// Returns how many bytes it took, 0 after the peer's FIN.
    ///
    /// Returns pending if the sink refuses the first bytes with [`io::ErrorKind::WouldBlock`], or takes none; the
    /// caller must then arrange its own wake-up. The sink must not block: the stack is locked during the call. A stack
    /// that cannot lend its memory always returns [`io::ErrorKind::Unsupported`].
    ///
    /// ```
    /// use std::future::poll_fn;
    ///
    /// use netstacks::Stream;
    ///
    /// /// Appends what a connection has received.
    /// async fn take<S: Stream>(stream: &mut S, taken: &mut Vec<u8>) -> std::io::Result<usize> {
    ///     let mut sink = |slices: &[std::io::IoSlice<'_>]| {
    ///         slices.iter().for_each(|slice| taken.extend_from_slice(slice));
    ///         Ok(slices.iter().map(|slice| slice.len()).sum())
    ///     };
    ///     poll_fn(|cx| stream.poll_read_with(cx, &mut sink)).await
    /// }
    /// ```
    fn poll_read_with(&mut self, _cx: &mut Context<'_>, _sink: &mut Sink<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Calls `source` with room in the stack's send buffer, and again while it fills all. Returns how many bytes it
    /// wrote, 0 if it has ended. The rest is as for [`Stream::poll_read_with`]. A source must return an error after the
    /// first bytes again at the next call.
    fn poll_write_with(&mut self, _cx: &mut Context<'_>, _source: &mut Source<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Whether a RST, a timeout or a failure has ended the connection, which wakes a reader. `false` if unknown.
    fn has_failed(&self) -> bool {
        false
    }

    /// Ready when [`Stream::has_failed`]. Wakes the last task that called it or a read.
    fn poll_failed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        if self.has_failed() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends the connection with a RST, sent once; unsent and unread bytes are lost. Without RSTs, closes it instead.
    fn reset(self)
    where
        Self: Sized,
    {
        drop(self);
    }
}

/// The addresses of a connection, or of a flow of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The address that the peer sends to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// A map by addresses that clients choose: its hash has a random key, and is faster than the standard library's.
pub type FlowMap<V> = HashMap<FlowKey, V, ahash::RandomState>;
