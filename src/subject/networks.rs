//! The two networks of a run with a carrier.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use platform::{Interface, Namespace, Network, Tuning, network_of};

use super::impairments::Cut;
use crate::plan::scenario::Scenario;

/// The port of the SOCKS5 server (RFC 1928, 3).
pub(crate) const SOCKS5_PORT: u16 = 1080;

/// The first of the ports that a program forwards to servers in the near network: that of its first answer. Those of the load
/// follow.
pub(crate) const FORWARDED_PORT: u16 = 5200;

/// The interface that joins the near network with the far one. A proxy's sockets are bound to it.
pub(crate) const NEAR: &str = "to-far";

pub(crate) const FAR: &str = "to-near";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Near,
    Far,
}

impl Side {
    pub(crate) const fn opposite(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// The near network, which the calling thread is in, and the far one. The far network ends with this value, the near
/// one with the thread.
pub(crate) struct Networks {
    /// The calling thread's folder under `/proc`.
    near: PathBuf,
    far: Arc<Namespace>,
    controls: Arc<OnceLock<BTreeSet<String>>>,
}

impl Networks {
    /// Makes both. The calling thread stays in the near one.
    pub(crate) fn new() -> Result<Self, platform::Error> {
        platform::enter_netns()?;
        Ok(Self { near: platform::folder_of_thread(), far: Arc::new(Namespace::new()?), controls: Arc::default() })
    }

    pub(crate) fn far(&self) -> &Namespace {
        &self.far
    }

    /// Joins both with a pair of interfaces (veth). Returns the far one's address.
    pub(crate) fn join(&self, scenario: &Scenario, device: &Network) -> Result<IpAddr, platform::Error> {
        let ([near, far, _], prefix_len) = ends(device);
        let interface = |name: &str, address, route_to| Interface {
            name: name.to_owned(),
            address,
            prefix_len,
            route_to: Some(route_to),
            // Without an MTU of the run, Ethernet's.
            mtu: Some(scenario.cell.mtu()),
            // The kernel passes packets on at once, so none waits.
            tx_queue_len: None,
            tuning: Tuning::default(),
        };
        self.far.join(&interface(NEAR, near, far), &interface(FAR, far, near))?;
        Ok(far)
    }

    /// Returns a function that lets an interface of each network send nothing, or send again.
    pub(crate) fn cut(&self, near: &str, far: &'static str) -> Cut {
        let (network, near) = (Arc::clone(&self.far), near.to_owned());
        Box::new(move |is_cut| {
            platform::set_black_hole(&near, is_cut)?;
            Ok(network.run(move || platform::set_black_hole(far, is_cut))??)
        })
    }

    /// Returns a function that asks the kernel, the first time, for the congestion controls of the TCP connections in both
    /// networks. That takes milliseconds: call it outside the timed window, in a thread of the near network.
    pub(crate) fn look_at_controls(&self) -> impl Fn() + Send + Sync + use<> {
        let (far, controls) = (Arc::clone(&self.far), Arc::clone(&self.controls));
        move || {
            controls.get_or_init(|| {
                let of_far = far.run(platform::congestion_controls).unwrap_or_default();
                platform::congestion_controls().into_iter().chain(of_far).collect()
            });
        }
    }

    /// What the kernel said of them; nothing if it was not asked.
    pub(crate) fn controls(&self) -> BTreeSet<String> {
        self.controls.get().cloned().unwrap_or_default()
    }

    /// Returns a function that reads how many packets these devices of the near and the far network have dropped.
    pub(crate) fn drops(&self, near: &[&str], far: &[&str]) -> impl Fn() -> Option<u64> + Send + Sync + use<> {
        let of = |folder: &Path, names: &[&str]| {
            names.iter().map(|name| (folder.to_owned(), (*name).to_owned())).collect::<Vec<_>>()
        };
        let devices = [of(&self.near, near), of(self.far.folder(), far)].concat();
        move || devices.iter().map(|(folder, name)| Some(platform::interface_counts(folder, name)?.dropped)).sum()
    }
}

/// The address of the SOCKS5 server beside servers at this address: the next, which is in the same network, as ours end in 1.
pub(crate) fn socks5_address(server: IpAddr) -> SocketAddr {
    SocketAddr::new(next(server), SOCKS5_PORT)
}

/// The next address. Those of this program do not end in ones alone.
pub(crate) fn next(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) + 1).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) + 1).into()),
    }
}

/// The addresses of both interfaces and of a host beyond the far one, each in a network of its own, and the length of their
/// prefix. They are for benchmarks (RFC 2544, RFC 5180), or private ones if the device is in the same network.
pub(crate) fn ends(device: &Network) -> ([IpAddr; 3], u8) {
    let ([usual, other], prefix_len): ([[IpAddr; 3]; 2], _) = match device.address {
        IpAddr::V4(_) => ([[198, 18], [10, 18]].map(|[a, b]| [1, 2, 3].map(|net| [a, b, net, 1].into())), 24),
        IpAddr::V6(_) => {
            let usual = [1_u16, 2, 3].map(|net| [0x2001, 2, 0, net, 0, 0, 0, 1].into());
            ([usual, [1_u16, 2, 3].map(|net| [0xfd18, 0, net, 0, 0, 0, 0, 1].into())], 64)
        }
    };
    // The route of a larger network is less specific, so it does not conflict.
    let is_taken = |end: &IpAddr| network_of(*end, prefix_len) == network_of(device.address, prefix_len);
    (if usual.iter().any(is_taken) { other } else { usual }, prefix_len)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_device_is_in_neither_network() {
        for (address, mask, near) in [
            ("10.10.10.9", "255.255.255.0", "198.18.1.1"),
            ("10.0.0.9", "255.0.0.0", "198.18.1.1"),
            ("198.18.4.9", "255.255.255.0", "198.18.1.1"),
            ("198.18.2.9", "255.255.255.252", "10.18.1.1"),
            ("198.18.4.9", "255.254.0.0", "198.18.1.1"),
            ("fd10::9", "ffff:ffff:ffff:ffff::", "2001:2:0:1::1"),
            ("2001:2:0:2::9", "ffff:ffff:ffff:ffff:ffff::", "fd18:0:1::1"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let peer = match address {
                IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + 1).into(),
                IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() + 1).into(),
            };
            let device = Network::new(address, peer, mask.parse().unwrap()).unwrap();
            assert_eq!(ends(&device).0[0].to_string(), near, "{address}");
        }
    }
}
