//! The whole path: kernel clients, the TUN device, the stack.

use std::net::{IpAddr, SocketAddr};

use netstacks::StackKind;
use platform::{Counted, Faulty, TunDevice};

use super::conditions::with_conditions;
use super::error::RunError;
use super::prepared::Prepared;
use super::stack::{FIRST_PORT, StackStarter, Start, StartedStack};
use super::{kernel_load, tun};
use crate::load::Load;
use crate::load::meter::LinkMeter;
use crate::load::window::Window;
use crate::scenario::{Scenario, Tun};

/// Server ports for connections that carry one request. The stack keeps each connection for a while after its end
/// (TIME-WAIT), and the client reuses its own ports. With a prime number of server ports, no pair of ports returns
/// soon.
const PORTS: usize = 61;

/// The link between the device and the stack.
pub(super) type DeviceLink = Faulty<Counted<TunDevice>>;

/// The addresses at a stack to which the clients of a load connect: one for each stream, and then those for requests or
/// datagrams.
pub(super) fn targets(stack: IpAddr, load: &Load) -> Vec<SocketAddr> {
    let ports = match load {
        Load::Streams(streams, _) => streams.len(),
        Load::Requests(exchange, _, streams) => streams.len() + if exchange.closes() { PORTS } else { 1 },
        Load::Datagrams(..) | Load::External(_) => 1,
    };
    (FIRST_PORT..).take(ports).map(|port| SocketAddr::new(stack, port)).collect()
}

/// Prepares a stack on a device.
pub(super) fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    kind: StackKind,
    stack: &impl StackStarter<DeviceLink>,
) -> Result<Prepared, RunError> {
    let (device, facts) = tun::open(scenario, tun)?;
    let drops = device.drop_counter();
    let counted = Counted::new(device);
    let traffic = counted.traffic();
    let (link, cut) = with_conditions(counted, scenario);
    let faults = link.faults();
    let load = Load::of(scenario);
    let window = Window::new(load.clients(), LinkMeter::new([traffic], move || drops.read()).with_faults(faults));
    let StartedStack { server, effective } = stack.start(kind, Start::new(link, scenario, &load))?;
    let (clients, congestion) = kernel_load::clients(scenario, &load, &targets(tun.network.peer, &load))?;
    Ok(Prepared {
        clients,
        congestion,
        device: Some(facts),
        effective: Some(effective),
        cut,
        ..Prepared::new(load, window, server)
    })
}
