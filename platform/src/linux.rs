//! Linux: `/dev/net/tun`, through tun-rs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use nix::net::if_::if_nametoindex;
use socket2::Socket;
use tun_rs::{DeviceBuilder, SyncDevice};

#[path = "linux/doctor.rs"]
mod doctor;
#[path = "linux/process.rs"]
mod process;
#[path = "linux/tcp_info.rs"]
mod tcp_info;

pub(crate) use self::doctor::{examine, memory_bytes};
#[cfg(test)]
pub(crate) use self::process::is_alive;
pub(crate) use self::process::{
    cpu_of, end_with_parent, end_with_this_thread, folder_of_thread, peak_rss_bytes, peak_rss_bytes_of, rss_bytes_of,
};
pub(crate) use crate::netns::enter as isolate;
pub(crate) use crate::sysctl::{enable_forwarding, take_up_loopback};
pub(crate) use crate::unix::{Interrupts, cpu_of_process, cpu_of_thread, is_local_address, process_end};

use crate::link::packet_len;
use crate::netlink;
use crate::process::program_on_disk;
use crate::unix::{Readiness, recv_batch, socket_option};
use crate::vnet::{self, HEADER_LEN};
use crate::{
    Capabilities, Class, Error, Interface, Link, Offload, PacketBuffer, PacketMeta, TcpStatistics, TunConfig,
    network_of,
};

pub(crate) const ISOLATION: bool = true;

pub(crate) const OFFLOAD: bool = true;

/// Hidden in the documentation of tun-rs, and public all the same.
pub(crate) const TUN_RS_SUM: Option<fn(&[u8]) -> u16> = Some(|bytes| tun_rs::checksum(bytes, 0));

/// The character device that all TUN interfaces come from.
const NODE: &str = "/dev/net/tun";

/// Slices that are sent without an allocation, beside the `virtio_net_hdr`: the stacks have a header
/// and a payload, of which lwIP's may lie in a few pieces.
const SLICES: usize = 17;

/// Malformed packets that are skipped in a row before others have their turn.
const MAX_SKIPPED: usize = 64;

const NO_NODE: &str = "allow it with chmod 666 /dev/net/tun, as root, or run as root";

const NO_RIGHT: &str = "run as root, or in a user namespace of which the network namespace is";

const NO_TUN: &str = "/dev/net/tun is no TUN; make it the TUN driver's, character device 10:200, as root";

const OTHER_NAME: &str = "choose another with --tun-name";

const NO_IPV6: &str = "set the sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0";

nix::ioctl_write_int!(
    /// `TUNSETOFFLOAD` (`include/uapi/linux/if_tun.h`).
    tun_set_offload,
    b'T',
    208
);

/// A TUN interface. It vanishes with this value, unless it was made elsewhere.
pub struct TunDevice {
    device: Readiness<SyncDevice>,
    name: String,
    mtu: usize,
    /// Whether each packet has a `virtio_net_hdr` in front of it.
    offload: bool,
    /// Packets that contradicted their `virtio_net_hdr`, or that them.
    malformed: Arc<AtomicU64>,
}

impl TunDevice {
    /// Opens a TUN interface and sets it up. To be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] where the device node, a right, or the offload that was asked for is
    /// missing, [`Class::Invalid`] for a name already taken or a descriptor that is no TUN, else
    /// [`Class::Failed`].
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        let (device, offload) = match config.fd {
            Some(fd) => {
                config.do_without_offload("its owner has chosen the framing of its packets")?;
                (adopt(fd)?, false)
            }
            None => create(config)?,
        };
        let failed = |operation| move |source| Error::new(Class::Failed, operation, "the TUN device", source);
        device.set_nonblocking(true).map_err(failed("make non-blocking"))?;
        let name = device.name().map_err(failed("ask the name of"))?;
        let mtu = usize::from(device.mtu().map_err(failed("ask the MTU of"))?);
        let device = Readiness::new(device).map_err(failed("register with the runtime"))?;
        Ok(Self { device, name, mtu, offload, malformed: Arc::default() })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many packets may wait for the stack before the kernel drops.
    ///
    /// # Errors
    ///
    /// The system's own.
    pub fn tx_queue_len(&self) -> io::Result<Option<u32>> {
        self.device.get_ref().tx_queue_len().map(Some)
    }

    /// A reader of the interface's drop counters; it outlives the hand-over of the device to a stack.
    pub fn drop_counter(&self) -> DropCounter {
        DropCounter { name: self.name.clone(), malformed: Arc::clone(&self.malformed) }
    }
}

/// Makes an interface. Answers whether it offloads, too.
fn create(config: &TunConfig) -> Result<(SyncDevice, bool), Error> {
    // Opened here first, to tell a missing node from a missing right, and because tun-rs would make
    // the node where it is missing: a run leaves nothing behind.
    open_node()?;
    let (device, offload) = build(config)?;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, &config.name, source);
    let index = device.if_index().map_err(failed("ask the number of"))?;
    netlink::set_tx_queue_len(index, config.tx_queue_len).map_err(failed("set the queue length of"))?;
    add_address(index, &config.name, config.network.address, config.network.prefix_len)?;
    Ok((device, offload))
}

/// What an interface is besides its device, in the calling thread's network.
pub(crate) fn set_up(interface: &Interface) -> Result<(), Error> {
    let Interface { name, address, prefix_len, route_to, mtu, tx_queue_len } = interface;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, name, source);
    let index = if_nametoindex(name.as_str()).map_err(|errno| failed("ask the number of")(errno.into()))?;
    netlink::set_mtu(index, (*mtu).into()).map_err(failed("set the MTU of"))?;
    netlink::set_tx_queue_len(index, *tx_queue_len).map_err(failed("set the queue length of"))?;
    add_address(index, name, *address, *prefix_len)?;
    netlink::take_up(index).map_err(failed("take up"))?;
    netlink::add_route(index, network_of(*route_to, *prefix_len), *prefix_len).map_err(failed("set a route through"))
}

fn open_node() -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open(NODE).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::new(Class::Unavailable, "open", NODE, source).remedy(
            "load the module (modprobe tun), or in a container pass the device on (docker run --device /dev/net/tun)",
        ),
        io::ErrorKind::PermissionDenied => Error::new(Class::Unavailable, "open", NODE, source).remedy(NO_NODE),
        _ => Error::new(Class::Unavailable, "open", NODE, source).remedy("see that the tun module is loaded"),
    })
}

/// Creates a TUN interface in the calling thread's network. It is down and has no address. With `offload`, each
/// packet has a `virtio_net_hdr` in front of it.
///
/// # Errors
///
/// [`Class::Invalid`] for a name that is taken or wrong, [`Class::Unavailable`] where the device node, a right, or
/// offload is missing, else [`Class::Failed`].
pub fn create_tun(name: &str, offload: bool) -> Result<SyncDevice, Error> {
    open_node()?;
    let builder = DeviceBuilder::new().name(name).offload(offload).enable(false);
    builder.build_sync().map_err(|source| not_created(name, "choose another", source))
}

fn add_address(index: u32, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    netlink::add_address(index, address, prefix_len).map_err(|source| {
        let errno = source.raw_os_error();
        let error = |class| Error::new(class, "set the address of", name, source);
        match errno {
            // The kernel has no IPv6, or it is switched off for the interface.
            Some(libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ENODEV)
                if address.is_ipv6() =>
            {
                error(Class::Unavailable).remedy(NO_IPV6)
            }
            _ => error(Class::Failed),
        }
    })
}

/// The interface, with offload where it is wanted and the kernel has it.
fn build(config: &TunConfig) -> Result<(SyncDevice, bool), Error> {
    let attempt = |offload| {
        let device =
            DeviceBuilder::new().name(&config.name).mtu(config.mtu).offload(offload).enable(true).build_sync()?;
        if offload {
            set_offloads(&device)?;
        }
        io::Result::Ok((device, offload))
    };
    let not_created = |source| not_created(&config.name, OTHER_NAME, source);
    if config.offload != Offload::Off {
        match attempt(true) {
            // A kernel without IFF_VNET_HDR or TUNSETOFFLOAD says so; so does one that dislikes the
            // name, which the attempt without will find out.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map_err(not_created),
        }
    }
    let plain = attempt(false).map_err(not_created)?;
    config.do_without_offload("this kernel's TUN has none (IFF_VNET_HDR, TUN_F_TSO4, TUN_F_TSO6)")?;
    Ok(plain)
}

/// TCP alone: tun-rs asks for UDP super-packets too, where the kernel has them, and no stack here
/// takes those.
fn set_offloads(device: &SyncDevice) -> io::Result<()> {
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: the descriptor is an open TUN device's, and the request takes a number.
    unsafe { tun_set_offload(device.as_raw_fd(), offloads.into()) }?;
    Ok(())
}

/// The error of an interface that could not be made, with what to do about a name that is taken.
fn not_created(name: &str, other_name: &str, source: io::Error) -> Error {
    let errno = source.raw_os_error();
    let error = |class| Error::new(class, "create TUN interface", name, source);
    match errno {
        Some(libc::EBUSY | libc::EEXIST) => error(Class::Invalid).remedy(format!("the name is taken; {other_name}")),
        Some(libc::EPERM | libc::EACCES) => error(Class::Unavailable).remedy(NO_RIGHT),
        Some(libc::ENOTTY) => error(Class::Unavailable).remedy(NO_TUN),
        Some(libc::EINVAL) => {
            error(Class::Invalid).remedy(format!("an interface of another kind may have the name; {other_name}"))
        }
        _ => error(Class::Failed),
    }
}

fn adopt(fd: i32) -> Result<SyncDevice, Error> {
    let error = |source| {
        Error::new(Class::Invalid, "take over", format!("file descriptor {fd}"), source)
            .remedy("--tun-fd wants an open TUN device without packet information (IFF_TUN | IFF_NO_PI)")
    };
    // SAFETY: F_GETFD reads a flag of the descriptor and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(error(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open, and by the contract of `TunConfig::fd` handed over to us.
    // tun-rs asks TUNGETIFF of it, and does not close it where that fails.
    unsafe { SyncDevice::from_fd(fd) }.map_err(error)
}

impl Link for TunDevice {
    fn capabilities(&self) -> Capabilities {
        if self.offload { Capabilities::offloading(self.mtu) } else { Capabilities::plain(self.mtu) }
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let device = self.device.get_ref();
        if self.offload {
            recv_batch(buffers, |storage| recv_described(device, storage, &self.malformed))
        } else {
            recv_batch(buffers, |storage| Ok((device.recv(storage)?, PacketMeta::default())))
        }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let device = self.device.get_ref();
        let sent = match slices {
            _ if self.offload => send_described(device, meta, slices),
            [packet] => device.send(packet),
            _ => device.send_vectored(slices),
        };
        let header_len = if self.offload { HEADER_LEN } else { 0 };
        sent_whole(sent, header_len + packet_len(slices))
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_writable(cx)
    }
}

/// Receives a packet and the `virtio_net_hdr` in front of it. Skips what is malformed.
fn recv_described(device: &SyncDevice, storage: &mut [u8], malformed: &AtomicU64) -> io::Result<(usize, PacketMeta)> {
    for _ in 0..MAX_SKIPPED {
        let mut header = [0; HEADER_LEN];
        let len = device.recv_vectored(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(storage)])?;
        let packet = len.checked_sub(HEADER_LEN).and_then(|len| storage.get(..len)).unwrap_or_default();
        if let Ok(meta) = vnet::read(&header, packet) {
            return Ok((packet.len(), meta));
        }
        malformed.fetch_add(1, Ordering::Relaxed);
    }
    // The device is still readable, which whoever asks is told at once.
    Err(io::ErrorKind::WouldBlock.into())
}

/// Sends a packet with a `virtio_net_hdr` in front of it.
fn send_described(device: &SyncDevice, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let headers = slices.first().map(|slice| &**slice).unwrap_or_default();
    let header =
        vnet::write(meta, headers).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    let mut all = [IoSlice::new(&[]); SLICES + 1];
    all[0] = IoSlice::new(&header);
    if let Some(rest) = all.get_mut(1..=slices.len()) {
        rest.copy_from_slice(slices);
        device.send_vectored(&all[..=slices.len()])
    } else {
        let all: Vec<_> = [all[0]].into_iter().chain(slices.iter().copied()).collect();
        device.send_vectored(&all)
    }
}

/// Whether the kernel took the whole packet. One without memory for it loses it, as a network would, and
/// counts it as dropped (`drivers/net/tun.c`, `tun_get_user`). The device stays writable, so there is
/// nothing to wait for.
fn sent_whole(sent: io::Result<usize>, len: usize) -> io::Result<()> {
    match sent {
        Ok(sent) if sent == len => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "the TUN device took only a part of a packet")),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads how many packets the kernel has dropped at an interface.
#[derive(Clone, Debug)]
pub struct DropCounter {
    name: String,
    malformed: Arc<AtomicU64>,
}

impl DropCounter {
    /// Packets dropped so far, both ways: those the queue had no room for, those the kernel would
    /// not take or had no memory for, and those that came malformed. `None` where the system does
    /// not say. To be called in the device's namespace.
    pub fn read(&self) -> Option<u64> {
        let drops = dropped_packets(Path::new("/proc/thread-self"), &self.name)?;
        Some(drops + self.malformed.load(Ordering::Relaxed))
    }
}

/// By the table of the network of a thread, given by its folder under `/proc`.
pub(crate) fn dropped_packets(thread: &Path, interface: &str) -> Option<u64> {
    parse_drops(&fs::read_to_string(thread.join("net/dev")).ok()?, interface)
}

/// The fourth number of the receive and of the transmit half of a line of `/proc/net/dev`
/// (`net/core/net-procfs.c`, `dev_seq_printf_stats`).
fn parse_drops(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(3)? + fields.get(11)?)
}

/// `TCP_INFO` of `tcp(7)`.
pub(crate) fn tcp_statistics(socket: &TcpStream) -> Option<TcpStatistics> {
    let mut info = [0; tcp_info::LEN];
    let len = socket_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    Some(tcp_info::read(info.get(..len)?))
}

pub(crate) fn default_congestion_control() -> Option<String> {
    line("/proc/sys/net/ipv4/tcp_congestion_control")
}

pub(crate) fn set_congestion_control(socket: &TcpStream, name: &str) -> io::Result<()> {
    // SAFETY: the kernel reads `name.len()` bytes from `name`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn bind_to_interface(socket: &Socket, interface: &str, _ipv6: bool) -> io::Result<()> {
    socket.bind_device(Some(interface.as_bytes()))
}

/// Not by its name, which may by now be that of another program (`proc_pid_exe(5)`).
pub(crate) fn this_program() -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { own } else { program_on_disk() }
}

pub(crate) fn kernel() -> Option<String> {
    line("/proc/sys/kernel/osrelease")
}

pub(crate) fn cpu() -> Option<String> {
    cpuinfo("model name")
}

pub(crate) fn governor() -> Option<String> {
    line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

pub(crate) fn virtual_machine() -> Option<bool> {
    // x86 alone has the flag.
    cpuinfo("flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// The text of a file of one line.
fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The value of the first line of `/proc/cpuinfo` with that key.
fn cpuinfo(key: &str) -> Option<String> {
    fs::read_to_string("/proc/cpuinfo").ok()?.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn drops_of_both_directions_are_added() {
        let table = "Inter-| Receive | Transmit\n face |bytes packets errs drop fifo frame compressed multicast|...\n    \
                     lo: 1 1 0 9 0 0 0 0 1 1 0 9 0 0 0 0\n utun8: 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28\n\
                     utun88: 0 0 0 1 0 0 0 0 0 0 0 1 0 0 0 0\n";
        assert_eq!(parse_drops(table, "utun8"), Some(14 + 24));
        assert_eq!(parse_drops(table, "utun9"), None);
    }

    #[test]
    fn a_packet_goes_whole_or_is_lost_or_ends_the_link() {
        let failed = |errno| sent_whole(Err(io::Error::from_raw_os_error(errno)), 50);
        sent_whole(Ok(50), 50).unwrap();
        assert_eq!(sent_whole(Ok(49), 50).unwrap_err().kind(), io::ErrorKind::WriteZero);
        for errno in [libc::ENOBUFS, libc::ENOMEM] {
            failed(errno).unwrap();
        }
        for errno in [libc::EAGAIN, libc::EIO, libc::EINVAL] {
            assert_eq!(failed(errno).unwrap_err().raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_descriptor_that_is_no_tun_is_refused_by_name() {
        use std::os::fd::IntoRawFd;
        let no_tun = File::open("/dev/null").unwrap().into_raw_fd();
        for fd in [no_tun, 9_999] {
            let error = adopt(fd).err().unwrap();
            assert_eq!(error.class(), Class::Invalid);
            let text = error.to_string();
            assert!(text.contains("--tun-fd") && text.contains(&format!("file descriptor {fd}")), "{text}");
        }
    }
}
