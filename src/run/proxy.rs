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

use forwarders::{Carried, Counts};
use platform::{Interrupts, PacketCounts};

use super::carrier::{Carrier, CarrierProgram};
use super::error::RunError;
use super::kernel_load;
use super::networks::{FAR, NEAR, Networks};
use super::prepared::Prepared;
use super::protocol::Carry;
use super::tun;
use crate::load::Load;
use crate::scenario::{Scenario, Tun};

/// Prepares a proxy between the two networks.
pub(super) async fn prepare(
    scenario: &Scenario,
    load: Load,
    tun: &Tun,
    networks: &Networks,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let server = networks.join(scenario, &tun.network)?;
    let task = Carry { scenario: scenario.clone(), far_namespace: networks.far().path() };
    let (carrier, ready) = Carrier::start(CarrierProgram::this("proxy", task), None, interrupts).await?;
    platform::add_host_route(&tun.name, server)?;
    carrier.begin();
    let meter = carrier.reporting_meter(crossed, networks.drops(&[&tun.name, NEAR], &[FAR]));
    let prepared = kernel_load::prepare_between(scenario, load, networks, server, carrier.ended(), meter)?;
    Ok(Prepared {
        device: Some(tun::facts(scenario, tun, ready.offload)),
        effective: ready.effective,
        carrier: Some(carrier),
        cut: Some(networks.cut(NEAR, FAR)),
        ..prepared
    })
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
    use super::*;

    #[test]
    fn packets_are_reported_in_both_directions() {
        let packets = PacketCounts { rx_packets: 1, rx_bytes: 2, tx_packets: 3, tx_bytes: 4 };
        let carried = crossed(&counts(packets));
        let back = [carried.read_packets, carried.read_bytes, carried.written_packets, carried.written_bytes];
        assert_eq!(back, [1, 2, 3, 4]);
    }
}
