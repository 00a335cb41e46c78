//! The whole path: kernel clients, the TUN device, the stack.

use netstacks::{Spread, StackKind, steer};
use platform::{Counted, Faulty};

use super::impairments::cut;
use super::stack::{Serve, Server, StartedStack, start};
use super::{Parts, Prepared, tun};
use crate::error::RunError;
use crate::meter::LinkMeter;
use crate::plan::scenario::{Scenario, Tun};

/// Prepares a stack on a device. Also returns its server.
pub(crate) fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    kind: StackKind,
    serve: impl Serve,
) -> Result<(Prepared, Server), RunError> {
    let (devices, facts) = tun::open_shards(scenario, tun)?;
    let drops = devices[0].drop_counter();
    let receiving = devices.iter().filter(|device| device.receives()).count();
    let counted: Vec<_> = devices.into_iter().map(Counted::new).collect();
    let traffic: Vec<_> = counted.iter().map(Counted::traffic).collect();
    let spread = Spread::default();
    let (steered, passed_on) = steer(&spread, counted);
    let mut links = Faulty::of_shards(steered, scenario.cell.impairments, scenario.link_seed);
    let cut = cut(&mut links, scenario);
    let first = links.remove(0);
    let meter = LinkMeter::new(traffic, move || drops.read());
    let meter = meter.with_faults(first.faults()).with_queues(receiving, passed_on);
    let StartedStack { server, driver, effective } = start(kind, scenario, (first, links, spread), serve)?;
    let parts = Parts { device: Some(facts), effective: Some(effective), cut, ..Parts::default() };
    Ok((Prepared::new(meter, driver, parts), server))
}
