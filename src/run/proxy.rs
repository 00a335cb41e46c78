//! A proxy on a stack, between two networks of the run's own, under load.
//!
//! ```text
//!        near network                                                       far network
//! client ── kernel TCP ── TUN ──► proxy's process ──► to-far ── veth ── to-near ── kernel TCP ── server
//! ```
//!
//! The networks are as for a forwarder (`networks`), and a veth pair joins them. The proxy is a child process of this
//! program (`carrier`). The server's address has a route into the proxy's device. The proxy's sockets are bound to the
//! veth interface, so they do not take that route. The load comes from this process (`kernel_load`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use forwarders::{Carried, Counts};
use platform::{Interface, Interrupts, Network, PacketCounts, network_of};

use super::carrier::{Carrier, CarrierProgram};
use super::error::RunError;
use super::kernel_load;
use super::networks::Networks;
use super::prepared::Prepared;
use super::protocol::Carry;
use super::tun;
use crate::scenario::{Scenario, Tun};

/// The interface of the proxy's sockets.
pub(super) const NEAR: &str = "to-far";

/// Its other end.
pub(super) const FAR: &str = "to-near";

/// The addresses of the two interfaces and of a host beyond the far one, each in a network of its own: from the networks
/// for benchmarks (RFC 2544, RFC 5180), or private ones if the device is in the same network.
const ENDS_V4: [[Ipv4Addr; 3]; 2] = [
    [Ipv4Addr::new(198, 18, 1, 1), Ipv4Addr::new(198, 18, 2, 1), Ipv4Addr::new(198, 18, 3, 1)],
    [Ipv4Addr::new(10, 18, 1, 1), Ipv4Addr::new(10, 18, 2, 1), Ipv4Addr::new(10, 18, 3, 1)],
];
const ENDS_V6: [[Ipv6Addr; 3]; 2] = [
    [
        Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1),
        Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 1),
        Ipv6Addr::new(0x2001, 2, 0, 3, 0, 0, 0, 1),
    ],
    [
        Ipv6Addr::new(0xfd18, 0, 1, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd18, 0, 2, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd18, 0, 3, 0, 0, 0, 0, 1),
    ],
];

/// Prepares a proxy between the two networks.
pub(super) async fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    networks: &Networks,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let server = join(scenario, &tun.network, networks)?;
    let task = Carry { scenario: scenario.clone(), far_namespace: networks.far().path() };
    let (carrier, ready) = Carrier::start(CarrierProgram::this("proxy", task), None, interrupts).await?;
    platform::add_host_route(&tun.name, server)?;
    carrier.begin();
    let meter = carrier.reporting_meter(crossed, networks.drops(&[&tun.name, NEAR], &[FAR]));
    let prepared = kernel_load::prepare_between(scenario, networks, server, carrier.ended(), meter)?;
    Ok(Prepared {
        device: Some(tun::facts(scenario, tun, ready.offload)),
        effective: ready.effective,
        carrier: Some(carrier),
        cut: Some(networks.cut(NEAR, FAR)),
        ..prepared
    })
}

/// Joins the networks. Returns the address of the servers.
pub(super) fn join(scenario: &Scenario, device: &Network, networks: &Networks) -> Result<IpAddr, platform::Error> {
    let ([near, far, _], prefix_len) = ends(device);
    let interface = |name: &str, address, route_to| Interface {
        name: name.to_owned(),
        address,
        prefix_len,
        route_to: Some(route_to),
        mtu: scenario.mtu,
        // The kernel passes packets on at once, so none waits.
        tx_queue_len: None,
    };
    networks.far().join(&interface(NEAR, near, far), &interface(FAR, far, near))?;
    Ok(far)
}

/// The addresses of both interfaces and of the host beyond, and the length of the prefix of their networks.
pub(super) fn ends(device: &Network) -> ([IpAddr; 3], u8) {
    let (all, prefix_len) = match device.address {
        IpAddr::V4(_) => (ENDS_V4.map(|ends| ends.map(IpAddr::from)), 24),
        IpAddr::V6(_) => (ENDS_V6.map(|ends| ends.map(IpAddr::from)), 64),
    };
    // The route of a larger network is less specific, so it does not conflict.
    let is_taken = |end: &IpAddr| network_of(*end, prefix_len) == network_of(device.address, prefix_len);
    let [usual, other] = all;
    (if usual.iter().any(is_taken) { other } else { usual }, prefix_len)
}

/// The counts of a proxy, made from the packets that crossed its device.
pub(super) fn counts(packets: PacketCounts) -> Counts {
    let PacketCounts { rx_packets, rx_bytes, tx_packets, tx_bytes } = packets;
    Counts {
        to_far: Carried { read_packets: rx_packets, read_bytes: rx_bytes, ..Carried::default() },
        to_near: Carried { written_packets: tx_packets, written_bytes: tx_bytes, ..Carried::default() },
    }
}

/// The packets that crossed the device both ways, from the result of [`counts`].
fn crossed(Counts { to_far, to_near }: &Counts) -> Carried {
    Carried { written_packets: to_near.written_packets, written_bytes: to_near.written_bytes, ..*to_far }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

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

    #[test]
    fn packets_are_reported_in_both_directions() {
        let packets = PacketCounts { rx_packets: 1, rx_bytes: 2, tx_packets: 3, tx_bytes: 4 };
        let carried = crossed(&counts(packets));
        let back = [carried.read_packets, carried.read_bytes, carried.written_packets, carried.written_bytes];
        assert_eq!(back, [1, 2, 3, 4]);
    }
}
