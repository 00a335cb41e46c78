//! The whole path: kernel clients, the TUN device, the stack.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netstacks::StackKind;
use platform::{Counted, Interrupts, TunDevice};

use super::client::Client;
use super::kernel::{self, KernelConnector};
use super::meter::ProcessMeter;
use super::setup::Ran;
use super::stack::{FIRST_PORT, Running, Start, Starter};
use super::supervisor::Supervisor;
use super::transfer::{Lane, StartingGate};
use super::{RunError, tun};
use crate::plan::Scenario;

/// Runs a stack over the device.
pub(super) async fn run(
    scenario: &Scenario,
    kind: StackKind,
    stack: &impl Starter<Counted<TunDevice>>,
    interrupts: Interrupts,
) -> Result<Ran, RunError> {
    let (device, facts) = tun::open(scenario)?;
    let drops = device.drop_counter();
    let link = Counted::new(device);
    let lanes: Arc<[Lane]> = Lane::split(scenario).into();
    let gate = StartingGate::new(lanes.len(), ProcessMeter::new(link.traffic(), move || drops.read()));
    let Running { party, effective } = stack.start(kind, Start::new(link, scenario, Arc::clone(&lanes)))?;
    let targets: Vec<_> = (0..scenario.parallel.get())
        .map(|index| SocketAddr::from((scenario.network.peer, FIRST_PORT + index)))
        .collect();
    let (clients, congestion) = clients(scenario.congestion.as_deref(), scenario.timeout, &targets)?;
    let supervisor = Supervisor::of(scenario, lanes, Arc::new(gate));
    let outcome = supervisor.supervise(party, clients, interrupts).await?;
    Ok(Ran { outcome, congestion, device: Some(facts), effective: Some(effective) })
}

/// A kernel client for each target, and their congestion control.
pub(super) fn clients(
    congestion: Option<&str>,
    timeout: Duration,
    targets: &[SocketAddr],
) -> Result<(Vec<Client>, Option<String>), RunError> {
    let mut effective = None;
    let mut clients = Vec::with_capacity(targets.len());
    for target in targets {
        let (socket, name) = kernel::socket(*target, congestion)?;
        effective = name;
        clients.push(Client::new(KernelConnector::new(socket, *target, timeout)));
    }
    Ok((clients, effective))
}
