//! Userspace TCP/IP stacks behind one interface.
//!
//! A stack is started on any [`platform::Link`] and accepts connections to any address and any
//! port, so the same adapter serves a benchmark and a proxy. What comes out are plain tokio streams:
//!
//! ```no_run
//! use netstacks::{Listener, Netstack, StackConfig};
//! use platform::MemoryLink;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! async fn echo<S: Netstack<MemoryLink>>() -> Result<(), Box<dyn std::error::Error>> {
//!     let (link, _other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
//!     let mut stack = S::start(link, &StackConfig::default())?;
//!     tokio::spawn(stack.driver);
//!     let mut stream = stack.listener.accept().await?;
//!     let mut buffer = [0; 1024];
//!     let len = stream.read(&mut buffer).await?;
//!     stream.write_all(&buffer[..len]).await?;
//!     Ok(())
//! }
//! ```
//!
//! A stack that is chosen at run time is started through [`StackKind::visit`].

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use platform::Link;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(any(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod datagrams;
#[cfg(any(feature = "lwip", feature = "smoltcp"))]
mod driven;
mod gate;
#[cfg(feature = "ipstack")]
mod ipstack;
#[cfg(feature = "lwip")]
mod lwip;
#[cfg(any(feature = "lwip", feature = "ipstack", feature = "smoltcp"))]
mod offload;
pub mod peer;
#[cfg(any(feature = "smoltcp", all(test, any(feature = "lwip", feature = "ipstack"))))]
mod shim;
#[cfg(feature = "smoltcp")]
mod smoltcp;

pub use crate::gate::{Admission, Answers, Gate, Gated, Request, Unreachable, gate};
#[cfg(feature = "ipstack")]
pub use crate::ipstack::Ipstack;
#[cfg(feature = "lwip")]
pub use crate::lwip::Lwip;
#[cfg(feature = "smoltcp")]
pub use crate::smoltcp::Smoltcp;
#[cfg(all(feature = "lwip", feature = "checksums"))]
pub use lwip_sys::checksum as lwip_checksum;

/// The stacks that this crate knows, compiled in or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum StackKind {
    /// lwIP, in C, through its raw API.
    Lwip,
    /// The `ipstack` crate.
    Ipstack,
    /// The `smoltcp` crate.
    Smoltcp,
}

impl StackKind {
    /// All of them, in the order in which tables list them.
    pub const ALL: [Self; 3] = [Self::Lwip, Self::Ipstack, Self::Smoltcp];

    /// The name by which users choose the stack.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lwip => "lwip",
            Self::Ipstack => "ipstack",
            Self::Smoltcp => "smoltcp",
        }
    }

    /// Whether this build has the stack: a cargo feature of the same name.
    pub const fn compiled_in(self) -> bool {
        match self {
            Self::Lwip => cfg!(feature = "lwip"),
            Self::Ipstack => cfg!(feature = "ipstack"),
            Self::Smoltcp => cfg!(feature = "smoltcp"),
        }
    }

    /// The version of the stack; `None` where this build is without it.
    pub const fn version(self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "lwip")]
            Self::Lwip => Some(lwip::VERSION),
            #[cfg(feature = "ipstack")]
            Self::Ipstack => Some(ipstack::VERSION),
            #[cfg(feature = "smoltcp")]
            Self::Smoltcp => Some(smoltcp::VERSION),
            #[cfg(not(all(feature = "lwip", feature = "ipstack", feature = "smoltcp")))]
            _ => None,
        }
    }

    /// Calls the visitor with this stack's type: the one place where a name becomes a stack.
    ///
    /// # Errors
    ///
    /// [`NotCompiledIn`], where this build is without the stack.
    pub fn visit<L: Link, V: Visitor<L>>(self, visitor: V) -> Result<V::Output, NotCompiledIn> {
        match self {
            #[cfg(feature = "lwip")]
            Self::Lwip => Ok(visitor.visit::<Lwip>()),
            #[cfg(feature = "ipstack")]
            Self::Ipstack => Ok(visitor.visit::<Ipstack>()),
            #[cfg(feature = "smoltcp")]
            Self::Smoltcp => Ok(visitor.visit::<Smoltcp>()),
            #[cfg(not(all(feature = "lwip", feature = "ipstack", feature = "smoltcp")))]
            _ => {
                drop(visitor);
                Err(NotCompiledIn(self))
            }
        }
    }
}

impl fmt::Display for StackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A stack that this build is without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this build is without {0}; build it with --features {0}")]
pub struct NotCompiledIn(pub StackKind);

/// Something to be done with a stack whose type is known only at run time.
pub trait Visitor<L: Link> {
    /// What it comes to.
    type Output;

    /// Does it with the stack `S`.
    fn visit<S: Netstack<L>>(self) -> Self::Output;
}

/// What every stack is told alike. The MTU and the offloads are the link's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Size of each connection's receive buffer and of its send buffer, in bytes. A stack that
    /// cannot have it takes the nearest that it can, and says so in [`Effective`].
    pub window: usize,
    /// A connection whose peer stays silent for so long, while something is asked of it, is given up
    /// with [`io::ErrorKind::TimedOut`]. RFC 1122, 4.2.3.5 wants at least 100 seconds.
    pub user_timeout: Duration,
    /// Connections that may wait for [`Listener::accept`], half open ones included. A SYN beyond
    /// them is dropped.
    pub backlog: usize,
}

impl StackConfig {
    /// Smallest window that every stack takes, in bytes.
    pub const MIN_WINDOW: usize = 4 << 10;
    /// Largest window, in bytes: what RFC 7323, 2.3 lets a scaled window be.
    pub const MAX_WINDOW: usize = (1 << 30) - 1;
}

impl Default for StackConfig {
    fn default() -> Self {
        Self { window: 4 << 20, user_timeout: Duration::from_secs(100), backlog: 1024 }
    }
}

/// What a stack really uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// The stack's version.
    pub stack_version: Cow<'static, str>,
    /// Each connection's receive buffer, in bytes: the largest window that is advertised.
    pub receive_buffer_bytes: usize,
    /// Each connection's send buffer, in bytes, or what may be under way unacknowledged.
    pub send_buffer_bytes: usize,
    /// Shift count of the window scale option (RFC 7323); `None` where the stack has none.
    pub window_scale: Option<u8>,
    /// Largest packet that the stack makes, over IPv4 or IPv6, in bytes, IP header included: the MTU, or
    /// that of a super-packet, which the link cuts to the MTU.
    pub largest_packet_bytes: usize,
    /// Congestion control of the stack as a sender.
    pub congestion: Cow<'static, str>,
    /// Whether checksums of packets that arrive are verified by the stack.
    pub checksum_verified: bool,
    /// Whether checksums of packets that leave are computed by the stack.
    pub checksum_computed: bool,
}

/// A stack that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The stack keeps its state in globals and runs once in a process.
    #[error("start {0}: it is already running in this process; only one instance is possible at a time")]
    AlreadyRunning(StackKind),
    /// The stack does not take this configuration.
    #[error("start {stack}: {reason}")]
    Unfit {
        /// The stack.
        stack: StackKind,
        /// What it does not take, and what it would.
        reason: String,
    },
}

/// A running stack.
pub struct Started<Li, D> {
    /// Where its connections come out.
    pub listener: Li,
    /// Its UDP. Who has no use for it drops it; what comes then is dropped unread.
    pub datagrams: D,
    /// What keeps it going; see [`Driver`].
    pub driver: Driver,
    /// What it really uses.
    pub effective: Effective,
}

/// The future that serves a stack's timers and what arrives while no stream is polled. It has to be
/// polled for as long as the stack is used, and ends with an error when the link or the stack has
/// failed, else never. The stack is gone when the driver, the listener, the datagrams and all streams are
/// dropped.
pub type Driver = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A TCP/IP stack that can be started on links of the type `L`.
pub trait Netstack<L: Link>: 'static {
    /// Its connections.
    type Stream: Stream;
    /// Where they come out.
    type Listener: Listener<Stream = Self::Stream>;
    /// Its datagrams.
    type Datagrams: Datagrams;

    /// Starts the stack on a link. To be called within a tokio runtime, on which it then runs.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(link: L, config: &StackConfig) -> Result<Started<Self::Listener, Self::Datagrams>, StartError>;
}

/// Where connections come out, whatever address and port they were made to.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Stream;

    /// Waits for the next connection whose handshake is done.
    ///
    /// # Errors
    ///
    /// The stack or its link has failed.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Takes bytes that are lent, which lie in slices one after the other: from the front, and answers how many.
pub type Sink<'a> = dyn FnMut(&[IoSlice<'_>]) -> io::Result<usize> + 'a;

/// Fills bytes that are lent to it, from the front, and answers how many.
pub type Source<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;

/// A TCP connection.
///
/// - A read answers 0 bytes after the peer's FIN; writing goes on.
/// - `shutdown` sends our FIN behind what was written and does not wait for its acknowledgement;
///   reading goes on.
/// - A peer's RST makes both fail with [`io::ErrorKind::ConnectionReset`].
/// - Dropping the stream closes it: what was written is still delivered, as long as the driver runs.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The end at the stack: where the peer wanted to go.
    fn local_addr(&self) -> SocketAddr;

    /// The peer's end.
    fn peer_addr(&self) -> SocketAddr;

    /// Lends received bytes to `sink` where they lie, so that who passes them on copies them once less. It is
    /// called again where it took all. Answers how many it took, 0 after the peer's FIN.
    ///
    /// Where the sink refuses the first bytes with [`io::ErrorKind::WouldBlock`], or takes none, this is pending, and
    /// the sink's owner has to see to being woken for its sake. It must not block: others may wait for the stack.
    ///
    /// # Errors
    ///
    /// Those of a read, those of the sink, and [`io::ErrorKind::Unsupported`], always, from a stack that has
    /// nothing to lend and is to be read from.
    fn poll_lend(&mut self, _cx: &mut Context<'_>, _sink: &mut Sink<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Lends `source` room for bytes to be sent, where they stay until they are acknowledged, so that who passes
    /// bytes on copies them once less. It is called again where it filled all. Answers how many it gave, 0
    /// where it has no more to give and said so.
    ///
    /// Where the source refuses the first bytes with [`io::ErrorKind::WouldBlock`], this is pending, and the source's
    /// owner has to see to being woken for its sake. It must not block: others may wait for the stack. An error behind
    /// other bytes is not told: a source that would not say it again has to remember it.
    ///
    /// # Errors
    ///
    /// Those of a write, those of the source, and [`io::ErrorKind::Unsupported`], always, from a stack that has
    /// no room to lend and is to be written to.
    fn poll_fill(&mut self, _cx: &mut Context<'_>, _source: &mut Source<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Whether the connection has ended by a RST, a time-out or a failure, be there bytes to read or not. Who waits
    /// to read is woken when it does.
    fn has_failed(&self) -> bool;

    /// Ends the connection with a RST; what was not sent is lost, and what was not read. The RST is sent
    /// once, where the link has room: a peer that misses it gets another for whatever it sends next.
    fn reset(self);
}

/// The two ends of a connection or an exchange of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The end at the stack: where the peer wants to go.
    pub local: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
}

/// Whether an address may be that of one host on a network.
fn is_host(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

/// Datagrams that wait for [`Datagrams::recv`] at most. What comes beyond them is dropped, as by any host.
pub const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Bytes of payload that wait for [`Datagrams::recv`] at most.
pub const MAX_WAITING_BYTES: usize = 4 << 20;

/// UDP: what arrives for any address and port, and what is answered from any. All clones share what
/// waits: a datagram is received once.
///
/// - What waits is bounded in number and bytes ([`MAX_WAITING_DATAGRAMS`], [`MAX_WAITING_BYTES`]); what
///   comes beyond is dropped. When the last clone is dropped, so is all that comes: without an ICMP message.
/// - Only what one host sends to another is received: no multicast, no broadcast, no port 0. A datagram whose
///   length is not its packet's is dropped, and one without a checksum over IPv6 (RFC 8200, 8.1).
/// - Longer than a packet of the MTU: over IPv4, lwIP and smoltcp fragment up to 65,507 bytes and put together
///   what comes in fragments, four datagrams at once or a few more; ipstack does neither. Over IPv6 none does.
pub trait Datagrams: Clone + Send + Sync + 'static {
    /// Waits for the next datagram and puts its payload into `buffer`; what does not fit is cut off. A
    /// buffer of 65,535 bytes holds any.
    ///
    /// # Errors
    ///
    /// The stack or its link has failed.
    fn recv(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<Datagram>> + Send;

    /// Sends a datagram from `local` to `peer`. Does not wait.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::WouldBlock`], where the link or a queue is full; the datagram is not sent.
    /// - [`io::ErrorKind::InvalidInput`], where it is longer than the stack can send, the addresses are of two
    ///   IP versions, or one of them is no host's.
    /// - The stack or its link has failed.
    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()>;
}

/// A datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of payload in the receiver's buffer.
    pub len: usize,
    /// Where the peer sent it to.
    pub local: SocketAddr,
    /// The peer.
    pub peer: SocketAddr,
}
