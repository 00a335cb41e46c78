//! What the kernel says of a TCP socket, and what it lets one choose.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::Socket;

use crate::sys::{Native, System};

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

/// Shuts a connection down in both directions. This ends every read and write that another thread is waiting in: they
/// fail, or return as if the peer had closed the connection.
///
/// On Windows, `shutdown` does not wake them, so they are cancelled (`CancelIoEx`).
///
/// ```
/// use std::io::Read;
/// use std::net::{TcpListener, TcpStream};
/// use std::thread;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let socket = TcpStream::connect(listener.local_addr()?)?;
/// let mut reader = socket.try_clone()?;
/// let waiting = thread::spawn(move || reader.read(&mut [0]));
/// platform::end_connection(&socket);
/// assert!(matches!(waiting.join(), Ok(Ok(0) | Err(_))));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn end_connection(socket: &TcpStream) {
    // It fails only for a socket that is not connected, which needs no shutdown.
    let _unconnected = socket.shutdown(Shutdown::Both);
    Native::cancel_io(socket);
}

/// The kernel's statistics of a connection at this moment.
///
/// ```
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let socket = TcpStream::connect(listener.local_addr()?)?;
/// let statistics = platform::tcp_statistics(&socket);
/// println!("{:?} retransmits, {:?} round trip", statistics.retransmits, statistics.rtt);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    Native::tcp_statistics(socket).unwrap_or_default()
}

/// The congestion control of new sockets. Only Linux reports it.
pub fn default_congestion_control() -> Option<String> {
    Native::default_congestion_control()
}

/// Chooses a socket's congestion control by name.
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`] on a system without a choice, `NotFound` for an algorithm that the kernel does not
/// have, `PermissionDenied` for one that only root may choose.
///
/// # Example
///
/// ```no_run
/// let socket = std::net::TcpStream::connect("192.0.2.1:80")?;
/// platform::set_congestion_control(&socket, "reno")?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn set_congestion_control(socket: &TcpStream, name: &str) -> io::Result<()> {
    Native::set_congestion_control(socket, name)
}

/// Makes a socket send through an interface, whatever the routes are. So its packets bypass a TUN device that the
/// routes lead to. Call it before the socket is connected.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] or another error of the system if no interface has the name, `PermissionDenied`, and
/// `Unsupported` on systems other than Linux, macOS and Windows.
///
/// # Example
///
/// ```no_run
/// use std::net::{SocketAddr, TcpStream};
///
/// use socket2::{Domain, Socket, Type};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server: SocketAddr = "192.0.2.1:80".parse()?;
/// let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
/// platform::bind_to_interface(&socket, "eth0", server.is_ipv6())?;
/// socket.connect(&server.into())?;
/// let stream = TcpStream::from(socket);
/// # Ok(())
/// # }
/// ```
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
        // Older kernels do not report them.
        assert!(statistics.send_window_bytes.is_none_or(|bytes| bytes > 1000), "{statistics:?}");
        assert!(statistics.receive_window_bytes.is_none_or(|bytes| bytes > 1000), "{statistics:?}");
    }
}
