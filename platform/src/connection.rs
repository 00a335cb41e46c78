//! The kernel's statistics of a connection, and the datagrams that it has received.

use std::net::SocketAddr;
use std::time::Duration;

/// The kernel's statistics of a connection. A value is `None` if the kernel does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStatistics {
    /// Segments that the kernel retransmitted. Not on Windows.
    pub retransmits: Option<u64>,
    /// Smoothed round-trip time. On macOS in whole milliseconds, and `None` if it is less than one.
    pub rtt: Option<Duration>,
    /// Smallest recent round-trip time (Linux), or the smallest of the whole connection (Windows). Not on macOS.
    pub min_rtt: Option<Duration>,
    /// Congestion window, in bytes.
    pub congestion_window_bytes: Option<u64>,
    /// Window that the other end advertises, in bytes. On Linux since 5.4.
    pub send_window_bytes: Option<u64>,
    /// Window that this end advertises, in bytes. On Linux since 6.2.
    pub receive_window_bytes: Option<u64>,
}

/// Datagrams that one call has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer: one datagram, or several of one sender, back to back.
    pub len: usize,
    /// Payload of each datagram, in bytes. The last may be shorter.
    pub segment_len: usize,
    /// The sender.
    pub from: Option<SocketAddr>,
}
