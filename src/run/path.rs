//! The whole path: kernel clients, the TUN device, the stack.

use std::net::SocketAddr;
use std::sync::Arc;

use netstacks::StackKind;
use platform::{Counted, TunDevice};

use super::barrier::StartBarrier;
use super::error::RunError;
use super::load::Load;
use super::meter::LinkMeter;
use super::prepared::Prepared;
use super::stack::{FIRST_PORT, StackStarter, Start, StartedStack};
use super::transfer::Stream;
use super::{kernel, tun};
use crate::scenario::{Scenario, Tun};

/// Prepares a stack on a device.
pub(super) fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    kind: StackKind,
    stack: &impl StackStarter<Counted<TunDevice>>,
) -> Result<Prepared, RunError> {
    let (device, facts) = tun::open(scenario, tun)?;
    let drops = device.drop_counter();
    let link = Counted::new(device);
    let streams = Stream::split(scenario);
    let barrier = StartBarrier::new(streams.len(), LinkMeter::new(link.traffic(), move || drops.read()));
    let StartedStack { server, effective } = stack.start(kind, Start::new(link, scenario, Arc::clone(&streams)))?;
    let targets: Vec<_> =
        (FIRST_PORT..).take(streams.len()).map(|port| SocketAddr::new(tun.network.peer, port)).collect();
    let (clients, congestion) = kernel::clients(scenario, &streams, &targets)?;
    Ok(Prepared {
        clients,
        congestion,
        device: Some(facts),
        effective: Some(effective),
        ..Prepared::new(Load::Streams(streams), barrier, server)
    })
}
