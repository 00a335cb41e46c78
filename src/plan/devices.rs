//! Checks names and addresses of devices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use platform::Network;

use super::PlanError;
use super::scenario::{Devices, End};
use crate::cell::{Cell, Subject};
use crate::cli::Settings;

/// The name of the device by default.
const DEVICE: &str = "utun8";

/// Address, peer and mask of the device by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 10, 10, 9), Ipv4Addr::new(10, 10, 10, 1), Ipv4Addr::new(255, 255, 255, 0)];
const DEFAULT_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0),
];

/// The addresses of a forwarder's devices by default, for each IP version.
const DEFAULT_PAIR_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)];
const DEFAULT_PAIR_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd10, 0, 1, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1)];

fn check_version(option: &'static str, address: IpAddr, ipv6: bool) -> Result<IpAddr, PlanError> {
    if address.is_ipv6() == ipv6 {
        return Ok(address);
    }
    let remedy = if ipv6 { "leave out --ipv6, or give IPv6 addresses" } else { "add --ipv6, or give IPv4 addresses" };
    Err(PlanError::new(option, format!("{address} is of the other IP version; {remedy}")))
}

pub(super) fn network(settings: &Settings, ipv6: bool) -> Result<Network, PlanError> {
    let given =
        [("--tun-addr", settings.tun_addr), ("--tun-dest", settings.tun_dest), ("--tun-mask", settings.tun_mask)];
    let mut addresses: [IpAddr; 3] = if ipv6 { DEFAULT_V6.map(Into::into) } else { DEFAULT_V4.map(Into::into) };
    for (address, (option, given)) in addresses.iter_mut().zip(given) {
        *address = check_version(option, given.unwrap_or(*address), ipv6)?;
    }
    let [address, peer, mask] = addresses;
    Network::new(address, peer, mask).map_err(|error| PlanError::new("--tun-addr, --tun-dest, --tun-mask", error))
}

pub(super) fn name(option: &'static str, name: &str) -> Result<String, PlanError> {
    match platform::validate_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(error) => Err(PlanError::new(option, error.to_string())),
    }
}

/// The name of the device of a run or a proxy, and whether it may have another unit if that is taken: a typed name stays.
pub(super) fn tun_name(typed: Option<&str>, fd: Option<i32>) -> Result<(String, bool), PlanError> {
    Ok((name("--tun-name", typed.unwrap_or(DEVICE))?, typed.is_none() && fd.is_none()))
}

/// The standard streams are never a device.
pub(super) fn descriptor(fd: Option<i32>) -> Result<Option<i32>, PlanError> {
    match fd {
        Some(..=2) => Err(PlanError::new("--tun-fd", "must be the number of an open descriptor above 2")),
        _ => Ok(fd),
    }
}

pub(super) fn tun_fd(fd: Option<i32>, cell: &Cell) -> Result<Option<i32>, PlanError> {
    match (descriptor(fd)?, cell.subject()) {
        (Some(_), Subject::Path(stack)) if stack.is_process() => {
            Err(PlanError::new("--tun-fd", format!("{stack} is a process of its own; it opens its device itself")))
        }
        (None, _) | (_, Subject::Path(_)) => Ok(fd),
        (Some(_), subject) => {
            Err(PlanError::new("--tun-fd", format!("the layer {} makes its own device", subject.name())))
        }
    }
}

/// A device of another program, and where the servers listen.
pub(super) fn given(device: &str, settings: &Settings, ipv6: bool) -> Result<Devices, PlanError> {
    if settings.tun_fd.is_some() {
        return Err(PlanError::new("--tun-fd", "--device names the device"));
    }
    let refuse =
        |reason| PlanError::new("--dest", format!("{reason}; give an address of this host, on another interface"));
    let address = settings.dest.ok_or_else(|| refuse("--device needs it"))?;
    let address = check_version("--dest", address, ipv6)?;
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        return Err(refuse("packets to it do not leave through a device"));
    }
    Ok(Devices::Given(End { name: name("--device", device)?, address }))
}

pub(super) fn pair(settings: &Settings, ipv6: bool) -> Result<Devices, PlanError> {
    let defaults: [IpAddr; 2] = if ipv6 { DEFAULT_PAIR_V6.map(Into::into) } else { DEFAULT_PAIR_V4.map(Into::into) };
    let near = end(("--near-name", &settings.near_name), ("--near-addr", settings.near_addr, defaults[0]), ipv6)?;
    let far = end(("--far-name", &settings.far_name), ("--far-addr", settings.far_addr, defaults[1]), ipv6)?;
    if near.name == far.name {
        // They would be in different namespaces, but a report could not tell them apart.
        return Err(PlanError::new("--far-name", format!("both devices would have the name {}", far.name)));
    }
    let network = |end: &End| platform::network_of(end.address, end.prefix_len());
    if network(&near) == network(&far) {
        let reason = format!(
            "{} and {} are in one network, {}/{}: no packet would leave it through the device",
            near.address,
            far.address,
            network(&near),
            near.prefix_len()
        );
        return Err(PlanError::new("--far-addr", reason));
    }
    Ok(Devices::Pair { near, far })
}

fn end(
    (name_option, typed): (&'static str, &str),
    (option, given, default): (&'static str, Option<IpAddr>, IpAddr),
    ipv6: bool,
) -> Result<End, PlanError> {
    let name = name(name_option, typed)?;
    if matches!(typed, "lo" | "all" | "default") {
        return Err(PlanError::new(name_option, format!("{typed:?} is taken in every network; choose another")));
    }
    let end = End { name, address: check_version(option, given.unwrap_or(default), ipv6)? };
    platform::validate_host(end.address, end.prefix_len()).map_err(|error| PlanError::new(option, error))?;
    Ok(end)
}
