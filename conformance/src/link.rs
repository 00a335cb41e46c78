//! The two ends of the link of a case.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use platform::{
    Capabilities, ChecksumOffload, Class, Interface, Link, MemoryLink, Network, Offload, PacketBuffer, PacketMeta,
    Traced, TunConfig, TunDevice,
};

use tokio::runtime::Builder;

use crate::{Layer, Recording};

/// The MTU of a link unless another is asked for.
pub const MTU: u16 = 1500;

/// Packets that can wait in each direction.
const DEPTH: u16 = 4096;

/// A link of any type. Its calls are indirect, which is fine: a case measures no speed.
pub(crate) struct AnyLink {
    link: Box<dyn Link>,
    /// Whether UDP super-packets may be sent: the other end has asked for them, or this is a device, which cuts them.
    segments_udp: Arc<AtomicBool>,
    /// Whether a packet was sent since the last flush.
    has_sent: bool,
}

impl AnyLink {
    pub(crate) fn new(link: impl Link) -> Self {
        Self { link: Box::new(link), segments_udp: Arc::new(true.into()), has_sent: false }
    }

    /// Records all packets.
    pub(crate) fn traced(self, trace: Recording) -> Self {
        let segments_udp = Arc::clone(&self.segments_udp);
        Self { segments_udp, ..Self::new(Traced::new(self, trace)) }
    }

    pub(crate) fn segments_udp(&self) -> bool {
        self.segments_udp.load(Ordering::Relaxed)
    }
}

impl Link for AnyLink {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        let is_on = self.link.enable_udp_segmentation();
        self.segments_udp.fetch_or(is_on, Ordering::Relaxed);
        is_on
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        self.link.try_recv(buffers)
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)?;
        self.has_sent = true;
        Ok(())
    }

    /// Without a packet a flush would wake the reader in vain, and in random play for ever.
    fn flush(&mut self) -> io::Result<()> {
        if self.has_sent {
            self.link.flush()?;
            self.has_sent = false;
        }
        Ok(())
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

/// Returns the peer's address: the second of its network.
pub(crate) fn peer_ip(ipv6: bool) -> IpAddr {
    ip(ipv6, 1, 2)
}

/// Returns the address of a host in network 1, the peer's, or network 2, the stack's.
pub(crate) fn ip(ipv6: bool, network: u16, host: u16) -> IpAddr {
    if ipv6 {
        Ipv6Addr::new(0xfd10, 0, network, 0, 0, 0, 0, host).into()
    } else {
        Ipv4Addr::from_bits(0x0a00_0000 | u32::from(network) << 16 | u32::from(host)).into()
    }
}

/// Returns the addresses of the stack that cases use; the first is the usual one. The kernel as a stack listens at these
/// alone. All others take packets for every address of their network, and for every port.
pub(crate) fn stack_addresses(ipv6: bool) -> [SocketAddr; 5] {
    [(2, 5201), (2, 1), (3, 53), (0x1234, 443), (0xfe, 65_535)]
        .map(|(host, port)| SocketAddr::new(ip(ipv6, 2, host), port))
}

/// The sender of a packet, by its source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Stack,
    /// The stack, with an address of the peer's network, or one that no host can have.
    Forged,
    /// The system, which forwards packets and has the first address of each network.
    System,
}

impl Origin {
    pub(crate) fn of(source: IpAddr) -> Self {
        let (network, host) = match source {
            IpAddr::V4(source) if source.is_broadcast() || source.is_multicast() => return Self::Forged,
            IpAddr::V6(source) if source.is_multicast() => return Self::Forged,
            IpAddr::V4(source) => (source.to_bits() >> 16, source.to_bits() & 0xffff),
            IpAddr::V6(source) => match source.segments() {
                [0xfd10, 0, network, 0, 0, 0, 0, host] => (0x0a00 | u32::from(network), u32::from(host)),
                _ => return Self::System,
            },
        };
        match (network, host) {
            (0x0a02, _) => Self::Stack,
            (0x0a01, host) if host != 1 => Self::Forged,
            _ => Self::System,
        }
    }
}

/// Returns whether an address is in one of the networks of the cases. All other packets on a device are the system's own.
pub(crate) fn is_of_a_case(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.segments()[0] == 0xfd10,
    }
}

/// Returns the ends of a stack with so many shards, and the peer's end. Must be called within a runtime.
pub(crate) fn ends(
    layer: Layer,
    shards: u16,
    ipv6: bool,
    offload: bool,
    mtu: u16,
) -> Result<(Vec<AnyLink>, AnyLink), platform::Error> {
    match layer {
        Layer::Stack => {
            let mut capabilities = if offload {
                Capabilities::offloading(mtu.into())
            } else {
                // The stack has to verify checksums.
                Capabilities { checksum: ChecksumOffload::default(), ..Capabilities::plain(mtu.into()) }
            };
            capabilities.batch = 32;
            let segments_udp: Arc<AtomicBool> = Arc::default();
            let pairs = (0..shards).map(|_| MemoryLink::pair_of(capabilities, DEPTH.into()));
            let (stack, mut peer): (Vec<_>, Vec<_>) = pairs.unzip();
            let any = |link| AnyLink { segments_udp: Arc::clone(&segments_udp), ..AnyLink::new(link) };
            let peer = if peer.len() == 1 { AnyLink::new(peer.remove(0)) } else { AnyLink::new(Joined(peer)) };
            Ok((stack.into_iter().map(any).collect(), AnyLink { segments_udp, ..peer }))
        }
        Layer::Path => {
            let devices = TunDevice::open_shards(&config(Side::Stack, ipv6, offload, mtu), shards.into(), None)?;
            platform::enable_forwarding(devices[0].name(), ipv6)?;
            let peer = device(Side::Peer, ipv6, offload, mtu)?;
            Ok((devices.into_iter().map(AnyLink::new).collect(), peer))
        }
    }
}

/// The other ends of the links of shards. It sends over the first, and receives from all.
struct Joined(Vec<MemoryLink>);

impl Link for Joined {
    fn capabilities(&self) -> Capabilities {
        self.0[0].capabilities()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut count = 0;
        for link in &mut self.0 {
            if count < buffers.len() {
                match link.try_recv(&mut buffers[count..]) {
                    Ok(more) => count += more,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.0[0].try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0[0].flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All of them remember the waker.
        let polled: Vec<_> = self.0.iter_mut().map(|link| link.poll_readable(cx)).collect();
        polled.into_iter().find(Poll::is_ready).unwrap_or(Poll::Pending)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0[0].poll_writable(cx)
    }
}

/// The two devices of [`Layer::Path`].
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Peer = 1,
    Stack = 2,
}

impl Side {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Stack => "stack",
        }
    }

    fn network(self, ipv6: bool) -> Network {
        let address = |host| ip(ipv6, self as u16, host);
        Network { address: address(1), peer: address(2), prefix_len: if ipv6 { 48 } else { 16 } }
    }
}

pub(crate) fn open(side: Side, ipv6: bool, offload: bool, mtu: u16) -> Result<TunDevice, platform::Error> {
    TunDevice::open(&config(side, ipv6, offload, mtu))
}

fn config(side: Side, ipv6: bool, offload: bool, mtu: u16) -> TunConfig {
    TunConfig {
        name: side.name().to_owned(),
        or_next: false,
        network: side.network(ipv6),
        mtu,
        tx_queue_len: DEPTH.into(),
        offload: if offload { Offload::On } else { Offload::Off },
        fd: None,
        tuning: platform::Tuning::default(),
    }
}

/// Opens a device. The kernel forwards its packets.
pub(crate) fn device(side: Side, ipv6: bool, offload: bool, mtu: u16) -> Result<AnyLink, platform::Error> {
    let device = open(side, ipv6, offload, mtu)?;
    platform::enable_forwarding(device.name(), ipv6)?;
    Ok(AnyLink::new(device))
}

/// Opens a device of [`Layer::Path`] and closes it again, to find a missing right before it fails every case.
pub fn try_device() -> Result<(), platform::Error> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| platform::Error::new(Class::Failed, "start", "a runtime", source))?;
    let _entered = runtime.enter();
    device(Side::Peer, false, false, MTU).map(drop)
}

/// Sets up a device that another process has opened. The kernel forwards its packets.
pub(crate) fn set_up(side: Side, ipv6: bool, mtu: u16) -> Result<(), platform::Error> {
    let Network { address, prefix_len, .. } = side.network(ipv6);
    let name = side.name().to_owned();
    let (mtu, tx_queue_len, tuning) = (Some(mtu), Some(DEPTH.into()), platform::Tuning::default());
    Interface { name, address, prefix_len, route_to: None, mtu, tx_queue_len, tuning }.set_up()?;
    platform::enable_forwarding(side.name(), ipv6)
}
