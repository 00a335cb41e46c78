//! Throughput of userspace TCP/IP stacks over a TUN device, measured so that the figure can be trusted.
//!
//! The program is a pipeline, whose stages import only earlier ones: [`cli`] parses the command line, [`plan`] checks
//! it and makes [`plan::scenario`]s of it, [`run`] executes these and returns [`sample`]s, [`measure`] computes
//! figures, and [`mod@report`] writes them. The last three are modules of the crate `results`, which opens no device.
//! [`proxy`] is an application of the stacks that a run can measure.
mod error;
mod failure;
mod load;
mod meter;
mod profile;
mod protocol;
pub mod proxy;
pub mod remedy;
pub mod run;
mod socks5;
mod subject;

pub mod cli;
pub mod plan;

pub use results::{cell, measure, plural, program, report, sample, units};

use std::collections::BTreeSet;
use std::env;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use conformance::{Ran, Recording};
use platform::Class;

use crate::cell::Subject;
use crate::cli::{Cli, DEFAULT_FLOOR};
use crate::measure::{CellSummary, CompareError, Comparison, Summary};
use crate::plan::scenario::{Devices, Scenario};
use crate::plan::{ConformPlan, MannersPlan, MatrixPlan, Plan, PlanError};
use crate::report::{SaveError, Series};
use crate::run::{Executor, ProcessExecutor, RunError, TunExecutor};
use crate::sample::{Appender, Environment, FileError, Head, Origin, Sample, SampleFile, Score, Status};

const ORIGIN: Origin =
    Origin { commit: option_env!("RUST_TUN_PERF_COMMIT"), tokio: option_env!("RUST_TUN_PERF_TOKIO") };

pub(crate) fn environment() -> Environment {
    ORIGIN.declare();
    Environment::detect()
}

/// The verdict on results of cases.
const NOT_KNOWN: &str = "results are not the known ones (NEW, or passed although known to fail), so the exit code is 1";

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The run could not begin, or was interrupted.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run began and failed.
    #[error("the run failed: {status}: {detail}")]
    Sample {
        /// The status of its sample.
        status: Status,
        /// The operation that failed, and the cause.
        detail: String,
    },
    /// Some results are bad: runs of a matrix failed, cells got slower, or results of conform are not the known ones.
    #[error("{bad} of {all} {verdict}")]
    Bad {
        /// The number of bad results.
        bad: usize,
        /// The number of all results.
        all: usize,
        /// The kind of results, and how they are bad.
        verdict: String,
    },
    /// The doctor found no stack that can read and write here.
    #[error("this machine cannot make a run; the lines above say what is missing")]
    Unfit,
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
    /// The exit code that scripts see; `docs/usage.md` lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) | Self::Compare(_) => 2,
            Self::File(error) if error.is_input() => 2,
            Self::Run(error) => error.exit_code(),
            Self::Unfit => 3,
            // A shell reports a process that SIGPIPE ended like this: 128 + 13.
            Self::Output(_) if self.is_closed_pipe() => 141,
            Self::Sample { .. } | Self::Bad { .. } | Self::Output(_) | Self::Save(_) | Self::File(_) => 1,
        }
    }

    /// Whether the reader of the output has gone away. That is no fault, and needs no message.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The streams that the program writes to.
#[derive(Debug)]
pub struct Console<'a, O, E> {
    /// Results.
    pub out: &'a mut O,
    /// Everything else.
    pub err: &'a mut E,
    /// Whether `err` is a terminal, on which a progress bar may be drawn.
    pub terminal: bool,
    /// The columns of `out`, if it is a terminal.
    pub columns: Option<u16>,
}

/// Runs the program: a single run in this process, each run of a matrix and of the doctor in a child process.
pub fn main(cli: Cli) -> Result<(), Error> {
    if !platform::end_with_parent() {
        return Err(RunError::Interrupted.into());
    }
    let terminal = io::stderr().is_terminal();
    let columns = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    // Not locked: a panic in another thread must be able to print.
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    match Plan::try_from(cli)? {
        Plan::Child => Ok(run::child(BufReader::new(io::stdin()), io::stdout())?),
        plan => {
            let kept = Arc::default();
            let apart = |program| ProcessExecutor::new(program).sharing(&kept);
            main_with(plan, &TunExecutor, apart, Console { out, err, terminal, columns })
        }
    }
}

/// The same with other writers and executors: `within` for a single run, `apart` for child processes of a program.
pub fn main_with<X: Executor>(
    plan: Plan,
    within: &impl Executor,
    apart: impl Fn(PathBuf) -> X,
    console: Console<'_, impl Write, impl Write>,
) -> Result<(), Error> {
    ORIGIN.declare();
    match plan {
        Plan::Run { scenario, json, verbose } => one_run(&scenario, [json, verbose], within, console),
        Plan::Matrix(plan) => matrix(&plan, apart, console),
        Plan::Compare { old, new, builds: [old_build, new_build], floor } => {
            let old = SampleFile::read(&old)?.into_samples(old_build, "--old-build")?;
            let new = SampleFile::read(&new)?.into_samples(new_build, "--new-build")?;
            verdict(&Comparison::of(&old, &new, floor)?, &old, &new, console.out)
        }
        Plan::ComparePrograms { file, programs, build, floor } => {
            let [old, new] = SampleFile::read(&file)?.into_programs(programs, build, "--new-build")?;
            verdict(&Comparison::within_rounds(&old, &new, floor)?, &old, &new, console.out)
        }
        Plan::Report(asked) => report(&asked, console.out),
        Plan::Conform(plan) => conform(&plan, console),
        Plan::Manners(plan) => manners(&plan, console),
        Plan::Proxy(plan) => Ok(run::serve(&plan, console.out)?),
        Plan::Programs(profiles) => Ok(report::programs(&profiles, console.out)?),
        Plan::ShowProgram(text) => Ok(write!(console.out, "{text}")?),
        Plan::CheckProgram(profile) => Ok(report::program(&profile, console.out)?),
        Plan::Rows => Ok(report::rows(console.columns, console.out)?),
        Plan::Doctor => doctor(&apart(platform::this_program()), console.out),
        Plan::Completions(shell) => Ok(console.out.write_all(&cli::completions(shell))?),
        Plan::Man => Ok(console.out.write_all(&cli::manual()?)?),
        // `main` does this task: only a separate process is a child.
        Plan::Child => Ok(()),
    }
}

fn matrix<X: Executor>(
    plan: &MatrixPlan,
    apart: impl Fn(PathBuf) -> X,
    console: Console<'_, impl Write, impl Write>,
) -> Result<(), Error> {
    let Console { out, err, terminal, columns } = console;
    for combination in &plan.skipped {
        writeln!(err, "left out: {combination}")?;
    }
    if let Some(time) = plan.announced() {
        writeln!(err, "{time}")?;
    }
    let (this, against) = (apart(platform::this_program()), plan.against.clone().map(&apart));
    let mut progress = run::Progress::new(&mut *err, terminal);
    let (samples, ended): (_, Result<(), Error>) =
        run::matrix(plan, &arguments(), &this, against.as_ref(), measure::settled, &mut progress);
    if !samples.is_empty() {
        report::outcome(&samples, columns, out)?;
    }
    if let (Err(_), Some(file)) = (&ended, plan.out.as_ref().filter(|_| !samples.is_empty())) {
        writeln!(err, "{} samples are in {}; the same command continues it", samples.len(), file.display())?;
    }
    ended?;
    if let Some(within) = plan.until {
        unsettled(&samples, within, err)?;
    }
    let verdict = if plan.against.is_some() { compare_programs(&samples, out) } else { Ok(()) };
    if let Some(file) = plan.out.as_ref().map(|file| file.display()) {
        writeln!(
            err,
            "the samples are in {file}; a page of them: rust-tun-perf report {file} --format html --out page.html"
        )?;
    }
    let (known, news): (Vec<_>, Vec<_>) =
        samples.iter().filter(|sample| has_failed(sample)).partition(|sample| measure::known_to_fail(sample).is_some());
    let Some(first) = news.first() else {
        let conditions: BTreeSet<_> = known.iter().filter_map(|sample| measure::known_to_fail(sample)).collect();
        let conditions = conditions.into_iter().collect::<Vec<_>>().join(", ");
        match known.len() {
            0 => writeln!(err, "done")?,
            count => writeln!(err, "done; {} failed, as these rows do {conditions}", plural(count, "run"))?,
        }
        return verdict;
    };
    none_bad(news.len(), samples.len(), &format!("runs failed, the first {}; see the table", first.cell)).and(verdict)
}

fn unsettled(samples: &[Sample], within: f64, err: &mut impl Write) -> io::Result<()> {
    let cells = Summary::of(samples).cells;
    let is_wide = |row: &&CellSummary| row.estimate.is_some_and(|estimate| estimate.half_width() > within);
    match cells.iter().filter(is_wide).count() {
        0 => Ok(()),
        wide => writeln!(
            err,
            "the rounds ended while the intervals of {wide} of {} were wider than ±{} %",
            plural(cells.len(), "cell"),
            within * 100.0
        ),
    }
}

fn arguments() -> Vec<String> {
    env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect()
}

fn compare_programs(samples: &[Sample], out: &mut impl Write) -> Result<(), Error> {
    let (old, new): (Vec<_>, Vec<_>) = samples.iter().cloned().partition(|sample| sample.measured.against);
    verdict(&Comparison::within_rounds(&old, &new, DEFAULT_FLOOR / 100.0)?, &old, &new, out)
}

fn none_bad(bad: usize, all: usize, verdict: &str) -> Result<(), Error> {
    if bad == 0 { Ok(()) } else { Err(Error::Bad { bad, all, verdict: verdict.to_owned() }) }
}

/// Whether a run failed. A forwarder that this machine lacks is no failure: its row of the table stays empty.
fn has_failed(sample: &Sample) -> bool {
    match sample.measured.status {
        Status::Unavailable => sample.cell.forwarder().is_none(),
        status => status != Status::Ok,
    }
}

fn verdict(comparison: &Comparison, old: &[Sample], new: &[Sample], out: &mut impl Write) -> Result<(), Error> {
    report::comparison(comparison, &measure::differences(old, new), out)?;
    none_bad(comparison.worse(), comparison.cells.len(), "cells got slower or broke")?;
    Ok(comparison.answers()?)
}

fn report(asked: &cli::Report, out: &mut impl Write) -> Result<(), Error> {
    let format = asked.format;
    let files = asked.files.iter().map(|file| SampleFile::read(file)).collect::<Result<Vec<_>, _>>()?;
    let mut content = Vec::new();
    let kinds: [fn(&&SampleFile) -> bool; 3] =
        [|file| !file.scores.is_empty(), |file| !file.manners.is_empty(), |file| !file.samples.is_empty()];
    match kinds.map(|has| files.iter().find(has)) {
        [Some(scores), _, Some(other)] | [Some(scores), Some(other), _] | [_, Some(scores), Some(other)] => {
            let (other, what) = (other.path.display(), if other.samples.is_empty() { "programs" } else { "samples" });
            let reason = format!("has results of conform, and {other} has {what}; make a report of each kind");
            return Err(FileError::Foreign(scores.path.clone(), reason).into());
        }
        [Some(_), ..] => report::scorecard(&files, format, &mut content)?,
        [_, Some(_), _] => report::manners_of_files(&files, format, &mut content)?,
        _ => report::report(&Series::of(&files), format, &mut content)?,
    }
    match &asked.out {
        Some(file) => Ok(report::save(file, &content)?),
        None => Ok(out.write_all(&content)?),
    }
}

fn conform(plan: &ConformPlan, console: Console<'_, impl Write, impl Write>) -> Result<(), Error> {
    let Console { out, err, terminal, columns } = console;
    if plan.typed.list {
        return Ok(report::cases(&plan.cases, columns, out)?);
    }
    let count = plan.results();
    let head = Head::new(environment(), arguments(), 0, Vec::new());
    let opened = plan.typed.out.as_ref().map(|path| Appender::open(path, slice::from_ref(&head))).transpose()?;
    let (mut file, earlier) = opened.map(|(file, earlier)| (file, earlier.scores)).unzip();
    let earlier = earlier.unwrap_or_default();
    if plan.typed.json {
        writeln!(out, "{}", head.line())?;
        earlier.iter().try_for_each(|score| writeln!(out, "{}", sample::score_line(score)))?;
    }
    if let Some(folder) = &plan.typed.issue {
        report::make_folder(folder)?;
    }
    let (mut done, begun, before) = (earlier.len(), Instant::now(), earlier.len());
    let scores = run::conform(plan, earlier, |score, ran, recording| {
        done += 1;
        if terminal {
            write!(err, "\r{done} of {count} ")?;
        } else if done % count.div_ceil(10).max(1) == 0 && done < count {
            let left = begun.elapsed() * (count - done) as u32 / (done - before) as u32;
            writeln!(err, "{done} of {count}, {} more", plan::about(left))?;
        }
        if plan.typed.json {
            writeln!(out, "{}", sample::score_line(score))?;
        }
        // A case that was not run is tried again by the same command.
        if let Some(file) = file.as_mut().filter(|_| !score.is_unavailable()) {
            file.append(&sample::score_line(score))?;
        }
        Ok::<_, Error>(write_packets(plan, score, ran, recording, &head.environment)?)
    })?;
    if terminal {
        writeln!(err)?;
    }
    if let Some(folder) = &plan.typed.issue {
        let failed = scores.iter().filter(|score| score.has_failed()).count();
        writeln!(err, "{} in {}", plural(failed, "report"), folder.display())?;
    }
    if !plan.typed.json {
        report::scores(&scores, plan.typed.verbose, columns, out)?;
    }
    // First, because such a file is not complete.
    if let Some(score) = scores.iter().find(|score| score.is_unavailable()) {
        let text = format!("{} is unavailable: {}", score.netstack, score.seen());
        return Err(RunError::Process { class: Class::Unavailable, text }.into());
    }
    none_bad(scores.iter().filter(|score| !score.is_as_known()).count(), scores.len(), NOT_KNOWN)
}

fn manners(plan: &MannersPlan, console: Console<'_, impl Write, impl Write>) -> Result<(), Error> {
    let Console { out, err, terminal, columns } = console;
    if plan.typed.list {
        return Ok(report::list_of_manners(&plan.cases, columns, out)?);
    }
    let count = plan.results();
    let head = Head::new(environment(), arguments(), 0, Vec::new());
    let opened = plan.typed.out.as_ref().map(|path| Appender::open(path, slice::from_ref(&head))).transpose()?;
    let (mut file, earlier) = opened.map(|(file, earlier)| (file, earlier.manners)).unzip();
    let earlier = earlier.unwrap_or_default();
    if plan.typed.json {
        writeln!(out, "{}", head.line())?;
        earlier.iter().try_for_each(|score| writeln!(out, "{}", sample::manner_line(score)))?;
    }
    if let Some(folder) = &plan.typed.issue {
        report::make_folder(folder)?;
    }
    let mut done = earlier.len();
    let scores = run::manners(plan, earlier, |score| {
        done += 1;
        if terminal {
            write!(err, "\r{done} of {count} ")?;
        }
        if plan.typed.json {
            writeln!(out, "{}", sample::manner_line(score))?;
        }
        if let Some(file) = file.as_mut().filter(|_| !score.is_unavailable()) {
            file.append(&sample::manner_line(score))?;
        }
        match plan.typed.issue.as_ref().filter(|_| score.has_failed()) {
            Some(folder) => Ok::<_, Error>(report::issue_of_manners(folder, score, &head.environment)?),
            None => Ok(()),
        }
    })?;
    if terminal {
        writeln!(err)?;
    }
    if !plan.typed.json {
        report::manners(&scores, columns, out)?;
    }
    if let Some(score) = scores.iter().find(|score| score.is_unavailable()) {
        let text = format!("{} is unavailable: {}", score.program, score.seen());
        return Err(RunError::Process { class: Class::Unavailable, text }.into());
    }
    none_bad(scores.iter().filter(|score| !score.is_as_known()).count(), scores.len(), NOT_KNOWN)
}

fn write_packets(
    plan: &ConformPlan,
    score: &Score,
    ran: &Ran,
    recording: &Recording,
    environment: &Environment,
) -> Result<(), SaveError> {
    if let Some(file) = &plan.typed.pcap {
        report::save(file, &recording.pcap())?;
    }
    match plan.typed.issue.as_ref().filter(|_| score.has_failed()) {
        Some(folder) => report::issue(folder, score, ran, recording, plan.typed.command.as_deref(), environment),
        None => Ok(()),
    }
}

fn doctor(executor: &impl Executor, out: &mut impl Write) -> Result<(), Error> {
    let can_run = run::doctor(&run::lacks(), executor, |check| report::check(check, out).map_err(Error::from))?;
    if can_run { Ok(()) } else { Err(Error::Unfit) }
}

fn one_run(
    scenario: &Scenario,
    [json, verbose]: [bool; 2],
    executor: &impl Executor,
    console: Console<'_, impl Write, impl Write>,
) -> Result<(), Error> {
    let Console { out, err, .. } = console;
    let sample = executor.execute(scenario)?;
    if let (Devices::Tun(tun), Some(device), Subject::Path(_)) =
        (&scenario.devices, &sample.measured.device, scenario.cell.subject())
        && device.name != tun.name
        && tun.or_next
    {
        writeln!(err, "note: {} is taken, so the device is {}", tun.name, device.name)?;
    }
    if let Some(file) = &scenario.profile {
        succeeded(sample)?;
        return Ok(writeln!(err, "the flame graph is in {}; this run is not scored", file.display())?);
    }
    if json {
        report::json(&sample, out)?;
    } else {
        report::text(&sample, verbose, out, err)?;
    }
    succeeded(sample)
}

fn succeeded(sample: Sample) -> Result<(), Error> {
    match sample.measured.status {
        Status::Ok => Ok(()),
        status => Err(Error::Sample { status, detail: sample.measured.detail.unwrap_or_default() }),
    }
}
