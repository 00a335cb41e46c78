//! The whole path: kernel clients, the TUN device, the stack.

use netstacks::{Spread, StackKind, steer};
use platform::{Counted, Faulty};

use super::conditions::cut;
use super::error::RunError;
use super::prepared::Prepared;
use super::stack::{Start, StartedStack, targets};
use super::{kernel_load, tun};
use crate::load::Load;
use crate::load::meter::{LinkMeter, Queues};
use crate::load::window::Window;
use crate::plan::scenario::{Scenario, Tun};

/// Prepares a stack on a device.
pub(super) fn prepare(scenario: &Scenario, load: Load, tun: &Tun, kind: StackKind) -> Result<Prepared, RunError> {
    let (devices, facts) = tun::open_shards(scenario, tun)?;
    let drops = devices[0].drop_counter();
    let receiving = devices.iter().filter(|device| device.receives()).count();
    let counted: Vec<_> = devices.into_iter().map(Counted::new).collect();
    let traffic: Vec<_> = counted.iter().map(Counted::traffic).collect();
    let spread = Spread::default();
    let (steered, passed_on) = steer(&spread, counted);
    let queues = Queues::new(steered.len(), receiving, passed_on);
    let mut links = Faulty::of_shards(steered, scenario.cell.impairments, scenario.link_seed);
    let cut = cut(&mut links, scenario);
    let first = links.remove(0);
    let meter = LinkMeter::new(traffic, move || drops.read()).with_faults(first.faults()).with_queues(queues);
    let window = Window::new(load.threads(), meter);
    let start = Start::new(first, scenario, &load).with_shards(links, spread);
    let StartedStack { server, effective } = start.start(kind)?;
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
