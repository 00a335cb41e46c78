//! Sockets of the kernel: their options, and several datagrams in a system call (`UDP_SEGMENT`, `UDP_GRO`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::machine::line;
use super::{set_socket_option, socket_addr, socket_option, tcp_info};
use crate::socket::{MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER};
use crate::{Received, TcpStatistics, Undelivered};

/// [`Poll::poll`] counts in whole milliseconds.
pub(in crate::sys) fn poll_until(poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
    // `epoll_pwait2(2)` counts in nanoseconds, too, but takes the events from mio.
    // SAFETY: `poll` owns the descriptor and lives longer.
    let epoll = unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) };
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        ppoll(&mut [PollFd::new(epoll, PollFlags::POLLIN)], Some(left.into()), None)?;
    }
    poll.poll(events, Some(Duration::ZERO))
}

/// The kernel's statistics of a connection at this moment (`TCP_INFO` of `tcp(7)`).
pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    let mut info = [0; tcp_info::LEN];
    let len = socket_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).unwrap_or(0);
    tcp_info::read(info.get(..len).unwrap_or_default())
}

/// The congestion control of new sockets. Only Linux reports it.
pub fn default_congestion_control() -> Option<String> {
    line("/proc/sys/net/ipv4/tcp_congestion_control")
}

/// Chooses a socket's congestion control by name. Fails with `Unsupported` on a system without a choice.
pub fn set_congestion_control(socket: &Socket, name: &str) -> io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes())
}

/// Makes a socket send through an interface, whatever the routes are. Call it before the socket is connected.
pub fn bind_to_interface(socket: &Socket, interface: &str, _ipv6: bool) -> io::Result<()> {
    socket.bind_device(Some(interface.as_bytes()))
}

/// Whether a socket is still bound to the interface of this name: that may be another one by now. Windows
/// and others do not tell, so it is.
pub fn is_bound_to(socket: &Socket, interface: &str) -> bool {
    socket.device().is_ok_and(|name| name.as_deref() == Some(interface.as_bytes()))
}

/// Lets a port of this user have several sockets, of which one may be for an interface alone: it gets what comes from sockets
/// that are bound to that interface, over the loopback too. Call it before the socket is bound.
pub fn share_port(socket: &Socket, interface: Option<&str>) -> io::Result<()> {
    socket.set_reuse_port(true)?;
    interface.map_or(Ok(()), |interface| socket.bind_device(Some(interface.as_bytes())))
}

/// Makes a connection time out if sent data stays unacknowledged for this long (`TCP_USER_TIMEOUT`, RFC 5482).
pub fn set_user_timeout(socket: &Socket, timeout: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(timeout))
}

/// Gives a socket buffers of so many bytes; without root at most `net.core.rmem_max` and `wmem_max`.
pub fn set_socket_buffers(socket: &Socket, bytes: usize) -> io::Result<()> {
    setsockopt(socket, sockopt::RcvBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes))?;
    setsockopt(socket, sockopt::SndBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::SndBuf, &bytes))?;
    Ok(())
}

/// Lets [`recv_datagrams`] return several datagrams at once (`UDP_GRO`), or each by itself. Before the latter, no other call may
/// receive from it. Returns whether the system can do that.
pub fn coalesce_datagrams(socket: &Socket, is_on: bool) -> bool {
    setsockopt(socket, sockopt::UdpGroSegment, &is_on).is_ok()
}

/// Lets [`undelivered`] tell of each datagram by itself (`IP_RECVERR`). Only on Linux.
pub fn queue_errors(socket: &Socket, ipv6: bool) -> io::Result<()> {
    Ok(if ipv6 {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)
    } else {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)
    }?)
}

/// Sends datagrams with "don't fragment" (RFC 791, 3.1), and fails if one is longer than the MTU of its path, or leaves
/// it to the path to fragment them (`IP_MTU_DISCOVER`). Over IPv6 it is this host that fragments. Only on Linux.
pub fn set_dont_fragment(socket: &Socket, ipv6: bool, is_on: bool) -> io::Result<()> {
    let (level, option, value) = match (ipv6, is_on) {
        (false, true) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        (false, false) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
        (true, true) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        (true, false) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT),
    };
    set_socket_option(socket.as_raw_fd(), level, option, value)
}

/// The next datagram that the kernel has heard of that it was not delivered: by itself after [`queue_errors`].
/// [`io::ErrorKind::WouldBlock`] if there is none.
pub fn undelivered(socket: &Socket) -> io::Result<Undelivered> {
    // The error, and the address of the host that reports it.
    let mut control = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let (mut quoted, flags) = ([0; 1], MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT);
    let mut slices = [IoSliceMut::new(&mut quoted)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let error = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => Some(error),
        _ => None,
    });
    let error = error.ok_or(io::ErrorKind::WouldBlock)?;
    let number = error.ee_errno.cast_signed();
    let mtu = (number == libc::EMSGSIZE).then_some(error.ee_info);
    let to = message.address.as_ref().and_then(socket_addr);
    Ok(Undelivered { error: io::Error::from_raw_os_error(number), to, mtu })
}

/// Sends the first datagrams of `payloads`; see [`send_datagrams`](crate::send_datagrams).
pub(crate) fn send_together(
    socket: &Socket,
    to: Option<SocketAddr>,
    payloads: &[u8],
    segment_len: usize,
) -> io::Result<usize> {
    let to = to.map(SockaddrStorage::from);
    let send = |payload: &[u8], control: &[ControlMessage<'_>]| {
        sendmsg(socket.as_raw_fd(), &[IoSlice::new(payload)], control, MsgFlags::empty(), to.as_ref())
    };
    let count = (MAX_BYTES_TOGETHER / segment_len.max(1)).clamp(1, MAX_DATAGRAMS_TOGETHER);
    let together = &payloads[..payloads.len().min(count * segment_len)];
    if together.len() > segment_len {
        match send(together, &[ControlMessage::UdpGsoSegments(&(segment_len as u16))]) {
            // The kernel has no `UDP_SEGMENT`, the interface no checksum offload, or a datagram has to be fragmented.
            Err(Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {}
            result => return Ok(result?),
        }
    }
    // One by one. The first is sent even if it is empty.
    let mut taken = send(&together[..segment_len.min(together.len())], &[])?;
    for datagram in together[taken..].chunks(segment_len.max(1)) {
        match send(datagram, &[]) {
            Ok(len) => taken += len,
            Err(_) => break,
        }
    }
    Ok(taken)
}

/// A listener at this address that does not block, for connections to any host that the kernel leads there (`IP_TRANSPARENT`).
pub fn listen_transparently(address: SocketAddr) -> io::Result<TcpListener> {
    const BACKLOG: i32 = 4096;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        socket.set_ip_transparent_v6(true)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Receives a datagram, or several if [`coalesce_datagrams`] allows it: a buffer of 65,535 bytes holds any.
pub fn recv_datagrams(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty())?;
    let segment_len = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
        _ => None,
    });
    let (len, address) = (message.bytes, message.address.as_ref());
    Ok(Received { len, segment_len: segment_len.unwrap_or(len), from: address.and_then(socket_addr) })
}
