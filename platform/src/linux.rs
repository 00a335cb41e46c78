//! Linux: `/dev/net/tun`, through tun-rs.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll};

use tun_rs::{DeviceBuilder, SyncDevice};

pub(crate) use crate::netns::enter as isolate;
pub(crate) use crate::unix::{Interrupts, cpu_of_process, cpu_of_thread, is_local_address};

use crate::netlink;
use crate::unix::{Readiness, recv_batch};
use crate::{Capabilities, Class, Error, Link, PacketBuffer, PacketMeta, TunConfig};

pub(crate) const ISOLATION: bool = true;

/// The character device that all TUN interfaces come from.
const NODE: &str = "/dev/net/tun";

/// Packets taken in one turn. Each is a `read(2)` of its own; more of them delay the ACK.
const BATCH: usize = 16;

const NO_NODE: &str = "allow it with chmod 666 /dev/net/tun, as root, or run as root";

const NO_RIGHT: &str = "run as root, or leave out --netns host so that the run gets a network of its own";

/// A TUN interface. It vanishes with this value, unless it was made elsewhere.
pub struct TunDevice {
    device: Readiness<SyncDevice>,
    name: String,
    mtu: usize,
}

impl TunDevice {
    /// Opens a TUN interface and sets it up. To be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] where the device node or a right is missing, [`Class::Invalid`] for a
    /// name already taken or a descriptor that is no TUN, else [`Class::Failed`].
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        let device = match config.fd {
            Some(fd) => adopt(fd)?,
            None => create(config)?,
        };
        let failed = |operation| move |source| Error::new(Class::Failed, operation, "the TUN device", source);
        device.set_nonblocking(true).map_err(failed("make non-blocking"))?;
        let name = device.name().map_err(failed("ask the name of"))?;
        let mtu = usize::from(device.mtu().map_err(failed("ask the MTU of"))?);
        let device = Readiness::new(device).map_err(failed("register with the runtime"))?;
        Ok(Self { device, name, mtu })
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
        DropCounter { name: self.name.clone() }
    }
}

fn create(config: &TunConfig) -> Result<SyncDevice, Error> {
    // Opened here first, to tell a missing node from a missing right, and because tun-rs would make
    // the node where it is missing: a run leaves nothing behind.
    OpenOptions::new().read(true).write(true).open(NODE).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::new(Class::Unavailable, "open", NODE, source).remedy(
            "load the module (modprobe tun), or in a container pass the device on (docker run --device /dev/net/tun)",
        ),
        io::ErrorKind::PermissionDenied => Error::new(Class::Unavailable, "open", NODE, source).remedy(NO_NODE),
        _ => Error::new(Class::Unavailable, "open", NODE, source).remedy("see that the tun module is loaded"),
    })?;
    let device = DeviceBuilder::new()
        .name(&config.name)
        .mtu(config.mtu)
        .ipv4(config.network.address, config.network.prefix_len, None)
        .enable(true)
        .build_sync()
        .map_err(|source| {
            let errno = source.raw_os_error();
            let error = |class| Error::new(class, "create TUN interface", &config.name, source);
            match errno {
                Some(libc::EBUSY | libc::EEXIST) => error(Class::Invalid)
                    .remedy("the name is taken; choose another with --tun-name, or leave out --netns host"),
                Some(libc::EPERM | libc::EACCES) => error(Class::Unavailable).remedy(NO_RIGHT),
                Some(libc::EINVAL) => error(Class::Invalid)
                    .remedy("an interface of another kind may have the name; choose another with --tun-name"),
                _ => error(Class::Failed),
            }
        })?;
    device
        .if_index()
        .and_then(|index| netlink::set_tx_queue_len(index, config.tx_queue_len))
        .map_err(|source| Error::new(Class::Failed, "set the queue length of", &config.name, source))?;
    Ok(device)
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
        Capabilities::plain(self.mtu, BATCH)
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let device = self.device.get_ref();
        recv_batch(buffers, |storage| device.recv(storage))
    }

    fn try_send(&mut self, _meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let device = self.device.get_ref();
        let sent = match slices {
            [packet] => device.send(packet)?,
            _ => device.send_vectored(slices)?,
        };
        if sent == crate::link::packet_len(slices) {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::WriteZero, "the TUN device took only a part of a packet"))
        }
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_writable(cx)
    }
}

/// Reads how many packets the kernel has dropped at an interface.
#[derive(Clone, Debug)]
pub struct DropCounter {
    name: String,
}

impl DropCounter {
    /// Packets dropped so far, both ways: those the queue had no room for and those the kernel
    /// would not take. `None` where the system does not say. To be called in the device's
    /// namespace.
    pub fn read(&self) -> Option<u64> {
        let table = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
        parse_drops(&table, &self.name)
    }
}

/// The fourth number of the receive and of the transmit half of a line of `/proc/net/dev`
/// (`net/core/net-procfs.c`, `dev_seq_printf_stats`).
fn parse_drops(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(3)? + fields.get(11)?)
}

/// `TCP_INFO` (`include/uapi/linux/tcp.h`).
pub(crate) fn retransmits(socket: &TcpStream) -> Option<u64> {
    // SAFETY: all zeros are a valid tcp_info, which is made of integers alone.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which is that large.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut info).cast(),
            &raw mut len,
        )
    };
    (result == 0).then(|| u64::from(info.tcpi_total_retrans))
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

/// `VmHWM` of `/proc/self/status`. What getrusage(2) says is older than the program where another
/// has started it by exec, as `cargo run` does.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
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
    fn a_descriptor_that_is_no_tun_is_refused_by_name() {
        use std::os::fd::IntoRawFd;
        let no_tun = fs::File::open("/dev/null").unwrap().into_raw_fd();
        for fd in [no_tun, 9_999] {
            let error = adopt(fd).err().unwrap();
            assert_eq!(error.class(), Class::Invalid);
            let text = error.to_string();
            assert!(text.contains("--tun-fd") && text.contains(&format!("file descriptor {fd}")), "{text}");
        }
    }
}
