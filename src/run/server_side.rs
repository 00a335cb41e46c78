//! The server side of a run: tasks on the runtime under test.

use std::future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use netstacks::{Datagrams, Listener, Stream as _};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::failure::{Failure, SERVER};
use crate::load::error::LoadError;
use crate::load::{Load, Served, Targets};
use crate::sample::Status;
use crate::subject::stack::{Serve, Server};

/// An aborted task ends when it is polled next. One that does not end in this time is stuck.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The server of a run, and the driver of its stack, which ends only if something fails.
pub(super) struct ServerSide {
    /// `None` once it has ended.
    driver: Option<JoinHandle<Failure>>,
    /// `None` once it has ended.
    server: Option<JoinHandle<Result<(), Failure>>>,
}

impl ServerSide {
    /// Starts both. In a run without clients, the server is a task that makes the whole load.
    pub(super) fn new(driver: BoxFuture<'static, Failure>, server: Server) -> Self {
        Self { driver: Some(tokio::spawn(driver)), server: Some(tokio::spawn(server)) }
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

/// The port of the first stream; the others have the ports above it. Any port would do: the stacks accept all ports.
pub(super) const FIRST_PORT: u16 = 5201;

/// Server ports for connections that carry one request. The stack keeps each for a while (TIME-WAIT), and the client reuses
/// its own ports: with a prime number of server ports, no pair returns soon.
const PORTS: usize = 61;

pub(super) fn targets(stack: IpAddr, load: &Load) -> Vec<SocketAddr> {
    let Targets { tcp, spreads, udp, .. } = load.targets();
    let ports = tcp + usize::from(udp) + if spreads { PORTS - 1 } else { 0 };
    (FIRST_PORT..).take(ports).map(|port| SocketAddr::new(stack, port)).collect()
}

/// What comes to a stack is served by its port.
impl Serve for &Load {
    fn serve<Li: Listener>(self, listener: Li, datagrams: impl Datagrams) -> Server {
        let target_of =
            |connection: &Li::Stream| connection.local_addr().port().checked_sub(FIRST_PORT).map(usize::from);
        server(listener, datagrams, self, target_of)
    }
}

/// The servers of a load. `target_of` returns the number of the target that a connection came to.
pub(super) fn server<Li: Listener>(
    listener: Li,
    source: impl Datagrams,
    load: &Load,
    target_of: impl Fn(&Li::Stream) -> Option<usize> + Send + 'static,
) -> Server {
    let (load, of_datagrams) = (load.clone(), load.serve_datagrams(source));
    let awaited = load.awaited().unwrap_or(usize::MAX);
    let serve = Box::new(move |connection: Li::Stream| {
        let target = target_of(&connection);
        load.serve(connection, target)
    });
    serve_all(listener, of_datagrams, awaited, serve).boxed()
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

/// Accepts connections until `serve` has taken `awaited` of them. Returns when all have been served, or one has failed.
async fn serve_all<Li: Listener>(
    mut listener: Li,
    of_datagrams: Option<Served>,
    mut awaited: usize,
    serve: Box<dyn Fn(Li::Stream) -> Option<Served> + Send>,
) -> Result<(), Failure> {
    let mut tasks: JoinSet<_> = of_datagrams.into_iter().collect();
    while awaited > 0 || !tasks.is_empty() {
        tokio::select! {
            // Tasks first: the failure of a task explains the errors after it.
            biased;
            Some(result) = tasks.join_next() => match result {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error.failure(SERVER)),
                Err(error) => return Err(Failure::of_join("the server", error)),
            },
            accepted = listener.accept(), if awaited > 0 => {
                let connection = accepted.map_err(|error| {
                    LoadError::Io { operation: "accept", source: error }.failure(SERVER)
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
