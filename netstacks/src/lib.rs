//! Userspace TCP/IP stacks behind one interface.
//!
//! A stack starts on any [`platform::Link`] and accepts connections to any address and any
//! port, so the same adapter serves a benchmark and a proxy. Its connections are plain tokio streams:
//!
//! ```
//! use std::future::poll_fn;
//!
//! use netstacks::peer::Peer;
//! use netstacks::{Listener, Netstack, Smoltcp, StackConfig};
//! use platform::MemoryLink;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
//! let mut stack = Smoltcp::start(link, &StackConfig::default())?;
//! tokio::spawn(stack.driver);
//!
//! // A client at the other end of the link.
//! let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:80".parse()?)?;
//! let (connected, accepted) = tokio::join!(poll_fn(|cx| peer.poll_connect(cx)), stack.listener.accept());
//! connected?;
//! let mut stream = accepted?;
//! poll_fn(|cx| peer.poll_write(cx, b"hello")).await?;
//!
//! let mut buffer = [0; 1024];
//! let len = stream.read(&mut buffer).await?;
//! stream.write_all(&buffer[..len]).await?;
//!
//! let mut echo = [0; 1024];
//! let len = poll_fn(|cx| peer.poll_read(cx, &mut echo)).await?;
//! assert_eq!(&echo[..len], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! [`StackKind::visit`] starts a stack that is chosen at run time. [`gate()`] lets a program decide about a connection
//! before the stack sees it. [`peer`] has clients for the other end of a link.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use platform::Link;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

/// Declares the stacks, each by its cargo feature, its module and its type. The macro makes the modules, exports the
/// types, and defines [`StackKind`].
macro_rules! stacks {
    ($($(#[$doc:meta])* $feature:literal => $module:ident::$stack:ident,)*) => {
        $(
            #[cfg(feature = $feature)]
            mod $module;
            #[cfg(feature = $feature)]
            pub use crate::$module::$stack;
        )*

        /// The stacks that users can choose: those that this crate knows, compiled in or not, and those that are
        /// processes of their own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
        pub enum StackKind {
            $(
                $(#[$doc])*
                #[serde(rename = $feature)]
                #[cfg_attr(feature = "clap", value(name = $feature))]
                $stack,
            )*
            /// gVisor's stack, in Go, in a process of its own
            #[serde(rename = "gvisor")]
            #[cfg_attr(feature = "clap", value(name = "gvisor"))]
            Gvisor,
            /// The program of --command, which speaks the protocol of docs/external-stack.md
            #[serde(rename = "external")]
            #[cfg_attr(feature = "clap", value(name = "external"))]
            External,
        }

        impl StackKind {
            /// All stacks of this crate, compiled in or not, in the order in which tables list them.
            ///
            /// ```
            /// use netstacks::StackKind;
            ///
            /// for stack in StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()) {
            ///     println!("{stack} {}", stack.version().unwrap_or_default());
            /// }
            /// assert_eq!(StackKind::Smoltcp.name(), "smoltcp");
            /// assert!(StackKind::Gvisor.is_process() && !StackKind::ALL.contains(&StackKind::Gvisor));
            /// ```
            pub const ALL: [Self; [$($feature),*].len()] = [$(Self::$stack),*];

            /// Whether the stack runs as a separate process, which opens the device itself.
            pub const fn is_process(self) -> bool {
                matches!(self, Self::Gvisor | Self::External)
            }

            /// The name that users type to choose the stack.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$stack => $feature,)*
                    Self::Gvisor => "gvisor",
                    Self::External => "external",
                }
            }

            /// Whether this build includes the stack. Its cargo feature has the same name.
            pub const fn compiled_in(self) -> bool {
                self.version().is_some()
            }

            /// The version of the stack; `None` if this build does not include it.
            pub const fn version(self) -> Option<&'static str> {
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$stack => Some($module::VERSION),
                        #[cfg(not(feature = $feature))]
                        Self::$stack => None,
                    )*
                    Self::Gvisor | Self::External => None,
                }
            }

            /// Calls the visitor with this stack's type. This is the one place where a name becomes a stack.
            ///
            /// # Errors
            ///
            /// [`NotCompiledIn`] if this build does not include the stack.
            pub fn visit<L: Link, V: Visitor<L>>(self, visitor: V) -> Result<V::Output, NotCompiledIn> {
                // A build without any stack does not use it.
                let _ = &visitor;
                match self {
                    $(
                        #[cfg(feature = $feature)]
                        Self::$stack => Ok(visitor.visit::<$stack>()),
                        #[cfg(not(feature = $feature))]
                        Self::$stack => Err(NotCompiledIn(self)),
                    )*
                    Self::Gvisor | Self::External => Err(NotCompiledIn(self)),
                }
            }
        }
    };
}

// One line for each stack.
stacks! {
    /// lwIP, in C, through its raw API
    "lwip" => lwip::Lwip,
    /// The ipstack crate
    "ipstack" => ipstack::Ipstack,
    /// The smoltcp crate
    "smoltcp" => smoltcp::Smoltcp,
    /// The `tcp_ip` crate
    "tcp_ip" => tcp_ip::TcpIp,
    /// The netstack-smoltcp crate: smoltcp as published, behind another adapter
    "netstack-smoltcp" => netstack_smoltcp::NetstackSmoltcp,
    /// The lwip crate: lwIP as published, behind another adapter; only in a build without lwip
    "lwip-published" => lwip_published::LwipPublished,
}

// The linker would mix the functions of the two lwIPs.
#[cfg(all(feature = "lwip", feature = "lwip-published"))]
compile_error!(
    "lwip and lwip-published are lwIP both, with functions of the same names, so one program can have only one of them: \
     build with --no-default-features --features lwip-published,smoltcp, or with other stacks but lwip"
);

// Modules that several stacks share. Some are unused in a build without these stacks.
#[allow(dead_code, unused_imports, unreachable_pub, reason = "not every stack uses it")]
mod datagrams;
#[allow(dead_code, unused_imports, unreachable_pub, reason = "not every stack uses it")]
mod driven;
mod gate;
#[allow(dead_code, reason = "not every stack uses it")]
mod mss_rewrite;
#[allow(dead_code, reason = "not every stack uses it")]
mod offload;
pub mod peer;
#[allow(dead_code, reason = "not every stack uses it")]
mod port;
#[allow(dead_code, reason = "not every stack uses it")]
mod recovery;
#[allow(dead_code, reason = "not every stack uses it")]
mod running;

pub use crate::gate::{Admission, Answers, Gate, Gated, Request, Unreachable, gate};
#[cfg(all(feature = "lwip", feature = "checksums"))]
pub use lwip_sys::checksum as lwip_checksum;

impl fmt::Display for StackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a stack that this build does not include.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this build is without {0}; build it with --features {0}")]
pub struct NotCompiledIn(pub StackKind);

/// Work for a stack that is chosen at run time.
///
/// ```
/// use netstacks::{Netstack, StackConfig, StackKind, StartError, Visitor};
/// use platform::{Link, MemoryLink};
///
/// /// Finds the real size of a receive buffer.
/// struct ReceiveBuffer<L> {
///     link: L,
///     config: StackConfig,
/// }
///
/// impl<L: Link> Visitor<L> for ReceiveBuffer<L> {
///     type Output = Result<usize, StartError>;
///
///     fn visit<S: Netstack<L>>(self) -> Self::Output {
///         Ok(S::start(self.link, &self.config)?.effective.receive_buffer_bytes)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, _other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let config = StackConfig { window: 256 << 10, ..StackConfig::default() };
/// assert_eq!(StackKind::Smoltcp.visit(ReceiveBuffer { link, config })??, 256 << 10);
/// # Ok(())
/// # }
/// ```
pub trait Visitor<L: Link> {
    /// The result of the work.
    type Output;

    /// Does the work with the stack `S`.
    fn visit<S: Netstack<L>>(self) -> Self::Output;
}

/// The configuration that every stack gets. The MTU and the offloads come from the link.
///
/// ```
/// use std::time::Duration;
///
/// use netstacks::StackConfig;
///
/// let config = StackConfig { window: 256 << 10, user_timeout: Duration::from_secs(30), ..StackConfig::default() };
/// assert!((StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(&config.window));
/// assert_eq!(config.backlog, 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Size of each connection's receive buffer and of its send buffer, in bytes. A stack that does not
    /// support this size uses the nearest one, and reports it in [`Effective`]; or it does not start. The default is
    /// 4 MiB, and 512 KiB on 32-bit systems.
    pub window: usize,
    /// A connection fails with [`io::ErrorKind::TimedOut`] if a response is due and the peer is silent for this
    /// long. RFC 1122, 4.2.3.5 asks for at least 100 seconds.
    pub user_timeout: Duration,
    /// Largest number of established connections that wait for [`Listener::accept`]. While there are this many, SYNs
    /// are dropped, and so are the ACKs that would complete a handshake: their clients try again. Half-open
    /// connections do not count. With lwIP, smoltcp and ipstack at most 4,096 of them exist, or as many as the backlog if that
    /// is more, and the oldest gives way to a new one (RFC 4987).
    pub backlog: usize,
}

impl StackConfig {
    /// Smallest window that every stack supports, in bytes.
    pub const MIN_WINDOW: usize = 4 << 10;
    /// Largest window, in bytes: the largest scaled window of RFC 7323, 2.3.
    pub const MAX_WINDOW: usize = (1 << 30) - 1;
}

impl Default for StackConfig {
    fn default() -> Self {
        // smoltcp reserves the addresses of two windows for each connection, and some 32-bit processes have only 2 GiB.
        let window = if cfg!(target_pointer_width = "32") { 512 << 10 } else { 4 << 20 };
        Self { window, user_timeout: Duration::from_secs(100), backlog: 1024 }
    }
}

/// The configuration that a stack really uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Effective {
    /// The stack's version.
    pub stack_version: Cow<'static, str>,
    /// Each connection's receive buffer, in bytes: the largest window that is advertised.
    pub receive_buffer_bytes: usize,
    /// Each connection's send buffer, in bytes, or the most that may be in flight.
    pub send_buffer_bytes: usize,
    /// Shift count of the window scale option (RFC 7323); `None` where the stack has none.
    pub window_scale: Option<u8>,
    /// Largest packet that the stack makes, over IPv4 or IPv6, in bytes, IP header included: the MTU, or a
    /// super-packet, which the link cuts to the MTU.
    pub largest_packet_bytes: usize,
    /// Congestion control of the stack as a sender.
    pub congestion: Cow<'static, str>,
    /// Whether checksums of packets that arrive are verified by the stack.
    pub checksum_verified: bool,
    /// Whether checksums of packets that leave are computed by the stack.
    pub checksum_computed: bool,
    /// What the adapter does in the stack's place, by name: without it the stack could not make a run, or would be
    /// much slower.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workarounds: Vec<Cow<'static, str>>,
}

/// The smallest shift count (RFC 7323, 2.3) that can announce a window of `window` bytes. All stacks use this one.
#[allow(dead_code, reason = "without any stack it is not used")]
fn window_scale(window: usize) -> u8 {
    (usize::BITS - window.leading_zeros()).saturating_sub(u16::BITS) as u8
}

/// Why a stack could not be started.
///
/// ```
/// use netstacks::{Netstack, Smoltcp, StackConfig, StartError};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (link, _other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let config = StackConfig { window: 1, ..StackConfig::default() };
/// let Err(StartError::Unfit { reason, .. }) = Smoltcp::start(link, &config) else { panic!("one byte is too small") };
/// assert!(reason.starts_with("a window of 1 bytes"));
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The stack keeps its state in globals, so only one instance can run in a process.
    #[error("start {0}: it is already running in this process; only one instance is possible at a time")]
    AlreadyRunning(StackKind),
    /// The stack does not support this configuration or this link.
    #[error("start {stack}: {reason}")]
    Unfit {
        /// The stack.
        stack: StackKind,
        /// The value that it does not support, and the values that it supports.
        reason: String,
    },
}

/// A stack has found a fault of its own and has stopped. The driver and the streams fail with an [`io::Error`] that has
/// this as its inner error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StackFault(
    /// What is wrong, and where.
    pub String,
);

impl StackFault {
    /// Whether this is the reason for an error.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

/// A running stack.
///
/// ```
/// use netstacks::{Netstack, Smoltcp, StackConfig, Started};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, _other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let Started { listener, datagrams, driver, effective } = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(driver);
/// // This program does not use UDP: the stack drops all datagrams.
/// drop(datagrams);
/// println!("smoltcp {}, window {} bytes", effective.stack_version, effective.receive_buffer_bytes);
/// # drop(listener);
/// # Ok(())
/// # }
/// ```
pub struct Started<Li, D> {
    /// Yields the connections.
    pub listener: Li,
    /// UDP. A program that does not use UDP drops this; the stack then drops all datagrams.
    pub datagrams: D,
    /// The future that keeps the stack running; see [`Driver`].
    pub driver: Driver,
    /// The configuration that the stack really uses. It may differ from the [`StackConfig`]:
    ///
    /// ```
    /// use netstacks::{Ipstack, Netstack, StackConfig};
    /// use platform::MemoryLink;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (link, _other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    /// let effective = Ipstack::start(link, &StackConfig { window: 1 << 20, ..StackConfig::default() })?.effective;
    /// // ipstack has no window scaling.
    /// assert_eq!((effective.receive_buffer_bytes, effective.window_scale), (65_535, None));
    /// # Ok(())
    /// # }
    /// ```
    pub effective: Effective,
}

/// The future that serves a stack's timers, and packets that arrive while no stream is polled. It must be
/// polled for as long as the stack is used. It ends only with an error: the link or the stack has failed.
/// The stack is gone when the driver, the listener, the datagrams and all streams are dropped.
///
/// ```
/// use netstacks::{Netstack, Smoltcp, StackConfig};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let stack = Smoltcp::start(link, &StackConfig::default())?;
/// let driver = tokio::spawn(stack.driver);
/// // A link in memory fails when its other end is dropped.
/// drop(other_end);
/// let error = driver.await?.unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
/// # Ok(())
/// # }
/// ```
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
    /// UDP; [`NoDatagrams`] for a stack without it.
    type Datagrams: Datagrams;

    /// Starts the stack on a link. Must be called within a tokio runtime; the stack runs on that runtime.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError>;
}

/// Accepts connections to any address and port.
///
/// ```
/// # use std::future::poll_fn;
/// # use netstacks::peer::Peer;
/// use netstacks::{Listener, Netstack, Smoltcp, StackConfig, Stream};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let mut stack = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
/// # let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "192.0.2.7:443".parse()?)?;
/// # let client = tokio::spawn(async move { poll_fn(|cx| peer.poll_connect(cx)).await.map(|()| peer) });
/// // A client connects to 192.0.2.7:443 now.
/// let stream = stack.listener.accept().await?;
/// assert_eq!(stream.local_addr(), "192.0.2.7:443".parse()?);
/// # client.await??;
/// # Ok(())
/// # }
/// ```
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Stream;

    /// Waits for the next connection whose handshake is complete.
    ///
    /// # Errors
    ///
    /// The stack or its link has failed.
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
/// use std::future::poll_fn;
///
/// # use netstacks::peer::Peer;
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
/// # let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:80".parse()?)?;
/// # let (connected, accepted) = tokio::join!(poll_fn(|cx| peer.poll_connect(cx)), stack.listener.accept());
/// # connected?;
/// # let mut stream = accepted?;
/// // `stream` comes from a listener, and `peer` is its client.
/// assert_eq!((stream.local_addr(), stream.peer_addr()), ("10.0.0.2:80".parse()?, "10.0.0.1:4000".parse()?));
///
/// // The client sends a request and ends its half.
/// poll_fn(|cx| peer.poll_write(cx, b"request")).await?;
/// poll_fn(|cx| peer.poll_shutdown(cx)).await?;
/// let mut request = String::new();
/// stream.read_to_string(&mut request).await?;
/// assert_eq!(request, "request");
///
/// // Our half is still open.
/// stream.write_all(b"response").await?;
/// stream.shutdown().await?;
/// let mut response = [0; 100];
/// assert_eq!(poll_fn(|cx| peer.poll_read(cx, &mut response)).await?, 8);
/// assert_eq!(poll_fn(|cx| peer.poll_read(cx, &mut response)).await?, 0);
/// # Ok(())
/// # }
/// ```
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The address that the peer connected to.
    fn local_addr(&self) -> SocketAddr;

    /// The peer's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Calls `sink` with received bytes in the stack's memory, which saves a copy when the bytes are forwarded.
    /// If the sink took all bytes, it is called again with the next ones. Returns how many bytes it took, 0 after the
    /// peer's FIN.
    ///
    /// Returns pending if the sink refuses the first bytes with [`io::ErrorKind::WouldBlock`], or takes none; the
    /// caller must then arrange its own wake-up. The sink must not block: the stack is locked during the call.
    ///
    /// # Errors
    ///
    /// The errors of a read and of the sink. A stack that cannot lend its memory always returns
    /// [`io::ErrorKind::Unsupported`]; use a read instead.
    ///
    /// ```
    /// use std::future::poll_fn;
    ///
    /// # use netstacks::peer::Peer;
    /// # use netstacks::{Listener, Netstack, Smoltcp, StackConfig};
    /// use netstacks::Stream;
    /// # use platform::MemoryLink;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    /// # let mut stack = Smoltcp::start(link, &StackConfig::default())?;
    /// # tokio::spawn(stack.driver);
    /// # let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:80".parse()?)?;
    /// # let (connected, accepted) = tokio::join!(poll_fn(|cx| peer.poll_connect(cx)), stack.listener.accept());
    /// # connected?;
    /// # let mut stream = accepted?;
    /// poll_fn(|cx| peer.poll_write(cx, b"hello")).await?;
    /// let mut taken = Vec::new();
    /// let len = poll_fn(|cx| {
    ///     stream.poll_read_with(cx, &mut |slices| {
    ///         slices.iter().for_each(|slice| taken.extend_from_slice(slice));
    ///         Ok(slices.iter().map(|slice| slice.len()).sum())
    ///     })
    /// });
    /// assert_eq!(len.await?, 5);
    /// assert_eq!(taken, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    fn poll_read_with(&mut self, _cx: &mut Context<'_>, _sink: &mut Sink<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Calls `source` with room in the stack's send buffer, which saves a copy when bytes are forwarded. If the
    /// source filled all the room, it is called again with more. Returns how many bytes it wrote, 0 if it wrote none
    /// because it has ended.
    ///
    /// Returns pending if the source fails with [`io::ErrorKind::WouldBlock`] before it wrote anything; the caller
    /// must then arrange its own wake-up. The source must not block: the stack is locked during the call. An error
    /// after the first bytes is not reported. The source must return it again at the next call, or remember it.
    ///
    /// # Errors
    ///
    /// The errors of a write and of the source. A stack that cannot lend its buffer always returns
    /// [`io::ErrorKind::Unsupported`]; use a write instead.
    ///
    /// ```
    /// use std::future::poll_fn;
    /// use std::io::Read;
    ///
    /// # use netstacks::peer::Peer;
    /// # use netstacks::{Listener, Netstack, Smoltcp, StackConfig};
    /// use netstacks::Stream;
    /// # use platform::MemoryLink;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    /// # let mut stack = Smoltcp::start(link, &StackConfig::default())?;
    /// # tokio::spawn(stack.driver);
    /// # let mut peer = Peer::new(other_end, "10.0.0.1:4000".parse()?, "10.0.0.2:80".parse()?)?;
    /// # let (connected, accepted) = tokio::join!(poll_fn(|cx| peer.poll_connect(cx)), stack.listener.accept());
    /// # connected?;
    /// # let mut stream = accepted?;
    /// let mut file = &b"hello"[..];
    /// let len = poll_fn(|cx| stream.poll_write_with(cx, &mut |room| file.read(room))).await?;
    /// assert_eq!(len, 5);
    /// let mut buffer = [0; 100];
    /// assert_eq!(poll_fn(|cx| peer.poll_read(cx, &mut buffer)).await?, 5);
    /// # Ok(())
    /// # }
    /// ```
    fn poll_write_with(&mut self, _cx: &mut Context<'_>, _source: &mut Source<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Whether a RST, a timeout or a failure has ended the connection, even if bytes are left to read. This end
    /// wakes a task that waits to read. Always `false` if the stack does not report it.
    fn has_failed(&self) -> bool {
        false
    }

    /// Ready when [`Stream::has_failed`]. A task that waits neither to read nor to write, because one half is closed and
    /// the other is idle, hears of a RST or a timeout by this. It wakes one task: the last that called it or a read.
    fn poll_failed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        if self.has_failed() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends the connection with a RST; unsent and unread bytes are lost. The RST is sent once, if the link has
    /// room: a peer that misses it gets another for its next packet. A stack that cannot send a RST closes the
    /// connection instead.
    fn reset(self)
    where
        Self: Sized,
    {
        drop(self);
    }
}

/// The addresses of a connection, or of a flow of datagrams.
///
/// ```
/// use netstacks::FlowKey;
///
/// let key = FlowKey { local: "192.0.2.7:443".parse()?, peer: "10.0.0.1:4000".parse()? };
/// println!("{} connects to {}", key.peer, key.local);
/// # Ok::<_, std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The address that the peer sends to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Whether an address can belong to a single host on a network.
fn is_host(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

/// Largest number of datagrams, or super-packets of them, that wait for [`Datagrams::recv`]. Further ones are dropped.
pub const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Largest number of payload bytes that wait for [`Datagrams::recv`].
pub const MAX_WAITING_BYTES: usize = 4 << 20;

/// UDP, to and from any address and port. All clones share one queue: a datagram is received once.
///
/// - The queue is bounded in number and bytes ([`MAX_WAITING_DATAGRAMS`], [`MAX_WAITING_BYTES`]); further datagrams are
///   dropped. After the last clone is dropped, all datagrams are dropped, without an ICMP message.
/// - Only unicast is received: no multicast, no broadcast, no port 0. A datagram is dropped if its UDP length is not the
///   length of its packet, and over IPv6 if it has no checksum (RFC 8200, 8.1).
/// - Datagrams that are longer than a packet of the MTU: over IPv4, lwIP and smoltcp fragment up to 65,507 bytes, and
///   reassemble about four datagrams at once; ipstack does neither. Over IPv6 no stack does.
/// - ipstack only replies: it sends nothing between two addresses before a datagram has arrived between them.
///
/// ```
/// use netstacks::peer::Peers;
/// use netstacks::{Datagrams, Netstack, Smoltcp, StackConfig};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let stack = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
/// let mut peers = Peers::new(other_end, "10.0.0.1".parse()?);
/// peers.send_datagram(4000, "10.0.0.2:53".parse()?, b"query")?;
///
/// let mut buffer = [0; 1500];
/// let query = stack.datagrams.recv(&mut buffer).await?;
/// assert_eq!(&buffer[..query.len], b"query");
/// stack.datagrams.try_send(query.local, query.peer, b"answer")?;
/// // The same for datagrams that came in one packet. Each is passed on with its own length.
/// peers.send_datagram(4000, "10.0.0.2:53".parse()?, b"another")?;
/// let batch = stack.datagrams.recv_batch(&mut buffer).await?;
/// assert!(batch.payloads(&buffer).eq([b"another"]));
/// stack.datagrams.try_send_batch(batch.local, batch.peer, &buffer[..batch.len], batch.segment_len)?;
/// # Ok(())
/// # }
/// ```
pub trait Datagrams: Clone + Send + Sync + 'static {
    /// Waits for the next datagram and copies its payload into `buffer`, as far as it fits. A buffer of 65,535
    /// bytes holds any.
    ///
    /// # Errors
    ///
    /// The stack or its link has failed.
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send;

    /// The same for several datagrams between the same addresses, if they came in one super-packet. A buffer of 65,535 bytes
    /// holds any; a shorter one may cut the last. A stack that does not take super-packets returns one datagram.
    ///
    /// # Errors
    ///
    /// The stack or its link has failed.
    fn recv_batch(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<DatagramBatch>> + Send {
        async { self.recv(buffer).await.map(DatagramBatch::from) }
    }

    /// Sends a datagram from `local` to `peer`. Does not wait.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::WouldBlock`] if the link or a queue is full; the datagram is not sent.
    /// - [`io::ErrorKind::InvalidInput`] if it is longer than the stack can send, the addresses are of two
    ///   IP versions, one of them cannot belong to a host, or the stack only answers and nothing has come.
    /// - The stack or its link has failed.
    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()>;

    /// Sends datagrams that lie back to back in `payloads`, each of `segment_len` bytes; the last may be shorter. Returns
    /// the bytes of those that were sent. A stack on a link with UDP super-packets sends as many as fit in one packet. A
    /// `segment_len` of 0 means one datagram.
    ///
    /// # Errors
    ///
    /// As for [`Datagrams::try_send`]; none was sent.
    fn try_send_batch(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        let mut sent = 0;
        for payload in segments(payloads, segment_len) {
            match self.try_send(local, peer, payload) {
                Ok(()) => sent += payload.len(),
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// The datagrams of a stack or an adapter without UDP: none ever arrives.
///
/// ```
/// use netstacks::{Effective, NoDatagrams, Started};
///
/// /// The end of an adapter's `Netstack::start`.
/// fn started<L>(listener: L, effective: Effective) -> Started<L, NoDatagrams> {
///     Started { listener, datagrams: NoDatagrams, driver: Box::pin(std::future::pending()), effective }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDatagrams;

impl Datagrams for NoDatagrams {
    async fn recv(&self, _: &mut [u8]) -> io::Result<Datagram> {
        std::future::pending().await
    }

    /// Always returns [`io::ErrorKind::Unsupported`].
    fn try_send(&self, _: SocketAddr, _: SocketAddr, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of payload in the receiver's buffer.
    pub len: usize,
    /// The address that the peer sent it to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Datagrams between two addresses that have arrived together: one, or several of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramBatch {
    /// Bytes of all payloads, which lie back to back in the receiver's buffer.
    pub len: usize,
    /// Payload of each datagram, in bytes. The last may be shorter.
    pub segment_len: usize,
    /// The address that the peer sent them to.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

impl DatagramBatch {
    /// The payload of each datagram, out of the buffer that they were received into.
    pub fn payloads<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        segments(&buffer[..self.len], self.segment_len)
    }
}

impl From<Datagram> for DatagramBatch {
    fn from(Datagram { len, local, peer }: Datagram) -> Self {
        Self { len, segment_len: len, local, peer }
    }
}

/// The payloads of datagrams that lie back to back. An empty one is a datagram, too.
fn segments(payloads: &[u8], segment_len: usize) -> impl Iterator<Item = &[u8]> {
    let segment_len = if segment_len == 0 { payloads.len() } else { segment_len };
    let (first, rest) = payloads.split_at(segment_len.min(payloads.len()));
    iter::once(first).chain(rest.chunks(segment_len.max(1)))
}

/// The source files of the Go program that runs gVisor's stack, without its tests. The first is `go.mod`.
///
/// ```
/// assert_eq!(netstacks::GVISOR_SOURCES[0].0, "go.mod");
/// ```
pub const GVISOR_SOURCES: [(&str, &str); 7] = [
    ("go.mod", include_str!("../gvisor/go.mod")),
    ("go.sum", include_str!("../gvisor/go.sum")),
    ("application.go", include_str!("../gvisor/application.go")),
    ("main.go", include_str!("../gvisor/main.go")),
    ("server.go", include_str!("../gvisor/server.go")),
    ("datagrams_linux.go", include_str!("../gvisor/datagrams_linux.go")),
    ("stack_linux.go", include_str!("../gvisor/stack_linux.go")),
];

/// Compiles and runs the code of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/new-stack.md")]
struct NewStackGuide;

/// Inserts hop-by-hop options into an IPv6 packet, and destination options if `both`.
#[cfg(test)]
fn with_extension_headers(packet: &[u8], both: bool) -> Vec<u8> {
    let mut extensions = vec![packet[6], 0, 1, 4, 0, 0, 0, 0];
    if both {
        extensions[0] = 60;
        extensions.extend([packet[6], 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    let mut packet = packet.to_vec();
    packet[6] = 0;
    let len = u16::from_be_bytes([packet[4], packet[5]]) + extensions.len() as u16;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet.splice(40..40, extensions);
    packet
}

#[test]
fn the_window_scale_is_the_smallest_that_fits() {
    for (window, scale) in
        [(4 << 10, 0), (65_535, 0), (65_536, 1), (256 << 10, 3), (4 << 20, 7), (StackConfig::MAX_WINDOW, 14)]
    {
        assert_eq!(window_scale(window), scale, "{window}");
    }
}
