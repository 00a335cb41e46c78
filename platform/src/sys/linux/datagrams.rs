//! UDP sockets: buffer sizes, and several datagrams in a system call (`UDP_SEGMENT` and `UDP_GRO` of
//! `include/uapi/linux/udp.h`, `net/ipv4/udp.c`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::Socket;

use crate::socket::{MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER, Received};

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
