//! The `rust-tun-perf` command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rust_tun_perf::cli::Cli;

fn main() -> ExitCode {
    match rust_tun_perf::main(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_pipe() => ExitCode::from(error.exit_code()),
        Err(error) => {
            // If standard error is closed, the exit code still reports the failure.
            let _closed = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
