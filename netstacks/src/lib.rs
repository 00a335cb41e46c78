//! Userspace TCP/IP stacks behind one interface.
//!
//! A stack starts on any [`platform::Link`] and accepts connections to any address and any
//! port, so the same adapter serves a benchmark and a proxy. Its connections are plain tokio streams:
//!
//! ```
//! use std::io::{Read, Write};
//! use std::time::Duration;
//!
//! use netstacks::peer::Client;
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
//! let client = tokio::task::spawn_blocking(|| -> std::io::Result<[u8; 5]> {
//!     let (local, remote) = ([10, 0, 0, 1].into(), ([10, 0, 0, 2], 80).into());
//!     let mut client = Client::connect(other_end, local, remote, Duration::from_secs(10))?;
//!     client.write_all(b"hello")?;
//!     let mut echo = [0; 5];
//!     client.read_exact(&mut echo).map(|()| echo)
//! });
//!
//! let mut stream = stack.listener.accept().await?;
//! let mut buffer = [0; 1024];
//! let len = stream.read(&mut buffer).await?;
//! stream.write_all(&buffer[..len]).await?;
//! assert_eq!(client.await??, *b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! [`StackKind::visit`] starts a stack that is chosen at run time. [`gate()`] lets a program decide about a connection
//! before the stack sees it. [`peer`] has clients for the other end of a link.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::Link;
use serde::{Deserialize, Serialize};

/// Declares the stacks by cargo feature, module and type: makes the modules, exports the types, defines [`StackKind`].
macro_rules! stacks {
    ($($(#[$doc:meta])* $feature:literal => $module:ident::$stack:ident,)*) => {
        $(
            #[cfg(feature = $feature)]
            mod $module;
            #[cfg(feature = $feature)]
            pub use crate::$module::$stack;
        )*

        /// The stacks that users can choose: those of this crate, compiled in or not, processes, and the kernel's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
            /// Linux's own TCP and UDP behind the same device
            #[serde(rename = "kernel")]
            #[cfg_attr(feature = "clap", value(name = "kernel"))]
            Kernel,
        }

        impl StackKind {
            /// All stacks of this crate, compiled in or not, in the order in which tables list them.
            pub const ALL: [Self; [$($feature),*].len()] = [$(Self::$stack),*];

            /// Whether the stack runs as a separate process, which opens the device itself.
            pub const fn is_process(self) -> bool {
                matches!(self, Self::Gvisor | Self::External)
            }

            /// Whether several instances can run in one process; see [`sharded`]. lwIP keeps its state in globals.
            pub const fn can_shard(self) -> bool {
                !matches!(self, Self::Lwip | Self::LwipPublished | Self::Kernel) && !self.is_process()
            }

            /// The name that users type to choose the stack.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$stack => $feature,)*
                    Self::Gvisor => "gvisor",
                    Self::External => "external",
                    Self::Kernel => "kernel",
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
                    Self::Gvisor | Self::External | Self::Kernel => None,
                }
            }

            /// Calls the visitor with this stack's type. This is the one place where a name becomes a stack.
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
                    Self::Gvisor | Self::External | Self::Kernel => Err(NotCompiledIn(self)),
                }
            }
        }
    };
}

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

#[allow(unreachable_pub, reason = "its types are the streams of stacks")]
mod addressed;
mod config;
mod interface;
mod shards;
mod udp;
mod workarounds;

// Modules that several stacks share. Some are unused in a build without these stacks.
#[allow(dead_code, unused_imports, unreachable_pub, reason = "not every stack uses it")]
mod datagrams;
#[allow(dead_code, unused_imports, unreachable_pub, reason = "not every stack uses it")]
mod driven;
#[cfg(test)]
mod fixture;
mod gate;
pub mod kernel;
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

pub use crate::config::{Effective, StackConfig, StackCongestion, StackFault, StackRecovery, StartError};
pub use crate::gate::{Admission, Answers, Gate, Gated, Request, Unreachable, gate};
pub use crate::interface::{Driver, FlowKey, FlowMap, Listener, Netstack, Sink, Source, Started, Stream};
pub use crate::shards::{PassedOn, Sharded, ShardedDatagrams, ShardedListener, Spread, Steered, sharded, steer};
pub use crate::udp::{
    Datagram, DatagramBatch, Datagrams, MAX_WAITING_BYTES, MAX_WAITING_DATAGRAMS, NoDatagrams, is_link_local,
};
pub use crate::workarounds::{Workaround, Workarounds};
#[allow(unused_imports, reason = "not every stack uses it")]
use crate::{
    config::window_scale,
    udp::{is_host, segments},
};
#[cfg(all(feature = "lwip", feature = "checksums"))]
pub use lwip_sys::checksum as lwip_checksum;

impl fmt::Display for StackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a stack that this build does not include.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotCompiledIn(pub StackKind);

impl fmt::Display for NotCompiledIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(stack) = self;
        match stack {
            StackKind::Gvisor | StackKind::External => {
                write!(f, "{stack} is a process of its own; choose a stack of this build")
            }
            StackKind::Kernel => {
                write!(
                    f,
                    "{stack} is for conform alone; a run has --layer loopback, --layer kernel and --program kernel"
                )
            }
            _ => write!(f, "this build is without {stack}; build it with --features {stack}"),
        }
    }
}

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

/// The source files of the Go program that runs gVisor's stack, without its tests. The first is `go.mod`.
pub const GVISOR_SOURCES: [(&str, &str); 7] = [
    ("go.mod", include_str!("../gvisor/go.mod")),
    ("go.sum", include_str!("../gvisor/go.sum")),
    ("application.go", include_str!("../gvisor/application.go")),
    ("main.go", include_str!("../gvisor/main.go")),
    ("server.go", include_str!("../gvisor/server.go")),
    ("datagrams_linux.go", include_str!("../gvisor/datagrams_linux.go")),
    ("stack_linux.go", include_str!("../gvisor/stack_linux.go")),
];

/// Locks, even if the mutex is poisoned: no code panics in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(doctest)]
#[doc = include_str!("../../docs/new-stack.md")]
struct NewStackGuide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
