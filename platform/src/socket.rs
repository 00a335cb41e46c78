//! What the kernel says of a TCP socket, and what it lets one choose.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::Socket;

use crate::sys::{Native, System};

/// What the kernel says of a connection; `None` where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStatistics {
    /// Segments that the kernel sent again. Not on Windows.
    pub retransmits: Option<u64>,
    /// Smoothed round-trip time. macOS counts whole milliseconds, and says nothing of less.
    pub rtt: Option<Duration>,
    /// Smallest round-trip time of late (Linux), or ever (Windows). Not on macOS.
    pub min_rtt: Option<Duration>,
    /// Congestion window, in bytes.
    pub congestion_window_bytes: Option<u64>,
    /// Window that the other end advertises, in bytes; of Linux from 5.4 on.
    pub send_window_bytes: Option<u64>,
    /// Window that this end advertises, in bytes; of Linux from 6.2 on.
    pub receive_window_bytes: Option<u64>,
}

/// Ends a connection in both directions, and with it every read and write that another thread waits in. They fail, or end as if
/// the peer had closed.
///
/// On Windows `shutdown` lets them wait on, so they are cancelled (`CancelIoEx`).
pub fn end_connection(socket: &TcpStream) {
    // A socket that was never connected cannot be shut down, and need not be shut down.
    let _unconnected = socket.shutdown(Shutdown::Both);
    Native::cancel_io(socket);
}

/// What the kernel says of a connection now.
pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    Native::tcp_statistics(socket).unwrap_or_default()
}

/// The congestion control that new sockets get: Linux alone says.
pub fn default_congestion_control() -> Option<String> {
    Native::default_congestion_control()
}

/// Chooses a socket's congestion control by name.
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`] on a system that has no choice, `NotFound` for an algorithm that
/// the kernel does not have, `PermissionDenied` for one that it keeps for root.
pub fn set_congestion_control(socket: &TcpStream, name: &str) -> io::Result<()> {
    Native::set_congestion_control(socket, name)
}

/// Has a socket send by an interface, whatever the routes say, and so past a TUN device that they lead to.
/// To be called before it is connected.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`], or the system's own, for a name that no interface has, `PermissionDenied`,
/// and `Unsupported` on a system of which this program does not know how.
pub fn bind_to_interface(socket: &Socket, interface: &str, ipv6: bool) -> io::Result<()> {
    Native::bind_to_interface(socket, interface, ipv6)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::{Read, Write};
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

    #[test]
    fn a_used_connection_has_round_trips_and_windows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        socket.write_all(b"ping").unwrap();
        other.read_exact(&mut [0; 4]).unwrap();
        other.write_all(b"pong").unwrap();
        socket.read_exact(&mut [0; 4]).unwrap();
        let statistics = tcp_statistics(&socket);
        assert!(statistics.rtt.unwrap() > Duration::ZERO, "{statistics:?}");
        assert!(statistics.min_rtt.unwrap() <= statistics.rtt.unwrap() * 2, "{statistics:?}");
        assert!(statistics.congestion_window_bytes.unwrap() >= 1000, "{statistics:?}");
        // Older kernels do not have them.
        assert!(statistics.send_window_bytes.is_none_or(|bytes| bytes > 1000), "{statistics:?}");
        assert!(statistics.receive_window_bytes.is_none_or(|bytes| bytes > 1000), "{statistics:?}");
    }
}
