//! A child process: reads its task from standard input and does it.

use std::io::{BufRead, Write};

use platform::{Class, PROTOCOL, line, read_line};

use crate::error::RunError;
use crate::protocol::{Greeting, Message, Task};
use crate::subject::forward::carry::carry;

/// Does the task in the first line of `input`, and prints the result to `output`.
pub fn child(
    mut input: impl BufRead + Send + 'static,
    mut output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let failed = |operation, object| move |source| platform::Error::new(Class::Failed, operation, object, source);
    let task = read_line(&mut input).map_err(failed("read", "the task from standard input"))?;
    match Message::parse(&task.unwrap_or_default())?.task {
        Task::Hello => {
            let greeting = line(&Greeting { protocol: PROTOCOL, environment: crate::environment() });
            let written = output.write_all(greeting.as_bytes()).and_then(|()| output.flush());
            Ok(written.map_err(failed("write", "the answer to standard output"))?)
        }
        Task::Carry(task) => carry(&task, input, output),
    }
}
