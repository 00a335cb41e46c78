//! A stack in a process of its own: gVisor's, or a program of the user's.
//!
//! ```text
//! client ── kernel TCP ── TUN ──► the process: its stack, and a server for the load
//!
//! client ── kernel TCP ── TUN ──► link with impairments ──► TUN ── kernel's forwarding ── TUN ──► the process
//! ```
//!
//! Everything to the right of the link with impairments is in the far network (`between`). The process opens the device; this
//! process sets it up and makes the load. docs/external-stack.md describes the protocol between them. The run trusts no
//! count of the process: the clients count bytes, the kernel counts packets. Only datagrams are counted by it alone.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use conformance::{Device, Ready, Task};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use netstacks::StackKind;
use platform::{FaultCounter, Interface, Interrupts, Network, ProcessMeter, Program, line};
use serde::Serialize;

use super::between::{self, FAR};
use super::carrier::{Carrier, CarrierProgram};
use super::go;
use super::impairments::{Cut, with_impairments};
use super::networks::{self, Networks};
use super::stack;
use super::tun::{self, tx_queue_len};
use super::{Parts, Prepared};
use crate::cell::{Offload, Runtime};
use crate::error::RunError;
use crate::failure::Failure;
use crate::meter::Counters;
use crate::plan::scenario::{Scenario, Tun};
use crate::sample::Status;

const NAME: &str = "stack's process";

const MOST_MEMORY: u64 = 2 << 30;

const LOOK: Duration = Duration::from_millis(100);

/// The command of a scenario's process, if it has one. gVisor's program is built if it is not in the cache. Must be
/// called before the thread leaves the host's network, because go may fetch modules.
pub(crate) fn command(scenario: &Scenario) -> Result<Option<Program>, RunError> {
    if !scenario.cell.subject().has_process() {
        return Ok(None);
    }
    program(scenario.command.as_deref()).map(Some)
}

/// The program of a user's command; without a command, gVisor's. The command is split into words as in a shell, but
/// without variables, patterns and pipes.
pub(crate) fn program(command: Option<&str>) -> Result<Program, RunError> {
    let Some(command) = command else { return Ok(Program { path: go::gvisor()?, arguments: Vec::new() }) };
    // The command line refuses a command without a word.
    let mut words = shlex::split(command).unwrap_or_default().into_iter();
    Ok(Program { path: words.next().unwrap_or_default().into(), arguments: words.collect() })
}

/// The task of a process: the first line that it reads.
fn task(scenario: &Scenario, tun: &Tun, load: impl Serialize) -> String {
    let device = Device { name: &tun.name, mtu: scenario.cell.mtu(), offload: scenario.cell.offload != Offload::Off };
    let threads = match scenario.cell.runtime {
        Runtime::CurrentThread => Some(1),
        Runtime::MultiThread => scenario.cell.worker_threads.map(|workers| workers.get().into()),
    };
    let kind = scenario.cell.subject().stack().unwrap_or(StackKind::External);
    line(&Task::new(device, threads, (kind, &stack::config(scenario)), load))
}

/// Prepares a stack in a process of its own. `load` has the fields of its task that are of the load.
pub(crate) async fn prepare(
    (scenario, load): (&Scenario, impl Serialize),
    tun: &Tun,
    command: &Program,
    networks: Option<&Networks>,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let (carrier, ready) = start(scenario, command, task(scenario, tun, load), networks, interrupts).await?;
    let (passing, faults, cut) = if let Some(networks) = networks {
        behind_link(scenario, tun, networks)?
    } else {
        interface(scenario, tun).set_up()?;
        (future::pending().boxed(), None, None)
    };
    carrier.begin();
    let meter = carrier.meter(count(tun, networks, faults));
    let (process, ended) = (carrier.process(), carrier.ended());
    let driver = async move {
        tokio::select! {
            failure = ended => failure,
            failure = outgrows(process) => failure,
            failure = passing => failure,
        }
    };
    let parts = Parts {
        device: Some(tun::facts(scenario, tun, ready.offload)),
        effective: ready.effective,
        carrier: Some(carrier),
        cut,
        program: None,
    };
    Ok(Prepared::new(meter, driver.boxed(), parts))
}

async fn start(
    scenario: &Scenario,
    command: &Program,
    task: String,
    networks: Option<&Networks>,
    interrupts: &mut Interrupts,
) -> Result<(Carrier, Ready), RunError> {
    let program = CarrierProgram { name: NAME, program: command.clone(), task, has_profile: false, stacks: None };
    let (carrier, ready) = Carrier::start(program, networks.map(Networks::far), interrupts).await?;
    if scenario.cell.offload == Offload::On && !ready.offload {
        return Err(RunError::NoOffload);
    }
    Ok((carrier, ready))
}

fn interface(scenario: &Scenario, tun: &Tun) -> Interface {
    Interface {
        name: tun.name.clone(),
        address: tun.network.address,
        prefix_len: tun.network.prefix_len,
        route_to: None,
        mtu: Some(scenario.cell.mtu()),
        tx_queue_len: Some(tx_queue_len(scenario)),
        tuning: scenario.cell.tuning(),
    }
}

/// Passes the packets of a link until it fails, with the counter of its faults, and the function that cuts it.
type Passing = (BoxFuture<'static, Failure>, Option<Arc<FaultCounter>>, Option<Cut>);

/// Sets up the process's device behind a link with impairments.
fn behind_link(scenario: &Scenario, tun: &Tun, networks: &Networks) -> Result<Passing, RunError> {
    let Network { address: client, peer: stack, .. } = tun.network;
    let ([of_link, of_device, _], prefix_len) = networks::ends(&tun.network);
    let (near, _) = tun::open(scenario, tun)?;
    let of_far = Tun {
        name: FAR.to_owned(),
        or_next: false,
        network: Network { address: of_link, peer: client, prefix_len },
        fd: None,
    };
    let far = between::open_far(scenario, of_far, networks)?;
    // The route to the stack's network covers the client too, so the client gets a host route.
    let device = Interface { address: of_device, prefix_len, route_to: Some(stack), ..interface(scenario, tun) };
    networks.far().run(move || {
        device.set_up()?;
        platform::add_host_route(FAR, client)?;
        platform::enable_forwarding(FAR, client.is_ipv6())?;
        platform::enable_forwarding(&device.name, client.is_ipv6())
    })??;
    let (near, cut) = with_impairments(near, scenario);
    let faults = Some(near.faults());
    Ok((async move { Failure::of_driver(between::pass(near, far).await) }.boxed(), faults, cut))
}

/// Reads the kernel's counts of the process's device, and those of the link in front of it.
fn count(
    tun: &Tun,
    networks: Option<&Networks>,
    faults: Option<Arc<FaultCounter>>,
) -> impl Fn() -> Counters + Send + Sync + use<> {
    let network = networks.map_or_else(platform::folder_of_thread, |networks| networks.far().folder().to_owned());
    let (device, drops) = (tun.name.clone(), networks.map(|networks| networks.drops(&[&tun.name], &[FAR])));
    move || {
        let counts = platform::interface_counts(&network, &device);
        let before = drops.as_ref().map_or(Some(0), |drops| drops());
        Counters {
            packets: counts.map(|counts| counts.packets),
            drops: counts.zip(before).map(|(counts, before)| counts.dropped + before),
            faults: faults.as_ref().map(|faults| faults.counts()),
            ..Counters::default()
        }
    }
}

/// Waits until the process takes more memory than it may: a leak must not exhaust the machine.
async fn outgrows(process: ProcessMeter) -> Failure {
    loop {
        tokio::time::sleep(LOOK).await;
        if process.rss_bytes().is_some_and(|bytes| bytes > MOST_MEMORY) {
            let detail = format!("the {NAME} takes more than {} GiB of memory", MOST_MEMORY >> 30);
            return Failure { status: Status::Panicked, detail };
        }
    }
}
