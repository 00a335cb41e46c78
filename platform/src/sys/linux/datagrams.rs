//! Sockets of datagrams: their buffers, and several datagrams in one system call: `UDP_SEGMENT` and `UDP_GRO` (`include/uapi/linux/udp.h`, `net/ipv4/udp.c`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::Socket;

use crate::packet::{IPV6_HEADER_LEN, UDP_HEADER_LEN};
use crate::socket::Received;

/// The largest payload of one call, in bytes. Over IPv4 there would be room for 20 more.
const MAX_PAYLOAD: usize = 65_535 - IPV6_HEADER_LEN - UDP_HEADER_LEN;

/// The most datagrams of one call: `UDP_MAX_SEGMENTS`, which is larger in newer kernels (`include/linux/udp.h`).
const MAX_SEGMENTS: usize = 64;

/// Root of the socket's network namespace may exceed `net.core.rmem_max` and `wmem_max` (`net/core/sock.c`).
pub(super) fn set_buffers(socket: &Socket, bytes: usize) -> io::Result<()> {
    setsockopt(socket, sockopt::RcvBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes))?;
    setsockopt(socket, sockopt::SndBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::SndBuf, &bytes))?;
    Ok(())
}

pub(super) fn coalesce(socket: &Socket) -> bool {
    setsockopt(socket, sockopt::UdpGroSegment, &true).is_ok()
}

pub(super) fn send(socket: &Socket, to: Option<SocketAddr>, payloads: &[u8], segment_len: usize) -> io::Result<usize> {
    let to = to.map(SockaddrStorage::from);
    let send = |payload: &[u8], control: &[ControlMessage<'_>]| {
        sendmsg(socket.as_raw_fd(), &[IoSlice::new(payload)], control, MsgFlags::empty(), to.as_ref())
    };
    let together = segment_len.saturating_mul((MAX_PAYLOAD / segment_len.max(1)).min(MAX_SEGMENTS)).min(payloads.len());
    if together > segment_len && segment_len > 0 {
        match send(&payloads[..together], &[ControlMessage::UdpGsoSegments(&(segment_len as u16))]) {
            // The kernel has no `UDP_SEGMENT`, the interface no checksum offload, or a datagram has to be fragmented.
            Err(Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {}
            taken => return Ok(taken?),
        }
    }
    Ok(send(&payloads[..segment_len.min(payloads.len())], &[])?)
}

pub(super) fn recv(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty())?;
    let segment_len = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
        _ => None,
    });
    let len = message.bytes;
    Ok(Received { len, segment_len: segment_len.unwrap_or(len), from: message.address.as_ref().and_then(socket_addr) })
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| (*address).into()).map(SocketAddr::V4);
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}
