//! What a TUN device is to be, on any system.

use std::fmt;
use std::net::Ipv4Addr;

use crate::Error;

/// The two addresses of the tunnel and the network they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The kernel's address on the device.
    pub address: Ipv4Addr,
    /// The stack's address, on the other side of the device.
    pub peer: Ipv4Addr,
    /// Length of the network's prefix, 0 to 30 bits.
    pub prefix_len: u8,
}

/// Why three addresses make no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The ones of the mask are not all at its head.
    Mask(Ipv4Addr),
    /// The mask leaves no room for two hosts.
    TooSmall(Ipv4Addr),
    /// Both ends have the same address.
    Equal(Ipv4Addr),
    /// The ends are not in one network.
    Apart(Ipv4Addr, Ipv4Addr, u8),
    /// Not the address of a host: unspecified, loopback, multicast, broadcast, or the network's own.
    NotAHost(Ipv4Addr),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mask(mask) => write!(f, "{mask} is no netmask: its ones must come before its zeros"),
            Self::TooSmall(mask) => write!(f, "netmask {mask} leaves no room for two hosts"),
            Self::Equal(address) => write!(f, "both ends of the device would have the address {address}"),
            Self::Apart(address, peer, prefix_len) => {
                write!(f, "{address} and {peer} are not in one /{prefix_len} network")
            }
            Self::NotAHost(address) => write!(f, "{address} is not the address of a host"),
        }
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// Checks that the addresses can be the two ends of a device.
    ///
    /// # Errors
    ///
    /// The first [`NetworkError`] that applies.
    pub fn new(address: Ipv4Addr, peer: Ipv4Addr, mask: Ipv4Addr) -> Result<Self, NetworkError> {
        let bits = mask.to_bits();
        if bits.leading_ones() + bits.trailing_zeros() < 32 {
            return Err(NetworkError::Mask(mask));
        }
        if bits.leading_ones() > 30 {
            return Err(NetworkError::TooSmall(mask));
        }
        let prefix_len = bits.leading_ones() as u8;
        for host in [address, peer] {
            let host_bits = host.to_bits() & !bits;
            let special = host.is_unspecified() || host.is_loopback() || host.is_multicast() || host.is_broadcast();
            if special || host_bits == 0 || host_bits == !bits {
                return Err(NetworkError::NotAHost(host));
            }
        }
        if address == peer {
            return Err(NetworkError::Equal(address));
        }
        if address.to_bits() & bits != peer.to_bits() & bits {
            return Err(NetworkError::Apart(address, peer, prefix_len));
        }
        Ok(Self { address, peer, prefix_len })
    }
}

/// A TUN device to be opened.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// The interface's name; see [`validate_name`].
    pub name: String,
    /// Its addresses.
    pub network: Network,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// How many packets wait in the device for the stack before the kernel drops (Linux'
    /// `txqueuelen`); elsewhere without meaning.
    pub tx_queue_len: u32,
    /// An open TUN device to take over instead of making one. Its owner has set it up; name,
    /// addresses, MTU and queue are left as they are.
    pub fd: Option<i32>,
}

/// Whether this system takes `name` for a TUN device.
///
/// # Errors
///
/// [`crate::Class::Invalid`], with the system's rule.
pub fn validate_name(name: &str) -> Result<(), Error> {
    let invalid = |rule: &'static str| {
        Err(Error::new(
            crate::Class::Invalid,
            "name the device",
            format!("{name:?}"),
            std::io::Error::new(std::io::ErrorKind::InvalidInput, rule),
        ))
    };
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c == '/' || c == '\0' || c == ':' || c == '%') {
        return invalid("must not be empty nor hold white space, '/', ':' or '%'");
    }
    if cfg!(target_os = "macos") && name.strip_prefix("utun").is_none_or(|unit| unit.parse::<u16>().is_err()) {
        return invalid("macOS wants utun and a number, such as utun8");
    }
    if cfg!(windows) && name.encode_utf16().count() > 127 {
        return invalid("Windows takes at most 127 characters");
    }
    if cfg!(unix) && name.len() > 15 {
        return invalid("this system takes at most 15 bytes");
    }
    if name == "." || name == ".." {
        return invalid("is reserved");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn network(address: &str, peer: &str, mask: &str) -> Result<Network, NetworkError> {
        Network::new(address.parse().unwrap(), peer.parse().unwrap(), mask.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_network_are_taken() {
        assert_eq!(network("10.10.10.9", "10.10.10.1", "255.255.255.0").unwrap().prefix_len, 24);
        assert_eq!(network("10.0.0.1", "10.0.0.2", "255.255.255.252").unwrap().prefix_len, 30);
        assert_eq!(network("1.2.3.4", "201.3.4.5", "0.0.0.0").unwrap().prefix_len, 0);
    }

    #[test]
    fn every_way_to_be_wrong_has_its_name() {
        let error = |a, p, m| network(a, p, m).unwrap_err().to_string();
        assert!(error("10.0.0.1", "10.0.0.2", "255.0.255.0").contains("no netmask"));
        assert!(error("10.0.0.1", "10.0.0.2", "255.255.255.254").contains("no room"));
        assert!(error("10.0.0.1", "10.0.0.1", "255.255.255.0").contains("both ends"));
        assert!(error("10.0.0.1", "10.0.1.1", "255.255.255.0").contains("not in one /24"));
        for host in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.0", "10.0.0.255"] {
            assert!(error(host, "10.0.0.2", "255.255.255.0").contains("not the address of a host"), "{host}");
        }
    }

    #[test]
    fn names_follow_the_rules_of_the_system() {
        validate_name("utun8").unwrap();
        for wrong in ["", "a b", "a/b", "..", "a:b"] {
            validate_name(wrong).unwrap_err();
        }
        if cfg!(unix) {
            validate_name("utun12345678901234").unwrap_err();
        }
    }
}
