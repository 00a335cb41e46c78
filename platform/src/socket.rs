//! Sockets of the kernel: their statistics, their options, and several datagrams in one system call.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
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

/// Lets [`recv_datagrams`] return several datagrams at once. Returns whether it may: on Linux, from 5.0 on (`UDP_GRO`).
/// Other calls that receive from the socket must not be used then, because they do not say how long each datagram is.
pub fn coalesce_datagrams(socket: &Socket) -> bool {
    Native::coalesce_datagrams(socket)
}

/// Sends datagrams that lie back to back in `payloads`, each of `segment_len` bytes; the last may be shorter. Returns the
/// bytes of the datagrams that were sent. On Linux, from 4.18 on, these are up to 64 datagrams of 64 KiB in all
/// (`UDP_SEGMENT`), elsewhere it is one. A connected socket has no `to`.
///
/// # Errors
///
/// As for `sendto`; none of the datagrams was sent.
pub fn send_datagrams(
    socket: &Socket,
    to: Option<SocketAddr>,
    payloads: &[u8],
    segment_len: usize,
) -> io::Result<usize> {
    Native::send_datagrams(socket, to, payloads, segment_len)
}

/// Receives a datagram, or several if [`coalesce_datagrams`] allows it: a buffer of 65,535 bytes holds any.
///
/// # Errors
///
/// As for `recvfrom`.
pub fn recv_datagrams(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
    Native::recv_datagrams(socket, buffer)
}

#[cfg(test)]
mod datagram_tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::net::UdpSocket;

    use socket2::SockRef;

    use super::*;

    /// Lengths that fill calls and segments to the end, and those that do not; and an empty datagram.
    #[test]
    fn datagrams_arrive_as_they_were_sent_however_many_a_call_takes() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (Ok(sender), Ok(receiver)) = (UdpSocket::bind(address), UdpSocket::bind(address)) else { continue };
            receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            coalesce_datagrams(&SockRef::from(&receiver));
            let (from, to) = (sender.local_addr().unwrap(), receiver.local_addr().unwrap());
            for (len, segment_len) in [(1, 1), (3_000, 3_000), (10, 3), (9, 3), (100_000, 1_400), (700, 1)] {
                let payloads: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
                let (mut sent, mut arrived, mut buffer) = (0, Vec::<u8>::new(), vec![0; 65_535]);
                while sent < len {
                    let now =
                        send_datagrams(&SockRef::from(&sender), Some(to), &payloads[sent..], segment_len).unwrap();
                    sent += now;
                    while arrived.len() < sent {
                        let received = recv_datagrams(&SockRef::from(&receiver), &mut buffer).unwrap();
                        assert_eq!(received.from, Some(from));
                        for datagram in buffer[..received.len].chunks(received.segment_len.max(1)) {
                            arrived.extend(datagram);
                            assert!(datagram.len() == segment_len || arrived.len() == len, "{}", datagram.len());
                        }
                    }
                }
                assert!(arrived == payloads, "{len} bytes in datagrams of {segment_len}");
            }
            assert_eq!(send_datagrams(&SockRef::from(&sender), Some(to), b"", 0).unwrap(), 0);
            let empty = recv_datagrams(&SockRef::from(&receiver), &mut [0; 9]).unwrap();
            assert_eq!(empty, Received { len: 0, segment_len: 0, from: Some(from) });
        }
    }
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
