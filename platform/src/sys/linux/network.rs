//! The interfaces and settings of the calling thread's network.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::net::if_::if_nametoindex;

use super::netlink;
use crate::{Class, Error, Interface, Loopback, network_of};

/// The number of the loopback in every namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;

const NO_IPV6: &str = "set the sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6 to 0";

const READ_ONLY: &str = "a container may have /proc/sys read-only: make it writable (docker run --privileged), or \
                         leave out --layer device";

/// Gives an interface its addresses, routes and sizes, and sets its link up.
pub(super) fn set_up(interface: &Interface) -> Result<(), Error> {
    let Interface { name, address, prefix_len, route_to, mtu, tx_queue_len } = interface;
    let failed = |operation| move |source| Error::new(Class::Failed, operation, name, source);
    let index = if_nametoindex(name.as_str()).map_err(|errno| failed("ask the number of")(errno.into()))?;
    netlink::set_mtu(index, (*mtu).into()).map_err(failed("set the MTU of"))?;
    netlink::set_tx_queue_len(index, *tx_queue_len).map_err(failed("set the queue length of"))?;
    add_address(index, name, *address, *prefix_len)?;
    netlink::set_link_up(index).map_err(failed("set up"))?;
    netlink::add_route(index, network_of(*route_to, *prefix_len), *prefix_len).map_err(failed("set a route through"))
}

pub(super) fn add_address(index: u32, name: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
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

pub(super) fn set_loopback_up() -> Result<Loopback, Error> {
    let failed = |operation| {
        move |source| {
            Error::new(Class::Failed, operation, "the loopback interface", source).remedy("see that ip link has it")
        }
    };
    let interface = netlink::interface(LOOPBACK_IFINDEX).map_err(failed("ask for"))?;
    if !interface.up {
        netlink::set_link_up(LOOPBACK_IFINDEX).map_err(failed("set up"))?;
    }
    Ok(Loopback {
        name: interface.name,
        mtu: interface.mtu as usize,
        // It offloads all of TCP from the beginning (`drivers/net/loopback.c`, `gen_lo_setup`).
        offload: true,
    })
}

/// Lets the kernel forward. Where a packet goes back to where it came from, it would also advise the
/// sender of the shorter way (ICMP redirects), with packets that nobody has asked for. Over IPv6 they
/// cannot be switched off, but are rare (`net/ipv6/ip6_output.c`, `ip6_forward`).
pub(super) fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    if ipv6 {
        // What one interface of IPv6 has of it does not forward (`net.ipv6.conf.all.forwarding`).
        return set("ipv6/conf/all/forwarding", "1");
    }
    set("ipv4/conf/all/send_redirects", "0")?;
    set(&format!("ipv4/conf/{interface}/send_redirects"), "0")?;
    set(&format!("ipv4/conf/{interface}/forwarding"), "1")
}

/// Writes a setting that only `/proc/sys/net` has. A thread finds there the settings of its own network namespace
/// (`net/sysctl_net.c`, `net_ctl_header_lookup`).
fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|source| {
        let class = match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
                Class::Unavailable
            }
            _ => Class::Failed,
        };
        Error::new(class, "write", path, source).remedy(READ_ONLY)
    })
}

/// The packets that an interface has dropped, in the network of the thread with this folder under `/proc`.
pub(super) fn dropped_packets(thread: &Path, interface: &str) -> Option<u64> {
    parse_drops(&fs::read_to_string(thread.join("net/dev")).ok()?, interface)
}

/// The fourth number of the receive and of the transmit half of a line of `/proc/net/dev`
/// (`net/core/net-procfs.c`, `dev_seq_printf_stats`).
fn parse_drops(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(3)? + fields.get(11)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_both_directions_are_added() {
        let table = "Inter-| Receive | Transmit\n face |bytes packets errs drop fifo frame compressed multicast|...\n    \
                     lo: 1 1 0 9 0 0 0 0 1 1 0 9 0 0 0 0\n utun8: 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28\n\
                     utun88: 0 0 0 1 0 0 0 0 0 0 0 1 0 0 0 0\n";
        assert_eq!(parse_drops(table, "utun8"), Some(14 + 24));
        assert_eq!(parse_drops(table, "utun9"), None);
    }
}
