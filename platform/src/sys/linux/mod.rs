//! Linux: `/dev/net/tun` through tun-rs, rtnetlink, namespaces, and `/proc`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use nix::poll::{PollFd, PollFlags};
use nix::sys::resource::UsageWho;
use nix::sys::signal::Signal;
use socket2::Socket;

mod cpu;
mod datagrams;
mod doctor;
mod netlink;
mod netns;
mod network;
mod process;
mod tcp_info;
mod tun;

pub(crate) use self::network::parse_counts;
#[cfg(test)]
pub(crate) use self::process::is_alive;
pub(crate) use self::process::{is_alive_by, parse_stolen};
pub use self::tun::{create_tun, loses_packet};

use super::sampler::SignalSampler;
use super::unix::{self, TerminationSignals, socket_option};
use super::{System, program_on_disk};
use crate::doctor::Check;
use crate::socket::Received;
use crate::{
    Adopted, Error, Interface, InterfaceCounts, Loopback, Namespace, ProcessCondition, ProcessEnd, Switches,
    TcpStatistics,
};

/// From this size on, a buffer is the system's again when it is freed. It is glibc's default, which glibc itself raises
/// when a larger buffer is freed, up to 32 MiB, unless a program sets it.
#[cfg(target_env = "gnu")]
const LARGE_BUFFER_BYTES: libc::c_int = 128 << 10;

/// This system.
pub(crate) struct Linux;

impl System for Linux {
    type Tun = tun::LinuxTun;
    type Interrupts = TerminationSignals;
    type Sampler = SignalSampler;

    const OFFLOAD: bool = true;
    const NETNS: bool = true;
    const TERMINATES: bool = true;
    /// tun-rs hides this public function in its documentation.
    const TUN_RS_SUM: Option<fn(&[u8]) -> u16> = Some(|bytes| tun_rs::checksum(bytes, 0));

    fn check_name(name: &str) -> Result<(), &'static str> {
        unix::check_name_len(name)
    }

    fn is_local_address(address: IpAddr) -> bool {
        unix::is_local_address(address)
    }

    fn mtu_of_descriptor(fd: i32) -> Option<u16> {
        unix::mtu_of_descriptor(fd)
    }

    fn enter_netns() -> Result<(), Error> {
        netns::enter()
    }

    #[cfg(target_env = "gnu")]
    fn return_large_buffers() {
        // SAFETY: the call takes two numbers. A refusal leaves everything as it was.
        let _accepted = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) };
    }

    unsafe fn discard(memory: *mut [u8]) -> bool {
        // SAFETY: the caller owns the memory, and wants none of its bytes.
        unsafe { libc::madvise(memory.cast(), memory.len(), libc::MADV_DONTNEED) == 0 }
    }

    fn set_up(interface: &Interface) -> Result<(), Error> {
        network::set_up(interface)
    }

    fn join(near: &Interface, far: &Interface, network: &Namespace) -> Result<(), Error> {
        network::join(near, far, network)
    }

    fn add_route(interface: &str, network: IpAddr, prefix_len: u8, via: Option<IpAddr>) -> Result<(), Error> {
        network::add_route(interface, network, prefix_len, via)
    }

    fn add_address(interface: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        network::add_ready_address(interface, address, prefix_len)
    }

    fn set_black_hole(interface: &str, is_on: bool) -> Result<(), Error> {
        network::set_black_hole(interface, is_on)
    }

    fn adopt(interface: &Interface) -> Result<Adopted, Error> {
        network::adopt(interface)
    }

    fn processes_in(thread: &Path) -> Vec<u32> {
        process::processes_in(thread)
    }

    fn set_loopback_up() -> Result<Option<Loopback>, Error> {
        network::set_loopback_up().map(Some)
    }

    fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
        network::enable_forwarding(interface, ipv6)
    }

    fn folder_of_thread() -> PathBuf {
        process::folder_of_thread()
    }

    fn interface_counts(thread: &Path, interface: &str) -> Option<InterfaceCounts> {
        network::interface_counts(thread, interface)
    }

    fn interface_is_up(interface: &str) -> bool {
        network::is_up(interface)
    }

    fn interface_names(thread: &Path) -> Vec<String> {
        network::interface_names(thread)
    }

    /// `TCP_INFO` of `tcp(7)`.
    fn tcp_statistics(socket: &TcpStream) -> Option<TcpStatistics> {
        let mut info = [0; tcp_info::LEN];
        let len = socket_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
        Some(tcp_info::read(info.get(..len)?))
    }

    fn default_congestion_control() -> Option<String> {
        line("/proc/sys/net/ipv4/tcp_congestion_control")
    }

    fn set_congestion_control(socket: &Socket, name: &str) -> io::Result<()> {
        socket.set_tcp_congestion(name.as_bytes())
    }

    fn bind_to_interface(socket: &Socket, interface: &str, _ipv6: bool) -> io::Result<()> {
        socket.bind_device(Some(interface.as_bytes()))
    }

    fn set_socket_buffers(socket: &Socket, bytes: usize) -> io::Result<()> {
        datagrams::set_buffers(socket, bytes)
    }

    fn set_user_timeout(socket: &Socket, timeout: Duration) -> io::Result<()> {
        socket.set_tcp_user_timeout(Some(timeout))
    }

    fn coalesce_datagrams(socket: &Socket) -> bool {
        datagrams::coalesce(socket)
    }

    fn send_datagrams(
        socket: &Socket,
        to: Option<SocketAddr>,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        datagrams::send(socket, to, payloads, segment_len)
    }

    fn recv_datagrams(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
        datagrams::recv(socket, buffer)
    }

    fn process_end(status: ExitStatus) -> ProcessEnd {
        unix::process_end(status)
    }

    /// Not the path of its file: another program may be there by now (`proc_pid_exe(5)`).
    fn this_program() -> PathBuf {
        let own = PathBuf::from("/proc/self/exe");
        if own.exists() { own } else { program_on_disk() }
    }

    fn end_with_this_thread(command: &mut Command) {
        process::end_with_this_thread(command);
    }

    fn with_mounts(command: &mut Command, mounts: &[(PathBuf, PathBuf)]) -> io::Result<()> {
        process::with_mounts(command, mounts)
    }

    fn end_with_parent(parent: u32) -> bool {
        process::end_with_parent(parent)
    }

    fn terminate(process: u32) {
        process::signal(process, Signal::SIGTERM);
    }

    fn kill(process: u32) {
        process::signal(process, Signal::SIGKILL);
    }

    fn condition_of(process: u32) -> Option<ProcessCondition> {
        process::condition_of(process)
    }

    fn check_device_node() -> Result<(), Error> {
        tun::open_node().map(drop)
    }

    fn is_busy(process: u32) -> bool {
        process::is_busy(process)
    }

    fn cpu_of(process: u32) -> Option<Duration> {
        process::cpu_of(process)
    }

    fn rss_bytes_of(process: u32) -> Option<u64> {
        process::rss_bytes_of(process)
    }

    fn peak_rss_bytes_of(process: u32) -> Option<u64> {
        process::peak_rss_bytes_of(process)
    }

    fn cpu_of_process() -> Option<Duration> {
        unix::cpu_of_process()
    }

    fn allow_open_files(wanted: u64) {
        unix::allow_open_files(wanted);
    }

    /// `PR_SET_TIMERSLACK`: 1 nanosecond instead of 50 microseconds.
    /// `epoll_pwait2(2)` counts in nanoseconds, too, but takes the events from mio.
    fn poll_until(poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
        // SAFETY: `poll` owns the descriptor and lives longer.
        let epoll = unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) };
        let left = end.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            nix::poll::ppoll(&mut [PollFd::new(epoll, PollFlags::POLLIN)], Some(left.into()), None)?;
        }
        poll.poll(events, Some(Duration::ZERO))
    }

    fn sharpen_timers() {
        let _as_they_are = nix::sys::prctl::set_timerslack(1);
    }

    fn processors() -> Option<Vec<u16>> {
        process::processors()
    }

    fn pin_thread(processor: u16) -> io::Result<()> {
        process::pin_thread(processor)
    }

    fn switches_of(process: u32) -> Option<Switches> {
        process::switches_of(process)
    }

    fn switches_of_process() -> Option<Switches> {
        unix::switches(UsageWho::RUSAGE_SELF)
    }

    fn switches_of_thread() -> Option<Switches> {
        unix::switches(UsageWho::RUSAGE_THREAD)
    }

    fn cpu_of_thread() -> Option<Duration> {
        unix::cpu_of_thread()
    }

    fn peak_rss_bytes() -> Option<u64> {
        process::peak_rss_bytes_of(std::process::id())
    }

    fn stolen_time() -> Option<Duration> {
        process::stolen_time()
    }

    fn examine(window_bytes: usize) -> Vec<Check> {
        doctor::examine(window_bytes)
    }

    fn memory_bytes() -> Option<u64> {
        doctor::memory_bytes()
    }

    fn kernel() -> Option<String> {
        line("/proc/sys/kernel/osrelease")
    }

    fn cpu() -> Option<String> {
        cpu::name()
    }

    fn governor() -> Option<String> {
        line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    }

    /// Only x86 has this flag.
    fn virtual_machine() -> Option<bool> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
        cpu::value(&cpuinfo, "flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
    }

    /// A container often has none. The kernel's id of a start would be another one after the next.
    fn identity() -> Option<String> {
        line("/etc/machine-id").filter(|text| text.len() >= 32 && text.chars().all(|digit| digit.is_ascii_hexdigit()))
    }
}

/// The text of a file with one line.
fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// The proxy has two buffers of 256 KiB for each connection.
    #[test]
    fn buffers_of_connections_do_not_stay_in_the_heap() {
        const COUNT: usize = 200;
        let mapped = || {
            // SAFETY: the call takes nothing and returns numbers.
            unsafe { libc::mallinfo2() }.hblks
        };
        let buffers = || -> Vec<Vec<u8>> { (0..COUNT).map(|_| vec![0; 256 << 10]).collect() };
        Linux::return_large_buffers();
        // glibc raises its threshold when such buffers are freed.
        drop(buffers());
        let before = mapped();
        let held = buffers();
        let more = mapped().saturating_sub(before);
        // Other tests of this process have some, too.
        assert!(more > COUNT / 2, "{more} of {} buffers are the system's", held.len());
    }
}
