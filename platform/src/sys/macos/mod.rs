//! macOS: utun through tun-rs.

#![allow(missing_docs, reason = "the documentation is at Linux's functions")]

use std::ffi::{CStr, c_int, c_void};
use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, TcpStream};
use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Uid;
use socket2::Socket;
use tun_rs::{DeviceBuilder, SyncDevice};

pub use super::fallback::*;
pub use super::sampler::Profiler;
pub(crate) use super::unix::process_end;
use super::unix::{self, Readiness, register, socket_option};
pub use super::unix::{
    Interrupts, addresses_of, allow_open_files, cpu_of_process, cpu_of_thread, is_local_address, mtu_of_descriptor,
    page_bytes, sockets,
};
use crate::doctor::{Check, Verdict};
use crate::environment::damage;
use crate::utun::{BATCH, Calls, FAMILY_LEN, Packets, Slot, create_free};
use crate::{Capabilities, Cause, Class, DropCounter, Error, Link, PacketBuffer, PacketMeta, TcpStatistics, TunConfig};

/// `UTUN_OPT_MAX_PENDING_PACKETS` of XNU's `bsd/net/if_utun.h`. libc does not have it.
const UTUN_OPT_MAX_PENDING_PACKETS: c_int = 16;

/// Packets that may wait in the socket. With the default, one, the kernel and the reader take turns.
const MAX_PENDING: usize = 256;

/// Sizes of socket buffers to try, up to `kern.ipc.maxsockbuf`. The default of utun is 512 KiB.
const SOCKET_BUFFERS: [c_int; 3] = [4 << 20, 2 << 20, 1 << 20];

pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.strip_prefix("utun").is_none_or(|unit| unit.parse::<u16>().is_err()) {
        return Err("macOS wants utun and a number, such as utun8");
    }
    unix::check_name(name)
}

pub fn tcp_statistics(socket: &TcpStream) -> TcpStatistics {
    let mut info = [0_u8; TCP_INFO_LEN];
    let len = socket_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONNECTION_INFO, &mut info).unwrap_or(0);
    let info = info.get(..len).unwrap_or_default();
    let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?).into());
    let retransmits = info.get(TX_RETRANSMIT_PACKETS..).and_then(|field| field.first_chunk());
    TcpStatistics {
        retransmits: retransmits.map(|field| u64::from_ne_bytes(*field)),
        rtt: word(SRTT_MS).filter(|rtt_ms| *rtt_ms > 0).map(Duration::from_millis),
        min_rtt: None,
        congestion_window_bytes: word(SND_CWND),
        send_window_bytes: word(SND_WND),
        receive_window_bytes: word(RCV_WND),
    }
}

pub fn bind_to_interface(socket: &Socket, interface: &str, ipv6: bool) -> io::Result<()> {
    let index = NonZero::new(nix::net::if_::if_nametoindex(interface)?);
    if ipv6 { socket.bind_device_by_index_v6(index) } else { socket.bind_device_by_index_v4(index) }
}

/// An interface that replaces another has a new index.
pub fn is_bound_to(socket: &Socket, interface: &str) -> bool {
    let index = nix::net::if_::if_nametoindex(interface).ok().and_then(NonZero::new);
    // A socket has the option of its own IP version alone.
    let bound = socket.device_index_v4().or_else(|_| socket.device_index_v6());
    index.is_some() && bound.is_ok_and(|bound| bound == index)
}

/// `getrusage(2)`, in bytes on macOS. It includes the program that ran before exec.
pub fn peak_rss_bytes() -> Option<u64> {
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()
}

/// The memory of a process (`ri_phys_footprint` of `proc_pid_rusage`), which the Activity Monitor shows, too.
pub(crate) fn rss_bytes_of(pid: u32) -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage_info_v0>::zeroed();
    let pid = c_int::try_from(pid).ok()?;
    // SAFETY: the kernel writes a structure of this version, and any bytes are a valid value of a struct of integers.
    let (result, usage) =
        unsafe { (libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V0, usage.as_mut_ptr().cast()), usage.assume_init()) };
    (result == 0).then_some(usage.ri_phys_footprint)
}

/// Only root may create a utun interface (`bsd/net/if_utun.c`, `utun_ctl_bind`).
pub fn examine(_window_bytes: usize) -> Vec<Check> {
    let user = Uid::effective();
    let source = io::Error::new(io::ErrorKind::PermissionDenied, format!("only root may, and this is user {user}"));
    let error = Error::new(Cause::NeedsSudo, "create", "utun interfaces", source);
    let rights = (!user.is_root()).then(|| Check::of("rights", &error));
    let damage = kernel().and_then(|release| damage("macos", &release));
    let damage = damage.map(|finding| {
        Check::new("kernel", Verdict::Note, finding)
            .remedy("save your work first; a writer or requests that end as corrupt do not show a fault of the stack")
    });
    rights.into_iter().chain(damage).collect()
}

pub fn memory_bytes() -> Option<u64> {
    let mut value = [0_u8; size_of::<u64>()];
    (sysctl(c"hw.memsize", &mut value)? == value.len()).then(|| u64::from_ne_bytes(value))
}

pub(crate) fn kernel() -> Option<String> {
    sysctl_text(c"kern.osrelease")
}

pub(crate) fn cpu() -> Option<String> {
    sysctl_text(c"machdep.cpu.brand_string")
}

pub(crate) fn virtual_machine() -> Option<bool> {
    let mut value = [0_u8; size_of::<c_int>()];
    (sysctl(c"kern.hv_vmm_present", &mut value)? == value.len()).then(|| c_int::from_ne_bytes(value) != 0)
}

/// A utun interface. Dropping it deletes the interface, unless another descriptor of it is open.
pub struct TunDevice {
    device: Readiness<SyncDevice>,
    name: String,
    mtu: usize,
    packets: Packets,
    receives: bool,
}

impl TunDevice {
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        config.do_without_offload("utun has none")?;
        let device = match config.fd {
            Some(fd) => adopt(fd)?,
            None => create_free(&config.name, config.or_next, |name| create(name, config))?,
        };
        Self::new(device, Packets::default())
    }

    fn new(device: SyncDevice, packets: Packets) -> Result<Self, Error> {
        let (device, name, mtu) = register(device)?;
        Ok(Self { device, name, mtu, packets, receives: true })
    }

    pub(crate) fn sender(&self) -> Result<Self, Error> {
        let failed = |source| Error::new(Class::Failed, "open once more", &self.name, source);
        // SAFETY: `self` keeps the descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.device.get_ref().as_raw_fd()) };
        let fd = fd.try_clone_to_owned().map_err(failed)?;
        let refused = Arc::clone(&self.packets.refused);
        let sender = Self::new(adopt(fd.into_raw_fd())?, Packets { refused, ..Packets::default() })?;
        Ok(Self { receives: false, ..sender })
    }

    pub fn receives(&self) -> bool {
        self.receives
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tx_queue_len(&self) -> Option<u32> {
        None
    }

    pub fn drop_counter(&self) -> DropCounter {
        let (name, refused) = (self.name.clone(), Arc::clone(&self.packets.refused));
        DropCounter(Arc::new(move || Some(interface_drops(&name)? + refused.load(Ordering::Relaxed))))
    }
}

fn create(name: &str, config: &TunConfig) -> Result<SyncDevice, Error> {
    let network = &config.network;
    let builder = DeviceBuilder::new()
        .name(name)
        .mtu(config.mtu)
        // The kernel adds a host route to the peer with the address (`bsd/netinet/in.c`, `in_ifinit`). A run needs no
        // more. A wider route could hide the networks of other interfaces, so the user has to add it.
        .with(|builder| {
            builder.associate_route(false);
        });
    let builder = match (network.address, network.peer) {
        (IpAddr::V4(address), IpAddr::V4(peer)) => builder.ipv4(address, network.prefix_len, Some(peer)),
        // For IPv6, the kernel adds the route to the prefix with the address (`bsd/netinet6/in6.c`).
        (IpAddr::V6(address), _) => builder.ipv6(address, network.prefix_len),
        // Never: a network has one IP version.
        (IpAddr::V4(address), IpAddr::V6(_)) => builder.ipv4(address, network.prefix_len, None),
    };
    let device = builder.enable(true).build_sync().map_err(|source| {
        let cause = match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => Cause::NameTaken,
            Some(libc::EPERM | libc::EACCES) => Cause::NeedsSudo,
            _ => Class::Failed.into(),
        };
        Error::new(cause, "create utun interface", name, source)
    })?;
    deepen(device.as_raw_fd(), config.mtu.into());
    Ok(device)
}

fn adopt(fd: RawFd) -> Result<SyncDevice, Error> {
    let error = |source| Error::new(Cause::NotAUtun, "take over", format!("file descriptor {fd}"), source);
    let mut name = [0_u8; libc::IFNAMSIZ];
    // Checked before the device owns the descriptor: it would close a descriptor that is not a utun.
    let len = socket_option(fd, libc::SYSPROTO_CONTROL, libc::UTUN_OPT_IFNAME, &mut name).map_err(error)?;
    if !name[..len.min(name.len())].starts_with(b"utun") {
        return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "it belongs to no utun interface")));
    }
    // SAFETY: the descriptor is open, and by the contract of `TunConfig::fd` it is ours now.
    unsafe { SyncDevice::from_fd(fd) }.map_err(error)
}

/// Lets more packets wait for the reader. Every refusal is harmless.
fn deepen(fd: RawFd, mtu: usize) {
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        let _granted = SOCKET_BUFFERS.iter().any(|size| set_socket_option(fd, libc::SOL_SOCKET, option, size).is_ok());
    }
    let mut buffer = [0_u8; size_of::<c_int>()];
    if socket_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut buffer).is_err() {
        return;
    }
    // The kernel drops packets that do not fit the socket. So those that may wait fill at most half of its buffer.
    let room = usize::try_from(c_int::from_ne_bytes(buffer)).unwrap_or(0) / 2;
    let pending = (room / (mtu + FAMILY_LEN)).clamp(1, MAX_PENDING) as u32;
    let _older_kernel = set_socket_option(fd, libc::SYSPROTO_CONTROL, UTUN_OPT_MAX_PENDING_PACKETS, &pending);
}

fn set_socket_option<T: Copy>(fd: RawFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes from `value` as its type has.
    let result =
        unsafe { libc::setsockopt(fd, level, option, ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct msghdr_x` of XNU's `bsd/sys/socket.h`. Apple's SDK does not have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    name: *mut c_void,
    name_len: libc::socklen_t,
    slices: *mut libc::iovec,
    slices_len: c_int,
    control: *mut c_void,
    control_len: libc::socklen_t,
    flags: c_int,
    len: libc::size_t,
}

impl Message {
    fn of(slices: &mut [libc::iovec]) -> Self {
        Self {
            name: ptr::null_mut(),
            name_len: 0,
            slices: slices.as_mut_ptr(),
            // Never more than two.
            slices_len: slices.len() as c_int,
            control: ptr::null_mut(),
            control_len: 0,
            flags: 0,
            len: 0,
        }
    }
}

const NO_SLICE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// `recvmsg_x` and `sendmsg_x`, if the system's library has them.
type Many = unsafe extern "C" fn(c_int, *mut Message, libc::c_uint, c_int) -> libc::ssize_t;

static RECEIVE_MANY: LazyLock<Option<Many>> = LazyLock::new(|| many(c"recvmsg_x"));
static SEND_MANY: LazyLock<Option<Many>> = LazyLock::new(|| many(c"sendmsg_x"));

fn many(name: &CStr) -> Option<Many> {
    // SAFETY: the name ends with a zero.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the functions of these names have this type, and a null pointer is `None`.
    unsafe { mem::transmute::<*mut c_void, Option<Many>>(function) }
}

/// Calls one of them, without waiting. Returns how many messages were received or sent.
fn call_many(function: Option<Many>, fd: RawFd, messages: &mut [Message]) -> io::Result<usize> {
    let Some(function) = function else { return Err(io::Error::from_raw_os_error(libc::ENOSYS)) };
    let len = messages.len() as libc::c_uint;
    // SAFETY: there are `len` messages, and the callers borrow their slices until the call returns.
    length(unsafe { function(fd, messages.as_mut_ptr(), len, libc::MSG_DONTWAIT) })
}

fn slices_of(slot: &mut Slot<'_>) -> [libc::iovec; 2] {
    [&mut slot.family[..], slot.storage]
        .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
}

fn length(result: libc::ssize_t) -> io::Result<usize> {
    // The conversion fails only for a negative number.
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Calls for SyncDevice {
    fn receive(&self, slot: &mut Slot<'_>) -> io::Result<usize> {
        let slices = slices_of(slot);
        // SAFETY: there are two slices, and they are borrowed until the call returns.
        length(unsafe { libc::readv(self.as_raw_fd(), slices.as_ptr(), 2) })
    }

    fn receive_many(&self, slots: &mut [Slot<'_>]) -> io::Result<usize> {
        let mut slices = [[NO_SLICE; 2]; BATCH];
        let slots_len = slots.len().min(BATCH);
        for (slices, slot) in slices.iter_mut().zip(slots.iter_mut()) {
            *slices = slices_of(slot);
        }
        let mut messages = slices.each_mut().map(|slices| Message::of(slices));
        let count = call_many(*RECEIVE_MANY, self.as_raw_fd(), &mut messages[..slots_len])?;
        for (slot, message) in slots.iter_mut().zip(&messages).take(count) {
            slot.len = message.len;
        }
        Ok(count)
    }

    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = c_int::try_from(slices.len()).map_err(io::Error::other)?;
        // SAFETY: an IoSlice has the layout of an iovec (its documentation says so), and `count` of them are
        // initialised and borrowed until the call returns.
        length(unsafe { libc::writev(self.as_raw_fd(), slices.as_ptr().cast(), count) })
    }

    fn send_many(&self, packets: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut slices = [[NO_SLICE; 1]; BATCH];
        for ([slice], packet) in slices.iter_mut().zip(packets) {
            // The kernel only reads it.
            *slice = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
        }
        let mut messages = slices.each_mut().map(|slices| Message::of(slices));
        call_many(*SEND_MANY, self.as_raw_fd(), &mut messages[..packets.len().min(BATCH)])
    }
}

impl Link for TunDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.mtu)
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if !self.receives {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let packets = &mut self.packets;
        self.device.try_read(|device| packets.try_recv(device, buffers))
    }

    fn try_send(&mut self, _meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.packets.try_send(self.device.get_ref(), slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.packets.flush(self.device.get_ref())
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.receives { self.device.poll_readable(cx) } else { Poll::Pending }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_writable(cx)
    }
}

/// `NET_RT_IFLIST2` of `route(4)`. A full socket is an output error (`bsd/net/if_utun.c`, `utun_output`).
fn interface_drops(name: &str) -> Option<u64> {
    let index = c_int::try_from(nix::net::if_::if_nametoindex(name).ok()?).ok()?;
    let mut query = [libc::CTL_NET, libc::PF_ROUTE, 0, 0, libc::NET_RT_IFLIST2, index];
    // The interface's addresses follow in the same reply.
    let mut answer = [0_u8; 4096];
    let mut len = answer.len();
    // SAFETY: the query has as many numbers as `query.len()`, and the kernel writes at most `len` bytes to `answer`,
    // which is that long.
    let result = unsafe {
        libc::sysctl(
            query.as_mut_ptr(),
            query.len() as libc::c_uint,
            answer.as_mut_ptr().cast(),
            &raw mut len,
            ptr::null_mut(),
            0,
        )
    };
    if result != 0 || len < size_of::<libc::if_msghdr2>() {
        return None;
    }
    // SAFETY: the reply has at least so many bytes, any bytes are a valid value of a struct of integers, and the read
    // is unaligned.
    let message: libc::if_msghdr2 = unsafe { ptr::read_unaligned(answer.as_ptr().cast()) };
    if c_int::from(message.ifm_type) != libc::RTM_IFINFO2 {
        return None;
    }
    let queue = u64::try_from(message.ifm_snd_drops).ok()?;
    Some(queue + message.ifm_data.ifi_iqdrops + message.ifm_data.ifi_oerrors)
}

/// `struct tcp_connection_info` (`bsd/netinet/tcp.h`). The structure in libc 0.2 is larger.
const TCP_INFO_LEN: usize = 112;
const SND_CWND: usize = 24;
const SND_WND: usize = 28;
const RCV_WND: usize = 36;
const SRTT_MS: usize = 44;
const TX_RETRANSMIT_PACKETS: usize = 104;

fn sysctl_text(name: &CStr) -> Option<String> {
    let mut value = [0_u8; 256];
    let len = sysctl(name, &mut value)?;
    let text = CStr::from_bytes_until_nul(value.get(..len)?).ok()?;
    Some(text.to_str().ok()?.trim().to_owned())
}

/// Any value of `sysctl(3)`. Returns its length in bytes.
fn sysctl(name: &CStr, value: &mut [u8]) -> Option<usize> {
    let mut len = value.len();
    let destination: *mut c_void = value.as_mut_ptr().cast();
    // SAFETY: the name ends with a zero, and the kernel writes at most `len` bytes to `value`, which is that long.
    let result = unsafe { libc::sysctlbyname(name.as_ptr(), destination, &raw mut len, ptr::null_mut(), 0) };
    (result == 0).then_some(len)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The device does not implement Debug, so `unwrap_err` does not compile.
    fn refusal(fd: RawFd) -> Error {
        match adopt(fd) {
            Ok(_) => panic!("descriptor {fd} was taken over"),
            Err(error) => error,
        }
    }

    #[test]
    fn a_descriptor_that_is_no_utun_is_refused_and_stays_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = refusal(listener.as_raw_fd());
        assert_eq!(error.cause(), Cause::NotAUtun);
        listener.local_addr().unwrap();
        let error = refusal(9_999).to_string();
        assert!(error.contains("file descriptor 9999"), "{error}");
    }

    #[test]
    fn a_fresh_connection_has_no_retransmission() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let statistics = tcp_statistics(&socket);
        assert_eq!(statistics.retransmits, Some(0));
        assert!(statistics.send_window_bytes.unwrap() > 0, "{statistics:?}");
    }

    /// The offsets are the ones that clang computes from Apple's `net/if.h` and `net/if_var.h`.
    #[test]
    fn the_interface_message_has_the_layout_of_the_sdk() {
        use std::mem::offset_of;
        assert_eq!(size_of::<libc::if_msghdr2>(), 160);
        assert_eq!(offset_of!(libc::if_msghdr2, ifm_snd_drops), 24);
        assert_eq!(offset_of!(libc::if_msghdr2, ifm_data.ifi_oerrors), 80);
        assert_eq!(offset_of!(libc::if_msghdr2, ifm_data.ifi_iqdrops), 128);
    }

    #[test]
    fn a_socket_knows_its_interface_and_its_process_lists_it() {
        use socket2::{Domain, Type};
        for (ipv6, domain) in [(false, Domain::IPV4), (true, Domain::IPV6)] {
            let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
            assert!(!is_bound_to(&socket, "lo0"));
            bind_to_interface(&socket, "lo0", ipv6).unwrap();
            assert!(is_bound_to(&socket, "lo0") && !is_bound_to(&socket, "utun54321"));
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(sockets().contains(&(Type::STREAM, listener.local_addr().unwrap())));
        assert!(addresses_of("lo0").unwrap().contains(&[127, 0, 0, 1].into()));
    }

    #[test]
    fn the_loopback_interface_has_counters_and_a_missing_one_has_none() {
        assert!(interface_drops("lo0").is_some());
        assert_eq!(interface_drops("utun54321"), None);
    }

    #[test]
    fn the_machine_has_a_kernel_and_a_processor() {
        assert!(kernel().is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit())));
        assert!(cpu().is_some_and(|model| !model.is_empty()));
        assert!(virtual_machine().is_some());
    }
}
