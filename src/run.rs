//! Executes one scenario and returns its sample. The only stage that touches a device.
//!
//! The client side is a few threads, which the engine of the load drives (`load`). The server side is a set of tasks on the
//! tokio runtime under test: one for each connection, and the driver of the stack (`server_side`). `subject` prepares what
//! carries the bytes, `loaded` puts the load on it, and `supervise` joins every thread and task.

mod child;
mod conform;
mod datagram_process;
mod doctor;
mod executor;
#[doc(hidden)]
pub mod fuzzing;
mod intervals;
mod kernel_load;
mod loaded;
mod manners;
mod matrix;
mod memory_load;
mod outage;
mod process_executor;
mod progress;
mod runtime;
mod serve;
mod server_side;
mod stopped;
mod supervise;
mod thirds;
mod watchdog;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use platform::{Cause, Class, Interrupts};
use socket2::{Domain, Socket, Type};

pub use self::child::child;
pub use self::conform::conform;
pub use self::doctor::{doctor, lacks};
pub use self::executor::Executor;
pub use self::manners::manners;
pub use self::matrix::{Settled, matrix};
pub use self::process_executor::ProcessExecutor;
pub use self::progress::Progress;
pub use self::serve::serve;
pub use crate::error::RunError;

use self::loaded::{RunOutput, unfit};
use self::runtime::{processors, runtime};
use self::supervise::{Outcome, seconds};
use self::watchdog::Watchdog;
use crate::cell::{Cell, Generator, Mode, Runtime, Subject, Verify};
use crate::load::Load;
use crate::meter::Cost;
use crate::plan::scenario::Scenario;
use crate::profile::profiled;
use crate::remedy::WithRemedy;
use crate::sample::{CpuTime, Measurements, Sample, Status, SwitchFacts};
use crate::subject::{enter_network, go};

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Threads of a run beside the workers of its runtime and its clients: it finds out whether the process is stopped.
const WATCHERS: usize = 1;

/// Descriptors of a run beside its sockets: the reactor, the signals, the device and its setup.
const DESCRIPTORS: usize = 16;

/// Runs scenarios of every layer, each with the stack that it names.
///
/// If the scenario is isolated and its layer needs a network namespace, the calling thread enters the namespace of the
/// run and stays there. Without root, call this from a process without other threads (`user_namespaces(7)`).
///
/// Our proxy as a program, and the forwarder of this program, start the calling program again, with the
/// argument `child`. So they need a program that calls [`crate::main`], and do not work in an ordinary test.
#[derive(Clone, Copy, Debug, Default)]
pub struct TunExecutor;

impl Executor for TunExecutor {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        execute(scenario)
    }
}

fn execute(scenario: &Scenario) -> Result<Sample, RunError> {
    // A carrier draws its own flame graph.
    let profile = scenario.profile.as_deref().filter(|_| !scenario.cell.subject().is_carrier());
    let title = scenario.planned().to_string();
    profiled(&title, profile, Sample::is_ok, || {
        let started = SystemTime::now();
        can_have_sockets(scenario)?;
        let mut sysctls = platform::tcp_settings();
        let network = enter_network(scenario)?;
        let scenario = &Scenario { congestion: network.set_congestion(scenario), ..scenario.clone() };
        // Those of the run's network, where it has its own.
        sysctls.extend(platform::tcp_settings());
        let load = Load::of(scenario).ok_or_else(|| unfit(scenario))?;
        // The servers of a carrier are where the system puts them.
        let pin = scenario.cell.pin.as_ref().filter(|_| !scenario.cell.subject().is_carrier());
        let runtime = probe(scenario, &load).and_then(|()| runtime(workers(&scenario.cell), pin)).map_err(|source| {
            platform::Error::new(Class::Failed, "start", "the runtime and the clients", source)
                .remedy("raise the limits on processes and open files (ulimit -u, ulimit -n), or lower --worker-threads and --parallel")
        })?;
        // Only now: before it enters its network, the process has one thread.
        let watchdog = Watchdog::start(scenario.timeout)
            .map_err(|source| platform::Error::new(Class::Failed, "watch", "the run", source))?;
        let mut pcap = None;
        let result = runtime.block_on(async {
            // First, so that an interrupt leaves no device behind.
            let mut interrupts = Interrupts::catch()
                .map_err(|source| platform::Error::new(Class::Failed, "catch", "interrupts", source))?;
            let loaded = loaded::prepare(scenario, load, &network, &mut interrupts).await?;
            let capture = loaded.capture(scenario)?;
            let output = loaded.run(scenario, network.both(), interrupts).await;
            pcap = capture.map(loaded::captured).transpose()?;
            output
        });
        // A task may be stuck.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        watchdog.finish();
        let mut sample = sample(scenario, result?, started);
        sample.measured.pcap = pcap;
        if sample.measured.congestion.is_some() {
            sample.measured.sysctls = sysctls;
        }
        Ok(sample)
    })
}

/// Whether the kernel has the IP version of the run, for the sockets of all layers but a stack alone.
fn can_have_sockets(scenario: &Scenario) -> Result<(), platform::Error> {
    if !scenario.cell.ipv6 || matches!(scenario.cell.subject(), Subject::Stack(_)) {
        return Ok(());
    }
    let failed = |source| platform::Error::new(Cause::NoIpv6, "create", "an IPv6 socket", source);
    Socket::new(Domain::IPV6, Type::DGRAM, None).map(drop).map_err(failed)
}

/// The workers of the runtime of the stack and its server; none on the current-thread runtime. A carrier has its own runtime, so
/// its load gets all processors.
fn workers(cell: &Cell) -> Option<usize> {
    match cell.runtime {
        _ if cell.subject().is_carrier() => Some(processors()),
        Runtime::CurrentThread => None,
        Runtime::MultiThread => Some(cell.worker_threads.map_or_else(processors, |workers| workers.get().into())),
    }
}

fn threads(scenario: &Scenario, load: &Load) -> usize {
    workers(&scenario.cell).unwrap_or(0) + load.threads() + WATCHERS
}

/// Checks that the system has enough threads and descriptors for a run. Tokio panics if one is missing, and a runtime
/// that lacks a thread never ends.
fn probe(scenario: &Scenario, load: &Load) -> io::Result<()> {
    let [clients, servers] = load.descriptors();
    // A stack's server has no sockets.
    let is_stack = matches!(scenario.cell.subject(), Subject::Device | Subject::Stack(_) | Subject::Path(_));
    let sockets = if is_stack { clients } else { clients + servers };
    // A carrier has the same limit, and may need more. The SOCKS5 server of a program needs three for each flow of UDP.
    platform::allow_open_files((4 * clients + 2 * DESCRIPTORS) as u64);
    // The sockets are not bound: the system may have fewer ports than descriptors.
    let socket = |_| Socket::new(Domain::IPV4, Type::DGRAM, None);
    let descriptors: Vec<_> = (0..sockets + DESCRIPTORS).map(socket).collect();
    descriptors.into_iter().collect::<io::Result<Vec<_>>>()?;
    // The lock keeps all threads alive at once.
    let barrier = Mutex::new(());
    thread::scope(|scope| {
        let held = barrier.lock();
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, || drop(barrier.lock()));
        let threads: io::Result<Vec<_>> = (0..threads(scenario, load)).map(spawn).collect();
        drop(held);
        threads.map(drop)
    })
}

fn sample(scenario: &Scenario, output: RunOutput, started: SystemTime) -> Sample {
    let RunOutput { outcome, congestion, device, effective, program } = output;
    let Outcome { measured, cost, usage, counters } = outcome;
    let is_carried = scenario.cell.subject().is_carrier() || scenario.cell.subject().has_process();
    let has_own_load = scenario.cell.generator == Generator::Own;
    let carrier = Cost { cpu: usage.carrier_cpu, switches: counters.carrier_switches };
    let (client, subject) = match (is_carried, has_own_load) {
        (true, true) => (usage.own, carrier),
        (true, false) => (cost, carrier),
        (false, _) => (cost, usage.own.since(cost)),
    };
    let mut cell = scenario.cell.with_offload(device.as_ref().is_some_and(|device| device.offload));
    // Of a program, the MTU is the one that was asked for.
    if let (Some(device), None) = (&device, &cell.program) {
        cell.mtu = u16::try_from(device.mtu).ok().or(cell.mtu);
    }
    let warmup_bytes = if has_own_load { scenario.warmup_bytes } else { 0 };
    let is_both = scenario.cell.mode == Some(Mode::Both);
    let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).ok();
    let mut measured = Measurements {
        bytes_back: is_both.then(|| measured.bytes_back.unwrap_or_default().min(measured.bytes)),
        congestion,
        warmup_bytes,
        verified: match scenario.verify {
            _ if !has_own_load => Verify::Off,
            // Without a warm-up, no payload was checked.
            Verify::Sample if warmup_bytes == 0 && scenario.cell.workload().is_stream() => Verify::Off,
            verify => verify,
        },
        cpu: CpuTime { client_seconds: seconds(client.cpu), subject_seconds: seconds(subject.cpu) },
        switches: SwitchFacts { client: client.switches, subject: subject.switches },
        peak_rss_bytes: if is_carried { counters.carrier_peak_rss_bytes } else { platform::peak_rss_bytes() },
        reordered: counters.reordered,
        device_drops: counters.drops,
        link: counters.faults.filter(|_| !scenario.cell.impairments.is_none()),
        queue_facts: counters.queues,
        packets: counters.packets.unwrap_or_default().into(),
        program: program.map(Box::new),
        started_unix_ms: since_1970.and_then(|time| u64::try_from(time.as_millis()).ok()),
        device,
        effective,
        ..measured
    };
    let mut environment = crate::environment();
    environment.program.go_forwarder = go::version([scenario]);
    blame(&cell, environment.machine.damage(), &mut measured);
    Sample { measured: measured.judged(&cell), cell, environment: Arc::new(environment) }
}

/// Names a fault of the kernel in a run that may have failed by it: the kernel sent bytes to a device that arrived changed.
fn blame(cell: &Cell, damage: Option<&str>, measured: &mut Measurements) {
    if let (Status::Corrupt, Some(damage), Subject::Path(_)) = (measured.status, damage, cell.subject())
        && cell.mode != Some(Mode::Reader)
    {
        let detail = measured.detail.take().unwrap_or_default();
        measured.detail = Some(format!("{detail}; this need not be the stack: {damage}"));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_kernel_that_changes_packets_is_named_where_it_sent_them() {
        for (options, status, is_named) in [
            ("-m writer -n lwip", Status::Corrupt, true),
            ("-m rr -n lwip", Status::Corrupt, true),
            ("-m writer -n lwip", Status::Stalled, false),
            ("-m reader -n lwip", Status::Corrupt, false),
            ("-m writer --layer loopback", Status::Corrupt, false),
        ] {
            let cli = Cli::try_parse_from(format!("x {options}").split_whitespace()).unwrap();
            let cell = Scenario::try_from(cli.run).unwrap().cell;
            let mut measured = Measurements { status, detail: Some("byte 7".to_owned()), ..Measurements::default() };
            blame(&cell, Some("the kernel"), &mut measured);
            let is_as_expected = measured.detail.unwrap().ends_with("the kernel") == is_named;
            assert!(is_as_expected, "{options} {status}");
        }
    }

    /// A thread for each of many streams would be beyond the limits of most containers.
    #[test]
    fn a_run_needs_as_many_threads_as_it_starts() {
        let processors = platform::parallelism().unwrap();
        for (options, threads) in [
            ("-m both --parallel 10000", 2 * processors + 1),
            ("-m reader --parallel 64 --client-threads 8", processors + 8 + 1),
            ("-m rr --parallel 64 --client-threads 8 --background both", processors + 8 + 2 + 1),
        ] {
            let arguments = format!("x --layer loopback --runtime multi-thread {options}");
            let cli = Cli::try_parse_from(arguments.split_whitespace()).unwrap();
            let scenario = Scenario::try_from(cli.run).unwrap();
            assert_eq!(super::threads(&scenario, &Load::of(&scenario).unwrap()), threads, "{options}");
        }
    }
}
