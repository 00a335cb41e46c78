//! The kernel's TCP on both sides, over its loopback: the reference for a stack.
//!
//! The clients are the same as for the whole path. The server runs on the same runtime, but over tokio's sockets. The
//! kernel chooses the sizes of the buffers.

use std::future;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::FutureExt;

use super::error::RunError;
use super::kernel_load;
use super::prepared::Prepared;
use crate::load::Load;
use crate::load::meter::LinkMeter;
use crate::plan::scenario::Scenario;
use crate::sample::DeviceFacts;

/// Prepares kernel sockets on both sides, in a network of the run's own or in the host's.
pub(super) fn prepare(scenario: &Scenario, load: Load, is_own_network: bool) -> Result<Prepared, RunError> {
    let loopback = platform::set_loopback_up()?;
    let device = loopback.map(|interface| DeviceFacts {
        // The host's loopback has a firewall and other users, so the name must tell it apart.
        name: if is_own_network { interface.name } else { format!("{} (host)", interface.name) },
        mtu: interface.mtu,
        offload: interface.offload,
        // Packets reach the receiver at once, without a queue.
        tx_queue_len: None,
    });
    let address = if scenario.ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let sockets = kernel_load::sockets(scenario, address, &load)?;
    let meter = LinkMeter::new([], || None);
    let prepared = kernel_load::prepare(scenario, load, sockets, future::pending().boxed(), meter)?;
    Ok(Prepared { device, ..prepared })
}
