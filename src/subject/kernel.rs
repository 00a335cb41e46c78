//! The kernel's TCP on both sides of a link with impairments: the reference for a stack over this link.
//!
//! ```text
//! client ── kernel TCP ── TUN ──► link with impairments ──► TUN ── kernel TCP ── server
//! ```

use platform::Network;

use super::between::{Between, FAR, join};
use super::networks::Networks;
use super::{Parts, Prepared};
use crate::error::RunError;
use crate::meter::LinkMeter;
use crate::plan::scenario::{Scenario, Tun};

pub(crate) fn prepare(scenario: &Scenario, near: &Tun, networks: &Networks) -> Result<Prepared, RunError> {
    let turned = Network { address: near.network.peer, peer: near.network.address, ..near.network };
    let far = Tun { name: FAR.to_owned(), or_next: false, network: turned, fd: None };
    let Between { device, traffic, faults, cut, driver } = join(scenario, near, far, networks)?;
    let (look, drops) = (networks.look_at_controls(), networks.drops(&[&near.name], &[FAR]));
    let counters = move || {
        // First when all clients are connected, before the timed window.
        look();
        drops()
    };
    let meter = LinkMeter::new([traffic], counters).with_faults(faults);
    Ok(Prepared::new(meter, driver, Parts { device: Some(device), cut, ..Parts::default() }))
}
