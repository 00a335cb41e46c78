//! What Linux alone has, on every other system: it is not there, and each says so in the same words.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Error, Interface, Loopback};

pub(crate) const ISOLATION: bool = false;

pub(crate) const OFFLOAD: bool = false;

pub(crate) const TUN_RS_SUM: Option<fn(&[u8]) -> u16> = None;

pub(crate) fn isolate() -> Result<(), Error> {
    Err(Error::unsupported("create", "a network namespace", "only Linux has them; use --netns host"))
}

pub(crate) fn take_up_loopback() -> Result<Option<Loopback>, Error> {
    Ok(None)
}

pub(crate) fn enable_forwarding(_interface: &str, _ipv6: bool) -> Result<(), Error> {
    Err(Error::unsupported(
        "forward packets in",
        "a network of the run's own",
        "only Linux has them; leave out --layer device",
    ))
}

pub(crate) fn set_up(_interface: &Interface) -> Result<(), Error> {
    isolate()
}

/// There is no such folder.
pub(crate) fn folder_of_thread() -> PathBuf {
    PathBuf::new()
}

pub(crate) fn dropped_packets(_thread: &Path, _interface: &str) -> Option<u64> {
    None
}

pub(crate) fn cpu_of(_process: u32) -> Option<Duration> {
    None
}

pub(crate) fn rss_bytes_of(_process: u32) -> Option<u64> {
    None
}

pub(crate) fn peak_rss_bytes_of(_process: u32) -> Option<u64> {
    None
}

pub(crate) fn end_with_this_thread(_command: &mut Command) {}

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
