//! A process that does a part of a run, and the lines that it exchanges with the process that has started it.
//!
//! Each order is a string in JSON on a line of its own. The task comes before them, as a line or as arguments.
//!
//! | it reads | it does |
//! |---|---|
//! | its task | gets ready, and prints `{"ready": …}` |
//! | `"start"` | begins: what it has made is set up by now |
//! | `"report"` | prints its report so far, as one line of JSON |
//! | the end of the file | stops |

use std::fmt;
use std::io::{self, BufReader, PipeReader};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::child::{Child, Conversation, End, Orders, read_line};
use super::words::{ending, last_words, shown};
use crate::Namespace;

/// The version of the lines. It grows when a task or an order changes its meaning.
pub const PROTOCOL: u32 = 1;

/// The order to begin.
pub(super) const START: &str = "\"start\"";

/// The order to report.
pub(super) const REPORT: &str = "\"report\"";

/// How long a worker may take to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to end if it is not ready.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The line of JSON for a value, with its line feed.
pub fn line(value: &impl Serialize) -> String {
    // Never fails: the values have text, numbers and lists.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

/// The first line of a worker.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer<R> {
    Ready(R),
}

/// Reads the line that says that a worker is ready; `None` if it is another line.
pub fn parse_ready<R: DeserializeOwned>(line: &str) -> Option<R> {
    serde_json::from_str(line).ok().map(|Answer::Ready(ready)| ready)
}

/// A process that gets ready to work.
#[derive(Debug)]
pub struct Worker {
    process: Child,
    first: oneshot::Receiver<String>,
}

/// Why a worker is not ready. It has ended.
#[derive(Debug)]
pub enum NotReady {
    /// It ended by itself.
    Ended(Arc<End>),
    /// It printed another line.
    Said(String),
    /// It did not print anything in time.
    Late,
    /// Nobody waits for it any more.
    Cancelled,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(end) => {
                f.write_str(&last_words(&format!("{} before it was ready", ending("it", &end.by)), &end.stderr))
            }
            Self::Said(line) => write!(f, "it printed {:?} before it was ready", shown(line.trim())),
            Self::Late => write!(f, "it was not ready within {} s, and was killed", READY_TIMEOUT.as_secs()),
            Self::Cancelled => f.write_str("nobody waits for it"),
        }
    }
}

impl Worker {
    /// Starts a worker with this task in the calling thread's network or in `network`. `listen` reads what it prints after
    /// its first line, on a thread of its own. Call it within a runtime. The process ends with the calling thread at the
    /// latest.
    pub fn listen(
        mut command: Command,
        network: Option<&Namespace>,
        task: impl Into<Vec<u8>>,
        listen: impl FnOnce(Orders, BufReader<PipeReader>) + Send + 'static,
    ) -> io::Result<Self> {
        crate::end_with_this_thread(&mut command);
        let (said, first) = oneshot::channel();
        let process = Child::listen(command, network, move |orders, mut output| {
            if let Ok(Some(line)) = read_line(&mut output) {
                let _unheard = said.send(line);
                listen(orders, output);
            }
        })?;
        // If it has ended already, it is not going to be ready.
        let _ended = process.orders().send(task);
        Ok(Self { process, first })
    }

    /// The same for a worker that answers its orders one by one. A line that nobody waits for is dropped.
    pub fn converse(
        command: Command,
        network: Option<&Namespace>,
        task: impl Into<Vec<u8>>,
    ) -> io::Result<(Self, Conversation)> {
        let (lines, answers) = sync_channel(1);
        let worker = Self::listen(command, network, task, move |_, mut output| {
            while let Ok(Some(line)) = read_line(&mut output) {
                let _unheard = lines.try_send(line);
            }
        })?;
        let conversation = Conversation::new(worker.process.orders(), answers);
        Ok((worker, conversation))
    }

    /// Waits for its first line; `None` if it prints none within `limit`.
    pub async fn first_line(&mut self, limit: Duration) -> Option<String> {
        timeout(limit, &mut self.first).await.ok()?.ok()
    }

    /// Waits until it is ready, for 10 seconds at most, or until `cancelled`. Returns the process, and what it says of itself.
    pub async fn ready<R: DeserializeOwned>(mut self, cancelled: impl Future) -> Result<(Child, R), NotReady> {
        let said = tokio::select! {
            biased;
            _ = cancelled => {
                self.process.stop(END_TIMEOUT).await;
                return Err(NotReady::Cancelled);
            }
            said = self.first_line(READY_TIMEOUT) => said,
        };
        if let Some(ready) = said.as_deref().and_then(parse_ready) {
            return Ok((self.process, ready));
        }
        self.process.orders().close();
        if let Some(end) = timeout(END_TIMEOUT, self.process.ended()).await.ok().flatten() {
            return Err(NotReady::Ended(end));
        }
        // Its end by a kill is the consequence and not the cause.
        self.process.kill().await;
        Err(said.map_or(NotReady::Late, NotReady::Said))
    }

    /// The process, whatever it has printed.
    pub fn into_process(self) -> Child {
        self.process
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::ProcessEnd;

    fn worker(script: &str) -> (Worker, Conversation) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::converse(command, None, "\"task\"\n").unwrap()
    }

    #[tokio::test]
    async fn a_worker_gets_ready_begins_reports_and_ends() {
        let (worker, conversation) = worker(
            "read task; echo \"{\\\"ready\\\":$task}\"; read start; read report; echo [$start,$report]; read end",
        );
        let (process, task) = worker.ready::<String>(pending::<()>()).await.unwrap();
        process.begin().unwrap();
        let orders: Vec<String> = conversation.report().unwrap();
        assert_eq!((task.as_str(), orders), ("task", vec!["start".to_owned(), "report".to_owned()]));
        assert_eq!(process.stop(END_TIMEOUT).await.unwrap().by, ProcessEnd::Exited(1));
    }

    #[tokio::test]
    async fn a_worker_that_is_not_ready_says_why() {
        for (script, why) in [
            ("echo hello; exec sleep 60", "it printed \"hello\" before it was ready"),
            (
                "echo hello; echo sorry >&2; exit 3",
                "it ended with exit code 3 before it was ready; its last words: sorry",
            ),
            ("kill -9 $$", "it died of SIGKILL before it was ready"),
        ] {
            let reason = worker(script).0.ready::<String>(pending::<()>()).await.unwrap_err();
            assert_eq!(reason.to_string(), why, "{script}");
        }
        let cancelled = worker("read task; echo '{\"ready\":\"\"}'; read end").0.ready::<String>(ready(())).await;
        assert!(matches!(cancelled, Err(NotReady::Cancelled)), "{cancelled:?}");
    }
}
