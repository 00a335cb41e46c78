//! The whole path: kernel clients, the TUN device, the stack.

use std::net::{IpAddr, SocketAddr};

use netstacks::{Spread, StackKind, Steered, steer};
use platform::{Counted, Faulty, TunDevice};

use super::conditions::cut;
use super::error::RunError;
use super::prepared::Prepared;
use super::stack::{FIRST_PORT, StackStarter, Start, StartedStack};
use super::{kernel_load, tun};
use crate::load::Load;
use crate::load::meter::{LinkMeter, Queues};
use crate::load::window::Window;
use crate::scenario::{Scenario, Tun};

/// Server ports for connections that carry one request. The stack keeps each connection for a while after its end
/// (TIME-WAIT), and the client reuses its own ports. With a prime number of server ports, no pair of ports returns
/// soon.
const PORTS: usize = 61;

/// The link between the device and a shard of the stack.
pub(super) type DeviceLink = Faulty<Steered<Counted<TunDevice>>>;

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
    let (devices, facts) = tun::open_shards(scenario, tun)?;
    let drops = devices[0].drop_counter();
    let receiving = devices.iter().filter(|device| device.receives()).count();
    let counted: Vec<_> = devices.into_iter().map(Counted::new).collect();
    let traffic: Vec<_> = counted.iter().map(Counted::traffic).collect();
    let spread = Spread::default();
    let (steered, passed_on) = steer(&spread, counted);
    let queues = Queues::new(steered.len(), receiving, passed_on);
    let mut links = Faulty::of_shards(steered, scenario.impairments, scenario.link_seed);
    let cut = cut(&mut links, scenario);
    let first = links.remove(0);
    let load = Load::of(scenario);
    let meter = LinkMeter::new(traffic, move || drops.read()).with_faults(first.faults()).with_queues(queues);
    let window = Window::new(load.clients(), meter);
    let start = Start::new(first, scenario, &load).with_shards(links, spread);
    let StartedStack { server, effective } = stack.start(kind, start)?;
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
