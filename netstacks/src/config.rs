//! The configuration of a stack, what it really uses, and its faults.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::offload::Offload;
use crate::{StackKind, Workarounds};

/// The configuration that every stack gets. The MTU and the offloads come from the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Size of each connection's receive buffer and of its send buffer, in bytes: by default 4 MiB, and 512 KiB on
    /// 32-bit systems. A stack uses the nearest size that it supports ([`Effective`]), or does not start.
    pub window: usize,
    /// A connection fails with [`io::ErrorKind::TimedOut`] after this long without a due response (RFC 1122, 4.2.3.5).
    pub user_timeout: Duration,
    /// Most established connections that wait for [`Listener::accept`](crate::Listener::accept): then SYNs and ACKs of
    /// handshakes are dropped. This many, or a sixteenth of `connections`, may be half-open (RFC 4987).
    pub backlog: usize,
    /// Largest number of connections of lwIP, smoltcp and ipstack, in any state. Further SYNs are dropped.
    pub connections: usize,
    /// What the adapter does in the stack's place.
    pub workarounds: Workarounds,
    /// Congestion control of a stack that has a choice: of smoltcp, and of gVisor, where `None` is its own.
    pub congestion: StackCongestion,
    /// How a stack that has a choice finds lost segments: gVisor alone. `None` for its own way.
    pub recovery: Option<StackRecovery>,
}

/// The congestion control of a stack as a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum StackCongestion {
    /// No congestion control
    #[default]
    None,
    /// Reno (RFC 5681)
    Reno,
    /// Cubic (RFC 9438)
    Cubic,
}

impl StackCongestion {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reno => "reno",
            Self::Cubic => "cubic",
        }
    }
}

/// How a stack finds lost segments as a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum StackRecovery {
    /// By the times of acknowledged segments (RFC 8985)
    Rack,
    /// By duplicate acknowledgements and SACK blocks (RFC 6675)
    Sack,
}

impl StackRecovery {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Sack => "sack",
        }
    }
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
        Self {
            window,
            user_timeout: Duration::from_secs(100),
            backlog: 1024,
            connections: 1 << 16,
            workarounds: Workarounds::ALL,
            congestion: StackCongestion::default(),
            recovery: None,
        }
    }
}

/// The configuration that a stack really uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// The stack's version.
    pub stack_version: Cow<'static, str>,
    /// Instances side by side, each with these settings.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: usize,
    /// Each connection's receive buffer, in bytes: the largest window that is advertised.
    pub receive_buffer_bytes: usize,
    /// Each connection's send buffer, in bytes, or the most that may be in flight.
    pub send_buffer_bytes: usize,
    /// Shift count of the window scale option (RFC 7323); `None` where the stack has none.
    pub window_scale: Option<u8>,
    /// Largest packet that the stack makes, in bytes, IP header included: the MTU, or a super-packet.
    pub largest_packet_bytes: usize,
    /// Congestion control of the stack as a sender.
    pub congestion: Cow<'static, str>,
    /// Whether checksums of packets that arrive are verified by the stack.
    pub checksum_verified: bool,
    /// Whether checksums of packets that leave are computed by the stack.
    pub checksum_computed: bool,
    /// The [`Workaround`](crate::Workaround)s that were active, by name.
    #[serde(default, alias = "repairs", skip_serializing_if = "Vec::is_empty")]
    pub workarounds: Vec<Cow<'static, str>>,
}

#[allow(dead_code, reason = "without any stack it is not used")]
impl Effective {
    pub(crate) fn of(stack: StackKind, config: &StackConfig, offload: &Offload) -> Self {
        Self {
            stack_version: stack.version().unwrap_or_default().into(),
            shards: 1,
            receive_buffer_bytes: config.window,
            send_buffer_bytes: config.window,
            window_scale: Some(window_scale(config.window)),
            largest_packet_bytes: offload.largest_tcp_packet(),
            congestion: "none".into(),
            checksum_verified: true,
            checksum_computed: true,
            workarounds: config.workarounds.active(stack, offload.cuts()),
        }
    }
}

const fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_one(shards: &usize) -> bool {
    *shards == 1
}

/// The smallest shift count (RFC 7323, 2.3) that can announce a window of `window` bytes. All stacks use this one.
#[allow(dead_code, reason = "without any stack it is not used")]
pub(crate) fn window_scale(window: usize) -> u8 {
    (usize::BITS - window.leading_zeros()).saturating_sub(u16::BITS) as u8
}

/// Why a stack could not be started.
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

/// A fault of a stack, which has stopped: the inner error of the [`io::Error`] of its driver and streams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StackFault(
    /// What is wrong, and where.
    pub String,
);

/// An error again, for the next caller: the same kind and words, and a [`StackFault`] if it is one.
#[allow(dead_code, reason = "not every stack uses it")]
pub(crate) fn again(error: &io::Error) -> io::Error {
    if StackFault::is_in(error) {
        return io::Error::new(error.kind(), StackFault(error.to_string()));
    }
    io::Error::new(error.kind(), error.to_string())
}

impl StackFault {
    /// Whether this is the reason for an error.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_scale_is_the_smallest_that_fits() {
        for (window, scale) in
            [(4 << 10, 0), (65_535, 0), (65_536, 1), (256 << 10, 3), (4 << 20, 7), (StackConfig::MAX_WINDOW, 14)]
        {
            assert_eq!(window_scale(window), scale, "{window}");
        }
    }
}
