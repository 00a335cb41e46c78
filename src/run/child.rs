//! A child process: reads its task from standard input and does it.

use std::io::{BufRead, Write};

use conformance::line;
use platform::{Class, read_line};

use super::carry::carry;
use super::error::RunError;
use super::executor::Executor;
use super::protocol::{Greeting, Message, PROTOCOL, Task};
use super::socks5;
use crate::sample::{self, Environment, Sample};

/// Does the task in the first line of `input`, and prints the result to `output`. `executor` executes scenarios.
/// Returns the sample of a run, which has been printed.
///
/// # Errors
///
/// The input is no task of this version of the protocol ([`Class::Invalid`]), or the error of the task.
pub fn child(
    executor: &impl Executor,
    mut input: impl BufRead + Send + 'static,
    mut output: impl Write + Send + 'static,
) -> Result<Option<Sample>, RunError> {
    let task = read_line(&mut input)
        .map_err(|source| platform::Error::new(Class::Failed, "read", "the task from standard input", source))?;
    match Message::parse(&task.unwrap_or_default())?.task {
        Task::Hello => {
            print(&mut output, &line(&Greeting { protocol: PROTOCOL, environment: Environment::detect() }))?;
            Ok(None)
        }
        Task::Run(scenario) => {
            let sample = executor.execute(&scenario)?;
            print(&mut output, &(sample::line_of_its_own(&sample) + "\n"))?;
            Ok(Some(sample))
        }
        Task::Carry(task) => carry(&task, input, output).map(|()| None),
        Task::Socks5(address) => socks5::serve(address, input, output).map(|()| None),
    }
}

fn print(output: &mut impl Write, line: &str) -> Result<(), RunError> {
    output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|source| platform::Error::new(Class::Failed, "write", "the result to standard output", source).into())
}
