//! The kernel's TCP on both sides, over its loopback: the reference for a stack.
//!
//! The server runs on the same runtime as a stack would, but over tokio's sockets. The kernel sizes the buffers.

use std::future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::FutureExt;

use super::{Parts, Prepared};
use crate::error::RunError;
use crate::meter::LinkMeter;
use crate::plan::scenario::Scenario;
use crate::sample::DeviceFacts;

/// Prepares the loopback in a network of the run's own or in the host's. Also returns the address of its servers.
pub(crate) fn prepare(scenario: &Scenario, is_own_network: bool) -> Result<(Prepared, IpAddr), RunError> {
    let loopback = platform::set_loopback_up()?;
    let device = loopback.map(|interface| DeviceFacts {
        qdisc: platform::qdisc_of(&interface.name),
        // The host's loopback has a firewall and other users, so the name must tell it apart.
        name: if is_own_network { interface.name } else { format!("{} (host)", interface.name) },
        mtu: interface.mtu,
        offload: interface.offload,
        // Packets reach the receiver at once, without a queue.
        tx_queue_len: None,
    });
    let address = if scenario.ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let parts = Parts { device, ..Parts::default() };
    Ok((Prepared::new(LinkMeter::new([], || None), future::pending().boxed(), parts), address))
}
