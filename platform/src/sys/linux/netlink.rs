//! Configures interfaces through rtnetlink. Only rtnetlink allows all of this to an ordinary user in a user namespace.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Nla};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoTun, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::constants::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// The multicast groups of events of interfaces and of IPv6 addresses and routes (`RTMGRP_LINK`, `RTMGRP_IPV6_IFADDR` and
/// `RTMGRP_IPV6_ROUTE` of `linux/rtnetlink.h`).
const EVENTS: u32 = 0x1 | 0x100 | 0x400;

/// How long it may take until an interface that is up is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

/// Sets how many packets may wait in an interface's queue.
///
/// It uses `RTM_SETLINK`, which needs `CAP_NET_ADMIN` only in the interface's user namespace (`net/core/rtnetlink.c`).
/// The older ioctl `SIOCSIFTXQLEN` needs it in the initial user namespace (`net/core/dev_ioctl.c`).
pub(super) fn set_tx_queue_len(interface_index: u32, packets: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = interface_index;
    link.attributes.push(LinkAttribute::TxQueueLen(packets));
    request(RouteNetlinkMessage::SetLink(link))
}

/// The state of an interface.
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Whether packets pass.
    pub(super) running: bool,
    /// Whether it asks neighbours for their addresses.
    pub(super) has_neighbours: bool,
    pub(super) tx_queue_len: u32,
    pub(super) tun: TunLink,
}

/// What only a TUN or TAP device has; `None` for other interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TunLink {
    /// Whether its packets have a virtio header, without which it cannot offload (`IFF_VNET_HDR`).
    pub(super) vnet_header: Option<bool>,
    /// Its queues: the program's open files of the device.
    pub(super) queues: Option<u32>,
}

/// `IFLA_TUN_VNET_HDR`, `IFLA_TUN_MULTI_QUEUE` and `IFLA_TUN_NUM_QUEUES` of `linux/if_link.h`.
const TUN_VNET_HDR: u16 = 5;
const TUN_MULTI_QUEUE: u16 = 7;
const TUN_NUM_QUEUES: u16 = 8;

/// The kernel tells the number of queues only of a device that may have several (`drivers/net/tun.c`, `tun_fill_info`).
fn tun_link(attributes: &[InfoTun]) -> TunLink {
    let value = |kind: u16| {
        let attribute = attributes.iter().find(|attribute| attribute.kind() == kind)?;
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        Some(bytes)
    };
    let flag = |kind| value(kind)?.first().map(|byte| *byte != 0);
    let queues = value(TUN_NUM_QUEUES).and_then(|bytes| Some(u32::from_ne_bytes(*bytes.first_chunk()?)));
    let has_one = flag(TUN_MULTI_QUEUE) == Some(false);
    TunLink { vnet_header: flag(TUN_VNET_HDR), queues: if has_one { Some(1) } else { queues } }
}

/// Reads the state of an interface with `RTM_GETLINK`.
pub(super) fn interface(index: u32) -> io::Result<Interface> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) =
        ask(RouteNetlinkMessage::GetLink(link), NLM_F_REQUEST)?
    else {
        return Err(unexpected());
    };
    let has = |flag| link.header.flags.contains(flag);
    let mut interface = Interface {
        name: String::new(),
        mtu: 0,
        up: has(LinkFlags::Up),
        running: has(LinkFlags::Running),
        has_neighbours: !has(LinkFlags::Loopback) && !has(LinkFlags::Noarp),
        tx_queue_len: 0,
        tun: TunLink::default(),
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::TxQueueLen(packets) => interface.tx_queue_len = packets,
            LinkAttribute::LinkInfo(infos) => {
                let tun = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Tun(attributes)) => Some(tun_link(attributes)),
                    _ => None,
                });
                interface.tun = tun.unwrap_or_default();
            }
            _ => {}
        }
    }
    Ok(interface)
}

/// Sets the link of an interface up with `RTM_SETLINK`.
pub(super) fn set_link_up(index: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(link))
}

/// Sets an interface's MTU, in bytes, with `RTM_SETLINK`.
pub(super) fn set_mtu(index: u32, mtu: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes.push(LinkAttribute::Mtu(mtu));
    request(RouteNetlinkMessage::SetLink(link))
}

/// Makes an interface drop every packet that it should send, or send them again: the queueing discipline `blackhole`
/// (`net/sched/sch_blackhole.c`). The link stays up, and addresses and routes stay.
pub(super) fn set_black_hole(index: u32, is_on: bool) -> io::Result<()> {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::ROOT;
    if is_on {
        message.attributes.push(TcAttribute::Kind("blackhole".to_owned()));
        create(RouteNetlinkMessage::NewQueueDiscipline(message))
    } else {
        request(RouteNetlinkMessage::DelQueueDiscipline(message))
    }
}

/// Creates a veth pair: two interfaces that are joined like the ends of a cable, one in this network and one in the
/// other (`veth(4)`).
pub(super) fn create_veth(near: &str, far: &str, far_namespace: &File) -> io::Result<()> {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![LinkAttribute::IfName(far.to_owned()), LinkAttribute::NetNsFd(far_namespace.as_raw_fd())];
    let mut link = LinkMessage::default();
    link.attributes = vec![
        LinkAttribute::IfName(near.to_owned()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    create(RouteNetlinkMessage::NewLink(link))
}

/// Waits for a condition that an event of an interface or of an IPv6 address or route announces.
pub(super) fn wait_until(ready: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let mut events = Socket::new(NETLINK_ROUTE)?;
    events.bind(&SocketAddr::new(0, EVENTS))?;
    let deadline = Instant::now() + READY_TIMEOUT;
    // The socket keeps an event that happens between the query and the wait.
    while !ready()? {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        SockRef::from(&events).set_read_timeout(Some(remaining))?;
        match events.recv_from_full() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Routes all packets to a network out of an interface with `RTM_NEWROUTE`, as `ip route add NETWORK [via GATEWAY] dev NAME`
/// does.
pub(super) fn add_route(
    interface_index: u32,
    network: IpAddr,
    prefix_len: u8,
    gateway: Option<IpAddr>,
) -> io::Result<()> {
    let address = |address| match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    let mut route = RouteMessage::default();
    route.header.address_family = if network.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    route.header.destination_prefix_length = prefix_len;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Boot;
    let is_beyond = network.is_ipv6() || gateway.is_some();
    route.header.scope = if is_beyond { RouteScope::Universe } else { RouteScope::Link };
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Destination(address(network)), RouteAttribute::Oif(interface_index)];
    route.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(address(gateway))));
    create(RouteNetlinkMessage::NewRoute(route))
}

/// Gives an interface an address. The prefix makes the kernel add the route to the other hosts of its network.
///
/// It uses `RTM_NEWADDR` for the flag `IFA_F_NODAD`: an IPv6 address is then usable at once. Without the flag, the
/// address waits for a kernel worker, which finds that a point-to-point interface needs no detection of duplicates
/// (`net/ipv6/addrconf.c`, `addrconf_dad_work`).
pub(super) fn add_address(interface_index: u32, address: IpAddr, prefix_len: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.index = interface_index;
    message.header.prefix_len = prefix_len;
    message.header.family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    if address.is_ipv6() {
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request(RouteNetlinkMessage::NewAddress(message))
}

/// Sends a request and reads the kernel's acknowledgement, which arrives at once.
fn request(message: RouteNetlinkMessage) -> io::Result<()> {
    acknowledged(message, 0)
}

/// The same for a request that creates an object. It fails if the object exists.
fn create(message: RouteNetlinkMessage) -> io::Result<()> {
    acknowledged(message, NLM_F_CREATE | NLM_F_EXCL)
}

fn acknowledged(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    match ask(message, NLM_F_REQUEST | NLM_F_ACK | flags)? {
        NetlinkPayload::Error(_) => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Sends a message and waits for the reply. Returns an error if the reply is an error.
fn ask(message: RouteNetlinkMessage, flags: u16) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        payload => Ok(payload),
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "rtnetlink answered with something else")
}
