//! The kernel's TCP on both sides of a link with conditions: the reference for a stack over this link.
//!
//! ```text
//! client ── kernel TCP ── TUN ──► link with conditions ──► TUN ── kernel TCP ── server
//! ```

use platform::Network;

use super::between::{Between, FAR, join};
use super::error::RunError;
use super::kernel_load;
use super::networks::Networks;
use super::prepared::Prepared;
use crate::load::Load;
use crate::load::meter::LinkMeter;
use crate::plan::scenario::{Scenario, Tun};

/// Prepares two devices, the link between them, clients and servers.
pub(super) fn prepare(scenario: &Scenario, load: Load, near: &Tun, networks: &Networks) -> Result<Prepared, RunError> {
    let far = Tun { name: FAR.to_owned(), network: turned(&near.network), fd: None };
    let Between { device, traffic, faults, cut, driver } = join(scenario, near, far, networks)?;
    let drops = networks.drops(&[&near.name], &[FAR]);
    let meter = LinkMeter::new([traffic], drops).with_faults(faults);
    let prepared = kernel_load::prepare_between(scenario, load, networks, near.network.peer, driver, meter)?;
    Ok(Prepared { device: Some(device), cut, ..prepared })
}

/// The same network, as the other side sees it.
fn turned(network: &Network) -> Network {
    Network { address: network.peer, peer: network.address, ..*network }
}
