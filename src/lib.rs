//! Throughput of userspace TCP/IP stacks over a TUN device, measured so that the figure can be
//! trusted.
//!
//! The program is a pipeline, and its modules are the stages: what the user typed ([`cli`]) is
//! checked and becomes a [`plan`], which [`run`] executes, whose facts are [`sample`]s, which [`measure`]
//! makes into figures, which [`mod@report`] writes down. A stage knows only the stages before it; what a
//! sample is comes before the runs that make it.

pub mod cli;
pub mod measure;
pub mod plan;
pub mod report;
pub mod run;
pub mod sample;

use std::env;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use platform::profile::{self, Profiler};

use crate::cli::{Cli, Format};
use crate::measure::{CompareError, Comparison, Summary};
use crate::plan::{ForwardScenario, Forwarder, MatrixPlan, Plan, PlanError};
use crate::report::{SaveError, Series};
use crate::run::{Executor, MatrixError, ProcessExecutor, RunError, TunExecutor};
use crate::sample::{Cell, FileError, Planned, Sample, SampleFile, Status};

/// Why the program did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The run could not begin, or was interrupted.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run was made and failed.
    #[error("the run failed: {status}: {detail}")]
    Sample {
        /// How.
        status: Status,
        /// Where and why.
        detail: String,
    },
    /// Of the runs of a matrix, some failed.
    #[error("{failed} of {runs} runs failed; the table says how")]
    Failed {
        /// How many did.
        failed: usize,
        /// Of how many.
        runs: usize,
    },
    /// The doctor found no stack that can read and write here.
    #[error("this machine cannot make a run; see above what is missing")]
    Unfit,
    /// A comparison found cells that changed for the worse.
    #[error("{worse} of {cells} cells got slower or broke")]
    Slower {
        /// How many.
        worse: usize,
        /// Of how many.
        cells: usize,
    },
    /// Two files of samples cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A file of samples is wrong, or cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A report could not be written to its file.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The result could not be written.
    #[error("write the result to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// The exit code that scripts see: 1 a run that failed, or a cell that got slower, 2 wrong arguments or
    /// files, or too few runs to compare, 3 a right or a device that is missing, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) | Self::Compare(_) => 2,
            Self::File(error) if error.is_input() => 2,
            Self::Run(error) => error.exit_code(),
            Self::Unfit => 3,
            Self::Sample { .. }
            | Self::Failed { .. }
            | Self::Slower { .. }
            | Self::Output(_)
            | Self::Save(_)
            | Self::File(_) => 1,
        }
    }
}

impl From<MatrixError> for Error {
    fn from(error: MatrixError) -> Self {
        match error {
            MatrixError::Run(error) => Self::Run(error),
            MatrixError::File(error) => Self::File(error),
        }
    }
}

/// Where the program writes.
#[derive(Debug)]
pub struct Console<'a, O, E> {
    /// Results.
    pub out: &'a mut O,
    /// Everything else.
    pub err: &'a mut E,
    /// Whether `err` is a terminal, where a bar may be drawn.
    pub terminal: bool,
    /// How many columns `out` has, where it is a terminal.
    pub columns: Option<u16>,
}

/// Does what the user asked for, with a TUN device: one run here, many in processes of their own.
///
/// # Errors
///
/// See [`Error`].
pub fn main(cli: Cli) -> Result<(), Error> {
    run::end_with_parent()?;
    let terminal = io::stderr().is_terminal();
    let columns = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    // Not locked: a panic in another thread is to be told there, too.
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    main_with(cli, &TunExecutor, &ProcessExecutor::this_program(), Console { out, err, terminal, columns })
}

/// Does what the user asked for, with any executors and to any writers: one run `within` this process,
/// those of a command `apart` from it.
///
/// # Errors
///
/// See [`Error`].
pub fn main_with(
    cli: Cli,
    within: &(impl Executor + Executor<ForwardScenario>),
    apart: &(impl Executor + Executor<ForwardScenario>),
    console: Console<'_, impl Write, impl Write>,
) -> Result<(), Error> {
    match Plan::try_from(cli)? {
        Plan::Run { scenario, json, profile: None } => one_run(&*scenario, json, within, console),
        Plan::Run { scenario, profile: Some(file), .. } => {
            let title = Cell::planned(&*scenario).to_string();
            profiled(&title, Some(&file), || succeeded(within.execute(&*scenario)?))?;
            unscored(&file, console)
        }
        Plan::Matrix(plan) => {
            let columns = console.columns;
            matrix(&plan, apart, console, |samples, out| report::table(&Summary::of(samples), columns, out))
        }
        Plan::Forward { scenario, json } => match &scenario.profile {
            Some(file) => {
                succeeded(within.execute(&*scenario)?)?;
                unscored(file, console)
            }
            None => one_run(&*scenario, json, within, console),
        },
        Plan::ForwardTable(plan) => matrix(&plan, apart, console, report::forward_table),
        Plan::Compare { old, new, floor, relative } => compare(&old, &new, floor, relative, console.out),
        Plan::Report { files, format, out: file } => report(&files, format, file.as_deref(), console.out),
        Plan::Doctor => doctor(apart, console.out),
        Plan::Forwarder { ends, way, profile } => {
            profiled(&Forwarder::Rust(way).to_string(), profile.as_deref(), || {
                Ok(run::forwarder(&ends, &way, BufReader::new(io::stdin()), io::stdout())?)
            })
        }
    }
}

/// Runs all cells, and makes a table of what there is, even where the user has had enough.
fn matrix<S: Planned, O: Write>(
    plan: &MatrixPlan<S>,
    executor: &impl Executor<S>,
    console: Console<'_, O, impl Write>,
    table: impl Fn(&[Sample], &mut O) -> io::Result<()>,
) -> Result<(), Error> {
    let Console { out, err, terminal, .. } = console;
    for combination in &plan.skipped {
        writeln!(err, "left out: {combination}")?;
    }
    let arguments = env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let mut progress = report::Progress::new(&mut *err, terminal);
    let (samples, ended) = run::matrix(plan, arguments, executor, &mut progress);
    if !samples.is_empty() {
        table(&samples, out)?;
    }
    if let (Err(_), Some(file)) = (&ended, plan.out.as_ref().filter(|_| !samples.is_empty())) {
        writeln!(err, "{} samples are in {}; the same command goes on with it", samples.len(), file.display())?;
    }
    ended?;
    match samples.iter().filter(|sample| has_failed(sample)).count() {
        0 => Ok(()),
        failed => Err(Error::Failed { failed, runs: samples.len() }),
    }
}

/// Whether a run failed. A row of a published table that this machine has no program for has not: it stays empty.
fn has_failed(sample: &Sample) -> bool {
    match (&sample.cell, sample.facts.status) {
        (Cell::Forward(_), Status::Unavailable) => false,
        (_, status) => status != Status::Ok,
    }
}

fn compare(old: &Path, new: &Path, floor: f64, relative: bool, out: &mut impl Write) -> Result<(), Error> {
    let [old, new] = [SampleFile::read(old)?.samples, SampleFile::read(new)?.samples];
    let compare = if relative { Comparison::relative } else { Comparison::of };
    let comparison = compare(&old, &new, floor)?;
    report::comparison(&comparison, &measure::differences(&old, &new), out)?;
    match comparison.worse() {
        0 => Ok(comparison.answers()?),
        worse => Err(Error::Slower { worse, cells: comparison.cells.len() }),
    }
}

fn report(files: &[PathBuf], format: Format, file: Option<&Path>, out: &mut impl Write) -> Result<(), Error> {
    let files = files.iter().map(|file| SampleFile::read(file)).collect::<Result<Vec<_>, _>>()?;
    let series = Series::of(&files);
    let Some(file) = file else { return Ok(report::report(&series, format, out)?) };
    let mut content = Vec::new();
    report::report(&series, format, &mut content)?;
    Ok(report::save(file, &content)?)
}

fn doctor(executor: &impl Executor, out: &mut impl Write) -> Result<(), Error> {
    let can_run = run::doctor(&run::facts(), executor, |check| report::check(check, out).map_err(Error::from))?;
    if can_run { Ok(()) } else { Err(Error::Unfit) }
}

fn one_run<S>(
    scenario: &S,
    json: bool,
    executor: &impl Executor<S>,
    console: Console<'_, impl Write, impl Write>,
) -> Result<(), Error> {
    let Console { out, err, .. } = console;
    let sample = executor.execute(scenario)?;
    if json {
        report::json(&sample, out)?;
    } else {
        report::text(&sample, out, err)?;
    }
    succeeded(sample)
}

/// Does something, and makes a flame graph of this process meanwhile where there is a file for it.
fn profiled(title: &str, file: Option<&Path>, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let Some(file) = file else { return work() };
    let profiler = Profiler::start(profile::FREQUENCY_HZ).map_err(RunError::from)?;
    work()?;
    let mut graph = Vec::new();
    profiler.finish(title, &mut graph).map_err(RunError::from)?;
    Ok(report::save(file, &graph)?)
}

/// Says of a run that its figure is nobody's concern: it was disturbed by whoever looked on.
fn unscored(file: &Path, console: Console<'_, impl Write, impl Write>) -> Result<(), Error> {
    let Console { err, .. } = console;
    Ok(writeln!(err, "the flame graph is in {}; this run is not scored", file.display())?)
}

fn succeeded(sample: Sample) -> Result<(), Error> {
    match sample.facts.status {
        Status::Ok => Ok(()),
        status => Err(Error::Sample { status, detail: sample.facts.detail.unwrap_or_default() }),
    }
}
