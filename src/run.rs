//! Executes one scenario and returns its sample. The only stage that touches a device.
//!
//! A run has a client side and a server side. The client side is a few threads, which the engine of the load drives
//! (`load`). The server side is a set of tasks on the tokio runtime under test: a task for each connection,
//! and the driver of the stack (`server_side`). The `supervise` module races the sides against each other, the user and
//! the clock, and joins every thread and task.
//!
//! The scenario's [layer](crate::scenario::Layer) decides how the two sides are connected. Each layer is a file with a
//! function `prepare`, which returns a `Prepared`. `Prepared::run` runs every layer in the same way.
//!
//! | layer | client | between | server |
//! |---|---|---|---|
//! | `path` | kernel sockets | TUN device | the stack |
//! | `stack` (`memory`) | [`netstacks::peer`] | link in memory | the stack |
//! | `loopback` | kernel sockets | the kernel's loopback | the kernel, on the same runtime |
//! | `device` | none | TUN device, and the kernel's routing | a task that writes packets and reads them again |
//! | `kernel` (`between`) | kernel sockets | TUN device, link, TUN device | kernel sockets in another network |
//! | `proxy` | kernel sockets | a proxy's process | kernel sockets in another network |
//! | `program` | kernel sockets | a program as it is | kernel sockets in another network |
//! | `forward` | kernel sockets, or iperf3 | a forwarder's process | kernel sockets in another network, or iperf3 |
//!
//! # A stack of your own
//!
//! A Rust test can run cells with a stack that this program does not know. [`StackExecutor`] takes the stack as a type:
//! any [`Netstack`] that is generic over its link. The crates `netstacks` and `platform` of its interface are
//! `rust-tun-perf-netstacks` and `rust-tun-perf-platform`; `docs/new-stack.md` shows the smallest adapter.
//!
//! This example uses a link in memory, which needs neither a device nor a permission. The scenario must name a stack of
//! this build, because the samples have its name:
//!
//! ```
//! use std::time::Duration;
//!
//! use netstacks::StackKind;
//! use rust_tun_perf::run::{Executor, StackExecutor, StackUnderTest};
//! use rust_tun_perf::sample::Status;
//! use rust_tun_perf::scenario::{Amount, Mode, Scenario, Subject, Verify};
//!
//! /// How fast `S` receives, in 10⁹ bits a second. Tables show the figure under the name of `row`.
//! fn receives<S: StackUnderTest>(row: StackKind) -> Result<f64, Box<dyn std::error::Error>> {
//!     let mut scenario = Scenario::new(row, Mode::Writer)?;
//!     scenario.subject = Subject::Stack(row);
//!     scenario.amount = Amount::time(Duration::from_millis(100));
//!     scenario.warmup_bytes = 1_000_000;
//!     scenario.verify = Verify::Full;
//!     let sample = StackExecutor::<S>::new().execute(&scenario)?;
//!     assert_eq!(sample.measured.status, Status::Ok, "{:?}", sample.measured.detail);
//!     Ok(sample.gbps())
//! }
//! # #[cfg(feature = "smoltcp")]
//! # receives::<netstacks::Smoltcp>(StackKind::Smoltcp)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod between;
mod carrier;
mod carry;
mod child;
mod conditions;
mod conform;
mod datagram_process;
mod device;
mod doctor;
mod error;
mod executor;
mod external;
mod failure;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod go;
mod intervals;
mod kernel;
mod kernel_load;
mod loopback;
mod matrix;
mod memory;
mod networks;
mod outage;
mod path;
mod prepared;
mod process;
mod process_executor;
mod profile;
mod program;
mod protocol;
mod proxy;
mod runtime;
mod serve;
mod server_side;
mod socks5;
mod stack;
mod stopped;
mod supervise;
mod thirds;
mod tun;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use netstacks::{Netstack, StackKind};
use platform::{Class, Counted, Feature, Interrupts, Link, MemoryLink, TcpStatistics};
use socket2::{Domain, Socket, Type};

pub use self::child::child;
pub use self::conform::conform;
pub use self::doctor::{doctor, facts};
pub use self::error::RunError;
pub use self::executor::Executor;
pub use self::matrix::{Observer, Settled, matrix};
pub use self::process::end_with_parent;
pub use self::process_executor::ProcessExecutor;
pub use self::protocol::PROTOCOL;
pub use self::serve::serve;

use self::networks::Networks;
use self::path::DeviceLink;
use self::prepared::{Prepared, RunOutput};
use self::profile::profiled;
use self::runtime::runtime;
use self::stack::{StackStarter, Start, StartedStack};
use self::supervise::Outcome;
use crate::load::meter::Cost;
use crate::load::request::Requested;
use crate::remedy::WithRemedy;
use crate::sample::{CpuTime, Measurements, RequestFacts, Sample, SwitchFacts, TcpFacts};
use crate::scenario::{Cell, Devices, Generator, Impairments, Mode, Protocol, RuntimeKind, Scenario, Subject, Verify};

/// How long the runtime's threads may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Descriptors of a run beside its sockets: the reactor, the signals, the device and its setup.
const DESCRIPTORS: usize = 16;

/// Runs scenarios of every layer, each with the stack that it names.
///
/// If the scenario is isolated and its layer needs a network namespace, the calling thread enters the namespace of the
/// run and stays there. Without root, call this from a process without other threads (`user_namespaces(7)`).
///
/// The layer `proxy`, and `forward` with the forwarder of this program, start the calling program again, with the
/// argument `child`. So they need a program that calls [`crate::main`], and do not work in an ordinary test.
#[derive(Clone, Copy, Debug, Default)]
pub struct TunExecutor;

impl Executor for TunExecutor {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        execute(scenario, self)
    }
}

impl<L: Link> StackStarter<L> for TunExecutor {
    fn start(&self, kind: StackKind, start: Start<L>) -> Result<StartedStack, RunError> {
        Ok(kind.visit(start)??)
    }
}

/// A stack for a [`StackExecutor`]: it runs over every type of link that a run has. A stack that is generic over its
/// link does.
pub trait StackUnderTest: Netstack<DeviceLink> + Netstack<Counted<MemoryLink>> {}

impl<S: Netstack<DeviceLink> + Netstack<Counted<MemoryLink>>> StackUnderTest for S {}

/// Runs scenarios like [`TunExecutor`], but with the stack `S` in place of the stack that they name. The samples keep
/// that name.
///
/// `S` runs in the layers `path` and `stack`. The layer `proxy` and the stacks in a process of their own do not use it:
/// a child process runs the stack that the scenario names.
pub struct StackExecutor<S>(PhantomData<fn() -> S>);

impl<S: StackUnderTest> StackExecutor<S> {
    /// An executor for the stack `S`.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<S: StackUnderTest> Default for StackExecutor<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> fmt::Debug for StackExecutor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackExecutor").finish()
    }
}

impl<S: StackUnderTest> Executor for StackExecutor<S> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        execute(scenario, self)
    }
}

impl<L: Link, S: Netstack<L>> StackStarter<L> for StackExecutor<S> {
    fn start(&self, _kind: StackKind, start: Start<L>) -> Result<StartedStack, RunError> {
        Ok(netstacks::Visitor::visit::<S>(start)?)
    }
}

/// The network of a run.
enum Network {
    Host,
    /// A namespace of its own.
    Own,
    /// The command of a stack in a process of its own. It runs in the namespace of the run or, behind a link with
    /// conditions, in the far one of two.
    With(conformance::Program, Option<Networks>),
    /// Two namespaces of its own, and the program that carries packets or connections between them.
    Pair(Networks, PathBuf),
}

/// Runs a scenario.
fn execute(
    scenario: &Scenario,
    stack: &(impl StackStarter<DeviceLink> + StackStarter<Counted<MemoryLink>>),
) -> Result<Sample, RunError> {
    // A carrier draws its own flame graph.
    let profile = scenario.profile.as_deref().filter(|_| !scenario.subject.is_carrier());
    let title = Cell::planned(scenario).to_string();
    profiled(&title, profile, Sample::is_ok, || {
        let started = SystemTime::now();
        let network = enter_network(scenario)?;
        let pin = scenario.pin.as_ref().filter(|_| !scenario.shards_have_threads());
        let runtime = probe(scenario).and_then(|()| runtime(runtime_kind(scenario), pin)).map_err(|source| {
            platform::Error::new(Class::Failed, "start", "the runtime and the clients", source)
                .remedy("raise the limits on processes and open files (ulimit -u, ulimit -n), or lower --worker-threads and --parallel")
        })?;
        let result = runtime.block_on(async {
            // First, so that an interrupt leaves no device behind.
            let mut interrupts = Interrupts::catch()
                .map_err(|source| platform::Error::new(Class::Failed, "catch", "interrupts", source))?;
            let prepared = prepare(scenario, &network, stack, &mut interrupts).await?;
            prepared.run(scenario, interrupts).await
        });
        // A task may be stuck.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        Ok(sample(scenario, result?, started))
    })
}

/// Enters a network of the run's own, if the layer would change the host's network or depend on its settings. A stack
/// over memory does neither. The kernel's loopback changes nothing, so it uses the host's network if there is no
/// permission for another.
fn enter_network(scenario: &Scenario) -> Result<Network, RunError> {
    match scenario.subject {
        Subject::Forward(forwarder) => {
            if !platform::netns_supported() {
                return Err(platform::Error::unsupported(
                    Feature::Forwarder,
                    "forward packets between",
                    "two networks",
                )
                .into());
            }
            let forwarder = forward::executable(scenario, forwarder)?;
            Ok(Network::Pair(Networks::new()?, forwarder))
        }
        subject
            if !scenario.isolated
                && (matches!(subject, Subject::Proxy(_) | Subject::Program(_) | Subject::Kernel)
                    || subject.has_process()) =>
        {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it needs networks of its own");
            let operation = "run two sides in";
            Err(platform::Error::new(Class::Unavailable, operation, "the host's network", source)
                .remedy("only Linux has networks of a run's own; on Linux leave out --netns host")
                .into())
        }
        Subject::Proxy(_) | Subject::Program(_) | Subject::Kernel => {
            Ok(Network::Pair(Networks::new()?, platform::this_program()))
        }
        Subject::Stack(_) => Ok(Network::Host),
        _ if !scenario.isolated => Ok(Network::Host),
        Subject::Path(_) | Subject::Device => {
            let command = external::command(scenario)?;
            if let Some(command) = command {
                let has_link = scenario.impairments != Impairments::default();
                let networks =
                    if has_link { Some(Networks::new()?) } else { platform::enter_netns().map(|()| None)? };
                return Ok(Network::With(command, networks));
            }
            platform::enter_netns()?;
            Ok(Network::Own)
        }
        Subject::Loopback => match platform::enter_netns() {
            Err(error) if error.class() == Class::Unavailable => Ok(Network::Host),
            entered => Ok(entered.map(|()| Network::Own)?),
        },
    }
}

/// The runtime of the stack and its server. A carrier has its own runtime, so its load gets all processors. Shards with
/// threads of their own leave only the supervisor to it.
fn runtime_kind(scenario: &Scenario) -> RuntimeKind {
    match scenario.runtime {
        _ if scenario.subject.is_carrier() => RuntimeKind::MultiThread(None),
        _ if scenario.shards_have_threads() => RuntimeKind::CurrentThread,
        runtime => runtime,
    }
}

/// What a run needs of the system, at least.
struct Needs {
    connections: usize,
    sockets: usize,
    threads: usize,
}

fn needs(scenario: &Scenario) -> Needs {
    let processors = platform::parallelism().unwrap_or(1);
    let asked = |default: usize| scenario.client_threads.map_or(default, usize::from);
    let streams = match scenario.workload.mode().filter(|_| scenario.workload.is_stream()).or(scenario.background) {
        Some(Mode::Both) => 2,
        Some(_) => 1,
        None => 0,
    };
    let (connections, clients) = if scenario.workload.is_stream() {
        let connections = usize::from(scenario.parallel.get()) * streams.max(1);
        (connections, asked(processors).min(connections))
    } else {
        let holes = scenario.workload.requests().map_or(0, |requests| requests.blackholes);
        // The threads of the client and of its black holes, and the thread of its clock.
        (usize::from(scenario.parallel.get() + holes) + streams, asked(1) + 2 + streams)
    };
    let workers = match runtime_kind(scenario) {
        RuntimeKind::CurrentThread if scenario.shards_have_threads() => scenario.shards.get().into(),
        RuntimeKind::CurrentThread => 0,
        RuntimeKind::MultiThread(Some(workers)) => workers.get(),
        RuntimeKind::MultiThread(None) => processors,
    };
    let sockets = match scenario.subject {
        Subject::Device | Subject::Stack(_) | Subject::Path(_) => connections,
        // All flows of datagrams have one server.
        _ if scenario.workload.protocol() == Some(Protocol::Udp) => connections,
        // Both ends of a stream, and a listener.
        _ if scenario.workload.is_stream() => 3 * connections,
        _ => 2 * connections,
    };
    Needs { connections, sockets, threads: workers + clients }
}

/// Checks that the system has enough threads and descriptors for a run. Tokio panics if one is missing, and a runtime
/// that lacks a thread never ends.
fn probe(scenario: &Scenario) -> io::Result<()> {
    let Needs { connections, sockets, threads } = needs(scenario);
    // A carrier has the same limit, and may need more.
    platform::allow_open_files((3 * connections + 2 * DESCRIPTORS) as u64);
    // The sockets are not bound: the system may have fewer ports than descriptors.
    let socket = |_| Socket::new(Domain::IPV4, Type::DGRAM, None);
    let descriptors: Vec<_> = (0..sockets + DESCRIPTORS).map(socket).collect();
    descriptors.into_iter().collect::<io::Result<Vec<_>>>()?;
    // The lock keeps all threads alive at once.
    let barrier = Mutex::new(());
    thread::scope(|scope| {
        let held = barrier.lock();
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, || drop(barrier.lock()));
        let threads: io::Result<Vec<_>> = (0..threads).map(spawn).collect();
        drop(held);
        threads.map(drop)
    })
}

async fn prepare(
    scenario: &Scenario,
    network: &Network,
    stack: &(impl StackStarter<DeviceLink> + StackStarter<Counted<MemoryLink>>),
    interrupts: &mut Interrupts,
) -> Result<Prepared, RunError> {
    match (scenario.subject, &scenario.devices, network) {
        (Subject::Path(_), Devices::Tun(tun), Network::With(command, networks)) => {
            external::prepare(scenario, tun, command, networks.as_ref(), interrupts).await
        }
        (Subject::Path(kind), Devices::Tun(tun), _) => path::prepare(scenario, tun, kind, stack),
        (Subject::Stack(kind), Devices::Tun(tun), _) => memory::prepare(scenario, &tun.network, kind, stack),
        (Subject::Loopback, _, network) => loopback::prepare(scenario, matches!(network, Network::Own)),
        (Subject::Device, Devices::Tun(tun), _) => device::prepare(scenario, tun),
        (Subject::Forward(forwarder), Devices::Pair { near, far }, Network::Pair(networks, executable)) => {
            forward::prepare(scenario, forwarder, executable, (near, far), networks, interrupts).await
        }
        (Subject::Kernel, Devices::Tun(tun), Network::Pair(networks, _)) => kernel::prepare(scenario, tun, networks),
        (Subject::Proxy(_), Devices::Tun(tun), Network::Pair(networks, _)) => {
            proxy::prepare(scenario, tun, networks, interrupts).await
        }
        (Subject::Program(_), Devices::Tun(tun), Network::Pair(networks, _)) => {
            program::prepare(scenario, tun, networks, interrupts).await
        }
        (subject, ..) => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it has other devices");
            Err(platform::Error::new(Class::Invalid, "run", format!("the layer {}", subject.layer()), source).into())
        }
    }
}

/// The sample of a run that was made.
fn sample(scenario: &Scenario, output: RunOutput, started: SystemTime) -> Sample {
    let RunOutput { outcome, congestion, device, effective, program } = output;
    let Outcome { delivered, usage, counters, .. } = outcome;
    let is_carried = scenario.subject.is_carrier() || scenario.subject.has_process();
    let has_own_load = scenario.generator == Generator::Own;
    let carrier = Cost { cpu: usage.carrier_cpu, switches: counters.carrier_switches };
    let (client, subject) = match (is_carried, has_own_load) {
        (true, true) => (usage.own, carrier),
        (true, false) => (delivered.cost, carrier),
        (false, _) => (delivered.cost, usage.own.since(delivered.cost)),
    };
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let mut cell = Cell::of(scenario, device.as_ref().is_some_and(|device| device.offload));
    // Of a program, the MTU is the link's, which a tunnel's devices do not have.
    if let (Some(mtu), Some(device), None) = (&mut cell.mtu, &device, &scenario.program) {
        *mtu = device.mtu;
    }
    let warmup_bytes = if has_own_load { scenario.warmup_bytes } else { 0 };
    let both = scenario.workload.mode() == Some(Mode::Both);
    let measured = Measurements {
        status: outcome.status,
        detail: outcome.detail,
        congestion,
        warmup_bytes,
        bytes: delivered.bytes,
        bytes_back: both.then_some(delivered.read_bytes.min(delivered.bytes)),
        elapsed: outcome.elapsed,
        verified: match scenario.verify {
            _ if !has_own_load => Verify::Off,
            // Without a warm-up, no payload was checked.
            Verify::Sample if warmup_bytes == 0 && scenario.workload.is_stream() => Verify::Off,
            verify => verify,
        },
        cpu: CpuTime { client_seconds: seconds(client.cpu), subject_seconds: seconds(subject.cpu) },
        switches: SwitchFacts { client: client.switches, subject: subject.switches },
        stolen_share: outcome.stolen_share,
        stopped_seconds: seconds(outcome.stopped),
        peak_rss_bytes: if is_carried { counters.carrier_peak_rss_bytes } else { platform::peak_rss_bytes() },
        retransmits: delivered.retransmits,
        reordered: counters.reordered,
        device_drops: counters.drops,
        link: counters.faults.filter(|_| scenario.impairments != Impairments::default()),
        queue_facts: counters.queues,
        packets: counters.packets.unwrap_or_default().into(),
        tcp: delivered.tcp.as_ref().and_then(tcp),
        intervals: outcome.intervals,
        thirds: outcome.thirds,
        recovery_seconds: seconds(outcome.recovery),
        background_bytes: delivered.background_bytes,
        datagrams: delivered.datagrams,
        idle: delivered.requested.as_ref().and_then(|made| made.idle),
        requests: delivered.requested.filter(|_| scenario.workload.requests().is_some()).map(requests),
        program: program.map(Box::new),
        started_unix_ms: unix_ms(started),
        device,
        effective,
        round: None,
        against: false,
    };
    let mut environment = crate::environment();
    environment.program.go_forwarder = go::version([scenario]);
    Sample { cell, measured, environment: Arc::new(environment) }
}

/// Milliseconds since 1970 (UTC).
fn unix_ms(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn requests(made: Requested) -> RequestFacts {
    RequestFacts {
        answered: made.answered,
        errors: made.errors.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect(),
        latency: made.latency,
        blackholes: made.blackholes,
    }
}

/// `None` if the system has no statistics at all.
fn tcp(statistics: &TcpStatistics) -> Option<TcpFacts> {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let facts = TcpFacts {
        rtt_us: statistics.rtt.map(us),
        min_rtt_us: statistics.min_rtt.map(us),
        congestion_window_bytes: statistics.congestion_window_bytes,
        send_window_bytes: statistics.send_window_bytes,
        receive_window_bytes: statistics.receive_window_bytes,
    };
    (facts != TcpFacts::default()).then_some(facts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// A thread for each of many streams would be beyond the limits of most containers.
    #[test]
    fn a_run_needs_as_many_threads_as_it_starts() {
        let processors = platform::parallelism().unwrap();
        for (options, threads) in [
            ("-m both --parallel 10000", 2 * processors),
            ("-m reader --parallel 64 --client-threads 8", processors + 8),
            ("-m rr --parallel 64 --client-threads 8", processors + 8 + 2),
        ] {
            let arguments = format!("x --layer loopback --runtime multi-thread {options}");
            let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
            assert_eq!(needs(&Scenario::try_from(cli.run).unwrap()).threads, threads, "{options}");
        }
    }
}
