//! A child process: reads its task from standard input and does it.

use std::io::{BufRead, Write};

use conformance::line;
use platform::{Class, read_line};

use super::carry::carry;
use super::error::RunError;
use super::executor::Executor;
use super::protocol::{Greeting, Message, NO_OFFLOAD, PROTOCOL, Task};
use super::socks5;
use crate::sample::{self, Sample};

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
            print(&mut output, &line(&Greeting { protocol: PROTOCOL, environment: crate::environment() }))?;
            Ok(None)
        }
        Task::Run(scenario) => {
            let result = executor.execute(&scenario);
            let answer = match &result {
                Ok(sample) => sample::line_of_its_own(sample),
                Err(RunError::NoOffload) => NO_OFFLOAD.to_owned(),
                Err(_) => return result.map(Some),
            };
            print(&mut output, &(answer + "\n"))?;
            result.map(Some)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::{Cursor, Read};

    use clap::Parser;
    use platform::{End, ProcessEnd};

    use super::*;
    use crate::cli::Cli;
    use crate::plan::Plan;
    use crate::run::process_executor::outcome;
    use crate::scenario::Scenario;

    /// Its process opens the device without offload.
    struct Plain;

    impl Executor for Plain {
        fn execute(&self, _scenario: &Scenario) -> Result<Sample, RunError> {
            Err(RunError::NoOffload)
        }
    }

    #[test]
    fn a_process_without_offload_is_told_apart_from_one_that_is_missing() {
        let plan =
            Plan::try_from(Cli::try_parse_from(["x", "-m", "rr", "-n", "lwip", "--offload", "on"]).unwrap()).unwrap();
        let Plan::Run { scenario, .. } = plan else { unreachable!("a constant of this test") };
        let (mut reader, writer) = std::io::pipe().unwrap();
        let task = Message::line(Task::Run(scenario.clone()));
        let error = child(&Plain, Cursor::new(task), writer).unwrap_err();
        let mut stdout = Vec::new();
        reader.read_to_end(&mut stdout).unwrap();
        let by = ProcessEnd::Exited(error.exit_code().into());
        let end = End { by, stdout, stderr: format!("error: {error}\n") };
        assert!(matches!(outcome(&scenario, &end), Err(RunError::NoOffload)));
        let missing = End { stdout: Vec::new(), ..end };
        assert!(matches!(outcome(&scenario, &missing), Err(RunError::Process { class: Class::Unavailable, .. })));
    }
}
