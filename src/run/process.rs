//! Other processes: their output, their errors and their end.

use std::env;
use std::io;
use std::time::Duration;

use platform::Class;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::time::timeout;

use super::error::RunError;

/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(25);

/// Most bytes of standard output that are kept. The intervals of a run take 5 MB at most.
pub(super) const MAX_STDOUT: u64 = 16 << 20;

/// Most bytes of standard error that are kept, from its end: the reason of a crash comes last.
const MAX_STDERR: usize = 64 << 10;

/// The environment variable that tells a child the process ID of its parent: see [`end_with_parent`].
pub(super) const PARENT: &str = "RUST_TUN_PERF_PARENT";

/// `main` prints this in front of its one error.
const ERROR: &str = "error: ";

/// The advice at the end of a panic's message begins with this.
const PANIC_NOTE: &str = "note: ";

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

/// Kills a process and waits until it has ended. It may have ended before.
pub(super) async fn kill(child: &mut Child) {
    let _ended = child.start_kill();
    // A driver of the kernel may hold it for a while. Then it is reaped later.
    let _held = timeout(KILL_TIMEOUT, child.wait()).await;
}

/// Reads a stream up to a limit, and then closes it. A writer that goes on gets an error.
pub(super) async fn head(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_STDOUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Reads all of a stream, and returns its end.
pub(super) async fn tail(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut stream) = stream else { return Ok(bytes) };
    while stream.read_buf(&mut bytes).await? > 0 {
        if bytes.len() >= 2 * MAX_STDERR {
            bytes.drain(..bytes.len() - MAX_STDERR);
        }
    }
    bytes.drain(..bytes.len().saturating_sub(MAX_STDERR));
    Ok(bytes)
}

/// The error that a process printed before it ended with this exit code.
pub(super) fn stated_error(code: i32, stderr: &str) -> Option<RunError> {
    let class = match code {
        1 => Class::Failed,
        2 => Class::Invalid,
        3 => Class::Unavailable,
        _ => return None,
    };
    let text = stderr.lines().rev().find_map(|line| line.strip_prefix(ERROR))?;
    Some(RunError::Process { class, text: text.to_owned() })
}

/// The end of a process, with the last line that it printed.
pub(super) fn last_words(end: &str, stderr: &str) -> String {
    let mut lines = stderr.lines().rev().map(str::trim);
    match lines.find(|line| !line.is_empty() && !line.starts_with(PANIC_NOTE)) {
        Some(line) => format!("{end}; its last words: {line}"),
        None => end.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// A process must not take the memory of its parent by output without end.
    #[tokio::test]
    async fn the_output_of_a_process_has_a_limit() {
        let stdout = tokio::io::repeat(b'x').take(MAX_STDOUT + 1);
        assert_eq!(head(Some(stdout)).await.unwrap().len() as u64, MAX_STDOUT);
        let end = b"the reason".as_slice();
        let stderr = tokio::io::repeat(b'x').take(5 * MAX_STDERR as u64).chain(end);
        let kept = tail(Some(stderr)).await.unwrap();
        assert_eq!((kept.len(), kept.ends_with(end)), (MAX_STDERR, true));
    }
}
