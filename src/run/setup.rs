//! Sets a run up: the network, the runtime, the device, the stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use netstacks::{Netstack, StackConfig, StartError, Started, Visitor};
use platform::{Class, Counted, Interrupts, Link, TunConfig, TunDevice};
use tokio::runtime::{Builder, Runtime};

use super::RunError;
use super::supervisor::{Delivery, Outcome, Party};
use super::transfer::{Lane, StartingGate};
use crate::plan::{Mode, RuntimeKind, Scenario, Subject, Verify};
use crate::sample::{Cell, CpuTime, DeviceFacts, Environment, Facts, Packets, Sample};

/// Where the first stream goes; the others go to the ports above. Any would do: the stacks accept
/// them all.
const FIRST_PORT: u16 = 5201;

/// The shortest queue in front of the stack, in packets.
const MIN_TX_QUEUE_LEN: u32 = 4096;

/// The longest. The kernel keeps a pointer for each place, in one piece of at most 4 MiB
/// (`include/linux/ptr_ring.h`), and refuses more.
const MAX_TX_QUEUE_LEN: u64 = 1 << 18;

/// How long the runtime's threads may take to end.
const PARTING: Duration = Duration::from_secs(5);

/// What a run opens beside its sockets: the reactor, the signals, the device and what sets it up.
const DESCRIPTORS: usize = 16;

pub(super) fn execute(scenario: &Scenario) -> Result<Sample, RunError> {
    if scenario.isolated {
        platform::isolate()?;
    }
    let runtime = probe(scenario).and_then(|()| runtime(scenario.runtime)).map_err(|source| {
        platform::Error::new(Class::Failed, "start", "the runtime and the clients", source)
            .remedy("raise the limits on processes and open files (ulimit -u, ulimit -n), or lower --worker-threads and --parallel")
    })?;
    let result = runtime.block_on(run(scenario));
    // Not for ever, should a task be stuck.
    runtime.shutdown_timeout(PARTING);
    result
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
    let descriptors: Vec<_> = (0..clients + DESCRIPTORS).map(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).collect();
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

async fn run(scenario: &Scenario) -> Result<Sample, RunError> {
    // Before there is anything to be left behind.
    let interrupts =
        Interrupts::catch().map_err(|source| platform::Error::new(Class::Failed, "catch", "interrupts", source))?;
    if scenario.tun_fd.is_none() {
        refuse_used_address(scenario.network.address)?;
    }
    let device = TunDevice::open(&TunConfig {
        name: scenario.tun_name.clone(),
        network: scenario.network,
        mtu: scenario.mtu,
        tx_queue_len: tx_queue_len(scenario),
        offload: scenario.offload,
        fd: scenario.tun_fd,
    })?;
    let facts = DeviceFacts {
        name: device.name().to_owned(),
        mtu: device.capabilities().mtu,
        offload: device.capabilities().segmentation.any(),
        tx_queue_len: device.tx_queue_len().ok().flatten(),
    };
    let drops = device.drop_counter();
    let link = Counted::new(device);
    let gate = StartingGate::new(scenario.parallel.get().into(), link.traffic(), move || drops.read());
    let lanes: Arc<[Lane]> = Lane::split(scenario).into();
    let config = StackConfig { window: scenario.window_bytes, ..StackConfig::default() };
    let Subject::Path(netstack, mode) = scenario.subject else { return Err(RunError::Interrupted) };
    let start = Start { link, config, mode, lanes: Arc::clone(&lanes) };
    let (stack, effective) = netstack.visit(start)??;
    let target = SocketAddr::from((scenario.network.peer, FIRST_PORT));
    let outcome = Delivery::new(scenario, mode, lanes, gate, target)?.supervise(stack, interrupts).await?;
    Ok(sample(scenario, outcome, facts, effective))
}

/// An address that another interface has already would take the run's packets away.
fn refuse_used_address(address: IpAddr) -> Result<(), platform::Error> {
    if !platform::is_local_address(address) {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::AddrInUse, "another interface has it already");
    Err(platform::Error::new(Class::Invalid, "use the address", address.to_string(), source)
        .remedy("choose others with --tun-addr, --tun-dest and --tun-name, or leave out --netns host"))
}

fn sample(scenario: &Scenario, outcome: Outcome, device: DeviceFacts, effective: netstacks::Effective) -> Sample {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let packets = outcome.packets;
    let facts = Facts {
        status: outcome.status,
        detail: outcome.detail,
        congestion: outcome.congestion,
        warmup_bytes: scenario.warmup_bytes,
        bytes: outcome.bytes,
        elapsed: outcome.elapsed,
        verified: verified(scenario),
        cpu: CpuTime { client_seconds: seconds(outcome.client_cpu), stack_seconds: seconds(outcome.stack_cpu) },
        peak_rss_bytes: platform::peak_rss_bytes(),
        retransmits: outcome.retransmits,
        device_drops: outcome.device_drops,
        packets: Packets {
            rx: packets.rx_packets,
            tx: packets.tx_packets,
            rx_bytes: packets.rx_bytes,
            tx_bytes: packets.tx_bytes,
        },
        tcp: None,
        intervals: Vec::new(),
        started_unix_ms: None,
        device: Some(device.clone()),
        effective: Some(effective),
        round: None,
    };
    let cell = Cell { mtu: Some(device.mtu), ..Cell::of(scenario, device.offload) };
    Sample { cell, facts, environment: Arc::new(Environment::detect()) }
}

/// How much of the payload is really checked: without a warm-up there is no sample of it.
fn verified(scenario: &Scenario) -> Verify {
    match scenario.verify {
        Verify::Sample if scenario.warmup_bytes == 0 => Verify::Off,
        verify => verify,
    }
}

/// Room in front of the stack for all that the kernel may have under way: a window for each stream
/// in packets of the MTU, half as much again for ACKs and what is small.
fn tx_queue_len(scenario: &Scenario) -> u32 {
    let payload = u64::from(scenario.mtu).saturating_sub(40).max(1);
    let packets = scenario.window_bytes as u64 * u64::from(scenario.parallel.get()) / payload;
    let len = (packets + packets / 2).min(MAX_TX_QUEUE_LEN);
    u32::try_from(len).unwrap_or(u32::MAX).max(MIN_TX_QUEUE_LEN)
}

/// Starts a stack, whichever it is, and its server.
struct Start<L> {
    link: L,
    config: StackConfig,
    mode: Mode,
    lanes: Arc<[Lane]>,
}

impl<L: Link> Visitor<L> for Start<L> {
    type Output = Result<(Party, netstacks::Effective), StartError>;

    fn visit<S: Netstack<L>>(self) -> Self::Output {
        let Started { listener, driver, effective } = S::start(self.link, &self.config)?;
        Ok((Party::spawn(listener, driver, self.mode, self.lanes, lane_of::<S::Stream>), effective))
    }
}

/// Which stream of the run a connection is: the client says it by the port.
fn lane_of<S: netstacks::Stream>(stream: &S) -> Option<usize> {
    stream.local_addr().port().checked_sub(FIRST_PORT).map(usize::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_queue_holds_a_window_of_every_stream() {
        let queue = |arguments: &str| {
            let cli = Cli::try_parse_from(format!("x -m reader -n smoltcp {arguments}").split_whitespace()).unwrap();
            tx_queue_len(&Scenario::try_from(cli.run).unwrap())
        };
        assert_eq!(queue(""), 4308);
        assert_eq!(queue("--window 64KiB"), MIN_TX_QUEUE_LEN);
        assert_eq!(queue("--mtu 576 --parallel 8"), 93_901);
        assert_eq!(queue("--window 1GB --parallel 256"), 1 << 18);
    }
}
