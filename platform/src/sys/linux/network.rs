//! Interfaces and settings of the calling thread's network.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockaddrStorage;

use super::{netlink, process};
use crate::{
    Adopted, Cause, Class, Error, Interface, InterfaceCounts, Loopback, Namespace, PacketCounts, host_prefix_len,
    network_of,
};

/// The interface index of the loopback in every namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;

/// Sets the MTU, queue, address and route of an interface, and sets its link up.
pub(super) fn set_up(interface: &Interface) -> Result<(), Error> {
    let Interface { name, address, prefix_len, route_to, mtu, tx_queue_len } = interface;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, name, source);
    let index = index_of(name).map_err(failed("ask the number of"))?;
    netlink::set_mtu(index, (*mtu).into()).map_err(failed("set the MTU of"))?;
    set_queue(index, name, *tx_queue_len)?;
    add_address(index, name, *address, *prefix_len)?;
    netlink::set_link_up(index).map_err(failed("set up"))?;
    let Some(beyond) = route_to else { return Ok(()) };
    netlink::add_route(index, network_of(*beyond, *prefix_len), *prefix_len, None)
        .map_err(failed("set a route through"))
}

fn set_queue(index: u32, name: &str, tx_queue_len: Option<u32>) -> Result<(), Error> {
    let Some(packets) = tx_queue_len else { return Ok(()) };
    let failed = |source| Error::new(Class::Failed, "set the queue length of", name, source);
    netlink::set_tx_queue_len(index, packets).map_err(failed)
}

fn index_of(interface: &str) -> io::Result<u32> {
    Ok(if_nametoindex(interface)?)
}

/// A veth pair between the calling thread's network and another one. Both interfaces are set up and ready.
pub(super) fn join(near: &Interface, far: &Interface, network: &Namespace) -> Result<(), Error> {
    let failed = |operation| move |source| Error::new(Class::Failed, operation, &near.name, source);
    let namespace = File::open(network.path()).map_err(failed("open the other network of"))?;
    netlink::create_veth(&near.name, &far.name, &namespace).map_err(|source| {
        let cause = match source.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Cause::NoVeth,
            _ => Class::Failed.into(),
        };
        Error::new(cause, "create veth interface", &near.name, source)
    })?;
    disable_rp_filter(&near.name)?;
    set_up(near)?;
    let far = far.clone();
    network.run(move || set_up(&far).and_then(|()| wait_until_ready(&far)))??;
    wait_until_ready(near)
}

/// Waits until packets pass an interface that is up, and until it replies to neighbour solicitations for its IPv6
/// address. The kernel joins their group (RFC 4291, 2.7.1) in a worker, and announces the address afterwards
/// (`net/ipv6/addrconf.c`, `addrconf_dad_begin`). A solicitation that comes earlier is lost, and comes again after a
/// second.
fn wait_until_ready(interface: &Interface) -> Result<(), Error> {
    let Interface { name, address, .. } = interface;
    let ready = || Ok(netlink::interface(index_of(name)?)?.running && is_solicited(name, *address)?);
    let failed = |source| Error::new(Class::Failed, "wait for the interface", &interface.name, source);
    netlink::wait_until(ready).map_err(failed)
}

/// Whether an interface receives neighbour solicitations for an address, if that is an IPv6 address.
fn is_solicited(interface: &str, address: IpAddr) -> io::Result<bool> {
    let IpAddr::V6(address) = address else { return Ok(true) };
    let [.., a, b, c] = address.octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let groups = fs::read_to_string(process::folder_of_thread().join("net/igmp6"))?;
    // The fields of a line: the interface's index and name, a group, and others (`net/ipv6/mcast.c`, `igmp6_mc_seq_show`).
    Ok(groups.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(interface) && fields.next() == Some(&group)
    }))
}

pub(super) fn add_route(
    interface: &str,
    network: IpAddr,
    prefix_len: u8,
    gateway: Option<IpAddr>,
) -> Result<(), Error> {
    let added = index_of(interface).and_then(|index| netlink::add_route(index, network, prefix_len, gateway));
    added.map_err(|source| Error::new(Class::Failed, "set a route through", interface, source))
}

/// Makes an interface drop every packet that it should send, or send them again.
pub(super) fn set_black_hole(interface: &str, is_on: bool) -> Result<(), Error> {
    let set = index_of(interface).and_then(|index| netlink::set_black_hole(index, is_on));
    set.map_err(|source| Error::new(Class::Failed, "cut or join", interface, source))
}

/// Adds one more address, and waits until the interface answers for it.
pub(super) fn add_ready_address(interface: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    let failed = |source| Error::new(Class::Failed, "set the address of", interface, source);
    let index = index_of(interface).map_err(failed)?;
    add_address(index, interface, address, prefix_len)?;
    // Nobody solicits on the loopback or a TUN device (`net/ipv6/addrconf.c`, `addrconf_join_solict`).
    let has_neighbours = netlink::interface(index).map_err(failed)?.has_neighbours;
    let is_ready = || {
        let is_found = !has_neighbours || is_solicited(interface, address)?;
        Ok(is_found && is_routed(address)?)
    };
    netlink::wait_until(is_ready).map_err(failed)
}

/// Whether packets to an address of this network are delivered, if that is an IPv6 address. The kernel adds the route in
/// the worker that joins the group, after it (`net/ipv6/addrconf.c`, `__ipv6_ifa_notify`).
fn is_routed(address: IpAddr) -> io::Result<bool> {
    let IpAddr::V6(address) = address else { return Ok(true) };
    let host = format!("{:032x} 80 ", address.to_bits());
    let routes = fs::read_to_string(process::folder_of_thread().join("net/ipv6_route"))?;
    // The field before the interface's name has the flags, of which the first is `RTF_LOCAL` (`linux/ipv6_route.h`).
    let is_local = |flags: &str| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags >> 31 == 1);
    Ok(routes
        .lines()
        .any(|route| route.starts_with(&host) && route.split_whitespace().nth_back(1).is_some_and(is_local)))
}

/// Sets up a device where its program has not.
pub(super) fn adopt(interface: &Interface) -> Result<Adopted, Error> {
    let Interface { name, address, prefix_len, route_to, mtu, tx_queue_len } = interface;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, name, source);
    let index = index_of(name).map_err(failed("ask the number of"))?;
    let found = netlink::interface(index).map_err(failed("ask for"))?;
    let addresses = addresses_of(name).map_err(failed("ask for the addresses of"))?;
    let address_of_program =
        addresses.into_iter().find(|own| own.is_ipv6() == address.is_ipv6() && !is_link_local(*own));
    if found.mtu != u32::from(*mtu) {
        netlink::set_mtu(index, (*mtu).into()).map_err(failed("set the MTU of"))?;
    }
    set_queue(index, name, *tx_queue_len)?;
    if address_of_program.is_none() {
        add_address(index, name, *address, *prefix_len)?;
    }
    if !found.up {
        netlink::set_link_up(index).map_err(failed("set up"))?;
    }
    if let Some(host) = route_to {
        // The program may have the same route.
        let added = netlink::add_route(index, *host, host_prefix_len(*host), None).or_else(|source| {
            match source.raw_os_error() {
                Some(libc::EEXIST) => Ok(()),
                _ => Err(source),
            }
        });
        added.map_err(failed("set a route through"))?;
    }
    Ok(Adopted {
        mtu: found.mtu,
        is_up: found.up,
        address: address_of_program,
        tx_queue_len: found.tx_queue_len,
        vnet_header: found.tun.vnet_header,
        queues: found.tun.queues,
    })
}

fn addresses_of(interface: &str) -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter(|of| of.interface_name == interface);
    let address = |address: &SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
    };
    Ok(all.filter_map(|of| of.address.as_ref().and_then(address)).collect())
}

/// The kernel gives every interface such an address by itself (RFC 4862, 5.3).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

pub(super) fn add_address(index: u32, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
    netlink::add_address(index, address, prefix_len).map_err(|source| {
        let errno = source.raw_os_error();
        let error = |cause| Error::new(cause, "set the address of", name, source);
        match errno {
            // The kernel has no IPv6, or it is switched off for the interface.
            Some(libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ENODEV)
                if address.is_ipv6() =>
            {
                error(Cause::NoIpv6)
            }
            _ => error(Class::Failed.into()),
        }
    })
}

pub(super) fn set_loopback_up() -> Result<Loopback, Error> {
    let failed = |operation| move |source| Error::new(Cause::NoLoopback, operation, "the loopback interface", source);
    let interface = netlink::interface(LOOPBACK_IFINDEX).map_err(failed("ask for"))?;
    if !interface.up {
        netlink::set_link_up(LOOPBACK_IFINDEX).map_err(failed("set up"))?;
    }
    Ok(Loopback {
        name: interface.name,
        mtu: interface.mtu as usize,
        // It always offloads TCP (`drivers/net/loopback.c`, `gen_lo_setup`).
        offload: true,
    })
}

/// Makes the kernel forward. If a packet leaves by the interface that it came from, the kernel would also send an
/// ICMP redirect to the sender. For IPv4, redirects are switched off here. For IPv6, they cannot be switched off, but
/// are rare (`net/ipv6/ip6_output.c`, `ip6_forward`).
pub(super) fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    if ipv6 {
        // For IPv6, the setting of a single interface does not make it forward (`net.ipv6.conf.all.forwarding`).
        return set("ipv6/conf/all/forwarding", "1");
    }
    set("ipv4/conf/all/send_redirects", "0")?;
    set(&format!("ipv4/conf/{interface}/send_redirects"), "0")?;
    set(&format!("ipv4/conf/{interface}/forwarding"), "1")
}

/// Disables the reverse path filter (RFC 3704, 2.2): packets may arrive at an interface although the route to their
/// source leads elsewhere. The kernel uses the larger of the two settings (`include/linux/inetdevice.h`,
/// `IN_DEV_RPFILTER`).
fn disable_rp_filter(interface: &str) -> Result<(), Error> {
    for of in ["all", interface] {
        let name = format!("ipv4/conf/{of}/rp_filter");
        // If it is already off, a read-only /proc/sys does no harm.
        if !fs::read_to_string(format!("/proc/sys/net/{name}")).is_ok_and(|value| value.trim() == "0") {
            set(&name, "0")?;
        }
    }
    Ok(())
}

/// Writes a setting in `/proc/sys/net`. A thread sees the settings of its own network namespace there
/// (`net/sysctl_net.c`, `net_ctl_header_lookup`).
fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|source| {
        let cause = match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
                Cause::ReadOnlySettings
            }
            _ => Class::Failed.into(),
        };
        Error::new(cause, "write", path, source)
    })
}

/// The counters of an interface in the network of the thread with this folder under `/proc`.
pub(super) fn interface_counts(thread: &Path, interface: &str) -> Option<InterfaceCounts> {
    parse_counts(&fs::read_to_string(thread.join("net/dev")).ok()?, interface)
}

/// Whether the link of an interface in this network is up.
pub(super) fn is_up(interface: &str) -> bool {
    index_of(interface).and_then(netlink::interface).is_ok_and(|interface| interface.up)
}

/// The first word of each line of `/proc/net/dev` after its two heads.
pub(super) fn interface_names(thread: &Path) -> Vec<String> {
    let table = fs::read_to_string(thread.join("net/dev")).unwrap_or_default();
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Parses a line of `/proc/net/dev`. Each half of it begins with bytes, packets, errors and drops. The first half
/// counts packets that the kernel receives (`net/core/net-procfs.c`, `dev_seq_printf_stats`).
pub(crate) fn parse_counts(table: &str, name: &str) -> Option<InterfaceCounts> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [tx_bytes, tx_packets, _, tx_dropped, _, _, _, _, rx_bytes, rx_packets, _, rx_dropped, ..] = fields[..] else {
        return None;
    };
    let packets = PacketCounts { rx_packets, rx_bytes, tx_packets, tx_bytes };
    Some(InterfaceCounts { packets, dropped: tx_dropped.saturating_add(rx_dropped) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_receives_what_the_kernel_transmits() {
        let table = "Inter-| Receive | Transmit\n face |bytes packets errs drop fifo frame compressed multicast|...\n    \
                     lo: 1 1 0 9 0 0 0 0 1 1 0 9 0 0 0 0\n utun8: 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28\n\
                     utun88: 0 0 0 1 0 0 0 0 0 0 0 1 0 0 0 0\n";
        let packets = PacketCounts { rx_packets: 22, rx_bytes: 21, tx_packets: 12, tx_bytes: 11 };
        assert_eq!(parse_counts(table, "utun8"), Some(InterfaceCounts { packets, dropped: 14 + 24 }));
        assert_eq!(parse_counts(table, "utun9"), None);
    }
}
