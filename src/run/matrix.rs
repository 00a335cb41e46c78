//! Runs the cells of a matrix, round by round, and keeps each sample as it comes.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Executor, RunError};
use crate::plan::MatrixPlan;
use crate::sample::{self, Appender, Cell, Environment, Facts, FileError, Head, Planned, Sample, Status};

/// Someone who is told how a matrix gets on.
pub trait Observer {
    /// So many runs are to be made, of which so many were made before, and in this order of the seed.
    fn begin(&mut self, total: usize, done: usize, seed: u64);

    /// A run of a cell begins.
    fn run(&mut self, round: u32, cell: &Cell);

    /// It has ended.
    fn sample(&mut self, sample: &Sample);

    /// No more runs are to come.
    fn end(&mut self);
}

/// Why a matrix did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// No cell could be run at all, or the user stopped it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file of samples is wrong, or cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Runs a matrix to its end. `arguments` are the program's, for the file's head.
///
/// Before its first run a cell is checked: one untimed megabyte, every byte of it compared. A failure is
/// a sample, and the next run goes on. A file that has samples of this matrix already is continued.
///
/// Answers all samples, those from before first, and why there are not more, where there should be.
pub fn matrix<S: Planned>(
    plan: &MatrixPlan<S>,
    arguments: Vec<String>,
    executor: &impl Executor<S>,
    observer: &mut impl Observer,
) -> (Vec<Sample>, Result<(), MatrixError>) {
    let environment = Environment::detect();
    let head = Head {
        id: environment.id(),
        environment,
        arguments,
        seed: plan.seed(),
        plan: plan.scenarios.iter().map(|scenario| scenario.arguments().join(" ")).collect(),
    };
    let mut rounds = match Rounds::open(plan, head) {
        Ok(rounds) => rounds,
        Err(error) => return (Vec::new(), Err(error.into())),
    };
    executor.prepare(&plan.scenarios);
    let total = plan.scenarios.len() * plan.runs as usize;
    // Those of rounds beyond these are kept, and not counted.
    let done = rounds.done.iter().filter(|(_, round)| *round <= plan.runs).count();
    observer.begin(total, done, rounds.seed);
    let result = (1..=plan.runs).try_for_each(|round| rounds.round(plan, round, executor, observer));
    observer.end();
    (rounds.samples, result)
}

/// A matrix under way.
struct Rounds {
    seed: u64,
    environment: Arc<Environment>,
    file: Option<Appender>,
    /// Those from before come first.
    samples: Vec<Sample>,
    /// The cells and rounds whose turn has been, now or before.
    done: HashSet<(Cell, u32)>,
    /// The cells whose path has been found good.
    checked: HashSet<Cell>,
    /// Cells that could not begin, while none has been able to: they are kept only when one is.
    unavailable: Vec<Sample>,
}

impl Rounds {
    fn open<S>(plan: &MatrixPlan<S>, head: Head) -> Result<Self, FileError> {
        let (file, head, samples) = match &plan.out {
            Some(path) => {
                let (file, head, samples) = Appender::open(path, &head)?;
                if let Some(seed) = plan.seed.filter(|seed| *seed != head.seed) {
                    let reason =
                        format!("has the seed {}, and not {seed}; leave out --seed to go on with it", head.seed);
                    return Err(FileError::Foreign { path: path.clone(), reason });
                }
                (Some(file), head, samples)
            }
            None => (None, head, Vec::new()),
        };
        let environment = Arc::new(head.environment);
        let done = samples.iter().filter_map(|sample| Some((sample.cell.clone(), sample.facts.round?))).collect();
        let checked = HashSet::new();
        Ok(Self { seed: head.seed, environment, file, samples, done, checked, unavailable: Vec::new() })
    }

    /// Runs each cell once that has no sample of this round.
    fn round<S: Planned>(
        &mut self,
        plan: &MatrixPlan<S>,
        round: u32,
        executor: &impl Executor<S>,
        observer: &mut impl Observer,
    ) -> Result<(), MatrixError> {
        let mut refused = None;
        for index in plan.order(self.seed, round) {
            let scenario = &plan.scenarios[index];
            let cell = Cell::planned(scenario);
            if !self.done.insert((cell.clone(), round)) {
                continue;
            }
            observer.run(round, &cell);
            let facts = match self.facts(scenario, &cell, executor) {
                Ok(facts) => facts,
                Err(RunError::Interrupted) => return Err(RunError::Interrupted.into()),
                Err(error) => {
                    let facts = Facts::failed(Status::Unavailable, error.to_string());
                    refused.get_or_insert(error);
                    facts
                }
            };
            let facts = Facts { round: Some(round), ..facts };
            let sample = Sample { cell, facts, environment: Arc::clone(&self.environment) };
            observer.sample(&sample);
            self.keep(sample)?;
        }
        match refused {
            Some(error) if self.samples.is_empty() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Runs a scenario, after a check of its path if that has not been found good yet.
    fn facts<S: Planned>(&mut self, scenario: &S, cell: &Cell, executor: &impl Executor<S>) -> Result<Facts, RunError> {
        if !self.checked.contains(cell) {
            let facts = executor.execute(&scenario.path_check())?.facts;
            if facts.status != Status::Ok {
                let detail = format!("in the check before the run: {}", facts.detail.unwrap_or_default());
                return Ok(Facts::failed(facts.status, detail));
            }
            self.checked.insert(cell.clone());
        }
        executor.execute(scenario).map(|sample| sample.facts)
    }

    /// Keeps a sample, on the disk first. While nothing at all can be run, nothing is kept: when what
    /// is missing is there, the same command begins anew.
    fn keep(&mut self, sample: Sample) -> Result<(), FileError> {
        if self.samples.is_empty() && sample.facts.status == Status::Unavailable {
            self.unavailable.push(sample);
            return Ok(());
        }
        for sample in self.unavailable.drain(..).chain([sample]) {
            if let Some(file) = &mut self.file {
                file.append(&sample::line(&sample))?;
            }
            self.samples.push(sample);
        }
        Ok(())
    }
}
