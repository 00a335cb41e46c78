//! The `rust-tun-perf` command.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use rust_tun_perf::cli;

fn main() -> ExitCode {
    match rust_tun_perf::main(cli::parse(env::args_os()).unwrap_or_else(|error| error.exit())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_pipe() => ExitCode::from(error.exit_code()),
        Err(error) => {
            // A file or a program may have put words of its own into the error, which must not control the terminal.
            let text = error.to_string().replace(|letter: char| letter.is_control() && letter != '\n', " ");
            // If standard error is closed, the exit code still reports the failure.
            let _closed = writeln!(io::stderr(), "error: {text}");
            ExitCode::from(error.exit_code())
        }
    }
}
