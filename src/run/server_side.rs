//! The server side of a run: tasks on the runtime under test.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use netstacks::{Datagrams, Listener};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::failure::{Failure, SERVER};
use crate::load::Load;
use crate::load::error::LoadError;
use crate::load::{datagram, request, stream};
use crate::sample::Status;

/// An aborted task ends when it is polled next. One that does not end in this time is stuck.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A task that serves a connection. Boxed: each further type of task makes the compiler generate hundreds of functions.
type Served = BoxFuture<'static, Result<(), LoadError>>;

/// The server of a run, and the driver of its stack, which ends only if something fails.
pub(super) struct ServerSide {
    /// `None` once it has ended.
    driver: Option<JoinHandle<Failure>>,
    /// `None` once it has ended.
    server: Option<JoinHandle<Result<(), Failure>>>,
}

impl ServerSide {
    /// Starts both. In a run without clients, the server is a task that makes the whole load.
    pub(super) fn new(driver: BoxFuture<'static, Failure>, server: BoxFuture<'static, Result<(), Failure>>) -> Self {
        Self { driver: Some(tokio::spawn(driver)), server: Some(tokio::spawn(server)) }
    }

    /// Starts the driver, and a server for this load. `stream_of` returns the index of
    /// the stream that a connection carries. A connection without a stream carries requests, if the load has any. Datagrams
    /// come from `source`.
    pub(super) fn spawn<Li: Listener>(
        listener: Li,
        source: impl Datagrams,
        driver: BoxFuture<'static, Failure>,
        load: &Load,
        stream_of: impl Fn(&Li::Stream) -> Option<usize> + Send + 'static,
    ) -> Self {
        let server = match load.clone() {
            Load::Streams(streams, _) => {
                let count = streams.len();
                let serve = move |connection| {
                    // In the host's network, other programs may connect. Their connections are dropped.
                    let index = stream_of(&connection).filter(|index| *index < streams.len())?;
                    let streams = Arc::clone(&streams);
                    Some(async move { stream::server::serve(connection, &streams[index]).await }.boxed())
                };
                serve_all(listener, count, Box::new(serve)).boxed()
            }
            Load::Datagrams(flows, _) => {
                async move { of_datagrams(datagram::server::serve(source, &flows).await) }.boxed()
            }
            Load::Requests(exchange, _, streams) => {
                let of_requests = Arc::clone(&exchange);
                let serve = move |connection| {
                    let index = stream_of(&connection).filter(|index| *index < streams.len());
                    let (streams, exchange) = (Arc::clone(&streams), Arc::clone(&of_requests));
                    Some(match index {
                        Some(index) => async move { stream::server::serve(connection, &streams[index]).await }.boxed(),
                        None => async move { request::server::serve(connection, &exchange).await }.boxed(),
                    })
                };
                async move {
                    tokio::select! {
                        result = serve_all(listener, usize::MAX, Box::new(serve)) => result,
                        result = request::server::serve_datagrams(source, &exchange), if exchange.is_udp() => {
                            of_datagrams(result)
                        }
                    }
                }
                .boxed()
            }
            // The other program has a server of its own.
            Load::External(_) => future::pending().boxed(),
        };
        Self::new(driver, server)
    }

    /// Waits until the server is done or either fails. Never returns once both have ended.
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

    /// Aborts both and waits until they have ended. A panic is a failure, too.
    pub(super) async fn end(self) -> Result<(), Failure> {
        let driver = end("the stack", self.driver).await;
        let server = end("the server", self.server).await;
        driver.and(server)
    }
}

/// Waits for the end of a task, and sets it to `None`. Without a task it never returns.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(running) => {
            let result = running.await;
            *task = None;
            result
        }
        None => future::pending().await,
    }
}

/// Aborts a task that has not ended yet, and waits for its end.
async fn end<T>(who: &str, task: Option<JoinHandle<T>>) -> Result<(), Failure> {
    let Some(task) = task else { return Ok(()) };
    task.abort();
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, task).await {
        Ok(Err(error)) if error.is_panic() => Err(Failure::of_join(who, error)),
        Ok(_) => Ok(()),
        Err(_) => Err(Failure { status: Status::Stalled, detail: format!("{who} did not end when it was aborted") }),
    }
}

fn of_datagrams(result: Result<(), LoadError>) -> Result<(), Failure> {
    result.map_err(|error| Failure::of_transfer(SERVER, &error))
}

/// Accepts connections until `serve` has taken `awaited` of them, and serves each in a task. Returns when all have been
/// served, or one has failed.
async fn serve_all<Li: Listener>(
    mut listener: Li,
    mut awaited: usize,
    serve: Box<dyn Fn(Li::Stream) -> Option<Served> + Send>,
) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    while awaited > 0 || !tasks.is_empty() {
        tokio::select! {
            // Tasks first: the failure of a task explains the errors after it.
            biased;
            Some(result) = tasks.join_next() => match result {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Failure::of_transfer(SERVER, &error)),
                Err(error) => return Err(Failure::of_join("the server", error)),
            },
            accepted = listener.accept(), if awaited > 0 => {
                let connection = accepted.map_err(|error| {
                    Failure::of_transfer(SERVER, &LoadError::Io { operation: "accept", source: error })
                })?;
                if let Some(task) = serve(connection) {
                    awaited -= 1;
                    tasks.spawn(task);
                }
            }
        }
    }
    Ok(())
}
