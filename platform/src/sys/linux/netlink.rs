//! The protocol of rtnetlink: requests and events.

use std::io;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::constants::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// `RTMGRP_LINK`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` of `linux/rtnetlink.h`.
const EVENTS: u32 = 0x1 | 0x100 | 0x400;

/// How long it may take until an interface that is up is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for a condition that an event of an interface or of an IPv6 address or route announces.
pub(super) fn wait_until(ready: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let mut events = Socket::new(NETLINK_ROUTE)?;
    events.bind(&SocketAddr::new(0, EVENTS))?;
    let deadline = Instant::now() + READY_TIMEOUT;
    // The socket keeps an event that happens between the query and the wait.
    while !ready()? {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        SockRef::from(&events).set_read_timeout(Some(remaining))?;
        match events.recv_from_full() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Sends a request and reads the kernel's acknowledgement, which arrives at once.
pub(super) fn request(message: RouteNetlinkMessage) -> io::Result<()> {
    acknowledged(message, 0)
}

/// The same for a request that creates an object. It fails if the object exists.
pub(super) fn create(message: RouteNetlinkMessage) -> io::Result<()> {
    acknowledged(message, NLM_F_CREATE | NLM_F_EXCL)
}

/// The same in place of an object that may exist.
pub(super) fn replace(message: RouteNetlinkMessage) -> io::Result<()> {
    acknowledged(message, NLM_F_CREATE | NLM_F_REPLACE)
}

fn acknowledged(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    match ask(message, NLM_F_ACK | flags)? {
        NetlinkPayload::Error(_) => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Sends a message and waits for the reply. Returns an error if the reply is an error.
pub(super) fn ask(message: RouteNetlinkMessage, flags: u16) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        payload => Ok(payload),
    }
}

pub(super) fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "rtnetlink answered with something else")
}
