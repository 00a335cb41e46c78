//! Other processes: their output, their errors and their end.

pub(crate) mod control;
pub(crate) mod protocol;

use std::env;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use platform::{Child, Class, End, ProcessEnd};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::error::RunError;

/// The environment variable that tells a child the process ID of its parent: see [`end_with_parent`].
pub(crate) const PARENT: &str = "RUST_TUN_PERF_PARENT";

/// `main` prints this in front of its one error.
const ERROR: &str = "error: ";

/// The advice at the end of a panic's message begins with this.
const PANIC_NOTE: &str = "note: ";

/// Longest line of another process in an error, in characters.
const MAX_LINE: usize = 1000;

/// If another process started this one for a run, ties this process to it: when the parent is killed, this process ends
/// too, and does not disturb later runs. Does nothing on a system that cannot do it.
///
/// # Errors
///
/// [`RunError::Interrupted`] if the parent has ended already.
pub fn end_with_parent() -> Result<(), RunError> {
    match env::var(PARENT).ok().and_then(|parent| parent.parse().ok()) {
        Some(parent) if !platform::end_with_parent(parent) => Err(RunError::Interrupted),
        _ => Ok(()),
    }
}

/// Runs a program to its end. It is killed after `limit`, or when the calling thread ends.
pub(crate) fn output(mut command: Command, limit: Duration) -> io::Result<Arc<End>> {
    platform::end_with_this_thread(&mut command);
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let late = |_| io::Error::other(format!("it took longer than {} seconds", limit.as_secs_f64()));
        let child = Child::start(command, "")?;
        let end = timeout(limit, child.ended()).await.map_err(late)?;
        end.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    })
}

/// The output of a program; `None` if it fails, or does not end within `limit`.
pub(crate) fn printed(command: Command, limit: Duration) -> Option<String> {
    let end = output(command, limit).ok().filter(|end| end.by == ProcessEnd::Exited(0))?;
    String::from_utf8(end.stdout.clone()).ok()
}

/// The error that a process printed before it ended, if its exit code is one of this program's.
pub(crate) fn stated_error(End { by, stderr, .. }: &End) -> Option<RunError> {
    let class = match by {
        ProcessEnd::Exited(1) => Class::Failed,
        ProcessEnd::Exited(2) => Class::Invalid,
        ProcessEnd::Exited(3) => Class::Unavailable,
        _ => return None,
    };
    let text = stderr.lines().rev().find_map(|line| line.strip_prefix(ERROR))?;
    Some(RunError::Process { class, text: shown(text) })
}

/// How a process of this name ended.
pub(crate) fn ending(name: &str, by: &ProcessEnd) -> String {
    match by {
        ProcessEnd::Exited(code) => format!("the {name} ended with exit code {code}"),
        ProcessEnd::Interrupted => format!("the {name} was interrupted"),
        ProcessEnd::Crashed(reason) => format!("the {name} died of {reason}"),
    }
}

/// The end of a process, with the last line that it printed.
pub(crate) fn last_words(end: &str, printed: &str) -> String {
    last_lines(end, printed, 1)
}

/// The same with up to so many lines.
pub(crate) fn last_lines(end: &str, printed: &str, count: usize) -> String {
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with(PANIC_NOTE);
    let mut lines: Vec<_> = printed.lines().rev().map(str::trim).filter(is_said).take(count).map(shown).collect();
    lines.reverse();
    if lines.is_empty() { end.to_owned() } else { format!("{end}; its last words: {}", lines.join(" / ")) }
}

/// A line of another process. It cannot control a terminal.
pub(crate) fn shown(line: &str) -> String {
    line.chars().take(MAX_LINE).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_short_and_cannot_control_a_terminal() {
        let note = "note: run with `RUST_BACKTRACE=1`";
        let printed = format!("first\n\u{1b}[2Jone\u{9b}\n\n two \r\n{note}\n");
        assert_eq!(last_words("it ended", &printed), "it ended; its last words: two");
        assert_eq!(last_lines("it ended", &printed, 2), "it ended; its last words:  [2Jone  / two");
        assert_eq!(last_words("it ended", note), "it ended");
        assert_eq!(last_words("", &"ü".repeat(70_000)).chars().filter(|letter| *letter == 'ü').count(), MAX_LINE);
    }

    const DEADLINE: Duration = Duration::from_mins(1);

    #[test]
    fn the_version_of_a_program_is_its_output_or_none() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(printed(shell("echo 1.2; echo 3"), DEADLINE), Some("1.2\n3\n".to_owned()));
        assert_eq!(printed(shell("echo 1.2; exit 1"), DEADLINE), None);
        assert_eq!(printed(Command::new("/nowhere/iperf3"), DEADLINE), None);
        // It prints without end, and is killed.
        assert_eq!(printed(shell("exec yes"), DEADLINE), None);
        // It never ends.
        assert_eq!(printed(shell("echo 1.2; exec sleep 1000"), Duration::from_millis(50)), None);
    }
}
