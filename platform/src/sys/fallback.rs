//! A system that has nothing of its own. The other systems take what they lack from here.

#![allow(dead_code, unreachable_pub, reason = "a system shadows what it has")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the documentation is at Linux's functions")]
#![allow(clippy::unnecessary_wraps, reason = "other systems fail")]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Socket, Type};

#[cfg(not(windows))]
pub use super::precise::*;
use crate::doctor::Check;
use crate::{
    Adopted, Capabilities, DropCounter, Error, Feature, Interface, InterfaceCounts, KernelObjects, Link, Loopback,
    Namespace, PacketBuffer, PacketMeta, ProcessCondition, ProcessEnd, ProcessMeter, Received, SocketCount, Switches,
    TcpStatistics, Throttled, TunConfig, Undelivered,
};

/// Functions that all return the same.
macro_rules! return_all {
    ($result:expr; $($visibility:vis fn $name:ident($($parameters:tt)*) $(-> $type:ty)?;)*) => {
        $($visibility fn $name($($parameters)*) $(-> $type)? { $result })*
    };
}

/// A device that cannot be opened, so no value of it exists.
#[derive(Debug)]
pub struct TunDevice(Infallible);

impl TunDevice {
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        config.do_without_offload("there is no device that would have any")?;
        Err(no_device())
    }

    return_all! { match self.0 {};
        pub(crate) fn sender(&self) -> Result<Self, Error>;
        pub fn receives(&self) -> bool;
        pub fn name(&self) -> &str;
        pub fn tx_queue_len(&self) -> Option<u32>;
        pub fn drop_counter(&self) -> DropCounter;
    }
}

impl Link for TunDevice {
    return_all! { match self.0 {};
        fn capabilities(&self) -> Capabilities;
        fn try_recv(&mut self, _buffers: &mut [PacketBuffer]) -> io::Result<usize>;
        fn try_send(&mut self, _meta: PacketMeta, _slices: &[IoSlice<'_>]) -> io::Result<()>;
        fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>>;
        fn poll_writable(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    }
}

pub(crate) fn open_queues<T>(config: &TunConfig, _queues: usize) -> Result<Vec<T>, Error> {
    Err(config.no_queues("this system's devices have one"))
}

fn no_device() -> Error {
    Error::unsupported(Feature::Tun, "open", "a TUN device")
}

pub fn examine(_window_bytes: usize) -> Vec<Check> {
    vec![Check::of("device", &no_device())]
}

pub(crate) fn keep_device(_name: &str) -> Result<Option<Box<dyn Any + Send>>, Error> {
    Ok(None)
}

return_all! { Ok(());
    pub(crate) fn check_name(_name: &str) -> Result<(), &'static str>;
    pub fn check_device_node() -> Result<(), Error>;
}

// Networks.

fn no_netns() -> Error {
    Error::unsupported(Feature::Netns, "create", "a network namespace")
}

return_all! { Err(no_netns());
    pub fn enter_netns() -> Result<(), Error>;
    pub fn add_route(_interface: &str, _network: IpAddr, _prefix_len: u8, _via: Option<IpAddr>) -> Result<(), Error>;
    pub fn add_address(_interface: &str, _address: IpAddr, _prefix_len: u8) -> Result<(), Error>;
    pub fn delete_interface(_interface: &str) -> Result<(), Error>;
    pub fn remove_address(_interface: &str, _address: IpAddr, _prefix_len: u8) -> Result<(), Error>;
    pub fn set_mtu(_interface: &str, _mtu: u16) -> Result<(), Error>;
    pub fn set_black_hole(_interface: &str, _is_on: bool) -> Result<(), Error>;
    pub fn set_segmentation(_interface: &str, _is_on: bool) -> Result<(), Error>;
    pub fn set_default_congestion_control(_name: &str) -> Result<(), Error>;
}

impl Namespace {
    return_all! { Err(no_netns());
        pub fn join(&self, _near: &Interface, _far: &Interface) -> Result<(), Error>;
    }
}

impl Interface {
    return_all! { Err(no_netns());
        pub fn set_up(&self) -> Result<(), Error>;
    }

    pub fn adopt(&self) -> Result<Adopted, Error> {
        Err(Error::unsupported(Feature::Netns, "set up", "the device of another program"))
    }
}

pub fn enable_forwarding(_interface: &str, _ipv6: bool) -> Result<(), Error> {
    Err(Error::unsupported(Feature::Forwarding, "forward packets in", "a network of the run's own"))
}

pub fn set_loopback_up() -> Result<Option<Loopback>, Error> {
    Ok(None)
}

// Nothing is done, or reported.

return_all! { true;
    pub fn is_bound_to(_socket: &Socket, _interface: &str) -> bool;
}

return_all! { Default::default();
    pub fn is_local_address(_address: IpAddr, _but_of: &str) -> bool;
    pub fn strict_reverse_paths(_interfaces: &[&str]) -> Option<Check>;
    pub fn drops_own_sources(_interface: &str) -> Option<Check>;
    pub fn interface_of(_address: IpAddr) -> Option<String>;
    pub fn sockets() -> Vec<(Type, SocketAddr)>;
    pub fn mtu_of_descriptor(_fd: i32) -> Option<u16>;
    pub fn folder_of_thread() -> PathBuf;
    pub fn interface_counts(_thread: &Path, _interface: &str) -> Option<InterfaceCounts>;
    pub fn interface_is_up(_interface: &str) -> bool;
    pub fn interface_names(_thread: &Path) -> Vec<String>;
    pub fn qdisc_of(_interface: &str) -> Option<String>;
    pub fn tcp_statistics(_socket: &TcpStream) -> TcpStatistics;
    pub fn default_congestion_control() -> Option<String>;
    pub fn congestion_controls() -> BTreeSet<String>;
    pub fn tcp_settings() -> BTreeMap<String, String>;
    pub fn coalesce_datagrams(_socket: &Socket, _is_on: bool) -> bool;
    pub fn allow_open_files(_wanted: u64);
    pub fn return_large_buffers();
    pub fn processors() -> Option<Vec<u16>>;
    pub fn end_with_this_thread(_command: &mut Command);
    pub fn processes_in(_thread: &Path) -> Vec<ProcessMeter>;
    pub fn cpu_of_process() -> Option<Duration>;
    pub fn cpu_of_thread() -> Option<Duration>;
    pub fn switches_of_process() -> Option<Switches>;
    pub fn switches_of_thread() -> Option<Switches>;
    pub fn peak_rss_bytes() -> Option<u64>;
    pub fn stolen_time() -> Option<Duration>;
    pub fn throttled() -> Option<Throttled>;
    pub fn kernel_objects() -> Option<KernelObjects>;
    pub fn sockets_of(_thread: &Path) -> Option<SocketCount>;
    pub fn page_bytes() -> Option<u64>;
    pub fn memory_bytes() -> Option<u64>;
    pub(crate) fn rss_bytes_of(_pid: u32) -> Option<u64>;
    pub(crate) fn kernel() -> Option<String>;
    pub(crate) fn cpu() -> Option<String>;
    pub(crate) fn governor() -> Option<String>;
    pub(crate) fn virtual_machine() -> Option<bool>;
    pub(crate) fn identity() -> Option<String>;
}

impl ProcessMeter {
    #[allow(unused_qualifications, reason = "the system may have a function of its own in place of the one here")]
    pub fn rss_bytes(self) -> Option<u64> {
        super::rss_bytes_of(self.pid)
    }

    return_all! { Default::default();
        pub fn cpu(self) -> Option<Duration>;
        pub fn peak_rss_bytes(self) -> Option<u64>;
        pub fn condition(self) -> Option<ProcessCondition>;
        pub fn switches(self) -> Option<Switches>;
        pub fn is_busy(self) -> bool;
        pub fn terminate(self);
        pub fn kill(self);
    }

    return_all! { Err(io::ErrorKind::Unsupported.into());
        pub fn limit_open_files(self, _most: u64) -> io::Result<()>;
    }
}

return_all! { Err(io::ErrorKind::Unsupported.into());
    pub fn join_netns(_path: &Path) -> io::Result<()>;
    pub fn addresses_of(_interface: &str) -> io::Result<Vec<IpAddr>>;
    pub fn set_congestion_control(_socket: &Socket, _name: &str) -> io::Result<()>;
    pub fn bind_to_interface(_socket: &Socket, _interface: &str, _ipv6: bool) -> io::Result<()>;
    pub fn share_port(_socket: &Socket, _interface: Option<&str>) -> io::Result<()>;
    pub fn queue_errors(_socket: &Socket, _ipv6: bool) -> io::Result<()>;
    pub fn set_dont_fragment(_socket: &Socket, _ipv6: bool, _is_on: bool) -> io::Result<()>;
    pub fn set_user_timeout(_socket: &Socket, _timeout: Duration) -> io::Result<()>;
    pub(crate) fn set_processor(_processor: u16) -> io::Result<()>;
    pub fn listen_transparently(_address: SocketAddr) -> io::Result<TcpListener>;
    pub fn keep_on(_command: &mut Command, _processors: &[u16]) -> io::Result<()>;
    pub fn with_mounts(_command: &mut Command, _mounts: &[(PathBuf, PathBuf)]) -> io::Result<()>;
}

// Sockets.

#[cfg(not(windows))]
pub(super) fn poll_until(poll: &mut mio::Poll, events: &mut mio::Events, end: std::time::Instant) -> io::Result<()> {
    poll.poll(events, Some(end.saturating_duration_since(std::time::Instant::now())))
}

#[cfg(not(windows))]
pub fn sharpen_timers() -> SharpTimers {
    SharpTimers(())
}

pub fn set_socket_buffers(socket: &Socket, bytes: usize) -> io::Result<()> {
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)
}

pub(crate) fn send_together(socket: &Socket, to: Option<SocketAddr>, all: &[u8], len: usize) -> io::Result<usize> {
    let first = &all[..len.min(all.len())];
    to.map_or_else(|| socket.send(first), |to| socket.send_to(first, &to.into()))
}

pub fn recv_datagrams(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and socket2 writes only initialized bytes to it.
    let buffer = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
    let (len, from) = socket.recv_from(buffer)?;
    Ok(Received { len, segment_len: len, from: from.as_socket() })
}

pub fn undelivered(socket: &Socket) -> io::Result<Undelivered> {
    let error = socket.take_error()?.ok_or(io::ErrorKind::WouldBlock)?;
    Ok(Undelivered { error, to: None, mtu: None })
}

// Processes.

pub(crate) fn process_end(status: ExitStatus) -> ProcessEnd {
    status.code().map_or_else(|| ProcessEnd::Crashed(status.to_string()), ProcessEnd::Exited)
}

pub fn this_program() -> PathBuf {
    crate::process::program_on_disk()
}

pub unsafe fn discard(_memory: *mut [u8]) -> bool {
    false
}

pub(crate) fn end_with_parent(_parent: u32) -> bool {
    true
}

/// Catches nothing: an interrupt ends the program.
#[derive(Debug)]
pub struct Interrupts(());

impl Interrupts {
    pub fn catch() -> io::Result<Self> {
        Ok(Self(()))
    }

    pub async fn next(&mut self) {
        std::future::pending().await
    }
}

/// A profiler that cannot be started, so no value of it exists.
#[derive(Debug)]
pub struct Profiler(Infallible);

impl Profiler {
    pub fn start(_frequency_hz: NonZeroU16) -> Result<Self, Error> {
        Err(Error::unsupported(Feature::Profile, "start", "a profile of this process"))
    }

    pub fn finish(self, _title: &str, _out: impl Write) -> Result<(), Error> {
        match self.0 {}
    }
}

/// Packets of an interface that are being written as pcap.
#[derive(Debug)]
pub struct Capture(Infallible);

/// What a capture has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub packets: u64,
    pub lost: u64,
    pub is_full: bool,
}

impl Capture {
    pub fn start(_interface: &str, _writer: impl Write + Send + 'static, _most_bytes: u64) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn finish(self) -> io::Result<Captured> {
        match self.0 {}
    }
}
