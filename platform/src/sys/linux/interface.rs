//! An interface of the calling thread's network, by rtnetlink: all of it is allowed to a user in a user namespace.

use std::fs::{self, File};
use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NetlinkPayload, Nla};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoTun, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use super::netlink::{ask, create, replace, request, unexpected, wait_until};
use super::process::folder_of_thread;
use super::{addresses_of, socket_addr};
use crate::{Cause, Class, Error};

pub(super) struct State {
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Whether packets pass.
    pub(super) running: bool,
    /// Whether it asks neighbours for their addresses.
    pub(super) has_neighbours: bool,
    pub(super) tx_queue_len: u32,
    pub(super) qdisc: Option<String>,
    /// `None` for an interface of another kind, and before Linux 4.20.
    pub(super) tun: Option<TunState>,
}

/// What the kernel tells of a TUN or TAP device (`IFLA_TUN_*` of `linux/if_link.h`).
#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags of the kernel")]
pub(super) struct TunState {
    pub(super) is_tap: bool,
    pub(super) packet_information: bool,
    pub(super) vnet_header: bool,
    /// Whether it stays when no program has it open.
    pub(super) stays: bool,
    /// `IFF_MULTI_QUEUE`.
    pub(super) may_have_queues: bool,
    /// How many queues programs have opened. Of a device that may have only one, the kernel does not tell: 1.
    pub(super) queues: u32,
}

const TUN_TYPE: u16 = 3;
const TUN_PI: u16 = 4;
const TUN_VNET_HDR: u16 = 5;
const TUN_PERSIST: u16 = 6;
const TUN_MULTI_QUEUE: u16 = 7;
const TUN_NUM_QUEUES: u16 = 8;

/// The bytes of an attribute of a TUN device.
fn tun_attribute(attributes: &[InfoTun], kind: u16) -> Option<Vec<u8>> {
    let attribute = attributes.iter().find(|attribute| attribute.kind() == kind)?;
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    Some(bytes)
}

impl State {
    /// Reads it with `RTM_GETLINK`.
    pub(super) fn of(index: u32) -> io::Result<Self> {
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) =
            ask(RouteNetlinkMessage::GetLink(link(index)), 0)?
        else {
            return Err(unexpected());
        };
        let has = |flag| link.header.flags.contains(flag);
        let mut state = Self {
            name: String::new(),
            mtu: 0,
            up: has(LinkFlags::Up),
            running: has(LinkFlags::Running),
            has_neighbours: !has(LinkFlags::Loopback) && !has(LinkFlags::Noarp),
            tx_queue_len: 0,
            qdisc: None,
            tun: None,
        };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => state.name = name,
                LinkAttribute::Mtu(mtu) => state.mtu = mtu,
                LinkAttribute::TxQueueLen(packets) => state.tx_queue_len = packets,
                LinkAttribute::Qdisc(name) => state.qdisc = Some(name),
                LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| state.read_tun(info)),
                _ => {}
            }
        }
        Ok(state)
    }

    fn read_tun(&mut self, info: &LinkInfo) {
        let LinkInfo::Data(InfoData::Tun(attributes)) = info else { return };
        let first = |kind| tun_attribute(attributes, kind)?.first().copied();
        let flag = |kind| first(kind).is_some_and(|byte| byte != 0);
        let queues = tun_attribute(attributes, TUN_NUM_QUEUES).and_then(|bytes| bytes.first_chunk().copied());
        self.tun = Some(TunState {
            is_tap: first(TUN_TYPE).map(i32::from) == Some(libc::IFF_TAP),
            packet_information: flag(TUN_PI),
            vnet_header: flag(TUN_VNET_HDR),
            stays: flag(TUN_PERSIST),
            may_have_queues: flag(TUN_MULTI_QUEUE),
            queues: queues.map_or(1, u32::from_ne_bytes),
        });
    }
}

/// The interface that has an address. Only on Linux.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let mut all = getifaddrs().ok()?;
    all.find(|of| of.address.as_ref().and_then(socket_addr).map(|own| own.ip()) == Some(address))
        .map(|of| of.interface_name)
}

/// A request about an interface of this name.
pub(super) fn request_about(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: the structure has numbers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last place stays zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

pub(super) fn index_of(interface: &str) -> io::Result<u32> {
    Ok(if_nametoindex(interface)?)
}

pub(super) fn state_of(interface: &str) -> io::Result<State> {
    State::of(index_of(interface)?)
}

fn failed(operation: &'static str, interface: &str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::new(cause(&source), operation, interface, source)
}

fn cause(error: &io::Error) -> Cause {
    if error.raw_os_error() == Some(libc::EPERM) { Cause::NeedsNetAdmin } else { Class::Failed.into() }
}

fn link(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

/// Sets what is not as it should be: an ordinary user may use a device that root has prepared, but set nothing.
/// `RTM_SETLINK` needs `CAP_NET_ADMIN` only in the interface's user namespace; older ioctls in the initial one.
fn set(
    operation: &'static str,
    interface: &str,
    is_set: impl Fn(&State) -> bool,
    change: impl Fn(&mut LinkMessage),
) -> Result<(), Error> {
    let set = index_of(interface).and_then(|index| {
        if is_set(&State::of(index)?) {
            return Ok(());
        }
        let mut link = link(index);
        change(&mut link);
        request(RouteNetlinkMessage::SetLink(link))
    });
    set.map_err(failed(operation, interface))
}

/// Sets the MTU of an interface in the calling thread's network.
pub fn set_mtu(interface: &str, mtu: u16) -> Result<(), Error> {
    let mtu = mtu.into();
    let change = |link: &mut LinkMessage| link.attributes.push(LinkAttribute::Mtu(mtu));
    set("set the MTU of", interface, |state| state.mtu == mtu, change)
}

pub(super) fn set_tx_queue_len(interface: &str, packets: u32) -> Result<(), Error> {
    let change = |link: &mut LinkMessage| link.attributes.push(LinkAttribute::TxQueueLen(packets));
    set("set the queue length of", interface, |state| state.tx_queue_len == packets, change)
}

pub(super) fn set_link_up(interface: &str) -> Result<(), Error> {
    let change = |link: &mut LinkMessage| {
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
    };
    set("set up", interface, |state| state.up, change)
}

/// Whether the link of an interface in the calling thread's network is up.
pub fn interface_is_up(interface: &str) -> bool {
    state_of(interface).is_ok_and(|state| state.up)
}

/// Deletes an interface of the calling thread's network, whoever made it.
pub fn delete_interface(interface: &str) -> Result<(), Error> {
    let deleted = index_of(interface).and_then(|index| request(RouteNetlinkMessage::DelLink(link(index))));
    deleted.map_err(failed("delete", interface))
}

/// Takes an address from an interface of the calling thread's network.
pub fn remove_address(interface: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    let removed = index_of(interface).and_then(|index| {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix_len;
        message.header.family = family(address);
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        request(RouteNetlinkMessage::DelAddress(message))
    });
    removed.map_err(failed("take an address from", interface))
}

/// The queueing discipline of an interface in the calling thread's network. Only Linux has one.
pub fn qdisc_of(interface: &str) -> Option<String> {
    state_of(interface).ok()?.qdisc
}

/// The root of an interface's queueing disciplines, of a kind.
fn root_qdisc(interface: &str, kind: Option<&str>) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(index_of(interface)?.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message.attributes.extend(kind.map(|kind| TcAttribute::Kind(kind.to_owned())));
    Ok(message)
}

/// `tc qdisc replace dev INTERFACE root NAME`.
pub(super) fn set_qdisc(interface: &str, name: &str) -> Result<(), Error> {
    let set = root_qdisc(interface, Some(name));
    set.and_then(|message| replace(RouteNetlinkMessage::NewQueueDiscipline(message))).map_err(|source| {
        let is_missing = source.raw_os_error() == Some(libc::ENOENT);
        let cause = if is_missing { Cause::NoQdisc } else { cause(&source) };
        Error::new(cause, "set the queueing discipline", format!("{name} of {interface}"), source)
    })
}

/// Makes an interface drop every packet that it should send, or send again (`net/sched/sch_blackhole.c`).
pub fn set_black_hole(interface: &str, is_on: bool) -> Result<(), Error> {
    let set = root_qdisc(interface, is_on.then_some("blackhole")).and_then(|message| {
        if is_on {
            create(RouteNetlinkMessage::NewQueueDiscipline(message))
        } else {
            request(RouteNetlinkMessage::DelQueueDiscipline(message))
        }
    });
    set.map_err(failed("cut or join", interface))
}

/// Creates two interfaces that are joined like the ends of a cable, one in the other network (`veth(4)`).
pub(super) fn create_veth(near: &str, far: &str, far_namespace: &File) -> Result<(), Error> {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![LinkAttribute::IfName(far.to_owned()), LinkAttribute::NetNsFd(far_namespace.as_raw_fd())];
    let pair = InfoData::Veth(InfoVeth::Peer(peer));
    let mut link = LinkMessage::default();
    link.attributes = vec![
        LinkAttribute::IfName(near.to_owned()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(pair)]),
    ];
    create(RouteNetlinkMessage::NewLink(link)).map_err(|source| {
        let is_missing = source.raw_os_error() == Some(libc::EOPNOTSUPP);
        let cause = if is_missing { Cause::NoVeth } else { Class::Failed.into() };
        Error::new(cause, "create veth interface", near, source)
    })
}

/// `ip route add NETWORK/PREFIX_LEN [via GATEWAY] dev INTERFACE`.
pub fn add_route(interface: &str, network: IpAddr, prefix_len: u8, gateway: Option<IpAddr>) -> Result<(), Error> {
    let address = |address| match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    let mut route = RouteMessage::default();
    route.header.address_family = family(network);
    route.header.destination_prefix_length = prefix_len;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Boot;
    let is_beyond = network.is_ipv6() || gateway.is_some();
    route.header.scope = if is_beyond { RouteScope::Universe } else { RouteScope::Link };
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Destination(address(network))];
    route.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(address(gateway))));
    let added = index_of(interface).and_then(|index| {
        route.attributes.push(RouteAttribute::Oif(index));
        create(RouteNetlinkMessage::NewRoute(route))
    });
    added.map_err(failed("set a route through", interface))
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

/// The prefix makes the kernel add the route to the network. With `IFA_F_NODAD` an IPv6 address is usable at once, and does
/// not wait for a kernel worker (`net/ipv6/addrconf.c`, `addrconf_dad_work`). An address that the interface has is left alone.
pub(super) fn set_address(interface: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    const OPERATION: &str = "set the address of";
    if addresses_of(interface).map_err(failed(OPERATION, interface))?.contains(&address) {
        return Ok(());
    }
    let mut message = AddressMessage::default();
    message.header.index = index_of(interface).map_err(failed(OPERATION, interface))?;
    message.header.prefix_len = prefix_len;
    message.header.family = family(address);
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    if address.is_ipv6() {
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request(RouteNetlinkMessage::NewAddress(message)).map_err(|source| {
        let cause = match source.raw_os_error() {
            // The kernel has no IPv6, or it is switched off for the interface.
            Some(libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ENODEV)
                if address.is_ipv6() =>
            {
                Cause::NoIpv6
            }
            _ => cause(&source),
        };
        Error::new(cause, OPERATION, interface, source)
    })
}

/// Gives an interface that is up one more address. When this returns, the address is in use.
pub fn add_address(interface: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    set_address(interface, address, prefix_len)?;
    let failed = |source| Error::new(Class::Failed, "set the address of", interface, source);
    // Nobody solicits on the loopback or a TUN device (`net/ipv6/addrconf.c`, `addrconf_join_solict`).
    let has_neighbours = state_of(interface).map_err(failed)?.has_neighbours;
    let is_ready = || Ok((!has_neighbours || is_solicited(interface, address)?) && is_routed(address)?);
    wait_until(is_ready).map_err(failed)
}

/// Waits until packets pass an interface, and until it replies to neighbour solicitations for its IPv6 address: the
/// kernel joins their group in a worker (RFC 4291, 2.7.1; `net/ipv6/addrconf.c`, `addrconf_dad_begin`).
pub(super) fn wait_until_ready(interface: &str, address: IpAddr) -> Result<(), Error> {
    let ready = || Ok(state_of(interface)?.running && is_solicited(interface, address)?);
    wait_until(ready).map_err(failed("wait for the interface", interface))
}

/// Whether an interface receives neighbour solicitations for an address, if that is an IPv6 address.
fn is_solicited(interface: &str, address: IpAddr) -> io::Result<bool> {
    let IpAddr::V6(address) = address else { return Ok(true) };
    let [.., a, b, c] = address.octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let groups = fs::read_to_string(folder_of_thread().join("net/igmp6"))?;
    // The fields of a line: the interface's index and name, a group, and others (`net/ipv6/mcast.c`, `igmp6_mc_seq_show`).
    Ok(groups.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(interface) && fields.next() == Some(&group)
    }))
}

/// Whether packets to an IPv6 address of this network are delivered (`net/ipv6/addrconf.c`, `__ipv6_ifa_notify`).
fn is_routed(address: IpAddr) -> io::Result<bool> {
    let IpAddr::V6(address) = address else { return Ok(true) };
    let host = format!("{:032x} 80 ", address.to_bits());
    let routes = fs::read_to_string(folder_of_thread().join("net/ipv6_route"))?;
    // The field before the interface's name has the flags, of which the first is `RTF_LOCAL` (`linux/ipv6_route.h`).
    let is_local = |flags: &str| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags >> 31 == 1);
    let mut routes = routes.lines().filter(|route| route.starts_with(&host));
    Ok(routes.any(|route| route.split_whitespace().nth_back(1).is_some_and(is_local)))
}
