//! Ends the process of a run that does not end by itself.
//!
//! The run has its timers and its interrupts from the runtime under test. A stack that keeps all workers in a lock stops these too.

use std::io;
use std::process;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use platform::Interrupts;
use tokio::runtime::Builder;
use tokio::sync::oneshot::{self, Receiver, Sender};
use tokio::time::timeout;

/// How long a run may take beyond its timeout: longer than a process that watches it waits, which has a sample of its end.
const GRACE: Duration = Duration::from_secs(30);

/// How long a run may take to end after an interrupt.
const ENDING: Duration = Duration::from_secs(10);

/// A thread with a runtime of its own.
pub(super) struct Watchdog {
    /// Dropping it ends the thread.
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// Starts it for a run with this timeout.
    pub(super) fn start(limit: Duration) -> io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let watch = move || {
            if let Some((code, reason)) = runtime.block_on(watch(ended, limit.saturating_add(GRACE), ENDING)) {
                eprintln!("error: {reason}: a thread of the stack does not return");
                process::exit(code);
            }
        };
        Ok(Self { end, thread: thread::Builder::new().name("watchdog".to_owned()).spawn(watch)? })
    }

    pub(super) fn finish(self) {
        drop(self.end);
        // The thread has no code that could panic.
        let _ended = self.thread.join();
    }
}

/// The exit code of a run that does not end, and the reason; `None` if it ends.
async fn watch(mut ended: Receiver<()>, limit: Duration, ending: Duration) -> Option<(i32, String)> {
    // Without them, the limit is left.
    let interrupts = Interrupts::catch().ok();
    let interrupted = async {
        match interrupts {
            Some(mut interrupts) => interrupts.next().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = &mut ended => None,
        () = tokio::time::sleep(limit) => Some((1, format!("the run did not end within {} s", limit.as_secs_f64()))),
        () = interrupted => {
            let is_late = timeout(ending, ended).await.is_err();
            is_late.then(|| (130, "interrupted, and the run did not end".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_run_that_does_not_end_is_ended() {
        let (end, ended) = oneshot::channel();
        let limit = Duration::from_secs(90);
        let watching = tokio::spawn(watch(ended, limit, ENDING));
        tokio::time::sleep(limit / 2).await;
        assert!(!watching.is_finished());
        drop(end);
        assert_eq!(watching.await.unwrap(), None);
        let (_kept, ended) = oneshot::channel();
        assert_eq!(watch(ended, limit, ENDING).await.unwrap().0, 1);
    }
}
