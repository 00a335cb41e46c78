//! The addresses of a TUN device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The two addresses of the tunnel and the network they share, of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The kernel's address on the device.
    pub address: IpAddr,
    /// The stack's address, on the other side of the device.
    pub peer: IpAddr,
    /// Length of the network's prefix: 0 to 30 bits for IPv4, 0 to 126 for IPv6.
    pub prefix_len: u8,
}

/// The bits of an address, left-aligned in the number, and their count.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

fn from_bits(bits: u128, width: u32) -> IpAddr {
    if width == 32 { Ipv4Addr::from_bits((bits >> 96) as u32).into() } else { Ipv6Addr::from_bits(bits).into() }
}

/// The address that stands for any of its IP version (RFC 1122, 3.2.1.3; RFC 4291, 2.5.2).
pub const fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
}

/// The length of the prefix that is a whole address, in bits: the network of one host.
pub const fn host_prefix_len(host: IpAddr) -> u8 {
    if host.is_ipv6() { 128 } else { 32 }
}

/// The first address of the network that contains an address.
pub fn network_of(address: IpAddr, prefix_len: u8) -> IpAddr {
    let (ones, width) = bits(address);
    from_bits(ones & !host_part(width.min(prefix_len.into()), width), width)
}

fn host_part(prefix_len: u32, width: u32) -> u128 {
    let low = |count: u32| 1_u128.checked_shl(count).map_or(u128::MAX, |bit| bit - 1);
    low(128 - prefix_len) & !low(128 - width)
}

impl Network {
    /// Checks that the addresses can be the two ends of a device. The error says why not.
    pub fn new(address: IpAddr, peer: IpAddr, mask: IpAddr) -> Result<Self, String> {
        if address.is_ipv4() != peer.is_ipv4() || address.is_ipv4() != mask.is_ipv4() {
            return Err("the two addresses and the mask are not of one IP version".to_owned());
        }
        let (ones, width) = bits(mask);
        let prefix_len = ones.leading_ones();
        let hosts = host_part(prefix_len, width);
        if ones & hosts != 0 {
            return Err(format!("{mask} is no netmask: its ones must come before its zeros"));
        }
        if prefix_len > width - 2 {
            return Err(format!("netmask {mask} leaves no room for two hosts"));
        }
        check_host(address, hosts)?;
        check_host(peer, hosts)?;
        if address == peer {
            return Err(format!("both ends of the device would have the address {address}"));
        }
        if (bits(address).0 ^ bits(peer).0) & !hosts != 0 {
            return Err(format!("{address} and {peer} are not in one /{prefix_len} network"));
        }
        Ok(Self { address, peer, prefix_len: prefix_len as u8 })
    }

    /// The network of the same length that comes so many after this one, with its hosts at the same places.
    #[must_use]
    pub fn after(&self, count: u16) -> Self {
        let step = u128::from(count).checked_shl(128 - u32::from(self.prefix_len)).unwrap_or_default();
        let moved = |address| {
            let (ones, width) = bits(address);
            from_bits(ones.wrapping_add(step), width)
        };
        Self { address: moved(self.address), peer: moved(self.peer), ..*self }
    }

    /// The network's mask.
    pub fn mask(&self) -> IpAddr {
        let (_, width) = bits(self.address);
        from_bits(!host_part(self.prefix_len.into(), width), width)
    }
}

/// Checks that an address can be the address of a host, in a network with this prefix length.
pub fn validate_host(host: IpAddr, prefix_len: u8) -> Result<(), String> {
    check_host(host, host_part(prefix_len.into(), bits(host).1))
}

fn check_host(host: IpAddr, hosts: u128) -> Result<(), String> {
    let own = bits(host).0 & hosts;
    let special = match host {
        IpAddr::V4(host) => host.is_broadcast() || own == hosts,
        IpAddr::V6(host) if host.is_unicast_link_local() => {
            return Err(format!("{host} is link-local; choose a unique local one, of fd00::/8"));
        }
        IpAddr::V6(host) => host.to_ipv4_mapped().is_some(),
    };
    if special || host.is_unspecified() || host.is_loopback() || host.is_multicast() || own == 0 {
        return Err(format!("{host} is not the address of a host"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, peer: &str, mask: &str) -> Result<Network, String> {
        Network::new(address.parse().unwrap(), peer.parse().unwrap(), mask.parse().unwrap())
    }

    #[test]
    fn a_network_is_the_address_without_its_host() {
        for (address, prefix_len, network) in [
            ("10.0.1.77", 24, "10.0.1.0"),
            ("10.0.1.77", 32, "10.0.1.77"),
            ("10.0.1.77", 0, "0.0.0.0"),
            ("10.0.1.77", 30, "10.0.1.76"),
            ("fd10:0:1::7", 64, "fd10:0:1::"),
            ("fd10:0:1::7", 128, "fd10:0:1::7"),
            ("fd10:0:1::7", 0, "::"),
        ] {
            assert_eq!(network_of(address.parse().unwrap(), prefix_len).to_string(), network);
        }
    }

    #[test]
    fn networks_follow_each_other() {
        for (addresses, mask, count, expected) in [
            (["10.10.10.9", "10.10.10.1"], "255.255.255.0", 0, ["10.10.10.9", "10.10.10.1"]),
            (["10.10.10.9", "10.10.10.1"], "255.255.255.0", 63, ["10.10.73.9", "10.10.73.1"]),
            (["10.0.0.2", "10.0.0.1"], "255.255.255.252", 1, ["10.0.0.6", "10.0.0.5"]),
            (["255.255.255.9", "255.255.255.1"], "255.255.255.0", 1, ["0.0.0.9", "0.0.0.1"]),
            (["fd10:10:10::9", "fd10:10:10::1"], "ffff:ffff:ffff:ffff::", 63, ["fd10:10:10:3f::9", "fd10:10:10:3f::1"]),
        ] {
            let network = network(addresses[0], addresses[1], mask).unwrap().after(count);
            assert_eq!([network.address, network.peer].map(|address| address.to_string()), expected);
        }
    }

    #[test]
    fn addresses_of_one_network_are_taken() {
        let prefix_len = |address, peer, mask: &str| {
            let network = network(address, peer, mask).unwrap();
            assert_eq!(network.mask(), mask.parse::<IpAddr>().unwrap());
            network.prefix_len
        };
        assert_eq!(prefix_len("10.10.10.9", "10.10.10.1", "255.255.255.0"), 24);
        assert_eq!(prefix_len("10.0.0.1", "10.0.0.2", "255.255.255.252"), 30);
        assert_eq!(prefix_len("1.2.3.4", "201.3.4.5", "0.0.0.0"), 0);
        assert_eq!(prefix_len("fd00::9", "fd00::1", "ffff:ffff:ffff:ffff::"), 64);
        assert_eq!(prefix_len("fd00::1", "fd00::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc"), 126);
        assert_eq!(prefix_len("2001:db8::1", "fd00::1", "::"), 0);
    }

    #[test]
    fn every_way_to_be_wrong_has_its_name() {
        let error = |a, p, m| network(a, p, m).unwrap_err();
        assert!(error("10.0.0.1", "10.0.0.2", "255.0.255.0").contains("no netmask"));
        assert!(error("10.0.0.1", "10.0.0.2", "255.255.255.254").contains("no room"));
        assert!(error("10.0.0.1", "10.0.0.1", "255.255.255.0").contains("both ends"));
        assert!(error("10.0.0.1", "10.0.1.1", "255.255.255.0").contains("not in one /24"));
        for host in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.0", "10.0.0.255"] {
            assert!(error(host, "10.0.0.2", "255.255.255.0").contains("not the address of a host"), "{host}");
        }
        let prefix = "ffff:ffff:ffff:ffff::";
        assert!(error("fd00::1", "fd00::2", "ffff:0:ffff::").contains("no netmask"));
        assert!(error("fd00::1", "fd00::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe").contains("no room"));
        assert!(error("fd00::1", "fd00::1", prefix).contains("both ends"));
        assert!(error("fd00::1", "fd00:0:0:1::1", prefix).contains("not in one /64"));
        assert!(error("fe80::1", "fd00::1", prefix).contains("link-local"));
        for host in ["::", "::1", "ff02::1", "fd00::", "::ffff:10.0.0.1"] {
            assert!(error(host, "fd00::2", prefix).contains("not the address of a host"), "{host}");
        }
        assert!(error("10.0.0.1", "fd00::1", "255.255.255.0").contains("IP version"));
        assert!(error("fd00::2", "fd00::1", "255.255.255.0").contains("IP version"));
    }
}
