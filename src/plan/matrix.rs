//! The cells of a matrix, and the order in which they are run.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netstacks::StackKind;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{Amount, PlanError, Scenario, Verify, arguments, check};
use crate::cli::{self, Layer, Matrix, Offload, Run, Runtime, Switch};

/// For how long a cell of a matrix delivers where nothing else is asked for. By time, and not by bytes:
/// the cells' rates differ by a factor of fifty.
const DEFAULT_TIME: Duration = Duration::from_secs(1);

/// What a path is checked with, in bytes for each stream.
pub(super) const CHECKED_BYTES: u64 = 1_000_000;

/// How long the check of a path may take.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// Something that is run, many times and in processes of its own.
pub trait Runnable: Clone + PartialEq {
    /// The arguments of the program that make this run, with no option at its default. One read from them
    /// is equal to this one.
    fn arguments(&self) -> Vec<String>;

    /// A short run of the same cell that compares every byte, to see whether there is a way at all.
    #[must_use]
    fn path_check(&self) -> Self;

    /// After how long the run has failed.
    fn timeout(&self) -> Duration;
}

impl Runnable for Scenario {
    fn arguments(&self) -> Vec<String> {
        arguments::of(self)
    }

    fn path_check(&self) -> Self {
        let bytes = NonZeroU64::MIN.saturating_add(CHECKED_BYTES * u64::from(self.parallel.get()) - 1);
        Self {
            amount: Amount::Bytes(bytes),
            warmup_bytes: 0,
            interval: None,
            verify: Verify::Full,
            timeout: self.timeout.min(CHECK_TIMEOUT),
            ..self.clone()
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// The scenarios of a matrix, and how often each is run.
#[derive(Clone, Debug)]
pub struct MatrixPlan<S = Scenario> {
    /// One for each cell, in the order of the lists.
    pub scenarios: Vec<S>,
    /// Combinations that were left out, and why.
    pub skipped: Vec<String>,
    /// Rounds.
    pub runs: u32,
    /// Where the samples go.
    pub out: Option<PathBuf>,
    /// Of the order of each round, where the user gave one.
    pub seed: Option<u64>,
}

impl<S> MatrixPlan<S> {
    /// In which order a round runs the scenarios: their indices, shuffled. Each round has an order of its
    /// own, and equal seeds give equal orders.
    pub fn order(&self, seed: u64, round: u32) -> Vec<usize> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(round.into());
        let mut order: Vec<usize> = (0..self.scenarios.len()).collect();
        order.shuffle(&mut random);
        order
    }

    /// The user's seed, or one of the clock.
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
            runs: matrix.runs,
            out: matrix.out.clone(),
            seed: matrix.seed,
        };
        // What is wrong with every cell is told once, by its option, and not of each cell.
        let mut first_error = None;
        for run in runs(&matrix) {
            if let Some(layer) = without(&run, check::isolated(&run), platform::netns_supported()) {
                if !plan.skipped.contains(&layer) {
                    plan.skipped.push(layer);
                }
                continue;
            }
            match Scenario::try_from(run.clone()) {
                Ok(scenario) if plan.scenarios.contains(&scenario) => {}
                Ok(scenario) => plan.scenarios.push(scenario),
                Err(error) => {
                    plan.skipped.push(format!("{}: {error}", name(&run)));
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error {
            Some(error) if plan.scenarios.is_empty() => Err(error),
            _ => Ok(plan),
        }
    }
}

/// A layer that a matrix leaves out as a whole, and why: of every stack and mode in it that would be the
/// same. A run is `isolated` where the system has what it takes (`supported`) and the user wants it.
fn without(run: &Run, isolated: bool, supported: bool) -> Option<String> {
    match run.layer {
        Layer::Device if !isolated => Some(format!(
            "the layer device: it makes a router of its network, which is to be the run's own; {}",
            if supported { "leave out --netns host" } else { "this system has none" }
        )),
        Layer::Device if run.parallel > 1 => Some("the layer device with several streams: it has one".to_owned()),
        Layer::Stack if run.parallel > 1 => Some("the layer stack with several streams: it has one".to_owned()),
        _ => None,
    }
}

/// Which combination was left out.
fn name(run: &Run) -> String {
    let stack = run.netstack.map(|stack| format!("{} ", StackKind::from(stack))).unwrap_or_default();
    let mode = run.mode.map(|mode| format!("{} ", super::Mode::from(mode))).unwrap_or_default();
    let version = if run.ipv6 { ", IPv6" } else { "" };
    let streams = if run.parallel == 1 { String::new() } else { format!(", {} streams", run.parallel) };
    let layer = match run.layer {
        Layer::Path => "",
        Layer::Stack => "in memory, ",
        Layer::Loopback => "loopback, ",
        Layer::Device => "device, ",
    };
    format!("{stack}{mode}{layer}MTU {}{streams}{version}", run.mtu)
}

/// Every combination of the lists, legal or not.
fn runs(matrix: &Matrix) -> Vec<Run> {
    let mut runs = Vec::new();
    for mtu in matrix.mtu.values() {
        for parallel in matrix.parallel.values() {
            for ipv6 in matrix.ipv6.values() {
                for runtime in matrix.runtime.values() {
                    let run = shared(matrix, *mtu, *parallel, *ipv6 == Switch::On, *runtime);
                    if matrix.baseline {
                        baselines(matrix, &run, &mut runs);
                    }
                    cells(matrix, &run, Layer::Path, &mut runs);
                }
            }
        }
    }
    runs
}

fn shared(matrix: &Matrix, mtu: u16, parallel: u16, ipv6: bool, runtime: Runtime) -> Run {
    let mut settings = matrix.settings.clone();
    if settings.bytes.is_none() {
        settings.time.get_or_insert(DEFAULT_TIME);
    }
    Run {
        mode: None,
        netstack: None,
        current_thread: runtime == Runtime::CurrentThread,
        worker_threads: matrix.worker_threads.filter(|_| runtime == Runtime::MultiThread),
        offload: Offload::Auto,
        mtu,
        parallel,
        ipv6,
        layer: Layer::Path,
        settings,
        tun_fd: None,
        json: true,
        profile: None,
    }
}

/// Each stack and mode, with and without offload, over one layer.
fn cells(matrix: &Matrix, shared: &Run, layer: Layer, runs: &mut Vec<Run>) {
    for offload in matrix.offload.values() {
        for netstack in matrix.netstack.values() {
            for mode in matrix.mode.values() {
                let (netstack, mode, offload) = (Some(*netstack), Some(*mode), on_or_off(*offload));
                runs.push(Run { mode, netstack, offload, layer, ..shared.clone() });
            }
        }
    }
}

/// The layers alone. Loopback knows neither the device's MTU nor its offload, so of equal cells one is
/// enough.
fn baselines(matrix: &Matrix, shared: &Run, runs: &mut Vec<Run>) {
    for mode in matrix.mode.values() {
        runs.push(Run { mode: Some(*mode), mtu: cli::DEFAULT_MTU, layer: Layer::Loopback, ..shared.clone() });
    }
    for offload in matrix.offload.values() {
        runs.push(Run { offload: on_or_off(*offload), layer: Layer::Device, ..shared.clone() });
    }
    cells(matrix, shared, Layer::Stack, runs);
}

fn on_or_off(switch: Switch) -> Offload {
    match switch {
        Switch::On => Offload::On,
        Switch::Off => Offload::Off,
    }
}

#[cfg(test)]
mod tests;
