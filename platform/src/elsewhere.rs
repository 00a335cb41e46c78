//! What Linux alone has, on every other system: it is not there, and each says so in the same words.

use std::io;
use std::net::TcpStream;

use crate::{Error, Loopback};

pub(crate) const ISOLATION: bool = false;

pub(crate) const OFFLOAD: bool = false;

pub(crate) fn isolate() -> Result<(), Error> {
    Err(Error::unsupported("create", "a network namespace", "only Linux has them; use --netns host"))
}

pub(crate) fn take_up_loopback() -> Result<Option<Loopback>, Error> {
    Ok(None)
}

pub(crate) fn forward(_interface: &str, _ipv6: bool) -> Result<(), Error> {
    Err(Error::unsupported(
        "forward packets in",
        "a network of the run's own",
        "only Linux has them; leave out --layer device",
    ))
}

/// There is no bond that could fail.
pub(crate) fn end_with_parent(_parent: u32) -> bool {
    true
}

pub(crate) fn default_congestion_control() -> Option<String> {
    None
}

pub(crate) fn set_congestion_control(_socket: &TcpStream, _name: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
