//! The cells of a matrix, and the order in which they are run.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netstacks::StackKind;
use platform::Offload;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{PlanError, check};
use crate::cli::{Choice, Forward, Link, Load, Matrix, Run, Switch};
use crate::measure::Method;
use crate::scenario::{Amount, Cell, DEFAULT_MTU, Layer, Mode, Protocol, ROWS, RuntimeName, Scenario, Workload};

/// How long a run of a matrix delivers by default. It is a time, not a number of bytes, because the rates of the cells
/// differ by a factor of fifty.
const DEFAULT_TIME: Duration = Duration::from_secs(1);

/// The timeout of a run over a bad network in a preset. The run lasts for a second, but some stacks wait for a minute.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(15);

/// About how long a run takes beyond its timed window: for its process, its network, its warm-up and its end.
const OVERHEAD: Duration = Duration::from_millis(350);

/// The same for a run that searches for the highest rate.
const SEARCH: Duration = Duration::from_millis(2500);

/// Requests per second beside a stream in a preset: too few to be a load themselves.
const BESIDE_RATE: u32 = 1000;

/// Rounds of a matrix.
const DEFAULT_RUNS: u32 = 10;

/// Rounds of a table of forwarders.
const DEFAULT_FORWARD_RUNS: u32 = 3;

/// The scenarios of a matrix, and how often each is run.
#[derive(Clone, Debug)]
pub struct MatrixPlan {
    /// One for each cell, in the order of the lists.
    pub scenarios: Vec<Scenario>,
    /// Combinations that were left out, and why.
    pub skipped: Vec<String>,
    /// Rounds.
    pub runs: u32,
    /// The file for the samples.
    pub out: Option<PathBuf>,
    /// Another build of this program, which runs the cells too.
    pub against: Option<PathBuf>,
    /// Seed of the order of each round, if the user gave one.
    pub seed: Option<u64>,
}

impl MatrixPlan {
    /// The order of a round: the indices of its `runs`, shuffled. Each round has its own order, and equal seeds give
    /// equal orders.
    pub fn order(runs: usize, seed: u64, round: u32) -> Vec<usize> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(round.into());
        let mut order: Vec<usize> = (0..runs).collect();
        order.shuffle(&mut random);
        order
    }

    /// About how long the matrix takes; `None` if the length of a run is a number of bytes.
    pub fn time(&self) -> Option<Duration> {
        let of_round = self.scenarios.iter().map(|scenario| match scenario.amount {
            Amount::Time { time, .. } if scenario.workload == Workload::Idle => Some(time + 4 * OVERHEAD),
            Amount::Time { time, .. } if scenario.searches() => Some(time + SEARCH),
            Amount::Time { time, .. } => Some(time + OVERHEAD),
            Amount::Bytes(_) => None,
        });
        let programs = 1 + u32::from(self.against.is_some());
        Some(of_round.sum::<Option<Duration>>()? * self.runs * programs)
    }

    /// The user's seed, or one from the clock.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            // Seconds: short enough to be typed again.
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
        })
    }
}

impl TryFrom<Matrix> for MatrixPlan {
    type Error = PlanError;

    fn try_from(matrix: Matrix) -> Result<Self, PlanError> {
        let mut plan = Self {
            scenarios: Vec::new(),
            skipped: Vec::new(),
            runs: 0,
            out: matrix.out.clone(),
            against: matrix.against.clone(),
            seed: matrix.seed,
        };
        let mut cells = HashSet::new();
        // If every cell has an error, only the first error is reported, with its option.
        let mut first_error = None;
        for run in presets(&matrix).iter().flat_map(runs) {
            if let Some(layer) = left_out(&run, check::isolated(&run), platform::netns_supported()) {
                if !plan.skipped.contains(&layer) {
                    plan.skipped.push(layer);
                }
                continue;
            }
            match Scenario::try_from(run.clone()) {
                // A run is known by its cell, so a second scenario of a cell would not run.
                Ok(scenario) if !cells.insert(Cell::planned(&scenario)) => {}
                Ok(scenario) => plan.scenarios.push(scenario),
                Err(error) => {
                    plan.skipped.push(format!("{}: {error}", name(&run)));
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error
            && plan.scenarios.is_empty()
        {
            return Err(error);
        }
        plan.runs = rounds(matrix.runs, DEFAULT_RUNS, &plan)?;
        Ok(plan)
    }
}

impl TryFrom<Forward> for MatrixPlan {
    type Error = PlanError;

    fn try_from(arguments: Forward) -> Result<Self, PlanError> {
        let mut scenarios = Vec::new();
        for (row, forwarder) in (1..).zip(ROWS) {
            if arguments.all || arguments.row.contains(&row) {
                scenarios.push(Scenario::of_forwarder(forwarder, &arguments)?);
            }
        }
        let mut plan = Self {
            scenarios,
            skipped: Vec::new(),
            runs: 0,
            out: arguments.out,
            against: arguments.against,
            seed: arguments.seed,
        };
        plan.runs = rounds(arguments.runs, DEFAULT_FORWARD_RUNS, &plan)?;
        Ok(plan)
    }
}

/// The number of rounds. With `--against`, too few rounds for a verdict are refused here, before the first run.
fn rounds(asked: Option<u32>, default: u32, plan: &MatrixPlan) -> Result<u32, PlanError> {
    let cells = plan.scenarios.len();
    let needed = if plan.against.is_some() { Method::WithinRounds.runs_needed(cells) as u32 } else { 1 };
    match asked {
        Some(runs) if runs < needed => Err(PlanError::new(
            "--runs",
            format!("a verdict on {cells} cells needs {needed} with --against, not {runs}"),
        )),
        runs => Ok(runs.unwrap_or(default.max(needed))),
    }
}

/// Names a layer that a matrix leaves out, with all its stacks and modes, and says why. A run is `isolated` if the
/// system has namespaces (`supported`) and the user wants one.
fn left_out(run: &Run, isolated: bool, supported: bool) -> Option<String> {
    let networks = if supported { "leave out --netns host" } else { "this system has no namespaces" };
    match run.layer {
        Layer::Device if !isolated => {
            Some(format!("the layer device: it makes a router of its network, so it needs one of its own; {networks}"))
        }
        Layer::Proxy | Layer::Kernel if !isolated => {
            Some(format!("the layer {}: it needs networks of its own; {networks}", run.layer))
        }
        Layer::Device if run.parallel > 1 => Some("the layer device with several streams: it has one".to_owned()),
        _ => None,
    }
}

/// Names a combination that was left out.
fn name(run: &Run) -> String {
    let stack = run.netstack.map(|stack| format!("{stack} ")).unwrap_or_default();
    let mode = run.mode.map(|mode| format!("{mode} ")).unwrap_or_default();
    let version = if run.ipv6 { ", IPv6" } else { "" };
    let streams = if run.parallel == 1 { String::new() } else { format!(", {} streams", run.parallel) };
    let layer = if run.layer == Layer::Path { String::new() } else { format!("{}, ", run.layer) };
    format!("{stack}{mode}{layer}MTU {}{streams}{version}", run.mtu)
}

/// The matrices of a preset; without a preset, the matrix of the lists.
fn presets(matrix: &Matrix) -> Vec<Matrix> {
    use crate::cli::Preset::{All, Connections, Datagrams, Networks, Requests, Stacks, Streams};
    let Some(preset) = matrix.preset else { return vec![matrix.clone()] };
    let one = |switch| vec![Choice::One(switch)];
    let offload = if platform::offload_supported() { Switch::On } else { Switch::Off };
    let beside_loopback = |mode, parallel: &[u16]| Matrix {
        mode: vec![Choice::One(mode)],
        parallel: parallel.to_vec(),
        layer: vec![Choice::One(Layer::Loopback), Choice::One(Layer::Path)],
        runtime: vec![Choice::One(RuntimeName::MultiThread)],
        offload: one(offload),
        ..matrix.clone()
    };
    let mut matrices = Vec::new();
    if matches!(preset, Streams | All) {
        matrices.push(matrix.clone());
    }
    if matches!(preset, Requests | All) {
        matrices.push(beside_loopback(Mode::Rr, &[1, 100, 1000]));
        matrices.push(beside_loopback(Mode::Crr, &[1, 50]));
        let mut beside_stream = beside_loopback(Mode::Rr, &[1]);
        beside_stream.load.background = vec![Mode::Both];
        beside_stream.load.rate = vec![BESIDE_RATE];
        matrices.push(beside_stream);
    }
    if matches!(preset, Connections | All) {
        matrices.push(beside_loopback(Mode::Idle, &[1000]));
    }
    if matches!(preset, Datagrams | All) {
        let mut matrix = beside_loopback(Mode::Rr, &[1]);
        matrix.mode.extend([Choice::One(Mode::Reader), Choice::One(Mode::Writer)]);
        matrix.load.protocol = vec![Choice::One(Protocol::Udp)];
        matrices.push(matrix);
    }
    if matches!(preset, Networks | All) {
        let mut networks = matrix.clone();
        networks.layer = vec![Choice::One(Layer::Kernel), Choice::One(Layer::Path)];
        networks.runtime = vec![Choice::One(RuntimeName::MultiThread)];
        networks.offload = one(Switch::Off);
        networks.link.delay = vec![Duration::ZERO, Duration::from_millis(5)];
        // One packet in a thousand.
        networks.link.loss = vec![0, 1000];
        networks.settings.timeout = matrix.settings.timeout.min(NETWORK_TIMEOUT);
        matrices.push(networks);
    }
    if matches!(preset, Stacks | All) {
        matrices.push(beside_loopback(Mode::Reader, &[1]));
        matrices.push(beside_loopback(Mode::Writer, &[1]));
        matrices.push(beside_loopback(Mode::Rr, &[1, 1000]));
        matrices.push(beside_loopback(Mode::Crr, &[50]));
        matrices.push(beside_loopback(Mode::Idle, &[1000]));
        let mut lossy = beside_loopback(Mode::Reader, &[1]);
        lossy.layer[0] = Choice::One(Layer::Kernel);
        lossy.offload = one(Switch::Off);
        // One packet in a hundred.
        lossy.link.loss = vec![10_000];
        lossy.settings.timeout = matrix.settings.timeout.min(NETWORK_TIMEOUT);
        matrices.push(lossy);
    }
    matrices
}

/// Every combination of the lists, legal or not.
fn runs(matrix: &Matrix) -> Vec<Run> {
    let mut layers = Choice::expand(&matrix.layer);
    if matrix.baseline {
        let baseline = [Layer::Loopback, Layer::Device, Layer::Stack];
        layers = baseline.into_iter().chain(layers.into_iter().filter(|layer| !baseline.contains(layer))).collect();
    }
    let mut runs = Vec::new();
    for &mtu in &matrix.mtu {
        for &parallel in &matrix.parallel {
            for ipv6 in Choice::expand(&matrix.ipv6) {
                for runtime in Choice::expand(&matrix.runtime) {
                    let shared = shared(matrix, mtu, parallel, ipv6 == Switch::On, runtime);
                    for mut load in matrix.load.expand() {
                        // With several protocols, --datagram is for UDP.
                        if load.protocol == Protocol::Tcp && Choice::expand(&matrix.load.protocol).len() > 1 {
                            load.datagram = None;
                        }
                        for link in matrix.link.expand() {
                            let shared = Run { link, load: load.clone(), ..shared.clone() };
                            let is_alone = layers.len() == 1;
                            runs.extend(
                                layers.iter().flat_map(|layer| runs_of_layer(matrix, &shared, *layer, is_alone)),
                            );
                        }
                    }
                }
            }
        }
    }
    runs
}

fn shared(matrix: &Matrix, mtu: u16, parallel: u16, ipv6: bool, runtime: RuntimeName) -> Run {
    let mut settings = matrix.settings.clone();
    if settings.bytes.is_none() {
        settings.time.get_or_insert(DEFAULT_TIME);
    }
    Run {
        mode: None,
        netstack: None,
        current_thread: runtime == RuntimeName::CurrentThread,
        worker_threads: matrix.worker_threads.filter(|_| runtime == RuntimeName::MultiThread),
        offload: Offload::Auto,
        mtu,
        parallel,
        ipv6,
        layer: Layer::Path,
        link: Link::default(),
        load: Load::default(),
        settings,
        tun_fd: None,
        json: true,
        profile: None,
    }
}

/// The combinations of offload, stack and mode. An axis that the layer does not have is left out, so equal cells run
/// once.
fn runs_of_layer(matrix: &Matrix, shared: &Run, layer: Layer, is_alone: bool) -> Vec<Run> {
    let modes: Vec<_> = Choice::expand(&matrix.mode);
    let offloads = offloads(matrix);
    let mut shared = Run { layer, ..shared.clone() };
    if !matches!(layer, Layer::Path | Layer::Proxy | Layer::Kernel) {
        // This layer has no link with conditions.
        shared.link = Link { link_seed: shared.link.link_seed, ..Link::default() };
    }
    // An option that another layer of the list has is left out.
    if !is_alone && matches!(layer, Layer::Loopback | Layer::Kernel) && shared.load.protocol == Protocol::Tcp {
        shared.settings.window = None;
    }
    if !is_alone && layer == Layer::Device {
        shared.load = Load::default();
    }
    let in_mode = |mode: &Mode| of_mode(*mode, &modes, &shared);
    match layer {
        // Loopback has neither the MTU nor the offload of the device.
        Layer::Loopback => modes.iter().map(|mode| Run { mtu: DEFAULT_MTU, ..in_mode(mode) }).collect(),
        Layer::Kernel => {
            let of_mode = |mode| offloads.iter().map(move |offload| Run { offload: *offload, ..in_mode(mode) });
            modes.iter().flat_map(of_mode).collect()
        }
        Layer::Device => offloads.into_iter().map(|offload| Run { offload, ..shared.clone() }).collect(),
        Layer::Stack | Layer::Path | Layer::Proxy | Layer::Forward => {
            let mut runs = Vec::new();
            for offload in offloads {
                let stacks = stacks(matrix);
                for &netstack in &stacks {
                    let of = |mode| {
                        let mut run = Run { netstack: Some(netstack), offload, ..in_mode(mode) };
                        if netstack != StackKind::External && stacks.contains(&StackKind::External) {
                            run.settings.command = None;
                        }
                        run
                    };
                    runs.extend(modes.iter().map(of));
                }
            }
            runs
        }
    }
}

/// The run of a mode, without options that only other modes of the list have.
fn of_mode(mode: Mode, modes: &[Mode], shared: &Run) -> Run {
    let has_requests = |mode: &Mode| matches!(mode, Mode::Rr | Mode::Crr);
    let is_bulk = |mode: &Mode| matches!(mode, Mode::Reader | Mode::Writer | Mode::Both);
    let mut run = Run { mode: Some(mode), ..shared.clone() };
    let (settings, load) = (&mut run.settings, &mut run.load);
    if !is_bulk(&mode) && modes.iter().any(is_bulk) {
        (settings.bytes, settings.warmup) = (None, None);
    }
    if !has_requests(&mode) && modes.iter().any(has_requests) {
        let Load { protocol, datagram, bitrate, .. } = *load;
        *load = Load { protocol, datagram, bitrate, ..Load::default() };
    }
    if mode == Mode::Crr && modes.contains(&Mode::Rr) {
        load.depth = 1;
    }
    if !is_bulk(&mode) && modes.iter().any(is_bulk) {
        load.datagram = None;
        load.bitrate = load.bitrate.filter(|_| load.background.is_some());
    }
    run
}

/// `all` means the stacks of this build. A named stack is kept; the check refuses it if this build lacks it.
fn stacks(matrix: &Matrix) -> Vec<StackKind> {
    let named = |stack: &StackKind| matrix.netstack.contains(&Choice::One(*stack)) || stack.compiled_in();
    Choice::expand(&matrix.netstack).into_iter().filter(named).collect()
}

/// `all` means on and off if the system has offload, else off.
fn offloads(matrix: &Matrix) -> Vec<Offload> {
    let named = |switch: &Switch| {
        platform::offload_supported() || *switch == Switch::Off || matrix.offload.contains(&Choice::One(*switch))
    };
    let switches = Choice::expand(&matrix.offload).into_iter().filter(named);
    switches.map(|switch| if switch == Switch::On { Offload::On } else { Offload::Off }).collect()
}

#[cfg(test)]
mod tests;
