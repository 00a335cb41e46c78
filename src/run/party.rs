//! The stack's side of a run: tasks on the runtime under test.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use netstacks::Listener;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::failure::{Failure, SERVER};
use super::server;
use super::transfer::{Lane, TransferError};
use crate::sample::Status;

/// A task that is told to end does so when it is polled next. One that does not is stuck.
const PARTING: Duration = Duration::from_secs(5);

/// The stack's side of a run: its server, and the driver, which ends only where something fails, on the runtime
/// under test.
pub(super) struct Party {
    /// `None` once it has ended.
    driver: Option<JoinHandle<Failure>>,
    /// `None` once it has ended.
    server: Option<JoinHandle<Result<(), Failure>>>,
}

impl Party {
    /// Starts the driver, and a server that serves one connection for each lane. `lane_of` says which lane a
    /// connection is for.
    pub(super) fn spawn<Li: Listener>(
        listener: Li,
        driver: impl Future<Output = Failure> + Send + 'static,
        lanes: Arc<[Lane]>,
        lane_of: impl Fn(&Li::Stream) -> Option<usize> + Send + 'static,
    ) -> Self {
        let driver = Some(tokio::spawn(driver));
        let server = Some(tokio::spawn(serve_all(listener, lanes, lane_of)));
        Self { driver, server }
    }

    /// Starts a side that is one task: it delivers to itself.
    pub(super) fn alone(task: impl Future<Output = Result<(), Failure>> + Send + 'static) -> Self {
        Self { driver: None, server: Some(tokio::spawn(task)) }
    }

    /// Waits until the server is done, or either fails; for ever, once both have ended.
    pub(super) async fn next(&mut self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            result = ended(&mut self.driver) => {
                Err(result.unwrap_or_else(|error| Failure::of_join("the stack", error)))
            }
            result = ended(&mut self.server) => match result {
                Ok(result) => result,
                Err(error) => Err(Failure::of_join("the server", error)),
            },
        }
    }

    /// Ends both and waits for it. A panic on the way is a failure, too.
    pub(super) async fn end(self) -> Result<(), Failure> {
        let driver = end("the stack", self.driver).await;
        let server = end("the server", self.server).await;
        driver.and(server)
    }
}

/// The end of a task, which is taken note of; never that of one that has ended before.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(running) => {
            let result = running.await;
            *task = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// Ends a task, if it has not ended before, and waits for it.
async fn end<T>(who: &str, task: Option<JoinHandle<T>>) -> Result<(), Failure> {
    let Some(task) = task else { return Ok(()) };
    task.abort();
    match tokio::time::timeout(PARTING, task).await {
        Ok(Err(error)) if error.is_panic() => Err(Failure::of_join(who, error)),
        Ok(_) => Ok(()),
        Err(_) => Err(Failure { status: Status::Stalled, detail: format!("{who} did not end when it was told to") }),
    }
}

/// Accepts a connection for each lane and serves it, until all have been served or one has failed.
async fn serve_all<Li: Listener>(
    mut listener: Li,
    lanes: Arc<[Lane]>,
    lane_of: impl Fn(&Li::Stream) -> Option<usize>,
) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let mut awaited = lanes.len();
    while awaited > 0 || !tasks.is_empty() {
        tokio::select! {
            stream = listener.accept(), if awaited > 0 => {
                let stream = stream.map_err(|error| {
                    Failure::of_transfer(SERVER, &TransferError::Io { operation: "accept", source: error })
                })?;
                // The run's own network has nobody else in it; the host's may, and they are ignored.
                let Some(index) = lane_of(&stream).filter(|index| *index < lanes.len()) else { continue };
                awaited -= 1;
                let lanes = Arc::clone(&lanes);
                tasks.spawn(async move { server::serve(stream, &lanes[index]).await });
            }
            Some(result) = tasks.join_next() => match result {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Failure::of_transfer(SERVER, &error)),
                Err(error) => return Err(Failure::of_join("the server", error)),
            },
        }
    }
    Ok(())
}
