//! A load on a subject, and the one way to run it.

use std::fs::File;
use std::future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use netstacks::Effective;
use platform::{Capture, Captured, Class, Interrupts};

use super::outage::Interruption;
use super::server_side::{FIRST_PORT, ServerSide, targets};
use super::supervise::{Outcome, Supervisor};
use super::{datagram_process, kernel_load, memory_load};
use crate::cell::{Generator, Subject};
use crate::error::RunError;
use crate::failure::Failure;
use crate::load::engine::Client;
use crate::load::iperf3::Iperf3;
use crate::load::packets::{self, Shuttle};
use crate::load::window::Window;
use crate::load::{Figures, Load};
use crate::plan::scenario::{Devices, Scenario, Tun};
use crate::protocol::StackReport;
use crate::sample::{CaptureFacts, DeviceFacts, MIXED, ProgramFacts, Status};
use crate::subject::carrier::Carrier;
use crate::subject::networks::Networks;
use crate::subject::stack::Server;
use crate::subject::{
    Network, Parts, Prepared, device, external, forward, given, kernel, loopback, memory, path, program,
};

/// Most bytes of a file of packets.
const MOST_PCAP_BYTES: u64 = 64 << 20;

pub(super) struct Loaded {
    load: Arc<dyn Figures>,
    /// Holds the load until all clients are warm, and reads the meters then.
    window: Arc<Window>,
    server: ServerSide,
    /// The client threads. Empty if the server makes the whole load.
    clients: Vec<Client>,
    congestion: Option<String>,
    subject: Parts,
}

pub(super) struct RunOutput {
    pub(super) outcome: Outcome,
    pub(super) congestion: Option<String>,
    pub(super) device: Option<DeviceFacts>,
    pub(super) effective: Option<Effective>,
    pub(super) program: Option<ProgramFacts>,
}

pub(super) async fn prepare(
    scenario: &Scenario,
    load: Load,
    network: &Network,
    interrupts: &mut Interrupts,
) -> Result<Loaded, RunError> {
    match (scenario.cell.subject(), &scenario.devices, network) {
        (Subject::Path(_), Devices::Tun(tun), Network::With(command, networks)) => {
            let task = load.task(FIRST_PORT);
            let subject = external::prepare((scenario, task), tun, command, networks.as_ref(), interrupts).await?;
            on_process(scenario, load, tun, subject)
        }
        (Subject::Path(kind), Devices::Tun(tun), _) => {
            let (subject, server) = path::prepare(scenario, tun, kind, &load)?;
            let clients = kernel_load::clients(scenario, &load, &targets(tun.network.peer, &load))?;
            Ok(Loaded::new(load.threads(), load, subject, |_| server).with(clients))
        }
        (Subject::Stack(kind), Devices::Tun(tun), _) => {
            let (subject, server, link) = memory::prepare(scenario, kind, &load)?;
            let clients = memory_load::clients(&tun.network, link, &load)?;
            Ok(Loaded::new(load.threads(), load, subject, |_| server).with((clients, None)))
        }
        (Subject::Loopback, _, network) => {
            let (subject, address) = loopback::prepare(scenario, matches!(network, Network::Own))?;
            let sockets = kernel_load::sockets(scenario, address, &load)?;
            kernel_load::prepare(scenario, load, sockets, subject)
        }
        (Subject::Device, Devices::Tun(tun), _) => on_device(scenario, load, tun),
        (Subject::Forward(forwarder), Devices::Pair { near, far }, Network::Pair(networks, executable)) => {
            let subject = forward::prepare(scenario, forwarder, executable, (near, far), networks, interrupts).await?;
            match scenario.cell.generator {
                Generator::Own => kernel_load::prepare_between(scenario, load, networks, far.address, subject),
                Generator::Iperf3 => {
                    let load = Iperf3::start(scenario, (near.address, far.address), networks.far()).await?;
                    let (figures, congestion) = (load.figures(), load.congestion.clone());
                    let loaded = Loaded::new(1, figures, subject, |window| load.run(window).boxed());
                    Ok(loaded.with((Vec::new(), congestion)))
                }
            }
        }
        (Subject::Kernel, Devices::Tun(tun), Network::Pair(networks, _)) => {
            let subject = kernel::prepare(scenario, tun, networks)?;
            kernel_load::prepare_between(scenario, load, networks, tun.network.peer, subject)
        }
        (Subject::Program(_), Devices::Tun(tun), Network::Pair(networks, _)) => {
            let processors = scenario.cell.pin.as_ref().map(|pin| pin.of_program(load.threads()));
            let ports = load.targets().tcp;
            let (subject, server) = program::prepare((scenario, processors, ports), tun, networks, interrupts).await?;
            kernel_load::prepare_between(scenario, load, networks, server, subject)
        }
        (Subject::Given, Devices::Given(given), _) => {
            given::check_address(given)?;
            let trial = kernel_load::listeners(scenario, given.address, 1)?;
            let subject = given::prepare(given, trial, interrupts).await?;
            let sockets = kernel_load::sockets(scenario, given.address, &load)?;
            kernel_load::prepare(scenario, load, sockets, subject)
        }
        _ => Err(unfit(scenario)),
    }
}

/// A process of its own serves the load. It reports only when asked.
fn on_process(scenario: &Scenario, load: Load, tun: &Tun, subject: Prepared) -> Result<Loaded, RunError> {
    let server = match (&load, &subject.parts.carrier) {
        (Load::Datagrams(load), Some(carrier)) => {
            let (name, control, flows) = (carrier.name(), carrier.control(), Arc::clone(&load.flows));
            datagram_process::follow(name, control, flows, scenario.interval).boxed()
        }
        _ if load.awaited().is_some() => future::ready(Ok(())).boxed(),
        _ => future::pending().boxed(),
    };
    let clients = kernel_load::clients(scenario, &load, &targets(tun.network.peer, &load))?;
    Ok(Loaded::new(load.threads(), load, subject, |_| server).with(clients))
}

/// A task writes packets to the device and reads them again.
fn on_device(scenario: &Scenario, load: Load, tun: &Tun) -> Result<Loaded, RunError> {
    let Load::Streams(load) = load else { return Err(unfit(scenario)) };
    let (subject, link) = device::prepare(scenario, tun)?;
    let device = subject.parts.device.as_ref().ok_or_else(|| unfit(scenario))?;
    // The stack's address is the only one of the device's network that certainly exists and is not the kernel's own.
    let shuttle = Shuttle::new(link, scenario, tun.network.peer, device)?;
    let streams = Arc::clone(&load.each);
    let server = |window: Arc<Window>| {
        let task = async move {
            let Some(stream) = streams.first() else { return Ok(()) };
            shuttle.run(stream, &window).await.map_err(|error| packets::failure(&error))
        };
        task.boxed()
    };
    Ok(Loaded::new(1, Arc::new(load) as Arc<dyn Figures>, subject, server))
}

/// The error of a scenario with parts that do not belong together: another program wrote it.
pub(super) fn unfit(scenario: &Scenario) -> RunError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, "it has other devices, or another load");
    platform::Error::new(Class::Invalid, "run", format!("the layer {}", scenario.cell.subject().name()), source).into()
}

impl Loaded {
    /// A load on a subject, without clients. So many threads wait for its window.
    pub(super) fn new(
        threads: usize,
        load: impl Into<Arc<dyn Figures>>,
        Prepared { meter, driver, parts }: Prepared,
        server: impl FnOnce(Arc<Window>) -> Server,
    ) -> Self {
        let window = Arc::new(Window::new(threads, meter));
        let server = ServerSide::new(driver, server(Arc::clone(&window)));
        Self { load: load.into(), window, server, clients: Vec::new(), congestion: None, subject: parts }
    }

    /// The same with clients, and their congestion control.
    pub(super) fn with(self, (clients, congestion): (Vec<Client>, Option<String>)) -> Self {
        Self { clients, congestion, ..self }
    }

    /// Begins to write the packets of the device, if the scenario asks for it.
    pub(super) fn capture(&self, scenario: &Scenario) -> Result<Option<Capture>, RunError> {
        let (Some(path), Some(device)) = (&scenario.pcap, &self.subject.device) else { return Ok(None) };
        let cannot = |source| platform::Error::new(Class::Invalid, "write", path.display().to_string(), source);
        let file = File::create(path).map_err(cannot)?;
        let capture = Capture::start(&device.name, file, MOST_PCAP_BYTES).map_err(|source| {
            let class = if source.kind() == io::ErrorKind::Unsupported { Class::Unavailable } else { Class::Failed };
            platform::Error::new(class, "read the packets of", &device.name, source)
        })?;
        Ok(Some(capture))
    }

    pub(super) async fn run(
        self,
        scenario: &Scenario,
        networks: Option<&Networks>,
        interrupts: Interrupts,
    ) -> Result<RunOutput, RunError> {
        let Self { load, window, server, clients, congestion, subject } = self;
        let Parts { device, effective, carrier, program, cut } = subject;
        let clients = match &scenario.cell.pin {
            Some(pin) => (0..).zip(clients).map(|(thread, client)| client.pinned(pin.of_client(thread))).collect(),
            None => clients,
        };
        let outside = networks.filter(|_| scenario.cell.inbound).map(|networks| networks.far().path());
        let clients = match outside {
            Some(network) => clients.into_iter().map(|client| client.within(network.clone())).collect(),
            None => clients,
        };
        let counted = Arc::clone(&load);
        let outage = scenario.cell.impairments.outage.zip(cut).map(|(outage, cut)| Interruption::new(outage, cut));
        let supervisor = Supervisor::new(scenario, load, window, outage);
        let mut outcome = supervisor.supervise(server, clients, interrupts).await;
        let congestion = congestion.map(|own| named(own, networks));
        let program = match program {
            Some(program) => Some(program.finish(scenario, outcome.as_ref().ok().map(|made| &made.counters)).await?),
            None => None,
        };
        let Some(carrier) = carrier else {
            return Ok(RunOutput { outcome: outcome?, congestion, device, effective, program });
        };
        let name = carrier.name();
        if let Ok(made) = &mut outcome
            && made.measured.status == Status::Ok
            && scenario.cell.subject().has_process()
            && let Err(Failure { status, detail }) = check(&carrier, &*counted).await
        {
            (made.measured.status, made.measured.detail) = (status, Some(detail));
        }
        carrier.finish(outcome.as_ref().is_ok_and(|outcome| outcome.measured.status == Status::Ok)).await?;
        let mut outcome = outcome?;
        let measured = &mut outcome.measured;
        if measured.status == Status::Ok && outcome.counters.packets.is_none() {
            measured.status = Status::Stalled;
            measured.detail = Some(format!("the {name} did not report how much it carried"));
        }
        Ok(RunOutput { outcome, congestion, device, effective, program })
    }
}

/// Ends it, and says what is in the file.
pub(super) fn captured(capture: Capture) -> Result<CaptureFacts, RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "write", "packets", source);
    let Captured { packets, lost, is_full } = capture.finish().map_err(failed)?;
    Ok(CaptureFacts { packets, lost, is_full })
}

/// The congestion control of our sockets, and those that the kernel reports of others in the run's networks if they differ.
fn named(own: String, networks: Option<&Networks>) -> String {
    let mut all = networks.map(Networks::controls).unwrap_or_default();
    all.insert(own);
    all.into_iter().collect::<Vec<_>>().join(MIXED)
}

/// For how long the report of a stack's process may lag behind the clients: it counts a write when the call has returned, and
/// then the bytes may have arrived already.
const REPORT_LAG: Duration = Duration::from_secs(1);

/// Compares the report of a stack's process with the counts of the clients.
async fn check(process: &Carrier, load: &dyn Figures) -> Result<(), Failure> {
    let name = process.name();
    let counted = load.crossed();
    let end = Instant::now() + REPORT_LAG;
    loop {
        let Some(report) = process.report::<StackReport>().await else {
            let detail = format!("the {name} did not report how much it received and sent");
            return Err(Failure { status: Status::Stalled, detail });
        };
        let says = [("received", report.received_bytes), ("sent", report.sent_bytes)];
        let wrong = says.into_iter().zip(&counted).find(|((_, says), counted)| !counted.contains(says));
        let Some(((did, says), counted)) = wrong else { return Ok(()) };
        if says > *counted.end() || Instant::now() >= end {
            let (least, most) = (counted.start(), counted.end());
            let counted = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let detail = format!("the {name} says that it {did} {says} bytes; the clients counted {counted}");
            return Err(Failure { status: Status::Corrupt, detail });
        }
        tokio::time::sleep(REPORT_LAG / 100).await;
    }
}
