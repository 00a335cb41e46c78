//! The cells of a matrix, and the order in which they are run.

mod presets;
mod time;

pub use self::time::about;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netstacks::StackKind;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use self::presets::Defaults;
use super::PlanError;
use super::run::DEFAULT_TIME;
use super::scenario::Scenario;
use crate::cell::properties::{PROPERTIES, Property};
use crate::cell::{Cell, ROWS, Subject};
use crate::cli::{Forward, Matrix, Rounds, Word, Words, compiled_in};
use crate::measure::Method;
use crate::plural;
use crate::program::Program;

const DEFAULT_RUNS: u32 = 10;

/// The most rounds of a matrix that ends once its figures are known well enough.
const MOST_RUNS: u32 = 10_000;

/// With another build: many short pairs tell more than a few long ones, see docs/method.md.
const DEFAULT_PAIRS: u32 = 40;
const DEFAULT_TIME_OF_A_PAIR: Duration = Duration::from_millis(200);

const DEFAULT_FORWARD_RUNS: u32 = 3;

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
    /// The order of a round: the indices of its cells, shuffled, each with the `programs` that run it, one right after the
    /// other, in turns first. Equal seeds give equal orders.
    pub fn order(cells: usize, programs: usize, seed: u64, round: u32) -> Vec<(usize, usize)> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(round.into());
        let mut order: Vec<usize> = (0..cells).collect();
        order.shuffle(&mut random);
        let turns = |cell: usize| (0..programs).map(move |turn| (cell, (turn + cell + round as usize) % programs));
        order.into_iter().flat_map(turns).collect()
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
        if matrix.baseline && matrix.words.has("program") {
            let reason = "it has the layers of stacks; to compare programs with the kernel, add kernel to --program";
            return Err(PlanError::new("--baseline", reason));
        }
        check_names(&matrix.words)?;
        let (preset, lines) = match matrix.preset {
            Some(preset) => presets::lines(preset, &matrix.words)?,
            None if matrix.baseline => (Defaults::default(), baseline(&matrix.words).to_vec()),
            None => (Defaults::default(), vec![matrix.words.clone()]),
        };
        let Matrix { runs, until, at_most, rounds: Rounds { out, against, seed }, .. } = matrix;
        let until = until.map(|percent| percent / 100.0);
        let gives_up = matrix.give_up || preset.gives_up;
        let mut plan = Self { until, at_most, out, against, seed, gives_up, ..Self::default() };
        let time = if plan.against.is_some() { DEFAULT_TIME_OF_A_PAIR } else { DEFAULT_TIME };
        // If every cell has an error, only the first error is reported, with its option.
        let mut first_error = None;
        let mut taken = HashSet::new();
        for line in lines {
            let line = with_defaults(line);
            for mut words in product(&line)? {
                taken.extend(words.iter().map(|word| word.option.clone()));
                words.extend(line.settings());
                let has_amount = ["bytes", "time"].into_iter().any(|option| line.has(option));
                // Idle connections rest until their memory is compared.
                if !has_amount && !words.contains(&Word::new("mode", "idle")) {
                    words.push(Word::new("time", time.as_secs_f64().to_string()));
                }
                first_error = first_error.or(plan.add(&words).err());
            }
        }
        let is_foreign = |property: &&Property| {
            let option = property.long();
            matrix.words.has(&option) && !taken.contains(&option)
        };
        if let Some(property) = PROPERTIES.iter().find(is_foreign) {
            return Err(PlanError::new(format!("--{}", property.long()), property.others));
        }
        match first_error {
            Some(error) if plan.scenarios.is_empty() => return Err(error),
            _ => {}
        }
        let default = match (until, &plan.against) {
            (Some(_), _) => MOST_RUNS,
            (None, Some(_)) => DEFAULT_PAIRS,
            (None, None) => preset.runs.unwrap_or(DEFAULT_RUNS),
        };
        plan.runs = rounds(runs, default, &plan)?;
        Ok(plan)
    }
}

impl MatrixPlan {
    /// Adds the run of some words, unless its cell is there or this machine has no network for it.
    fn add(&mut self, words: &[Word]) -> Result<(), PlanError> {
        let words: Vec<_> = words.iter().map(Word::to_string).collect();
        match Scenario::of_words(words.clone()) {
            Ok(scenario) if self.scenarios.iter().any(|other| other.planned() == scenario.planned()) => Ok(()),
            Ok(scenario) => {
                match left_out(&scenario.cell, scenario.isolated, platform::netns_supported()) {
                    None => self.scenarios.push(scenario),
                    Some(reason) if !self.skipped.contains(&reason) => self.skipped.push(reason),
                    Some(_) => {}
                }
                Ok(())
            }
            Err(error) => {
                let line = format!("{}: {error}", words.join(" "));
                if !self.skipped.contains(&line) {
                    self.skipped.push(line);
                }
                Err(error)
            }
        }
    }
}

impl TryFrom<Forward> for MatrixPlan {
    type Error = PlanError;

    fn try_from(forward: Forward) -> Result<Self, PlanError> {
        let mut scenarios = Vec::new();
        for (row, words) in (1..).zip(ROWS) {
            if forward.all || forward.row.contains(&row) {
                let row = words.split_whitespace().map(ToOwned::to_owned);
                scenarios.push(Scenario::of_words(row.chain(words_of(&forward)).collect())?);
            }
        }
        let Forward { rounds: Rounds { out, against, seed }, runs, .. } = forward;
        let mut plan = Self { scenarios, out, against, seed, ..Self::default() };
        plan.runs = rounds(runs, DEFAULT_FORWARD_RUNS, &plan)?;
        Ok(plan)
    }
}

pub(super) fn forwarder(forward: &Forward) -> Result<Scenario, PlanError> {
    let rust = (!forward.words.has("forwarder")).then(|| "--forwarder=rust".to_owned());
    let profile = forward.profile.as_ref().map(|path| format!("--profile={}", path.display()));
    Scenario::of_words(words_of(forward).chain(rust).chain(profile).collect())
}

fn words_of(forward: &Forward) -> impl Iterator<Item = String> {
    let mode = match (forward.reverse, forward.bidir) {
        (_, true) => Some("--mode=both"),
        (true, false) => Some("--mode=reader"),
        (false, false) => None,
    };
    let words = forward.words.0.iter().flat_map(|(option, texts)| texts.iter().map(|text| Word::new(option, text)));
    words.map(|word| word.to_string()).chain(mode.map(ToOwned::to_owned))
}

/// Every combination of the values of a line, as the words of its run. A word is left out of the cells that do not take it.
fn product(line: &Words) -> Result<Vec<Vec<Word>>, PlanError> {
    let mut all = vec![Vec::new()];
    for option in PROPERTIES.iter().map(Property::long).filter(|option| line.has(option)) {
        let values = line.values(&option);
        let with = |words: &Vec<Word>, value: &String| {
            let mut words = words.clone();
            words.push(Word::new(&option, value));
            words
        };
        all = all.iter().flat_map(|words| values.iter().map(|value| with(words, value)).collect::<Vec<_>>()).collect();
    }
    let mut combinations: Vec<Vec<Word>> = Vec::new();
    for mut words in all {
        drop_foreign(&mut words)?;
        if !combinations.contains(&words) {
            combinations.push(words);
        }
    }
    Ok(combinations)
}

/// Drops the words of properties that their cell does not have.
fn drop_foreign(words: &mut Vec<Word>) -> Result<(), PlanError> {
    loop {
        let line: Vec<_> = words.iter().map(Word::to_string).collect();
        let cell = Cell::of_words(&line).map_err(|error| super::of_parser(&error))?;
        let foreign = PROPERTIES.iter().filter(|property| !property.is_of(&cell)).map(Property::long);
        let Some(at) = foreign.into_iter().find_map(|long| words.iter().position(|word| word.option == long)) else {
            return Ok(());
        };
        words.remove(at);
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

/// Names a subject that a matrix leaves out, and says why. `supported`: the system has namespaces.
fn left_out(cell: &Cell, isolated: bool, supported: bool) -> Option<String> {
    let networks = if supported { "leave out --netns host" } else { "this system has no namespaces" };
    match cell.subject() {
        _ if isolated => None,
        Subject::Device => {
            Some(format!("the layer device: it makes a router of its network, so it needs one of its own; {networks}"))
        }
        subject @ (Subject::Program(_) | Subject::Kernel) => {
            Some(format!("the {}: it needs networks of its own; {networks}", subject.name()))
        }
        _ => None,
    }
}

/// Refuses two programs with one name: they would share a row.
fn check_names(words: &Words) -> Result<(), PlanError> {
    let mut known: HashMap<_, Program> = HashMap::new();
    for typed in words.values("program") {
        let program: Program =
            typed.parse().map_err(|reason| PlanError::new("--program", format!("{typed}: {reason}")))?;
        match known.get(&program.name) {
            Some(other) if other.profile() != program.profile() => {
                let remedy = "give one of them another in a profile; see docs/your-program.md";
                return Err(PlanError::new(
                    "--program",
                    format!("two programs have the name {}; {remedy}", program.name),
                ));
            }
            _ => drop(known.insert(program.name, program)),
        }
    }
    Ok(())
}

/// The lines of the layers, and of the kernel behind the device, the reference of the path.
fn baseline(words: &Words) -> [Words; 2] {
    let layers = if words.has("layer") { words.values("layer") } else { vec!["path".to_owned()] };
    let mut of_layers = words.clone();
    of_layers.0.retain(|(option, _)| option != "layer");
    let mut of_kernel = of_layers.clone();
    of_layers.or("layer", format!("loopback,device,stack,{}", layers.join(",")));
    of_kernel.0.retain(|(option, _)| option != "netstack");
    of_kernel.or("netstack", StackKind::Kernel.name());
    [of_layers, of_kernel]
}

/// The words of a line, with the defaults of those that were left out.
fn with_defaults(mut line: Words) -> Words {
    if line.has("current-thread") {
        line.0.retain(|(option, _)| option != "current-thread");
        line.or("runtime", "current-thread");
    }
    if line.has("forwarder") {
        line.or("offload", "auto");
        line.or("mode", "writer");
    } else if line.has("program") || line.has("device") {
        // A program has the settings that it is started with, and our proxy the usual ones.
        line.or("runtime", "multi-thread");
        line.or("offload", "auto");
    } else {
        line.or("netstack", compiled_in().join(","));
        line.or("runtime", "current-thread,multi-thread");
        line.or("offload", "all");
    }
    line.or("mode", "reader,writer");
    let on = if platform::offload_supported() { "on" } else { "off" };
    for (_, texts) in line.0.iter_mut().filter(|(option, _)| option == "offload") {
        for text in texts {
            *text = text.replace("auto", on);
        }
    }
    line
}

#[cfg(test)]
mod tests;
