//! Runs the cells of a matrix, round by round, and keeps each sample as it comes.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use netstacks::StackKind;
use platform::Class;

use super::{Executor, Progress, RunError};
use crate::cell::{Cell, Offload, Subject};
use crate::plan::MatrixPlan;
use crate::plan::scenario::Scenario;
use crate::sample::{self, Appender, Environment, FileError, Head, Measurements, Sample, Status};

/// The cells that need no further run: [`settled`](crate::measure::settled).
pub type Settled = fn(&[Sample], f64) -> HashSet<Cell>;

/// Runs a matrix to its end with `this` program, and with another build to compare `against`, if there is one. `arguments`
/// are the program's, for the head of the file. A file that already has samples of this matrix is continued.
///
/// Before its first run, a cell is checked with a short run that compares every byte ([`Scenario::path_check`]). A
/// failure is a sample. Returns all samples, earlier ones first, and an error if the matrix did not finish.
pub fn matrix<X: Executor, E: From<RunError> + From<FileError>>(
    plan: &MatrixPlan,
    arguments: &[String],
    this: &X,
    against: Option<&X>,
    settled: Settled,
    progress: &mut Progress<impl Write>,
) -> (Vec<Sample>, Result<(), E>) {
    let executors: Vec<_> = [this].into_iter().chain(against).collect();
    let mut rounds = match Rounds::begin(plan, arguments, &executors) {
        Ok(rounds) => rounds,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let total = plan.scenarios.len() * plan.runs as usize * executors.len();
    // The file may have runs of later rounds. They are kept, but not counted.
    let done = rounds.done.iter().filter(|run| run.round <= plan.runs).count();
    progress.begin(plan.until.is_none().then_some(total), done, rounds.seed);
    let result = rounds.all(plan, &executors, settled, progress);
    progress.end();
    (rounds.samples, result)
}

/// After so many runs of a cell that timed out or stalled, and none that succeeded, it may be given up.
const ENOUGH: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    cell: Cell,
    round: u32,
    /// Whether the other build makes it.
    against: bool,
}

struct Rounds {
    seed: u64,
    /// The environments of this program and of the other build, if there is one.
    environments: Vec<Arc<Environment>>,
    file: Option<Appender>,
    /// Earlier samples come first.
    samples: Vec<Sample>,
    /// The runs that were made, now or before.
    done: HashSet<Run>,
    /// The cells whose path check succeeded, by program.
    checked: HashSet<(Cell, bool)>,
    /// The subjects that have no offload, so that their runs with it are left out.
    plain: HashSet<Subject>,
    /// Samples of runs that could not begin, as long as no run could. They are kept only if another run begins.
    unavailable: Vec<Sample>,
}

impl Rounds {
    fn begin<E: From<RunError> + From<FileError>>(
        plan: &MatrixPlan,
        arguments: &[String],
        executors: &[&impl Executor],
    ) -> Result<Self, E> {
        let mut heads = Vec::new();
        for executor in executors {
            // Both builds run the same scenarios, so one head names them.
            let scenarios = if heads.is_empty() { plan.scenarios.as_slice() } else { &[] };
            let environment = executor.prepare(&plan.scenarios)?;
            let words = scenarios.iter().map(|scenario| scenario.words.clone()).collect();
            let head = Head::new(environment, arguments.to_vec(), plan.seed(), words);
            let mut profiles: Vec<_> = scenarios.iter().filter_map(Scenario::profile_of_user).collect();
            profiles.dedup();
            heads.push(Head { profiles, ..head });
        }
        Ok(Self::open(plan, heads)?)
    }

    fn open(plan: &MatrixPlan, heads: Vec<Head>) -> Result<Self, FileError> {
        let (file, heads, samples) = match &plan.out {
            Some(path) => {
                let (file, earlier) = Appender::open(path, &heads)?;
                let seed = earlier.heads[0].seed;
                if let Some(asked) = plan.seed.filter(|asked| *asked != seed) {
                    let reason = format!("has the seed {seed}, and not {asked}; leave out --seed to continue it");
                    return Err(FileError::Foreign(path.clone(), reason));
                }
                (Some(file), earlier.heads, earlier.samples)
            }
            None => (None, heads, Vec::new()),
        };
        // A run that was unavailable is tried again.
        let made = samples.iter().filter(|sample| sample.measured.status != Status::Unavailable);
        let run = |sample: &Sample| {
            let Measurements { round, against, .. } = sample.measured;
            Some(Run { cell: sample.cell.clone(), round: round?, against })
        };
        Ok(Self {
            seed: heads[0].seed,
            environments: heads.into_iter().map(|head| Arc::new(head.environment)).collect(),
            file,
            done: made.filter_map(run).collect(),
            samples,
            checked: HashSet::new(),
            plain: HashSet::new(),
            unavailable: Vec::new(),
        })
    }

    /// Makes the rounds until there are enough, each cell is settled or left out, or the time is over, which counts from now.
    fn all<E: From<RunError> + From<FileError>>(
        &mut self,
        plan: &MatrixPlan,
        executors: &[&impl Executor],
        settled: Settled,
        progress: &mut Progress<impl Write>,
    ) -> Result<(), E> {
        let begun = Instant::now();
        for round in 1..=plan.runs {
            let round_begun = Instant::now();
            let settled = plan.until.map(|within| settled(&self.samples, within)).unwrap_or_default();
            let is_over = |scenario| self.is_left_out(scenario) || settled.contains(&scenario.planned());
            if plan.scenarios.iter().all(is_over) {
                break;
            }
            self.round::<E>(plan, round, &settled, executors, progress)?;
            // The next round takes about as long.
            let end = begun.elapsed() + round_begun.elapsed();
            if plan.at_most.is_some_and(|at_most| end > at_most) {
                break;
            }
        }
        Ok(())
    }

    /// Makes each run of this round that was not made before, of the cells that are not settled.
    fn round<E: From<RunError> + From<FileError>>(
        &mut self,
        plan: &MatrixPlan,
        round: u32,
        settled: &HashSet<Cell>,
        executors: &[&impl Executor],
        progress: &mut Progress<impl Write>,
    ) -> Result<(), E> {
        let mut refused = None;
        for (index, program) in MatrixPlan::order(plan.scenarios.len(), executors.len(), self.seed, round) {
            let (scenario, executor) = (&plan.scenarios[index], executors[program]);
            let environment = Arc::clone(&self.environments[program]);
            let run = Run { cell: scenario.planned(), round, against: program > 0 };
            if settled.contains(&run.cell) || !self.done.insert(run.clone()) {
                continue;
            }
            if self.is_left_out(scenario) {
                progress.left_out(None);
                continue;
            }
            let Run { cell, round, against } = run;
            progress.run(round, &cell, against);
            // Each round has its own seed for the link.
            let link_seed = scenario.link_seed.wrapping_add(u64::from(round) - 1);
            let scenario = scenario.seeded(link_seed);
            let result = if plan.gives_up && self.hangs(&cell, against) {
                let detail = format!("not tried: {ENOUGH} of its runs had timed out or stalled");
                Ok(Measurements::failed(Status::GivenUp, detail))
            } else {
                self.execute(&scenario, against, executor)
            };
            let measured = match result {
                Ok(measured) => measured,
                Err(RunError::Interrupted) => return Err(RunError::Interrupted.into()),
                Err(error @ RunError::NoOffload) => {
                    self.leave_out(scenario.cell.subject(), &error, progress);
                    refused.get_or_insert(error);
                    continue;
                }
                Err(error) => {
                    let status = match error.class() {
                        Class::Unavailable => Status::Unavailable,
                        Class::Invalid | Class::Failed => Status::NotStarted,
                    };
                    let measured = Measurements::failed(status, error.to_string());
                    refused.get_or_insert(error);
                    measured
                }
            };
            let measured = Measurements { round: Some(round), against, ..measured };
            let sample = Sample { cell, measured, environment };
            progress.sample(&sample);
            self.keep(sample)?;
        }
        match refused {
            Some(error) if self.samples.is_empty() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn is_left_out(&self, scenario: &Scenario) -> bool {
        scenario.cell.offload == Offload::On && self.plain.contains(&scenario.cell.subject())
    }

    /// Leaves out the runs of a subject with offload from now on.
    fn leave_out(&mut self, subject: Subject, error: &RunError, progress: &mut Progress<impl Write>) {
        self.plain.insert(subject);
        let stack = subject.stack().map_or("", StackKind::name);
        progress.left_out(Some(&format!("{stack} with offload: {error}")));
    }

    /// Whether enough runs of a cell have timed out or stalled, and none has succeeded.
    fn hangs(&self, cell: &Cell, against: bool) -> bool {
        let is_of_cell = |sample: &&Sample| sample.measured.against == against && sample.cell == *cell;
        let of_cell = || self.samples.iter().filter(is_of_cell).map(|sample| sample.measured.status);
        let hung = of_cell().filter(|status| matches!(status, Status::Timeout | Status::Stalled));
        hung.count() >= ENOUGH && !of_cell().any(|status| status == Status::Ok)
    }

    /// Runs a scenario, after a check of its path if that has not succeeded yet.
    fn execute(
        &mut self,
        scenario: &Scenario,
        against: bool,
        executor: &impl Executor,
    ) -> Result<Measurements, RunError> {
        let check = scenario.path_check();
        let key = (check.planned(), against);
        if !self.checked.contains(&key) {
            let measured = executor.execute(&check)?.measured;
            if measured.status != Status::Ok {
                let detail = format!("in the check before the run: {}", measured.detail.unwrap_or_default());
                return Ok(Measurements::failed(measured.status, detail));
            }
            self.checked.insert(key);
        }
        Ok(executor.execute(scenario)?.measured)
    }

    /// Keeps a sample, on the disk first. As long as no run could begin, nothing is kept: once the missing thing is
    /// there, the same command starts from the beginning.
    fn keep(&mut self, sample: Sample) -> Result<(), FileError> {
        if self.samples.is_empty() && sample.measured.status == Status::Unavailable {
            self.unavailable.push(sample);
            return Ok(());
        }
        for sample in self.unavailable.drain(..).chain([sample]) {
            if let Some(file) = &mut self.file {
                file.append(&sample::line(&sample))?;
            }
            let same_run = |other: &Sample| {
                other.measured.status == Status::Unavailable
                    && other.cell == sample.cell
                    && (other.measured.round, other.measured.against)
                        == (sample.measured.round, sample.measured.against)
            };
            match self.samples.iter_mut().find(|other| same_run(other)) {
                Some(earlier) => *earlier = sample,
                None => self.samples.push(sample),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
