//! The link between the networks of a program.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture};
use platform::{FaultCounter, Napi, Network, host_prefix_len, network_of};

use super::super::between::{self, Between};
use super::super::impairments::Cut;
use super::super::networks::{self, FAR, NEAR, Networks, next};
use crate::cell::Cell;
use crate::error::RunError;
use crate::failure::Failure;
use crate::plan::scenario::{Scenario, Tun};
use crate::program::Role;

const LOOPBACK: &str = "lo";

pub(super) struct Joined {
    /// The addresses of its ends.
    pub(super) ends: [IpAddr; 2],
    /// The address of the servers, or of those that a program forwards connections to.
    pub(super) server: IpAddr,
    pub(super) cut: Option<Cut>,
    pub(super) faults: Option<Arc<FaultCounter>>,
    pub(super) driver: BoxFuture<'static, Failure>,
}

/// Joins the networks, with a link that has the impairments of a scenario.
pub(super) fn join(scenario: &Scenario, role: Role, tun: &Tun, networks: &Networks) -> Result<Joined, RunError> {
    let ([near, far, beyond], prefix_len) = networks::ends(&tun.network);
    let (cut, faults, driver) = if scenario.cell.impairments.has_link() {
        let Between { faults, cut, driver, .. } = join_impaired(scenario, [near, far], prefix_len, networks)?;
        (cut, Some(faults), driver)
    } else {
        networks.join(scenario, &tun.network)?;
        (Some(networks.cut(NEAR, FAR)), None, future::pending().boxed())
    };
    let (server, cut) = match role {
        Role::Proxy | Role::Route => (far, cut),
        Role::Tunnel => (tun.network.peer, cut),
        Role::Attach => {
            networks.far().run(move || {
                platform::set_loopback_up()?;
                platform::add_address(LOOPBACK, beyond, host_prefix_len(beyond))?;
                // For a program that copies this network's routes, and answers in the place of the gateway.
                platform::add_route(FAR, network_of(near, 0), 0, Some(next(far)))
            })??;
            (beyond, Some(networks.cut(&tun.name, LOOPBACK)))
        }
    };
    let server = match role {
        Role::Tunnel if scenario.cell.inbound => tun.network.address,
        Role::Route if scenario.cell.inbound => near,
        _ => server,
    };
    Ok(Joined { ends: [near, far], server, cut, faults, driver })
}

/// Gives the far network an address for a server of connections, and returns it. No route leads it into the device.
pub(super) fn beside(server: IpAddr, tun: &Tun, networks: &Networks) -> Result<IpAddr, RunError> {
    let (_, prefix_len) = networks::ends(&tun.network);
    let address = next(server);
    networks.far().run(move || {
        // The packets to the servers, which are in the same network, pass the loopback.
        platform::set_loopback_up()?;
        platform::add_address(FAR, address, prefix_len)
    })??;
    Ok(address)
}

/// Two TUN devices in place of a veth pair, and what passes their packets.
fn join_impaired(
    scenario: &Scenario,
    ends: [IpAddr; 2],
    prefix_len: u8,
    networks: &Networks,
) -> Result<Between, RunError> {
    // What was asked for is the program's device.
    let cell = Cell { queue: None, qdisc: None, napi: Napi::Off, ..scenario.cell.clone() };
    let scenario = Scenario { cell, ..scenario.clone() };
    let tun = |name: &str, [own, other]: [IpAddr; 2]| Tun {
        name: name.to_owned(),
        or_next: false,
        network: Network { address: own, peer: other, prefix_len },
        fd: None,
    };
    let [near, far] = ends;
    let between = between::join(&scenario, &tun(NEAR, [near, far]), tun(FAR, [far, near]), networks)?;
    platform::add_route(NEAR, network_of(far, prefix_len), prefix_len, None)?;
    networks.far().run(move || platform::add_route(FAR, network_of(near, prefix_len), prefix_len, None))??;
    Ok(between)
}
