//! The cells of a matrix, and the order in which they are run.

mod presets;
mod time;

pub use self::time::about;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netstacks::Workarounds as Repairs;
use platform::Offload;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::check::{self, DEFAULT_TIME};
use super::{PlanError, axes};
use crate::cli::axes::{compiled_in, offloads};
use crate::cli::list::One;
use crate::cli::{Axes, Forward, List, Matrix, Preset, Run, Switch};
use crate::measure::Method;
use crate::program::Profile;
use crate::scenario::{Cell, DEFAULT_MTU, Layer, Mode, ROWS, RuntimeName, Scenario, plural};

/// Rounds of a matrix.
const DEFAULT_RUNS: u32 = 10;

/// The most rounds of a matrix that ends once its figures are known well enough.
const MOST_RUNS: u32 = 10_000;

/// Rounds of a table of forwarders.
const DEFAULT_FORWARD_RUNS: u32 = 3;

/// Why a scenario is left out whose cell has another one.
const SAME_CELL: &str = "it differs from another run in what no cell has, such as --verify; use one value in a matrix";

/// The scenarios of a matrix, and how often each is run.
#[derive(Clone, Debug, Default)]
pub struct MatrixPlan {
    /// One for each cell, in the order of the lists.
    pub scenarios: Vec<Scenario>,
    /// Combinations that were left out, and why.
    pub skipped: Vec<String>,
    /// Rounds, or the most of them.
    pub runs: u32,
    /// Rounds end before that once the interval of each cell's median is within this share of it.
    pub until: Option<f64>,
    /// No round begins that would end later than this.
    pub at_most: Option<Duration>,
    /// The file for the samples.
    pub out: Option<PathBuf>,
    /// Another build of this program, which runs the cells too.
    pub against: Option<PathBuf>,
    /// Seed of the order of each round, if the user gave one.
    pub seed: Option<u64>,
    /// Whether a cell is not tried again if two of its runs have timed out or stalled, and none has succeeded.
    pub gives_up: bool,
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
            until: matrix.until.map(|percent| percent / 100.0),
            at_most: matrix.at_most,
            out: matrix.out.clone(),
            against: matrix.against.clone(),
            seed: matrix.seed,
            gives_up: matrix.preset.is_some_and(presets::gives_up),
            ..Self::default()
        };
        let mut cells = HashSet::new();
        // If every cell has an error, only the first error is reported, with its option.
        let mut first_error = None;
        for axes in runs(&matrix)? {
            let isolated = check::isolated(&matrix.settings, None);
            if let Some(layer) = left_out(axes.layer(), isolated, platform::netns_supported()) {
                if !plan.skipped.contains(&layer) {
                    plan.skipped.push(layer);
                }
                continue;
            }
            let name = name(&axes);
            let (mut settings, json) = (matrix.settings.clone(), true);
            if let Some(timeout) = matrix.preset.and_then(|preset| presets::timeout(preset, &axes)) {
                settings.timeout = settings.timeout.min(timeout);
            }
            match Scenario::try_from(Run { axes, settings, tun_fd: None, json, profile: None }) {
                // A run is known by its cell, so a second scenario of a cell would not run.
                Ok(scenario) if !cells.insert(told_apart(&scenario, matrix.preset)) => {
                    let line = format!("{name}: {SAME_CELL}");
                    let is_told = plan.scenarios.contains(&scenario) || plan.skipped.contains(&line);
                    if matrix.preset.is_none() && !is_told {
                        plan.skipped.push(line);
                    }
                }
                Ok(scenario) => plan.scenarios.push(scenario),
                Err(error) => {
                    plan.skipped.extend(match matrix.preset {
                        Some(Preset::Cores) => presets::left_out_once(&plan.skipped, &name, &error),
                        _ => Some(format!("{name}: {error}")),
                    });
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error
            && plan.scenarios.is_empty()
        {
            return Err(error);
        }
        let default = match matrix.until {
            Some(_) => MOST_RUNS,
            None => matrix.preset.and_then(presets::rounds).unwrap_or(DEFAULT_RUNS),
        };
        plan.runs = rounds(matrix.runs, default, &plan)?;
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
        let Forward { out, against, seed, .. } = arguments;
        let mut plan = Self { scenarios, out, against, seed, ..Self::default() };
        plan.runs = rounds(arguments.runs, DEFAULT_FORWARD_RUNS, &plan)?;
        Ok(plan)
    }
}

/// The cell of a scenario. A preset has one of two cells in which the same repairs are active, such as those with and without
/// a repair that needs offload, where there is none.
fn told_apart(scenario: &Scenario, preset: Option<Preset>) -> (Cell, Option<Vec<Cow<'static, str>>>) {
    let cell = Cell::planned(scenario);
    match preset {
        Some(_) => (Cell { repairs: Repairs::ALL, ..cell.clone() }, Some(cell.active_repairs())),
        None => (cell, None),
    }
}

/// The number of rounds. With `--against`, too few rounds for a verdict are refused here, before the first run.
fn rounds(asked: Option<u32>, default: u32, plan: &MatrixPlan) -> Result<u32, PlanError> {
    let cells = plan.scenarios.len();
    let needed = if plan.against.is_some() { Method::WithinRounds.runs_needed(cells) as u32 } else { 1 };
    match asked {
        Some(runs) if runs < needed => Err(PlanError::new(
            "--runs",
            format!("a verdict on {} needs {needed} with --against, not {runs}", plural(cells, "cell")),
        )),
        runs => Ok(runs.unwrap_or(default.max(needed))),
    }
}

/// Names a layer that a matrix leaves out, with all its stacks and modes, and says why. A run is `isolated` if the
/// system has namespaces (`supported`) and the user wants one.
fn left_out(layer: Layer, isolated: bool, supported: bool) -> Option<String> {
    let networks = if supported { "leave out --netns host" } else { "this system has no namespaces" };
    match layer {
        _ if isolated => None,
        Layer::Device => {
            Some(format!("the layer device: it makes a router of its network, so it needs one of its own; {networks}"))
        }
        Layer::Proxy | Layer::Program | Layer::Kernel => {
            Some(format!("the layer {layer}: it needs networks of its own; {networks}"))
        }
        Layer::Loopback | Layer::Stack | Layer::Path | Layer::Forward => None,
    }
}

/// Names a combination that was left out.
fn name(axes: &Axes) -> String {
    let contender = axes.program.one().map(|program| program.name.to_string());
    let contender = contender.or_else(|| axes.netstack.one().map(|stack| stack.to_string()));
    let stack = contender.map(|name| format!("{name} ")).unwrap_or_default();
    let mode = axes.mode.one().map(|mode| format!("{mode} ")).unwrap_or_default();
    let version = if axes.ipv6.one() == Some(Switch::On) { ", IPv6" } else { "" };
    let streams = axes.parallel.one().filter(|count| *count != 1);
    let streams = streams.map(|count| format!(", {count} streams")).unwrap_or_default();
    let shards = axes.shards.one().filter(|count| *count != 1);
    let shards = shards.map(|count| format!(", {count} shards")).unwrap_or_default();
    let layer = if axes.layer() == Layer::Path { String::new() } else { format!("{}, ", axes.layer()) };
    let mtu = axes.mtu.one().unwrap_or(DEFAULT_MTU);
    format!("{stack}{mode}{layer}MTU {mtu}{streams}{shards}{version}")
}

/// The cells of a matrix, or of its preset.
fn runs(matrix: &Matrix) -> Result<Vec<Axes>, PlanError> {
    check_names(&matrix.axes.program)?;
    if matrix.baseline && !matrix.axes.program.is_empty() {
        let reason = "it has the layers of stacks; to compare programs with the kernel, add kernel to --program";
        return Err(PlanError::new("--baseline", reason));
    }
    let Some(preset) = matrix.preset else { return axes::product(&with_defaults(matrix, &matrix.axes), &matrix.axes) };
    if let Some(option) = axes::chosen_by_presets(&matrix.axes) {
        return Err(PlanError::new(option, "--preset chooses it; leave one of them out"));
    }
    if preset == Preset::Programs && matrix.axes.netstack.is_some() {
        return Err(PlanError::new("--netstack", "the preset has programs; --program takes the name of a stack, too"));
    }
    let mut cells = Vec::new();
    for lists in presets::lists(preset, &matrix.axes) {
        cells.extend(axes::product(&with_defaults(matrix, &lists), &Axes::default())?);
    }
    if preset == Preset::Cores {
        cells = cells.iter().flat_map(|cell| presets::sharded(cell, &matrix.axes)).collect();
    }
    Ok(cells)
}

/// Refuses two programs with one name: they would share a row.
fn check_names(lists: &[List<Profile>]) -> Result<(), PlanError> {
    let programs: Vec<_> = lists.iter().flat_map(List::values).collect();
    let is_other = |program: &Profile, other: &Profile| program.name == other.name && program != other;
    match programs.iter().find(|program| programs.iter().any(|other| is_other(program, other))) {
        Some(program) => {
            let remedy = "give one of them another in a profile; see docs/your-program.md";
            Err(PlanError::new("--program", format!("two programs have the name {}; {remedy}", program.name)))
        }
        None => Ok(()),
    }
}

/// The lists of a matrix, with the defaults of those that were left out.
fn with_defaults(matrix: &Matrix, asked: &Axes) -> Axes {
    let mut axes = asked.clone();
    if matrix.baseline {
        let layers = axes.layer.as_ref().map_or(&[Layer::Path][..], List::values);
        axes.layer = List::new([Layer::Loopback, Layer::Device, Layer::Stack].iter().chain(layers).copied());
    }
    axes.runtime = axes.runtimes().or_else(|| List::new([RuntimeName::CurrentThread, RuntimeName::MultiThread]));
    axes.current_thread = false;
    axes.netstack = axes.netstack.or_else(|| List::new(compiled_in()));
    axes.mode = axes.mode.or_else(|| List::new([Mode::Reader, Mode::Writer]));
    let explicit = |offload: &Offload| match offload {
        Offload::Auto if platform::offload_supported() => Offload::On,
        Offload::Auto => Offload::Off,
        explicit => *explicit,
    };
    let offloads = axes.offload.as_ref().map_or_else(offloads, |list| list.values().to_vec());
    axes.offload = List::new(offloads.iter().map(explicit));
    if axes.bytes.is_none() && axes.time.is_none() {
        axes.time = List::new([DEFAULT_TIME]);
    }
    axes
}

#[cfg(test)]
mod tests;
