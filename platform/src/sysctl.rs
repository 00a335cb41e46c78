//! Settings of a network namespace that only `/proc/sys/net` has. Which namespace's a thread finds there is
//! its own (`net/sysctl_net.c`, `net_ctl_header_lookup`).

use std::fs;
use std::io;

use crate::netlink;
use crate::{Class, Error, Loopback};

/// The number of the loopback in every namespace (`include/net/flow.h`).
const LOOPBACK_IFINDEX: u32 = 1;

const READ_ONLY: &str = "a container may have /proc/sys read-only: make it writable (docker run --privileged), or \
                         leave out --layer device";

/// Lets the kernel forward. Where a packet goes back to where it came from, it would also advise the
/// sender of the shorter way (ICMP redirects), with packets that nobody has asked for. Over IPv6 they
/// cannot be switched off, but are rare (`net/ipv6/ip6_output.c`, `ip6_forward`).
pub(crate) fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    if ipv6 {
        // What one interface of IPv6 has of it does not forward (`net.ipv6.conf.all.forwarding`).
        return set("ipv6/conf/all/forwarding", "1");
    }
    set("ipv4/conf/all/send_redirects", "0")?;
    set(&format!("ipv4/conf/{interface}/send_redirects"), "0")?;
    set(&format!("ipv4/conf/{interface}/forwarding"), "1")
}

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

pub(crate) fn take_up_loopback() -> Result<Option<Loopback>, Error> {
    let failed = |operation| {
        move |source| {
            Error::new(Class::Failed, operation, "the loopback interface", source).remedy("see that ip link has it")
        }
    };
    let interface = netlink::interface(LOOPBACK_IFINDEX).map_err(failed("ask for"))?;
    if !interface.up {
        netlink::take_up(LOOPBACK_IFINDEX).map_err(failed("take up"))?;
    }
    Ok(Some(Loopback {
        name: interface.name,
        mtu: interface.mtu as usize,
        // It has all of TCP's from the beginning (`drivers/net/loopback.c`, `gen_lo_setup`).
        offload: true,
    }))
}
