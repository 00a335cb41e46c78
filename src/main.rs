//! The `rust-tun-perf` command.

use std::process::ExitCode;

use clap::Parser;
use rust_tun_perf::cli::Cli;

fn main() -> ExitCode {
    match rust_tun_perf::main(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
