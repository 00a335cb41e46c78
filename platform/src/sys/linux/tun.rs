//! The TUN device, through tun-rs.

use std::any::Any;
use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use portable_atomic::AtomicU64;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::interface::{request_about, set_tx_queue_len, state_of};
use super::network::interface_counts;
use crate::link::{packet_len, with_header};
use crate::sys::unix::{Readiness, register};
use crate::vnet::{self, HEADER_LEN};
use crate::{
    Capabilities, Cause, Class, DropCounter, Error, Interface, Link, Napi, Offload, PacketBuffer, PacketMeta, TunConfig,
};

const NODE: &str = "/dev/net/tun";

/// [`HEADER_LEN`] for the kernel.
const HEADER_SIZE: libc::c_int = 10;
const _: () = assert!(HEADER_SIZE as usize == HEADER_LEN);

/// Malformed packets that are skipped in a row before others have their turn.
const MAX_SKIPPED: usize = 64;

nix::ioctl_write_int!(
    /// `TUNSETOFFLOAD` (`include/uapi/linux/if_tun.h`).
    tun_set_offload,
    b'T',
    208
);

nix::ioctl_write_ptr!(
    /// `TUNSETVNETHDRSZ`.
    tun_set_header_len,
    b'T',
    216,
    libc::c_int
);

nix::ioctl_readwrite_bad!(
    /// `TUNSETIFF`.
    tun_set_interface,
    nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()),
    libc::ifreq
);

nix::ioctl_read!(
    /// `TUNGETFEATURES`.
    tun_get_features,
    b'T',
    207,
    libc::c_uint
);

/// A TUN device. Dropping it deletes the interface, unless another descriptor of it is open.
pub struct TunDevice {
    device: Readiness<SyncDevice>,
    name: String,
    mtu: usize,
    /// Whether each packet has a `virtio_net_hdr` in front of it.
    offload: bool,
    /// What to ask for if it is to have super-packets of UDP, too; 0 if it may not.
    udp_offloads: u32,
    /// Lost packets that the interface does not count: malformed ones, also those that the kernel found malformed.
    malformed: Arc<AtomicU64>,
    receives: bool,
    /// Whether the last call found one packet at most, and then none.
    is_quiet: bool,
}

impl TunDevice {
    /// Opens a TUN interface and sets it up. Call it inside a tokio runtime.
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        let (device, offload) = match config.fd {
            Some(fd) => {
                config.do_without_offload("its owner has chosen the framing of its packets")?;
                (adopt(fd)?, false)
            }
            None => create(config, false)?,
        };
        Self::new(device, offload, config, Arc::default())
    }

    fn new(device: SyncDevice, offload: bool, config: &TunConfig, malformed: Arc<AtomicU64>) -> Result<Self, Error> {
        let (device, name, mtu) = register(device)?;
        let udp_offloads = if config.offload == Offload::Tso { 0 } else { libc::TUN_F_USO4 | libc::TUN_F_USO6 };
        Ok(Self { device, name, mtu, offload, udp_offloads, malformed, receives: true, is_quiet: false })
    }

    /// A value for the same device that only sends, and never waits.
    #[allow(clippy::unnecessary_wraps, reason = "macOS opens a descriptor")]
    pub(crate) fn sender(&self) -> Result<Self, Error> {
        let (device, name, malformed) = (self.device.share(), self.name.clone(), Arc::clone(&self.malformed));
        Ok(Self { device, name, malformed, receives: false, is_quiet: false, ..*self })
    }

    /// Whether packets can come over this link; see [`TunDevice::open_shards`].
    pub fn receives(&self) -> bool {
        self.receives
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many packets may wait for the stack before the kernel drops packets. `None` on systems without this setting.
    pub fn tx_queue_len(&self) -> Option<u32> {
        self.device.get_ref().tx_queue_len().ok()
    }

    /// A reader of the interface's drop counters, which outlives the device.
    pub fn drop_counter(&self) -> DropCounter {
        let (name, malformed) = (self.name.clone(), Arc::clone(&self.malformed));
        DropCounter(Arc::new(move || {
            let drops = interface_counts(Path::new("/proc/thread-self"), &name)?.dropped;
            Some(drops + malformed.load(Ordering::Relaxed))
        }))
    }
}

/// A device that is worth to be kept for several runs; `None` if each run makes its own.
#[allow(clippy::unnecessary_wraps, reason = "Windows keeps one")]
pub(crate) fn keep_device(_name: &str) -> Result<Option<Box<dyn Any + Send>>, Error> {
    Ok(None)
}

pub(crate) fn open_queues(config: &TunConfig, queues: usize) -> Result<Vec<TunDevice>, Error> {
    if config.fd.is_some() {
        return Err(config.no_queues("its owner has opened one"));
    }
    let (first, offload) = create(config, true).map_err(|error| match error.cause() {
        // The kernel says so of an interface that was made without IFF_MULTI_QUEUE, and where it does not know the flag.
        Cause::NameOfOtherKind => config.no_queues("the kernel refuses IFF_MULTI_QUEUE for it"),
        _ => error,
    })?;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, &config.name, source);
    let another = || if uses_napi(config) { open_with_napi(&first.name()?, true) } else { first.try_clone() };
    let others = (1..queues).map(|_| another()).collect::<io::Result<Vec<_>>>();
    let others = others.map_err(failed("add a queue to"))?;
    if offload {
        // tun-rs has asked for more with each queue.
        set_offloads(&first, 0).map_err(failed("set the offload of"))?;
    }
    let malformed = Arc::default();
    let queues = [first].into_iter().chain(others);
    queues.map(|device| TunDevice::new(device, offload, config, Arc::clone(&malformed))).collect()
}

/// Returns whether the interface offloads, too.
fn create(config: &TunConfig, has_queues: bool) -> Result<(SyncDevice, bool), Error> {
    // To tell a missing node from a missing right. tun-rs would make the node, and a run leaves nothing behind.
    check_device_node()?;
    let (device, offload) = build(config, has_queues)?;
    match set_tx_queue_len(&config.name, config.tx_queue_len) {
        // An ordinary user's device, which root has prepared, keeps its queue.
        Err(error) if error.cause() == Cause::NeedsNetAdmin => {}
        set => set?,
    }
    // Set the link up last: a program that waits for it may then change its settings.
    let TunConfig { name, network, mtu, tuning, .. } = config;
    let interface = Interface {
        name: name.clone(),
        address: network.address,
        prefix_len: network.prefix_len,
        route_to: None,
        mtu: Some(*mtu),
        tx_queue_len: None,
        tuning: tuning.clone(),
    };
    interface.set_up()?;
    Ok((device, offload))
}

fn uses_napi(config: &TunConfig) -> bool {
    config.tuning.napi != Napi::Off
}

/// Checks that `/dev/net/tun` is there and may be opened.
pub fn check_device_node() -> Result<(), Error> {
    OpenOptions::new().read(true).write(true).open(NODE).map(drop).map_err(|source| {
        let cause = match source.kind() {
            io::ErrorKind::NotFound => Cause::NoDeviceNode,
            io::ErrorKind::PermissionDenied => Cause::DeviceNodePermission,
            _ => Cause::DeviceNodeUnusable,
        };
        Error::new(cause, "open", NODE, source)
    })
}

/// Creates a TUN interface that is down and has no address, or takes over one that was made to stay. With `offload`,
/// packets have a `virtio_net_hdr`, and NAPI must be off. [`Interface::set_up`] starts the thread of [`Napi::Threaded`].
pub fn create_tun(name: &str, offload: bool, napi: Napi) -> Result<SyncDevice, Error> {
    check_device_node()?;
    open_interface(name, offload, false, napi != Napi::Off).map_err(|source| not_created(name, source))
}

fn build(config: &TunConfig, has_queues: bool) -> Result<(SyncDevice, bool), Error> {
    let attempt = |offload| {
        let device = open_interface(&config.name, offload, has_queues, uses_napi(config))?;
        if offload {
            set_offloads(&device, 0)?;
        }
        io::Result::Ok((device, offload))
    };
    let not_created = |source| not_created(&config.name, source);
    if config.offload != Offload::Off && !uses_napi(config) {
        match attempt(true) {
            // A kernel without IFF_VNET_HDR or TUNSETOFFLOAD says so; so does one that dislikes the
            // name, which the attempt without will find out.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map_err(not_created),
        }
    }
    let plain = attempt(false).map_err(not_created)?;
    config.do_without_offload(if uses_napi(config) {
        "NAPI joins packets of the MTU, and super-packets are joined already"
    } else {
        "this kernel's TUN has none (IFF_VNET_HDR, TUN_F_TSO4, TUN_F_TSO6)"
    })?;
    Ok(plain)
}

/// Makes an interface, or takes over one that was made to stay (`ip tuntap add`) and that no program has open.
///
/// `TUNSETIFF` with a name and `IFF_MULTI_QUEUE` joins the device of another program. So a new one is made with a name
/// that the kernel chooses, and renamed, which fails if the name is taken.
fn open_interface(name: &str, offload: bool, has_queues: bool, has_napi: bool) -> io::Result<SyncDevice> {
    let builder = DeviceBuilder::new().offload(offload);
    let Ok(found) = state_of(name) else {
        let device = if has_napi {
            open_with_napi("", has_queues)?
        } else {
            builder.multi_queue(has_queues).enable(false).build_sync()?
        };
        device.set_name(name)?;
        return Ok(device);
    };
    let taken = || io::Error::from_raw_os_error(libc::EBUSY);
    // The kernel refuses an interface of another kind, and the only queue of a device if a program has it.
    let may_have_queues = found.tun.is_some_and(|tun| tun.may_have_queues);
    if found.tun.is_some_and(|tun| !tun.stays || tun.may_have_queues && tun.queues > 0) {
        return Err(taken());
    }
    let device = if has_napi {
        open_with_napi(name, has_queues || may_have_queues)?
    } else {
        builder.name(name).multi_queue(has_queues || may_have_queues).inherit_enable_state().build_sync()?
    };
    // Another program may have opened it in the meantime.
    if state_of(name)?.tun.is_some_and(|tun| tun.queues > 1) {
        return Err(taken());
    }
    if offload {
        // SAFETY: the descriptor is an open TUN device's, and the request reads the number.
        unsafe { tun_set_header_len(device.as_raw_fd(), &HEADER_SIZE) }?;
    }
    Ok(device)
}

/// Makes or joins an interface with NAPI, which tun-rs's builder does not know. It takes over only a descriptor without a
/// `virtio_net_hdr`. In place of an empty name the kernel chooses one.
fn open_with_napi(name: &str, has_queues: bool) -> io::Result<SyncDevice> {
    let node = OpenOptions::new().read(true).write(true).open(NODE)?;
    let mut features = 0;
    // SAFETY: the descriptor is open, and the request writes a number.
    unsafe { tun_get_features(node.as_raw_fd(), &raw mut features) }?;
    if features & libc::IFF_NAPI.cast_unsigned() == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's TUN has no NAPI (IFF_NAPI)"));
    }
    let queues = if has_queues { libc::IFF_MULTI_QUEUE } else { 0 };
    let mut request = request_about(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_NAPI | queues) as libc::c_short;
    // SAFETY: the descriptor is open, and the request is a structure of this kind whose name ends with a zero.
    unsafe { tun_set_interface(node.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the descriptor is an open TUN device's, and nothing else owns it.
    unsafe { SyncDevice::from_fd(node.into_raw_fd()) }
}

/// Super-packets of TCP, and `more`. tun-rs asks for those of UDP too, which most stacks do not take.
fn set_offloads(device: &SyncDevice, more: u32) -> io::Result<()> {
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | more;
    // SAFETY: the descriptor is an open TUN device's, and the request takes a number.
    unsafe { tun_set_offload(device.as_raw_fd(), offloads.into()) }?;
    Ok(())
}

fn not_created(name: &str, source: io::Error) -> Error {
    let cause = match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => Cause::NameTaken,
        Some(libc::EPERM | libc::EACCES) => Cause::NeedsNetAdmin,
        Some(libc::ENOTTY) => Cause::DeviceNodeOfOtherDriver,
        Some(libc::EINVAL) => Cause::NameOfOtherKind,
        None if source.kind() == io::ErrorKind::Unsupported => Cause::NoNapi,
        _ => Class::Failed.into(),
    };
    Error::new(cause, "create TUN interface", name, source)
}

/// Fills buffers until there is no packet. While `is_quiet`, a packet that does not fill the MTU is the whole batch:
/// requests come one by one. If there is another packet after all, the next batch is read to its end.
fn recv_batch(
    buffers: &mut [PacketBuffer],
    is_quiet: &mut bool,
    mtu: usize,
    mut recv: impl FnMut(&mut [u8]) -> io::Result<(usize, PacketMeta)>,
) -> io::Result<usize> {
    let was_quiet = mem::take(is_quiet);
    for (count, buffer) in buffers.iter_mut().enumerate() {
        match recv(buffer.storage_mut()) {
            Ok((len, meta)) => {
                buffer.filled(len, meta)?;
                if was_quiet && len < mtu {
                    return Ok(count + 1);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                *is_quiet = count <= 1;
                return if count > 0 { Ok(count) } else { Err(error) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(buffers.len())
}

/// Takes over an open device, whose owner may have asked for offload. tun-rs refuses one with a `virtio_net_hdr`.
fn adopt(fd: i32) -> Result<SyncDevice, Error> {
    let error = |source| Error::new(Cause::NotATun, "take over", format!("file descriptor {fd}"), source);
    // SAFETY: F_GETFD reads a flag of the descriptor and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(error(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open, and by the contract of `TunConfig::fd` handed over to us.
    // tun-rs asks TUNGETIFF of it, and does not close it where that fails.
    let device = unsafe { SyncDevice::from_fd(fd) }.map_err(error)?;
    // TUNGETIFF does not tell of packet information: its IFF_NO_PI is also IFF_NOFILTER.
    let tun = device.name().and_then(|name| state_of(&name)).map_err(error)?.tun;
    let refuse = |reason| Err(error(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    match tun {
        Some(tun) if tun.is_tap => refuse("it is a TAP device"),
        Some(tun) if tun.packet_information => refuse("its packets have packet information"),
        _ => {
            // SAFETY: the descriptor is an open TUN device's, and the request takes a number.
            unsafe { tun_set_offload(fd, 0) }.map_err(|errno| error(errno.into()))?;
            Ok(device)
        }
    }
}

impl Link for TunDevice {
    fn capabilities(&self) -> Capabilities {
        if self.offload { Capabilities::offloading(self.mtu) } else { Capabilities::plain(self.mtu) }
    }

    /// Linux 6.2 and newer have it, for both IP versions together (`drivers/net/tun.c`, `set_offload`).
    fn enable_udp_segmentation(&mut self) -> bool {
        self.offload && self.udp_offloads != 0 && set_offloads(self.device.get_ref(), self.udp_offloads).is_ok()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if !self.receives {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (device, mtu, is_quiet) = (&self.device, self.mtu, &mut self.is_quiet);
        if self.offload {
            recv_batch(buffers, is_quiet, mtu, |storage| recv_described(device, storage, &self.malformed))
        } else {
            let recv = |storage: &mut [u8]| Ok((device.try_read(|tun| tun.recv(storage))?, PacketMeta::default()));
            recv_batch(buffers, is_quiet, mtu, recv)
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
        sent_whole(sent, header_len + packet_len(slices), &self.malformed)
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.receives { self.device.poll_readable(cx) } else { Poll::Pending }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_writable(cx)
    }
}

/// Skips malformed packets. One that the kernel cannot describe fails with `EINVAL`, and is gone (`tun_put_user`).
fn recv_described(
    device: &Readiness<SyncDevice>,
    storage: &mut [u8],
    malformed: &AtomicU64,
) -> io::Result<(usize, PacketMeta)> {
    for _ in 0..MAX_SKIPPED {
        let mut header = [0; HEADER_LEN];
        let mut slices = [IoSliceMut::new(&mut header), IoSliceMut::new(storage)];
        let len = match device.try_read(|tun| tun.recv_vectored(&mut slices)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
            result => result?,
        };
        let packet = len.checked_sub(HEADER_LEN).and_then(|len| storage.get(..len)).unwrap_or_default();
        if let Ok(meta) = vnet::read_verified(&header, packet) {
            return Ok((packet.len(), meta));
        }
        malformed.fetch_add(1, Ordering::Relaxed);
    }
    // The device is still readable, which whoever asks is told at once.
    Err(io::ErrorKind::WouldBlock.into())
}

fn send_described(device: &SyncDevice, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let headers = slices.first().map(|slice| &**slice).unwrap_or_default();
    let header = vnet::write(meta, headers).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    with_header(&header, slices, |all| device.send_vectored(all))
}

/// Whether a failed write loses only its packet (`tun_get_user`). A deleted device fails with `EBADFD`.
pub fn loses_packet(error: &io::Error) -> bool {
    use libc::{EINVAL, EIO, ENOBUFS, ENOMEM};
    matches!(error.raw_os_error(), Some(ENOMEM | ENOBUFS | EINVAL | EIO))
}

/// The kernel counts lost packets as dropped, but not the invalid ones. There is nothing to wait for.
fn sent_whole(sent: io::Result<usize>, len: usize, malformed: &AtomicU64) -> io::Result<()> {
    match sent {
        Ok(sent) if sent == len => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "the TUN device took only a part of a packet")),
        Err(error) if loses_packet(&error) => {
            if error.raw_os_error() == Some(libc::EINVAL) {
                malformed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_goes_whole_or_is_lost_or_ends_the_link() {
        let malformed = AtomicU64::new(0);
        let failed = |errno| sent_whole(Err(io::Error::from_raw_os_error(errno)), 50, &malformed);
        sent_whole(Ok(50), 50, &malformed).unwrap();
        assert_eq!(sent_whole(Ok(49), 50, &malformed).unwrap_err().kind(), io::ErrorKind::WriteZero);
        for errno in [libc::ENOBUFS, libc::ENOMEM, libc::EIO] {
            failed(errno).unwrap();
        }
        assert_eq!(malformed.load(Ordering::Relaxed), 0, "the kernel counts these");
        failed(libc::EINVAL).unwrap();
        assert_eq!(malformed.load(Ordering::Relaxed), 1);
        for errno in [libc::EAGAIN, libc::EBADFD, libc::EFAULT, libc::ENODEV] {
            assert_eq!(failed(errno).unwrap_err().raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_descriptor_that_is_no_tun_is_refused_by_name() {
        use std::os::fd::IntoRawFd;
        let no_tun = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        for fd in [no_tun, 9_999] {
            let error = adopt(fd).err().unwrap();
            assert_eq!(error.cause(), Cause::NotATun);
            assert!(error.to_string().contains(&format!("file descriptor {fd}")), "{error}");
        }
    }
}
