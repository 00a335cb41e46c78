//! A system without a TUN device that this program knows. Everything that needs none still works.

use std::io::{self, IoSlice};
use std::net::{IpAddr, TcpStream};
use std::process::ExitStatus;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::Socket;

use crate::doctor::Check;
pub(crate) use crate::elsewhere::*;
pub(crate) use crate::process::program_on_disk as this_program;
use crate::{Capabilities, Error, Link, PacketBuffer, PacketMeta, ProcessEnd, TcpStatistics, TunConfig};

/// A device that cannot be opened, and so never exists.
#[derive(Debug)]
pub enum TunDevice {}

impl TunDevice {
    /// Always an error on this system.
    ///
    /// # Errors
    ///
    /// [`crate::Class::Unavailable`].
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        config.do_without_offload("there is no device that would have any")?;
        Err(no_device())
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// How many packets may wait for the stack before the kernel drops.
    ///
    /// # Errors
    ///
    /// None: the device never exists.
    pub fn tx_queue_len(&self) -> io::Result<Option<u32>> {
        match *self {}
    }

    /// A reader of the interface's drop counters.
    pub fn drop_counter(&self) -> DropCounter {
        match *self {}
    }
}

fn no_device() -> Error {
    Error::unsupported("open", "a TUN device", "run on Linux, macOS or Windows")
}

impl Link for TunDevice {
    fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    fn try_recv(&mut self, _buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        match *self {}
    }

    fn try_send(&mut self, _meta: PacketMeta, _slices: &[IoSlice<'_>]) -> io::Result<()> {
        match *self {}
    }

    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    fn poll_writable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

/// Reads how many packets the kernel has dropped at an interface.
#[derive(Clone, Debug)]
pub struct DropCounter;

impl DropCounter {
    /// `None`: this system does not say.
    pub fn read(&self) -> Option<u64> {
        None
    }
}

pub(crate) fn bind_to_interface(_socket: &Socket, _interface: &str, _ipv6: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn tcp_statistics(_socket: &TcpStream) -> Option<TcpStatistics> {
    None
}

pub(crate) fn cpu_of_process() -> Option<Duration> {
    None
}

pub(crate) fn cpu_of_thread() -> Option<Duration> {
    None
}

pub(crate) fn peak_rss_bytes() -> Option<u64> {
    None
}

pub(crate) fn kernel() -> Option<String> {
    None
}

pub(crate) fn cpu() -> Option<String> {
    None
}

pub(crate) fn governor() -> Option<String> {
    None
}

pub(crate) fn virtual_machine() -> Option<bool> {
    None
}

pub(crate) fn is_local_address(_address: IpAddr) -> bool {
    false
}

pub(crate) fn examine(_window_bytes: usize) -> Vec<Check> {
    vec![Check::of("device", Err(no_device()))]
}

pub(crate) fn memory_bytes() -> Option<u64> {
    None
}

pub(crate) fn process_end(status: ExitStatus) -> ProcessEnd {
    status.code().map_or_else(|| ProcessEnd::Crashed(status.to_string()), ProcessEnd::Exited)
}

/// Nothing is caught: the system ends the program by itself.
#[derive(Debug)]
pub(crate) struct Interrupts;

impl Interrupts {
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}
