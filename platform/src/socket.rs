//! What the kernel says of a TCP socket, and what it lets one choose.

use std::io;
use std::net::TcpStream;

use crate::imp;

/// Counters that the kernel keeps for a connection; `None` where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStatistics {
    /// Segments that the kernel sent again.
    pub retransmits: Option<u64>,
}

/// The counters of a connection.
pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    TcpStatistics { retransmits: imp::retransmits(socket) }
}

/// The congestion control that new sockets get: Linux alone says.
pub fn default_congestion_control() -> Option<String> {
    imp::default_congestion_control()
}

/// Chooses a socket's congestion control by name.
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`] on a system that has no choice, `NotFound` for an algorithm that
/// the kernel does not have, `PermissionDenied` for one that it keeps for root.
pub fn set_congestion_control(socket: &TcpStream, name: &str) -> io::Result<()> {
    imp::set_congestion_control(socket, name)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_fresh_connection_has_no_retransmission_and_knows_reno() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_statistics(&socket).retransmits, Some(0));
        set_congestion_control(&socket, "reno").unwrap();
        assert_eq!(set_congestion_control(&socket, "no-such-thing").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
