//! The whole path: kernel clients, the TUN device, the stack.

use std::net::{IpAddr, SocketAddr};

use netstacks::StackKind;
use platform::{Counted, FaultPlan, Faults, Faulty, Link, PathMtu, TunDevice, Which};

use super::error::RunError;
use super::outage::Cut;
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

/// How many later packets overtake a packet: as many as TCP takes for a sign of loss (RFC 5681, 3.2).
const OVERTAKEN_BY: usize = 3;

/// The conditions of a scenario, for both directions.
pub(super) fn plan(scenario: &Scenario) -> FaultPlan {
    let link = scenario.conditions;
    let which = |ppm| if ppm == 0 { Which::None } else { Which::PerMillion(ppm) };
    let faults = Faults {
        lose: which(link.loss_ppm),
        duplicate: which(link.duplicate_ppm),
        reorder: which(link.reorder_ppm),
        reorder_by: if link.reorder_ppm == 0 { 0 } else { OVERTAKEN_BY },
        corrupt: which(link.corrupt_ppm),
        delay: link.delay,
        jitter: link.jitter,
        rate: link.rate_limit.map(Into::into),
        path_mtu: link.path_mtu.map(|len| PathMtu { len: len.get(), tells: !link.no_icmp }),
    };
    FaultPlan { seed: scenario.link_seed, rx: faults, tx: faults, ..FaultPlan::default() }
}

/// The link with the conditions of a scenario, and the function that cuts it if it has an outage.
pub(super) fn with_conditions<L: Link>(link: L, scenario: &Scenario) -> (Faulty<L>, Option<Cut>) {
    let mut link = Faulty::new(link, plan(scenario));
    let cut = scenario.conditions.outage.map(|_| {
        let switch = link.switch();
        let cut: Cut = Box::new(move |is_cut| {
            switch.cut(is_cut);
            Ok(())
        });
        cut
    });
    (link, cut)
}

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
    let window = Window::new(load.clients(), LinkMeter::new(traffic, move || drops.read()).with_faults(faults));
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
