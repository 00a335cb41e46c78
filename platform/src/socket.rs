//! Sockets of the kernel: their statistics, and several datagrams in one system call.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;

use crate::packet::{IPV6_HEADER_LEN, UDP_HEADER_LEN};
use crate::sys;

/// The kernel's statistics of a connection, as far as the kernel reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStatistics {
    /// Segments that the kernel retransmitted. On Windows, the fewest of which its counts of bytes and occasions can come.
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

/// A datagram that was not delivered, as far as a socket has heard.
#[derive(Debug)]
pub struct Undelivered {
    /// Why not.
    pub error: io::Error,
    /// Where it was sent to. Only Linux reports it.
    pub to: Option<SocketAddr>,
    /// The MTU of the path, in bytes, if the datagram was too long for it.
    pub mtu: Option<u32>,
}

/// Shuts a connection down both ways. This ends every read and write of other threads.
pub fn end_connection(socket: &TcpStream) {
    // It fails only for a socket that is not connected, which needs no shutdown.
    let _unconnected = socket.shutdown(Shutdown::Both);
    #[cfg(windows)]
    sys::cancel_io(socket);
}

/// Begins to connect a socket that does not block. It is connected, or has an error, when it becomes writable.
pub fn begin_to_connect(socket: &Socket, target: SocketAddr) -> io::Result<()> {
    // EINPROGRESS. Windows returns that it would block.
    const IN_PROGRESS: i32 = if cfg!(target_os = "linux") { 115 } else { 36 };
    match socket.connect(&target.into()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(IN_PROGRESS) => Ok(()),
        result => result,
    }
}

/// The most datagrams of one call and of one UDP super-packet: Linux' `UDP_MAX_SEGMENTS` (`include/linux/udp.h`).
pub const MAX_DATAGRAMS_TOGETHER: usize = 64;

/// The most bytes of their payloads. Over IPv4 there would be room for 20 more.
pub const MAX_BYTES_TOGETHER: usize = 65_535 - IPV6_HEADER_LEN - UDP_HEADER_LEN;

/// Lets a socket send the longest datagram. By default macOS takes 9216 bytes (`net.inet.udp.maxdgram`).
pub fn allow_long_datagrams(socket: &Socket) -> io::Result<()> {
    const LONGEST: usize = 65_535;
    if socket.send_buffer_size()? < LONGEST { socket.set_send_buffer_size(LONGEST) } else { Ok(()) }
}

/// Sends datagrams that lie back to back in `payloads`, each of `segment_len` bytes; the last may be shorter. Returns
/// the bytes of those that were sent: on Linux up to [`MAX_DATAGRAMS_TOGETHER`] datagrams, elsewhere one.
pub fn send_datagrams(
    socket: &Socket,
    to: Option<SocketAddr>,
    payloads: &[u8],
    segment_len: usize,
) -> io::Result<usize> {
    if segment_len == 0 && !payloads.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "datagrams without a length"));
    }
    sys::send_together(socket, to, payloads, segment_len)
}

/// Names an error of `sendto`: `WouldBlock` if there is no room, `InvalidInput` if the datagram is too long.
pub fn unsent(error: io::Error) -> io::Error {
    // ENOBUFS. Some systems return it if the queue of a device is full.
    const NO_ROOM: i32 = if cfg!(windows) {
        10_055
    } else if cfg!(target_os = "linux") {
        105
    } else {
        55
    };
    match error.raw_os_error() {
        Some(NO_ROOM) => io::ErrorKind::WouldBlock.into(),
        Some(TOO_LONG) => io::Error::new(io::ErrorKind::InvalidInput, error),
        _ => error,
    }
}

/// EMSGSIZE.
const TOO_LONG: i32 = if cfg!(windows) {
    10_040
} else if cfg!(target_os = "linux") {
    90
} else {
    40
};

/// Whether an error of `sendto` says that the datagram is too long.
pub fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(TOO_LONG)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use socket2::SockRef;

    use super::*;
    use crate::{coalesce_datagrams, recv_datagrams};

    /// Lengths that fill calls and segments to the end, and those that do not; and an empty datagram.
    #[test]
    fn datagrams_arrive_as_they_were_sent_however_many_a_call_takes() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (Ok(client), Ok(server)) = (UdpSocket::bind(address), UdpSocket::bind(address)) else { continue };
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            coalesce_datagrams(&SockRef::from(&server), true);
            let (from, to) = (client.local_addr().unwrap(), server.local_addr().unwrap());
            for (len, segment_len) in [(1, 1), (3_000, 3_000), (10, 3), (9, 3), (100_000, 1_400), (700, 1)] {
                let payloads: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
                let (mut sent, mut arrived, mut buffer) = (0, Vec::<u8>::new(), vec![0; 65_535]);
                while sent < len {
                    let now =
                        send_datagrams(&SockRef::from(&client), Some(to), &payloads[sent..], segment_len).unwrap();
                    sent += now;
                    while arrived.len() < sent {
                        let received = recv_datagrams(&SockRef::from(&server), &mut buffer).unwrap();
                        assert_eq!(received.from, Some(from));
                        for datagram in buffer[..received.len].chunks(received.segment_len.max(1)) {
                            arrived.extend(datagram);
                            assert!(datagram.len() == segment_len || arrived.len() == len, "{}", datagram.len());
                        }
                    }
                }
                assert!(arrived == payloads, "{len} bytes in datagrams of {segment_len}");
            }
            assert_eq!(send_datagrams(&SockRef::from(&client), Some(to), b"", 0).unwrap(), 0);
            let empty = recv_datagrams(&SockRef::from(&server), &mut [0; 9]).unwrap();
            assert_eq!(empty, Received { len: 0, segment_len: 0, from: Some(from) });
        }
    }

    #[test]
    fn a_small_buffer_grows_to_the_longest_datagram_and_a_larger_one_stays() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = SockRef::from(&socket);
        for (before, least) in [(4_608, 65_535), (100_000, 100_000)] {
            socket.set_send_buffer_size(before).unwrap();
            let before = socket.send_buffer_size().unwrap();
            allow_long_datagrams(&socket).unwrap();
            let after = socket.send_buffer_size().unwrap();
            assert!(after >= least && (before < least || after == before), "{before} {after}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_connection_knows_reno_and_has_round_trips_and_windows_but_no_retransmission() {
        use std::io::{Read, Write};
        use std::net::TcpListener;

        use crate::{congestion_controls, set_congestion_control, tcp_statistics};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        assert_eq!(tcp_statistics(&socket).retransmits, Some(0));
        set_congestion_control(&SockRef::from(&socket), "reno").unwrap();
        assert!(congestion_controls().contains("reno"));
        let unknown = set_congestion_control(&SockRef::from(&socket), "no-such-thing").unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
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
