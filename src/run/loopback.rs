//! The kernel's TCP on both sides, over its loopback: the reference for a stack.
//!
//! The clients are those of the whole path, and the server runs on the same runtime, but over tokio's sockets. The
//! kernel chooses the buffers.

use std::future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use platform::Traffic;

use super::error::RunError;
use super::kernel_load;
use super::load::Load;
use super::meter::LinkMeter;
use super::prepared::Prepared;
use crate::sample::DeviceFacts;
use crate::scenario::Scenario;

/// Prepares the kernel against itself, in a network of the run's own or else in the host's.
pub(super) fn prepare(scenario: &Scenario, is_own_network: bool) -> Result<Prepared, RunError> {
    let loopback = platform::set_loopback_up()?;
    let device = loopback.map(|interface| DeviceFacts {
        // The host's loopback has its firewall and other users, and the figure should say so.
        name: if is_own_network { interface.name } else { format!("{} (host)", interface.name) },
        mtu: interface.mtu,
        offload: interface.offload,
        // Packets reach the receiver at once, whatever the length of the queue.
        tx_queue_len: None,
    });
    let load = Load::of(scenario);
    let address = if scenario.ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let sockets = kernel_load::sockets(scenario, address, &load)?;
    let meter = LinkMeter::new(Arc::new(Traffic::default()), || None);
    let prepared = kernel_load::prepare(scenario, load, sockets, future::pending(), meter)?;
    Ok(Prepared { device, ..prepared })
}
