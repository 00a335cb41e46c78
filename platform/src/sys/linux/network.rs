//! Networks: the interfaces, settings and counters of the calling thread's network, and pairs that join two networks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::addresses_of;
use super::interface::{
    State, add_route, create_veth, set_address, set_link_up, set_mtu, set_qdisc, set_tx_queue_len, state_of,
    wait_until_ready,
};
use super::machine::line;
use crate::{
    Adopted, Cause, Class, Error, Interface, InterfaceCounts, Loopback, Namespace, Napi, PacketCounts, SocketCount,
    host_prefix_len, network_of,
};

/// The interface index of the loopback in every namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;

/// How long the thread of [`Napi::Threaded`] holds packets to join others to them.
const GRO_FLUSH_TIMEOUT: Duration = Duration::from_micros(20);

impl Interface {
    /// Configures the interface of this name in the calling thread's network, and sets its link up.
    pub fn set_up(&self) -> Result<(), Error> {
        let Self { name, address, prefix_len, route_to, mtu, tx_queue_len, tuning } = self;
        mtu.map_or(Ok(()), |mtu| set_mtu(name, mtu))?;
        tx_queue_len.map_or(Ok(()), |packets| set_tx_queue_len(name, packets))?;
        tuning.qdisc.as_ref().map_or(Ok(()), |qdisc| set_qdisc(name, qdisc))?;
        if tuning.napi == Napi::Threaded {
            poll_in_thread(name)?;
        }
        set_address(name, *address, *prefix_len)?;
        set_link_up(name)?;
        let route = |beyond| add_route(name, network_of(beyond, *prefix_len), *prefix_len, None);
        route_to.map_or(Ok(()), route)
    }

    /// Sets up the device of another program: the MTU, and the address and the link where the program has not.
    pub fn adopt(&self) -> Result<Adopted, Error> {
        let Self { name, address, prefix_len, route_to, mtu, tx_queue_len, tuning } = self;
        let failed = |operation| move |source| Error::new(Class::Failed, operation, name, source);
        let found = state_of(name).map_err(failed("ask for"))?;
        let addresses = addresses_of(name).map_err(failed("ask for the addresses of"))?;
        let address_of_program =
            addresses.into_iter().find(|own| own.is_ipv6() == address.is_ipv6() && !is_link_local(*own));
        mtu.map_or(Ok(()), |mtu| set_mtu(name, mtu))?;
        tx_queue_len.map_or(Ok(()), |packets| set_tx_queue_len(name, packets))?;
        tuning.qdisc.as_ref().map_or(Ok(()), |qdisc| set_qdisc(name, qdisc))?;
        if address_of_program.is_none() {
            set_address(name, *address, *prefix_len)?;
        }
        set_link_up(name)?;
        match route_to.map_or(Ok(()), |host| add_route(name, host, host_prefix_len(host), None)) {
            // The program may have the same route.
            Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error),
            _ => {}
        }
        Ok(Adopted {
            mtu: found.mtu,
            is_up: found.up,
            address: address_of_program,
            tx_queue_len: found.tx_queue_len,
            vnet_header: found.tun.map(|tun| tun.vnet_header),
            queues: found.tun.map(|tun| tun.queues),
        })
    }
}

impl Namespace {
    /// Joins the calling thread's network and this one by a veth pair. When this returns, packets pass.
    pub fn join(&self, near: &Interface, far: &Interface) -> Result<(), Error> {
        let failed = |source| Error::new(Class::Failed, "open the other network of", &near.name, source);
        let namespace = File::open(self.path()).map_err(failed)?;
        create_veth(&near.name, &far.name, &namespace)?;
        disable_rp_filter(&near.name)?;
        near.set_up()?;
        let far = far.clone();
        self.run(move || far.set_up().and_then(|()| wait_until_ready(&far.name, far.address)))??;
        wait_until_ready(&near.name, near.address)
    }
}

/// Has a thread of the kernel poll an interface, by its files in sysfs. Those of this network are only in a sysfs that is mounted
/// here, so a thread mounts one in a view of the file system that ends with it (`mount_namespaces(7)`).
fn poll_in_thread(interface: &str) -> Result<(), Error> {
    let work = || {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
        let folder = Path::new("/sys/class/net").join(interface);
        fs::write(folder.join("gro_flush_timeout"), GRO_FLUSH_TIMEOUT.as_nanos().to_string())?;
        fs::write(folder.join("threaded"), "1")
    };
    let panicked = |_| Err(io::Error::other("it panicked"));
    let done = thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(panicked));
    done.map_err(|source| Error::new(Cause::NoNapi, "let a thread of the kernel poll", interface, source))
}

/// The kernel gives every interface such an address by itself (RFC 4862, 5.3).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Sets the loopback interface of the calling thread's network up. `None` on systems other than Linux.
pub fn set_loopback_up() -> Result<Option<Loopback>, Error> {
    let failed = |source| Error::new(Cause::NoLoopback, "ask for", "the loopback interface", source);
    let State { name, mtu, .. } = State::of(LOOPBACK_IFINDEX).map_err(failed)?;
    set_link_up(&name)?;
    // It always offloads TCP (`drivers/net/loopback.c`, `gen_lo_setup`).
    Ok(Some(Loopback { name, mtu: mtu as usize, offload: true }))
}

/// Makes the kernel forward packets that come from an interface, also back into it. This turns the network into a
/// router, so call it only in a separate network namespace.
pub fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    if ipv6 {
        // For IPv6, the setting of a single interface does not make it forward (`net.ipv6.conf.all.forwarding`).
        return set("ipv6/conf/all/forwarding", "1");
    }
    // Else the kernel sends an ICMP redirect to the sender of a packet that leaves by the interface that it came from. For
    // IPv6 that cannot be switched off, but is rare (`net/ipv6/ip6_output.c`, `ip6_forward`).
    set("ipv4/conf/all/send_redirects", "0")?;
    set(&format!("ipv4/conf/{interface}/send_redirects"), "0")?;
    set(&format!("ipv4/conf/{interface}/forwarding"), "1")
}

/// An interface's reverse path filter (RFC 3704): 1 is strict (2.2), 2 loose (2.4).
pub(super) fn rp_filter(interface: &str) -> Option<u8> {
    line(&format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"))?.parse().ok()
}

/// Disables the reverse path filter (RFC 3704, 2.2). The kernel uses the larger setting (`IN_DEV_RPFILTER`).
fn disable_rp_filter(interface: &str) -> Result<(), Error> {
    for of in ["all", interface] {
        // If it is already off, a read-only /proc/sys does no harm.
        if rp_filter(of) != Some(0) {
            set(&format!("ipv4/conf/{of}/rp_filter"), "0")?;
        }
    }
    Ok(())
}

/// Gives the sockets that are made in the calling thread's network from now on a congestion control. The kernel may allow it
/// in the host's network alone (`net.ipv4.tcp_allowed_congestion_control`).
pub fn set_default_congestion_control(name: &str) -> Result<(), Error> {
    set("ipv4/tcp_congestion_control", name)
}

/// The settings of the calling thread's network that decide how fast its TCP is, by the last part of their names (`tcp(7)`).
/// Only the host's network has `default_qdisc`.
pub fn tcp_settings() -> BTreeMap<String, String> {
    let ipv4 =
        ["tcp_congestion_control", "tcp_rmem", "tcp_slow_start_after_idle", "tcp_wmem"].map(|name| ("ipv4", name));
    let value = |(folder, name): (&str, &str)| {
        let value = line(&format!("/proc/sys/net/{folder}/{name}"))?;
        Some((name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    ipv4.into_iter().chain([("core", "default_qdisc")]).filter_map(value).collect()
}

/// A thread sees the settings of its own network namespace in `/proc/sys/net` (`net/sysctl_net.c`).
fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|source| {
        let cause = match source.kind() {
            // Without the kernel's IPv6 there are none of its settings.
            io::ErrorKind::NotFound if name.starts_with("ipv6/") => Cause::NoIpv6,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::NotFound => {
                Cause::ReadOnlySettings
            }
            _ => Class::Failed.into(),
        };
        Error::new(cause, "write", path, source)
    })
}

/// The counts of an interface in the network of a thread, by the thread's folder under `/proc`.
pub fn interface_counts(thread: &Path, interface: &str) -> Option<InterfaceCounts> {
    parse_counts(&fs::read_to_string(thread.join("net/dev")).ok()?, interface)
}

/// The sockets in the network of a thread, by the thread's folder under `/proc`.
pub fn sockets_of(thread: &Path) -> Option<SocketCount> {
    let table = |name: &str| fs::read_to_string(thread.join("net").join(name));
    // A kernel without IPv6 has no table of it.
    Some(SocketCount::parse(&(table("sockstat").ok()? + &table("sockstat6").unwrap_or_default())))
}

/// The names of all interfaces in the network of a thread, by the thread's folder under `/proc`.
pub fn interface_names(thread: &Path) -> Vec<String> {
    // The first word of each line after two heads.
    let table = fs::read_to_string(thread.join("net/dev")).unwrap_or_default();
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// A line has what the kernel receives, then what it transmits: bytes, packets, errors, drops (`dev_seq_printf_stats`).
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
