//! A forwarder between two networks of the run's own, under load.
//!
//! ```text
//!        near network                                             far network
//! client ── kernel TCP ── tun11 ──► forwarder's process ──► tun22 ── kernel TCP ── server
//! ```
//!
//! The forwarder is a process of its own (`carrier`), so its CPU time and memory are separate from the load's. It is this
//! program (`carry`), or the one in Go. It makes the two devices, and this process sets them up.

pub(crate) mod carry;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use forwarders::{Carried, Counts, Offload};
use platform::{Interface, Interrupts, Napi, Program};

use super::carrier::{Carrier, CarrierProgram};
use super::networks::Networks;
use super::{Parts, Prepared, go};
use crate::cell::{Forwarder, ForwarderName, Mode};
use crate::error::RunError;
use crate::plan::scenario::{End, Scenario};
use crate::profile::FoldedStacks;
use crate::protocol::{Carry, Task};
use crate::sample::DeviceFacts;

/// How many packets may wait in a device if the scenario sets no number. The same default as on the command line.
const DEFAULT_QUEUE: u32 = 500;

/// The program that forwards. The one in Go is built if it is not in the cache. Must be called before the thread leaves
/// the host's network, because go may fetch modules.
pub(crate) fn executable(scenario: &Scenario, forwarder: Forwarder) -> Result<PathBuf, RunError> {
    match forwarder.program {
        ForwarderName::Rust => Ok(platform::this_program()),
        ForwarderName::Go => Ok(go::program(scenario)?),
    }
}

/// Prepares a forwarder between devices in two networks. `executable` is its program.
pub(crate) async fn prepare(
    scenario: &Scenario,
    forwarder: Forwarder,
    executable: &Path,
    (near, far): (&End, &End),
    networks: &Networks,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let program = program(scenario, forwarder, executable, (near, far), networks)?;
    let (carrier, _ready) = Carrier::start(program, None, interrupts).await?;
    set_up(scenario, (near, far), networks)?;
    carrier.begin();
    let drops = networks.drops(&[&near.name], &[&far.name]);
    let meter = carrier.reporting_meter(carried(scenario.cell.mode), drops);
    let device = DeviceFacts {
        name: format!("{}, {}", near.name, far.name),
        mtu: scenario.cell.mtu().into(),
        offload: forwarder.config.offload != Offload::Off,
        tx_queue_len: Some(queue_packets(scenario)),
        qdisc: platform::qdisc_of(&near.name),
    };
    let driver = carrier.ended();
    let parts = Parts { device: Some(device), carrier: Some(carrier), ..Parts::default() };
    Ok(Prepared::new(meter, driver, parts))
}

fn program(
    scenario: &Scenario,
    forwarder: Forwarder,
    executable: &Path,
    (near, far): (&End, &End),
    networks: &Networks,
) -> Result<CarrierProgram, RunError> {
    let far_namespace = networks.far().path();
    let title = scenario.planned().to_string();
    let config = forwarder.config;
    if forwarder.program == ForwarderName::Rust {
        let profile = scenario.profile.clone().map(|graph| (graph, title));
        let (near, far) = (near.name.clone(), far.name.clone());
        let has_profile = profile.is_some();
        let task = Task::Carry(Carry { config, near, far, far_namespace, profile });
        return Ok(CarrierProgram { has_profile, ..CarrierProgram::with_task("forwarder", task) });
    }
    let stacks = scenario.profile.clone().map(|graph| FoldedStacks::new(graph, title)).transpose()?;
    let mut arguments = Vec::new();
    let mut option = |name: &str, value: &str| arguments.push(format!("-{name}={value}"));
    option("mtu", &scenario.cell.mtu().to_string());
    option("offload", forwarder.config.offload.name());
    option("hop", forwarder.config.hop.name());
    option("napi", &(forwarder.config.napi != Napi::Off).to_string());
    option("near", &near.name);
    option("far", &far.name);
    option("far-namespace", &far_namespace.to_string_lossy());
    if let Some(stacks) = &stacks {
        option("profile", &stacks.path().to_string_lossy());
    }
    Ok(CarrierProgram {
        name: "forwarder",
        program: Program { path: executable.to_owned(), arguments },
        task: String::new(),
        has_profile: stacks.is_some(),
        stacks,
    })
}

/// Sets up both devices: addresses, routes to each other's network, MTU and queue.
fn set_up(scenario: &Scenario, (near, far): (&End, &End), networks: &Networks) -> Result<(), platform::Error> {
    let interface = |end: &End, other: IpAddr| Interface {
        name: end.name.clone(),
        address: end.address,
        prefix_len: end.prefix_len(),
        route_to: Some(other),
        mtu: Some(scenario.cell.mtu()),
        tx_queue_len: Some(queue_packets(scenario)),
        tuning: scenario.cell.tuning(),
    };
    interface(near, far.address).set_up()?;
    let far = interface(far, near.address);
    networks.far().run(move || far.set_up())?
}

fn queue_packets(scenario: &Scenario) -> u32 {
    scenario.cell.queue.unwrap_or(DEFAULT_QUEUE)
}

/// Selects the counts of the payload's direction.
pub(crate) fn carried(mode: Option<Mode>) -> fn(&Counts) -> Carried {
    match mode {
        Some(Mode::Writer) => |counts| counts.to_far,
        Some(Mode::Reader) => |counts| counts.to_near,
        _ => |counts| sum(counts.to_far, counts.to_near),
    }
}

/// Another program reports the counts, so they may be any numbers.
fn sum(one: Carried, other: Carried) -> Carried {
    Carried {
        read_packets: one.read_packets.saturating_add(other.read_packets),
        read_bytes: one.read_bytes.saturating_add(other.read_bytes),
        written_packets: one.written_packets.saturating_add(other.written_packets),
        written_bytes: one.written_bytes.saturating_add(other.written_bytes),
        lost_packets: one.lost_packets.saturating_add(other.lost_packets),
        reordered: one.reordered.zip(other.reordered).map(|(one, other)| one.saturating_add(other)),
    }
}
