//! The end of another process in words.

use super::ProcessEnd;
use super::child::End;
use crate::Class;

/// `main` prints this in front of its one error.
const ERROR: &str = "error: ";

/// The advice at the end of a panic's message begins with this.
const PANIC_NOTE: &str = "note: ";

/// Longest line of another process in an error, in characters.
const MAX_LINE: usize = 1000;

impl End {
    /// How the process of this name ended, with the last line that it printed.
    pub fn told(&self, name: &str) -> String {
        last_words(&ending(&format!("the {name}"), &self.by), &self.stderr)
    }

    /// The error that the process printed before it ended, if its exit code is one of this program's.
    pub fn stated_error(&self) -> Option<(Class, String)> {
        let class = match self.by {
            ProcessEnd::Exited(1) => Class::Failed,
            ProcessEnd::Exited(2) => Class::Invalid,
            ProcessEnd::Exited(3) => Class::Unavailable,
            _ => return None,
        };
        let text = self.stderr.lines().rev().find_map(|line| line.strip_prefix(ERROR))?;
        Some((class, shown(text)))
    }
}

/// How this process ended.
pub fn ending(process: &str, by: &ProcessEnd) -> String {
    match by {
        ProcessEnd::Exited(code) => format!("{process} ended with exit code {code}"),
        ProcessEnd::Interrupted => format!("{process} was interrupted"),
        ProcessEnd::Crashed(reason) => format!("{process} died of {reason}"),
    }
}

/// The end of a process, with the last line that it printed.
pub fn last_words(end: &str, printed: &str) -> String {
    last_lines(end, printed, 1)
}

/// The same with up to so many lines.
pub fn last_lines(end: &str, printed: &str, count: usize) -> String {
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with(PANIC_NOTE);
    let mut lines: Vec<_> = printed.lines().rev().map(str::trim).filter(is_said).take(count).map(shown).collect();
    lines.reverse();
    if lines.is_empty() { end.to_owned() } else { format!("{end}; its last words: {}", lines.join(" / ")) }
}

/// A line of another process. It cannot control a terminal.
pub fn shown(line: &str) -> String {
    line.chars().take(MAX_LINE).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
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
}
