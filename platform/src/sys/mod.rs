//! The operating systems. Each has a file or folder, and implements the trait [`System`].
//!
//! To add a system, write a type that implements [`System`], and a line here that names it [`Native`].

use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use socket2::Socket;

use crate::check::Check;
use crate::connection::{Received, TcpStatistics};
use crate::{
    Adopted, DropCounter, Error, Feature, Interface, InterfaceCounts, Link, Loopback, Namespace, ProcessCondition,
    ProcessEnd, Switches, TunConfig,
};

#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod no_sampler;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod sampler;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod unix;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
mod unsupported;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::Linux as Native;
#[cfg(target_os = "macos")]
pub(crate) use macos::MacOs as Native;
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
pub(crate) use unsupported::Unsupported as Native;
#[cfg(windows)]
pub(crate) use windows::Windows as Native;

/// Everything that a system provides. The public function of the same name documents each item. The defaults are for
/// systems that lack the feature.
pub(crate) trait System {
    type Tun: Tun;
    type Interrupts: Interrupts;
    type Sampler: Sampler;

    /// Whether a TUN device of this system can offload.
    const OFFLOAD: bool = false;

    /// Whether the system has network namespaces.
    const NETNS: bool = false;

    /// Whether a process can be asked to end.
    const TERMINATES: bool = false;

    /// The checksum function of tun-rs, for a bench.
    const TUN_RS_SUM: Option<fn(&[u8]) -> u16> = None;

    // Devices and networks.

    /// Checks the name of a TUN device by the rule of the system.
    fn check_name(name: &str) -> Result<(), &'static str>;

    fn is_local_address(address: IpAddr) -> bool;

    fn mtu_of_descriptor(_fd: i32) -> Option<u16> {
        None
    }

    fn enter_netns() -> Result<(), Error> {
        Err(Error::unsupported(Feature::Netns, "create", "a network namespace"))
    }

    fn set_up(_interface: &Interface) -> Result<(), Error> {
        Self::enter_netns()
    }

    fn join(_near: &Interface, _far: &Interface, _network: &Namespace) -> Result<(), Error> {
        Self::enter_netns()
    }

    fn add_route(_interface: &str, _network: IpAddr, _prefix_len: u8, _via: Option<IpAddr>) -> Result<(), Error> {
        Self::enter_netns()
    }

    fn add_address(_interface: &str, _address: IpAddr, _prefix_len: u8) -> Result<(), Error> {
        Self::enter_netns()
    }

    fn set_black_hole(_interface: &str, _is_on: bool) -> Result<(), Error> {
        Self::enter_netns()
    }

    fn adopt(_interface: &Interface) -> Result<Adopted, Error> {
        Err(Error::unsupported(Feature::Netns, "set up", "the device of another program"))
    }

    fn processes_in(_thread: &Path) -> Vec<u32> {
        Vec::new()
    }

    fn set_loopback_up() -> Result<Option<Loopback>, Error> {
        Ok(None)
    }

    fn enable_forwarding(_interface: &str, _ipv6: bool) -> Result<(), Error> {
        Err(Error::unsupported(Feature::Forwarding, "forward packets in", "a network of the run's own"))
    }

    fn folder_of_thread() -> PathBuf {
        PathBuf::new()
    }

    fn interface_counts(_thread: &Path, _interface: &str) -> Option<InterfaceCounts> {
        None
    }

    fn interface_is_up(_interface: &str) -> bool {
        false
    }

    fn interface_names(_thread: &Path) -> Vec<String> {
        Vec::new()
    }

    // Sockets.

    fn poll_until(poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
        poll.poll(events, Some(end.saturating_duration_since(Instant::now())))
    }

    fn tcp_statistics(_socket: &TcpStream) -> Option<TcpStatistics> {
        None
    }

    fn default_congestion_control() -> Option<String> {
        None
    }

    fn set_congestion_control(_socket: &Socket, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind_to_interface(_socket: &Socket, _interface: &str, _ipv6: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_socket_buffers(socket: &Socket, bytes: usize) -> io::Result<()> {
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)
    }

    fn set_user_timeout(_socket: &Socket, _timeout: Duration) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn coalesce_datagrams(_socket: &Socket) -> bool {
        false
    }

    fn send_datagrams(
        socket: &Socket,
        to: Option<SocketAddr>,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        let first = &payloads[..segment_len.min(payloads.len())];
        to.map_or_else(|| socket.send(first), |to| socket.send_to(first, &to.into()))
    }

    fn recv_datagrams(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and socket2 writes only initialized bytes to it.
        let buffer = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
        let (len, from) = socket.recv_from(buffer)?;
        Ok(Received { len, segment_len: len, from: from.as_socket() })
    }

    // Processes.

    fn process_end(status: ExitStatus) -> ProcessEnd;

    fn this_program() -> PathBuf {
        program_on_disk()
    }

    fn allow_open_files(_wanted: u64) {}

    fn cancel_io(_socket: &TcpStream) {}

    fn sharpen_timers() {}

    fn return_large_buffers() {}

    /// # Safety
    ///
    /// See [`crate::discard`].
    unsafe fn discard(_memory: *mut [u8]) -> bool {
        false
    }

    fn processors() -> Option<Vec<u16>> {
        None
    }

    fn pin_thread(_processor: u16) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn end_with_this_thread(_command: &mut Command) {}

    fn with_mounts(_command: &mut Command, _mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn end_with_parent(_parent: u32) -> bool {
        true
    }

    fn terminate(_process: u32) {}

    fn kill(_process: u32) {}

    fn condition_of(_process: u32) -> Option<ProcessCondition> {
        None
    }

    fn check_device_node() -> Result<(), Error> {
        Ok(())
    }

    fn is_busy(_process: u32) -> bool {
        false
    }

    fn cpu_of(_process: u32) -> Option<Duration> {
        None
    }

    fn rss_bytes_of(_process: u32) -> Option<u64> {
        None
    }

    fn peak_rss_bytes_of(_process: u32) -> Option<u64> {
        None
    }

    fn cpu_of_process() -> Option<Duration> {
        None
    }

    fn switches_of(_process: u32) -> Option<Switches> {
        None
    }

    fn switches_of_process() -> Option<Switches> {
        None
    }

    fn switches_of_thread() -> Option<Switches> {
        None
    }

    fn cpu_of_thread() -> Option<Duration> {
        None
    }

    fn peak_rss_bytes() -> Option<u64> {
        None
    }

    fn stolen_time() -> Option<Duration> {
        None
    }

    // The machine.

    fn examine(window_bytes: usize) -> Vec<Check>;

    fn memory_bytes() -> Option<u64> {
        None
    }

    fn kernel() -> Option<String> {
        None
    }

    fn cpu() -> Option<String> {
        None
    }

    fn governor() -> Option<String> {
        None
    }

    fn virtual_machine() -> Option<bool> {
        None
    }

    /// What tells this machine from all others. It is not for others to know.
    fn identity() -> Option<String> {
        None
    }
}

/// A system's TUN device, behind [`crate::TunDevice`].
pub(crate) trait Tun: Link + Sized {
    fn open(config: &TunConfig) -> Result<Self, Error>;

    /// Opens the device with so many queues, each a value.
    fn open_queues(config: &TunConfig, _queues: usize) -> Result<Vec<Self>, Error> {
        Err(config.no_queues(io::Error::new(io::ErrorKind::Unsupported, "this system's devices have one")))
    }

    /// A value for the same device that is only used to send.
    fn sender(&self) -> Result<Self, Error>;

    fn name(&self) -> &str;

    fn tx_queue_len(&self) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn drop_counter(&self) -> DropCounter;
}

/// Catches the user's interrupts, behind [`crate::Interrupts`].
pub(crate) trait Interrupts: Debug + Send + Sized {
    fn catch() -> io::Result<Self>;

    fn next(&mut self) -> impl Future<Output = ()> + Send;
}

/// Takes samples for a flame graph, behind [`crate::profile::Profiler`].
pub(crate) trait Sampler: Debug + Sized {
    fn start(frequency_hz: NonZeroU16) -> Result<Self, Error>;

    /// The samples so far, as folded stacks in the order of their names.
    fn finish(self) -> Result<String, Error>;
}

/// The path of this program's file, or the name that it was started with if the system does not report the path.
fn program_on_disk() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| std::env::args_os().next().unwrap_or_default().into())
}
