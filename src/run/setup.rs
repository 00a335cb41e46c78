//! Sets a run up: the network, the runtime, the layer.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use netstacks::Effective;
use platform::{Class, Counted, Interrupts, MemoryLink, TcpStatistics, TunDevice};
use tokio::runtime::{Builder, Runtime};

use super::meter::difference;
use super::stack::Starter;
use super::supervisor::Outcome;
use super::{RunError, device, loopback, memory, path};
use crate::plan::{RuntimeKind, Scenario, Subject, Verify};
use crate::sample::{CpuTime, DeviceFacts, Environment, Facts, Sample, StackCell, TcpFacts};

/// How long the runtime's threads may take to end.
pub(super) const PARTING: Duration = Duration::from_secs(5);

/// What a run opens beside its sockets: the reactor, the signals, the device and what sets it up.
const DESCRIPTORS: usize = 16;

/// What a layer has to tell.
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// The client's congestion control.
    pub(super) congestion: Option<String>,
    pub(super) device: Option<DeviceFacts>,
    pub(super) effective: Option<Effective>,
}

/// Runs a scenario, with the stack that the starter knows where there is one in it.
pub(super) fn execute(
    scenario: &Scenario,
    stack: &(impl Starter<Counted<TunDevice>> + Starter<Counted<MemoryLink>>),
) -> Result<Sample, RunError> {
    let started = SystemTime::now();
    let isolated = isolate(scenario)?;
    let runtime = probe(scenario).and_then(|()| runtime(scenario.runtime)).map_err(|source| {
        platform::Error::new(Class::Failed, "start", "the runtime and the clients", source)
            .remedy("raise the limits on processes and open files (ulimit -u, ulimit -n), or lower --worker-threads and --parallel")
    })?;
    let result = runtime.block_on(run(scenario, isolated, stack));
    // Not for ever, should a task be stuck.
    runtime.shutdown_timeout(PARTING);
    Ok(sample(scenario, result?, started))
}

/// A network of the run's own, for what leaves traces in the host's or would find some there. A stack over
/// memory has nothing to do with either. The kernel's loopback leaves nothing behind, so without the right
/// to a network of its own it is the host's, firewall and all. Answers whether the run has its own.
fn isolate(scenario: &Scenario) -> Result<bool, RunError> {
    match scenario.subject {
        _ if !scenario.isolated => Ok(false),
        Subject::Stack(..) => Ok(false),
        Subject::Path(..) | Subject::Device => Ok(platform::enter_netns().map(|()| true)?),
        Subject::Loopback(_) => match platform::enter_netns() {
            Err(error) if error.class() == Class::Unavailable => Ok(false),
            isolated => Ok(isolated.map(|()| true)?),
        },
    }
}

/// Whether there are threads and descriptors for a run. Tokio panics where one is missing, and a
/// runtime that lacks a thread half-way never ends.
fn probe(scenario: &Scenario) -> io::Result<()> {
    let clients = usize::from(scenario.parallel.get());
    let workers = match scenario.runtime {
        RuntimeKind::CurrentThread => 0,
        RuntimeKind::MultiThread(Some(workers)) => workers.get(),
        RuntimeKind::MultiThread(None) => thread::available_parallelism().map_or(1, Into::into),
    };
    let sockets = match scenario.subject {
        // A listener, and both ends of a stream.
        Subject::Loopback(_) => 3 * clients,
        _ => clients,
    };
    let descriptors: Vec<_> = (0..sockets + DESCRIPTORS).map(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).collect();
    descriptors.into_iter().collect::<io::Result<Vec<_>>>()?;
    // All are alive at once: none ends before the lock is free.
    let barrier = Mutex::new(());
    thread::scope(|scope| {
        let held = barrier.lock();
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, || drop(barrier.lock()));
        let threads: io::Result<Vec<_>> = (0..workers + clients).map(spawn).collect();
        drop(held);
        threads.map(drop)
    })
}

fn runtime(kind: RuntimeKind) -> io::Result<Runtime> {
    let mut builder = match kind {
        RuntimeKind::CurrentThread => Builder::new_current_thread(),
        RuntimeKind::MultiThread(workers) => {
            let mut builder = Builder::new_multi_thread();
            if let Some(workers) = workers {
                builder.worker_threads(workers.get());
            }
            builder
        }
    };
    builder.enable_all().build()
}

async fn run(
    scenario: &Scenario,
    isolated: bool,
    stack: &(impl Starter<Counted<TunDevice>> + Starter<Counted<MemoryLink>>),
) -> Result<Ran, RunError> {
    // Before there is anything to be left behind.
    let interrupts =
        Interrupts::catch().map_err(|source| platform::Error::new(Class::Failed, "catch", "interrupts", source))?;
    match scenario.subject {
        Subject::Path(kind, _) => path::run(scenario, kind, stack, interrupts).await,
        Subject::Stack(kind, _) => memory::run(scenario, kind, stack, interrupts).await,
        Subject::Loopback(_) => loopback::run(scenario, isolated, interrupts).await,
        Subject::Device => device::run(scenario, interrupts).await,
    }
}

fn sample(scenario: &Scenario, ran: Ran, started: SystemTime) -> Sample {
    let Ran { outcome, congestion, device, effective } = ran;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let offload = device.as_ref().is_some_and(|device| device.offload);
    let mut cell = StackCell::of(scenario, offload);
    if let (Some(mtu), Some(device)) = (&mut cell.mtu, &device) {
        *mtu = device.mtu;
    }
    let facts = Facts {
        status: outcome.status,
        detail: outcome.detail,
        congestion,
        warmup_bytes: scenario.warmup_bytes,
        bytes: outcome.bytes,
        bytes_back: None,
        elapsed: outcome.elapsed,
        verified: verified(scenario.verify, scenario.warmup_bytes),
        cpu: CpuTime {
            client_seconds: seconds(outcome.client_cpu),
            stack_seconds: seconds(difference(outcome.spent.own_cpu, outcome.client_cpu)),
            forwarder_seconds: None,
        },
        peak_rss_bytes: platform::peak_rss_bytes(),
        retransmits: outcome.retransmits,
        reordered: None,
        device_drops: outcome.device_drops,
        packets: outcome.packets.unwrap_or_default().into(),
        tcp: outcome.tcp.as_ref().and_then(tcp),
        intervals: outcome.intervals,
        started_unix_ms: unix_ms(started),
        device,
        effective,
        round: None,
    };
    Sample { cell: cell.into(), facts, environment: Arc::new(Environment::detect()) }
}

/// `None` where the system says nothing at all.
pub(super) fn tcp(statistics: &TcpStatistics) -> Option<TcpFacts> {
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

pub(super) fn unix_ms(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// How much of the payload is really checked: without a warm-up there is no sample of it.
pub(super) fn verified(verify: Verify, warmup_bytes: u64) -> Verify {
    match verify {
        Verify::Sample if warmup_bytes == 0 => Verify::Off,
        verify => verify,
    }
}
