//! A stack in a process of its own: gVisor's, or a program of the user's.
//!
//! ```text
//! client ── kernel TCP ── TUN ──► the process: its stack, and a server for the load
//!
//! client ── kernel TCP ── TUN ──► link with conditions ──► TUN ── kernel's forwarding ── TUN ──► the process
//! ```
//!
//! The second path is for a link with conditions. Everything to the right of that link is in the far network
//! (`between`).
//!
//! The process starts in the run's network and opens the device. This process sets the device up and makes the load.
//! docs/external-stack.md describes the protocol between them: a [`Task`], and then the orders of `protocol`. The run
//! trusts no count of the process: the clients count bytes, the kernel counts packets, and `check` compares the report
//! of the process with the clients' counts. Only datagrams that arrive at the process are counted by it alone
//! (`datagram_process`).

use std::future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use conformance::Program;
use platform::{Class, FaultCounter, Faulty, Interface, Interrupts, Network, Offload, ProcessMeter};
use serde::{Deserialize, Serialize};

use super::between::{self, FAR};
use super::carrier::{Carrier, CarrierProgram};
use super::datagram_process::{self, DatagramsTask};
use super::error::RunError;
use super::failure::Failure;
use super::go;
use super::kernel_load;
use super::networks::Networks;
use super::path::{plan, targets};
use super::prepared::Prepared;
use super::protocol::PROTOCOL;
use super::proxy;
use super::server_side::ServerSide;
use super::stack::FIRST_PORT;
use super::tun::{self, tx_queue_len};
use crate::load::meter::{Counters, Meter, Usage};
use crate::load::stream::{Direction, Stream};
use crate::load::window::Window;
use crate::load::{Load, request};
use crate::remedy::WithRemedy;
use crate::sample::{DeviceFacts, Status};
use crate::scenario::{Amount, RuntimeKind, Scenario, Tun};

/// The name of the process in messages.
const NAME: &str = "stack's process";

/// Most memory of a process, in bytes.
const MOST_MEMORY: u64 = 2 << 30;

/// How often its memory is checked.
const LOOK: Duration = Duration::from_millis(100);

/// The command of a scenario's process, if it has one. gVisor's program is built if it is not in the cache. Must be
/// called before the thread leaves the host's network, because go may fetch modules.
pub(super) fn command(scenario: &Scenario) -> Result<Option<Program>, RunError> {
    if !scenario.subject.has_process() {
        return Ok(None);
    }
    program(scenario.command.as_deref()).map(Some)
}

/// The program of a user's command; without a command, gVisor's. The command is split into words as in a shell, but
/// without variables, patterns and pipes.
pub(super) fn program(command: Option<&str>) -> Result<Program, RunError> {
    let Some(command) = command else { return Ok(Program { path: go::gvisor()?, arguments: Vec::new() }) };
    // The command line refuses a command without a word.
    let mut words = shlex::split(command).unwrap_or_default().into_iter();
    Ok(Program { path: words.next().unwrap_or_default().into(), arguments: words.collect() })
}

/// The task of a process: the first line that it reads.
#[derive(Serialize)]
struct Task<'a> {
    protocol: u32,
    device: Device<'a>,
    window_bytes: usize,
    /// Most threads that the process may run on at once; `null` for no limit.
    threads: Option<usize>,
    streams: Vec<StreamTask>,
    requests: Option<RequestsTask>,
    datagrams: Option<DatagramsTask>,
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    mtu: u16,
    offload: bool,
}

#[derive(Serialize)]
struct StreamTask {
    port: u16,
    direction: Direction,
    warmup_bytes: u64,
    /// `null`: until the client closes.
    bytes: Option<u64>,
    buffer_bytes: usize,
    seed: u64,
}

#[derive(Serialize)]
struct RequestsTask {
    protocol: &'static str,
    request_bytes: usize,
    response_bytes: usize,
    mark_bytes: usize,
    closes: bool,
    seed: u64,
}

/// The report of a process: how much its server has received and sent so far, in bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Report {
    received_bytes: u64,
    sent_bytes: u64,
}

impl<'a> Task<'a> {
    fn of(scenario: &Scenario, tun: &'a Tun, load: &Load) -> Self {
        let stream = |(port, stream): (u16, &Stream)| StreamTask {
            port,
            direction: stream.direction,
            warmup_bytes: stream.warmup_bytes,
            bytes: match stream.amount {
                Amount::Bytes(bytes) => Some(bytes.get()),
                Amount::Time { .. } => None,
            },
            buffer_bytes: stream.buffer_bytes,
            seed: stream.seed,
        };
        Self {
            protocol: PROTOCOL,
            device: Device { name: &tun.name, mtu: scenario.mtu, offload: scenario.offload != Offload::Off },
            window_bytes: scenario.window_bytes,
            threads: match scenario.runtime {
                RuntimeKind::CurrentThread => Some(1),
                RuntimeKind::MultiThread(workers) => workers.map(Into::into),
            },
            streams: (FIRST_PORT..).zip(load.streams()).map(stream).collect(),
            requests: load.exchange().map(|exchange| RequestsTask {
                protocol: if exchange.is_udp() { "udp" } else { "tcp" },
                request_bytes: exchange.request.period,
                response_bytes: exchange.response.period,
                mark_bytes: exchange.mark_len(),
                closes: exchange.connects,
                seed: request::SEED,
            }),
            datagrams: load.flows().map(|flows| DatagramsTask::of(flows, FIRST_PORT)),
        }
    }

    fn line(&self) -> String {
        // Never fails: JSON has numbers and text.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Prepares a run with a stack in a process of its own.
pub(super) async fn prepare(
    scenario: &Scenario,
    tun: &Tun,
    command: &Program,
    networks: Option<&Networks>,
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    let load = Load::of(scenario);
    let program = CarrierProgram {
        name: NAME,
        path: command.path.clone(),
        arguments: command.arguments.clone(),
        task: Some(Task::of(scenario, tun, &load).line()),
        has_profile: false,
        stacks: None,
    };
    let (carrier, ready) = Carrier::start(program, networks.map(Networks::far), interrupts).await?;
    let offload = ready.offload.unwrap_or(false);
    if scenario.offload == Offload::On && !offload {
        let source = io::Error::new(io::ErrorKind::Unsupported, format!("the {NAME} opened it without"));
        return Err(platform::Error::new(Class::Unavailable, "use offload on", &tun.name, source)
            .remedy("leave out --offload on")
            .into());
    }
    let queue = tx_queue_len(scenario);
    let device = Interface {
        name: tun.name.clone(),
        address: tun.network.address,
        prefix_len: tun.network.prefix_len,
        route_to: None,
        mtu: scenario.mtu,
        tx_queue_len: queue,
    };
    let meter = ProcessStackMeter {
        process: carrier.process(),
        network: networks.map_or_else(platform::folder_of_thread, |networks| networks.far().folder().to_owned()),
        device: tun.name.clone(),
        link: None,
    };
    let (link, meter): (Pin<Box<dyn Future<Output = Failure> + Send>>, _) = if let Some(networks) = networks {
        let (passing, faults) = behind_link(scenario, tun, networks, device)?;
        let drops = Box::new(networks.drops(&[&tun.name], &[FAR]));
        (Box::pin(passing), ProcessStackMeter { link: Some(LinkBefore { faults, drops }), ..meter })
    } else {
        device.set_up()?;
        (Box::pin(future::pending()), meter)
    };
    carrier.begin();
    let window = Window::new(load.clients(), meter);
    let ends = load.ends();
    let (process, ended) = (carrier.process(), carrier.ended());
    let driver = async move {
        tokio::select! {
            failure = ended => failure,
            failure = outgrows(process) => failure,
            failure = link => failure,
        }
    };
    let (flow, control, interval) = (load.flows().cloned(), carrier.control(), scenario.interval);
    let server = ServerSide::new(driver, async move {
        // The process is the server, and reports only when asked.
        match flow {
            Some(flow) => datagram_process::follow(NAME, control, flow, interval).await,
            None if ends => Ok(()),
            None => future::pending().await,
        }
    });
    let (clients, congestion) = kernel_load::clients(scenario, &load, &targets(tun.network.peer, &load))?;
    let facts = DeviceFacts { name: tun.name.clone(), mtu: scenario.mtu.into(), offload, tx_queue_len: Some(queue) };
    Ok(Prepared {
        clients,
        congestion,
        device: Some(facts),
        effective: ready.effective,
        carrier: Some(carrier),
        ..Prepared::new(load, window, server)
    })
}

/// Sets up the process's device behind a link with conditions. Returns the future that passes the packets, and the
/// counter of the link's faults.
fn behind_link(
    scenario: &Scenario,
    tun: &Tun,
    networks: &Networks,
    device: Interface,
) -> Result<(impl Future<Output = Failure> + Send + use<>, Arc<FaultCounter>), RunError> {
    let Network { address: client, peer: stack, .. } = tun.network;
    let ([of_link, of_device], prefix_len) = proxy::ends(&tun.network);
    let (near, _) = tun::open(scenario, tun)?;
    let far = between::open_far(scenario, Network { address: of_link, peer: client, prefix_len }, networks)?;
    // The route to the stack's network covers the client too, so the client gets a host route.
    let device = Interface { address: of_device, prefix_len, route_to: Some(stack), ..device };
    networks.far().run(move || {
        device.set_up()?;
        platform::add_host_route(FAR, client)?;
        platform::enable_forwarding(FAR, client.is_ipv6())?;
        platform::enable_forwarding(&device.name, client.is_ipv6())
    })??;
    let near = Faulty::new(near, plan(scenario));
    let faults = near.faults();
    Ok((async move { Failure::of_driver(between::pass(near, far).await) }, faults))
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

/// Compares the report of the process with the counts of the clients.
pub(super) async fn check(carrier: &Carrier, load: &Load) -> Result<(), Failure> {
    let Some(report) = carrier.report::<Report>().await else {
        let detail = format!("the {NAME} did not report how much it received and sent");
        return Err(Failure { status: Status::Stalled, detail });
    };
    let [received, sent] = load.crossed();
    for (did, says, counted) in [("received", report.received_bytes, received), ("sent", report.sent_bytes, sent)] {
        if !counted.contains(&says) {
            let (least, most) = (counted.start(), counted.end());
            let counted = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let detail = format!("the {NAME} says that it {did} {says} bytes; the clients counted {counted}");
            return Err(Failure { status: Status::Corrupt, detail });
        }
    }
    Ok(())
}

/// Measures the cost of the process from outside, and reads the kernel's counts of its device.
struct ProcessStackMeter {
    process: ProcessMeter,
    /// The folder under `/proc` of a thread in the process's network.
    network: PathBuf,
    device: String,
    link: Option<LinkBefore>,
}

/// The link with conditions in front of the device.
struct LinkBefore {
    faults: Arc<FaultCounter>,
    /// How many packets its devices dropped.
    drops: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

impl Meter for ProcessStackMeter {
    fn usage(&self) -> Usage {
        Usage::with(self.process)
    }

    fn counters(&self) -> Counters {
        let counts = platform::interface_counts(Path::new(&self.network), &self.device);
        Counters {
            packets: counts.map(|counts| counts.packets),
            drops: counts
                .zip(self.link.as_ref().map_or(Some(0), |link| (link.drops)()))
                .map(|(counts, before)| counts.dropped + before),
            faults: self.link.as_ref().map(|link| link.faults.counts().into()),
            carrier_peak_rss_bytes: self.process.peak_rss_bytes(),
            ..Counters::default()
        }
    }
}
