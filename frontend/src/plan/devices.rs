//! Checks names and addresses of devices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use platform::Network;

use super::PlanError;
use crate::cli::Settings;
use crate::scenario::Subject;

/// Address, peer and mask of the device by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 10, 10, 9), Ipv4Addr::new(10, 10, 10, 1), Ipv4Addr::new(255, 255, 255, 0)];
const DEFAULT_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0),
];

/// RFC 8200, 5.
pub(super) const MIN_MTU_V6: u16 = 1280;

pub(super) fn check_mtu(option: &'static str, mtu: u16, ipv6: bool) -> Result<(), PlanError> {
    if ipv6 && mtu < MIN_MTU_V6 {
        return Err(PlanError::new(option, format!("{mtu} bytes; IPv6 needs at least {MIN_MTU_V6}")));
    }
    Ok(())
}

pub(super) fn check_version(option: &'static str, address: IpAddr, ipv6: bool) -> Result<IpAddr, PlanError> {
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

pub(super) fn tun_fd(fd: Option<i32>, subject: Subject) -> Result<Option<i32>, PlanError> {
    match (fd, subject) {
        // The standard streams are never a device.
        (Some(..=2), _) => Err(PlanError::new("--tun-fd", "must be the number of an open descriptor above 2")),
        (None, _) | (_, Subject::Path(_)) => Ok(fd),
        (Some(_), _) => Err(PlanError::new("--tun-fd", format!("the layer {} makes its own device", subject.layer()))),
    }
}
