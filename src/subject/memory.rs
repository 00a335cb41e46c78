//! The stack alone: over a link in memory, with scripted peers as its clients.
//!
//! No kernel, device or network takes part, so it needs no permission and no namespace.

use netstacks::{Spread, StackKind};
use platform::{Counted, Link, MemoryLink, Offload};

use super::stack::{Serve, Server, StartedStack, start};
use super::{Parts, Prepared};
use crate::error::RunError;
use crate::meter::LinkMeter;
use crate::plan::scenario::Scenario;
use crate::sample::DeviceFacts;

/// Stands for the name of the device.
const NAME: &str = "memory";

/// Prepares a stack over memory. Also returns its server, and the clients' end of the link.
pub(crate) fn prepare(
    scenario: &Scenario,
    kind: StackKind,
    serve: impl Serve,
) -> Result<(Prepared, Server, MemoryLink), RunError> {
    let pair = match scenario.cell.device_offload() {
        Offload::Auto | Offload::On | Offload::Tso => MemoryLink::offloading_pair,
        Offload::Off => MemoryLink::pair,
    };
    let (near, far) = pair(scenario.cell.mtu().into(), MemoryLink::DEFAULT_DEPTH);
    let link = Counted::new(near.moderated());
    let device = DeviceFacts {
        name: NAME.to_owned(),
        mtu: link.capabilities().mtu,
        offload: link.capabilities().segmentation.any(),
        tx_queue_len: u32::try_from(MemoryLink::DEFAULT_DEPTH).ok(),
        qdisc: None,
    };
    // The link drops nothing, and has no counter for it.
    let meter = LinkMeter::new([link.traffic()], || None);
    let links = (link, Vec::new(), Spread::default());
    let StartedStack { server, driver, effective } = start(kind, scenario, links, serve)?;
    let parts = Parts { device: Some(device), effective: Some(effective), ..Parts::default() };
    Ok((Prepared::new(meter, driver, parts), server, far))
}
