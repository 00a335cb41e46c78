//! Throughput of userspace TCP/IP stacks over a TUN device, measured so that the figure can be
//! trusted.
//!
//! The program is a pipeline, and its modules are the stages: what the user typed ([`cli`]) is
//! checked and becomes a [`plan`], which [`run`] executes, whose facts are [`sample`]s, which [`measure`]
//! makes into figures, which [`report`] writes down. A stage knows only the stages before it; what a
//! sample is comes before the runs that make it.

pub mod cli;
pub mod measure;
pub mod plan;
pub mod report;
pub mod run;
pub mod sample;

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::{Cli, Format};
use crate::plan::{MatrixPlan, Plan, PlanError, Scenario};
use crate::run::{Executor, ProcessExecutor, RunError, TunExecutor};
use crate::sample::{FileError, Status};

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
    /// A file of samples is wrong, or cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result could not be written.
    #[error("write the result to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// The exit code that scripts see: 1 a run that failed, 2 wrong arguments, 3 a right or a device
    /// that is missing, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) => 2,
            Self::File(error) if error.is_input() => 2,
            Self::Run(error) => error.exit_code(),
            Self::Sample { .. } | Self::Output(_) | Self::File(_) => 1,
        }
    }
}

/// Does what the user asked for, with a TUN device: one run here, many in processes of their own.
///
/// # Errors
///
/// See [`Error`].
pub fn main(cli: Cli) -> Result<(), Error> {
    main_with(cli, &TunExecutor, &ProcessExecutor::this_program(), &mut io::stdout().lock(), &mut io::stderr().lock())
}

/// Does what the user asked for, with any executors and to any writers: one run `within` this process,
/// those of a command `apart` from it.
///
/// # Errors
///
/// See [`Error`].
pub fn main_with(
    cli: Cli,
    within: &impl Executor,
    apart: &impl Executor,
    out: &mut impl io::Write,
    err: &mut impl io::Write,
) -> Result<(), Error> {
    match Plan::try_from(cli)? {
        Plan::Run { scenario, json } => one_run(&scenario, json, within, out, err),
        Plan::Matrix(plan) => matrix(&plan, apart, out, err),
        Plan::Compare { old, new, floor } => compare(&old, &new, floor, out),
        Plan::Report { files, format, out: file } => report(&files, format, file.as_deref(), out),
        Plan::Doctor => doctor(apart, out),
    }
}

fn matrix(
    _plan: &MatrixPlan,
    _executor: &impl Executor,
    _out: &mut impl io::Write,
    _err: &mut impl io::Write,
) -> Result<(), Error> {
    todo!()
}

fn compare(_old: &Path, _new: &Path, _floor: f64, _out: &mut impl io::Write) -> Result<(), Error> {
    todo!()
}

fn report(_files: &[PathBuf], _format: Format, _file: Option<&Path>, _out: &mut impl io::Write) -> Result<(), Error> {
    todo!()
}

fn doctor(_executor: &impl Executor, _out: &mut impl io::Write) -> Result<(), Error> {
    todo!()
}

fn one_run(
    scenario: &Scenario,
    json: bool,
    executor: &impl Executor,
    out: &mut impl io::Write,
    err: &mut impl io::Write,
) -> Result<(), Error> {
    let sample = executor.execute(scenario)?;
    if json {
        report::json(&sample, out)?;
    } else {
        report::text(&sample, out, err)?;
    }
    match sample.facts.status {
        Status::Ok => Ok(()),
        status => Err(Error::Sample { status, detail: sample.facts.detail.unwrap_or_default() }),
    }
}
