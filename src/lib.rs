//! Throughput of userspace TCP/IP stacks over a TUN device, measured so that the figure can be
//! trusted.
//!
//! The program is a pipeline, and its modules are the stages: what the user typed ([`cli`]) is
//! checked and becomes a [`plan`], which [`run`] executes, whose facts [`measure`] makes into
//! figures, which [`report`] writes down. A stage knows only the stages before it.

pub mod cli;
pub mod measure;
pub mod plan;
pub mod report;
pub mod run;

use std::io;

use crate::cli::Cli;
use crate::measure::Figures;
use crate::plan::{Plan, PlanError};
use crate::run::{Executor, RunError, Status, TunExecutor};

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
            Self::Run(error) => error.exit_code(),
            Self::Sample { .. } | Self::Output(_) => 1,
        }
    }
}

/// Does what the user asked for, with a TUN device.
///
/// # Errors
///
/// See [`Error`].
pub fn main(cli: Cli) -> Result<(), Error> {
    main_with(cli, &TunExecutor, &mut io::stdout().lock(), &mut io::stderr().lock())
}

/// Does what the user asked for, with any executor and to any writers.
///
/// # Errors
///
/// See [`Error`].
pub fn main_with(
    cli: Cli,
    executor: &impl Executor,
    out: &mut impl io::Write,
    err: &mut impl io::Write,
) -> Result<(), Error> {
    let Plan { scenario, json } = Plan::try_from(cli)?;
    let sample = executor.execute(&scenario)?;
    let figures = Figures::of(&sample);
    if json {
        report::json(&sample, &figures, out)?;
    } else {
        report::text(&sample, &figures, out, err)?;
    }
    match sample.status {
        Status::Ok => Ok(()),
        status => Err(Error::Sample { status, detail: sample.detail.unwrap_or_default() }),
    }
}
