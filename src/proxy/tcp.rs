//! TCP connections.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netstacks::{Admission, FlowKey, Gate, Listener, Request, Stream, Unreachable};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::relay::relay;
use super::upstream::{Upstream, reason};

/// How long a client may take to complete its handshake after the server has replied.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How often the routes of unfinished handshakes are checked.
const SWEEP: Duration = Duration::from_secs(5);

/// The server's side of a connection that the stack is about to accept.
struct Route {
    server: TcpStream,
    since: Instant,
    /// Held as long as the connection lasts.
    _admission: Admission,
    _permit: OwnedSemaphorePermit,
}

/// Connections that the stack is about to accept.
#[derive(Clone, Default)]
struct Routes(Arc<Mutex<HashMap<FlowKey, Route>>>);

impl Routes {
    /// Lets the stack complete the handshake. One lock covers both steps, so the connection finds its route.
    fn admit(&self, request: Request, server: TcpStream, permit: OwnedSemaphorePermit) {
        let key = request.key();
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        routes.insert(key, Route { server, since: Instant::now(), _admission: request.admit(), _permit: permit });
    }

    fn take(&self, key: FlowKey) -> Option<Route> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)
    }

    /// Removes the routes of handshakes that were not completed in time.
    fn sweep(&self) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        routes.retain(|_, route| route.since.elapsed() < HANDSHAKE);
    }
}

/// Forwards every connection. Returns only when the stack ends.
pub(super) async fn serve<L: Listener>(mut gate: Gate, mut listener: L, upstream: Arc<Upstream>) -> io::Result<()> {
    let routes = Routes::default();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            request = gate.request() => {
                let Some(request) = request else { return Ok(()) };
                // A SYN beyond the limit is dropped, and its client retransmits it.
                if let Some(attempt) = upstream.attempt() {
                    tokio::spawn(decide(request, attempt, routes.clone(), Arc::clone(&upstream)));
                }
            }
            _ = sweep.tick() => routes.sweep(),
            stream = listener.accept() => {
                let stream = stream?;
                let key = FlowKey { local: stream.local_addr(), peer: stream.peer_addr() };
                match routes.take(key) {
                    Some(route) => drop(tokio::spawn(carry(stream, route, Arc::clone(&upstream)))),
                    None => stream.reset(),
                }
            }
        }
    }
}

/// Connects to the server, and ends the client's handshake in the same way.
async fn decide(request: Request, _attempt: OwnedSemaphorePermit, routes: Routes, upstream: Arc<Upstream>) {
    let key = request.key();
    match upstream.connect(key.local).await {
        Ok(server) => {
            if let Some(permit) = upstream.permit() {
                routes.admit(request, server, permit);
            }
        }
        Err(error) => match reason(&error) {
            Some(Unreachable::Port) => request.refuse(),
            Some(reason) => request.unreachable(reason),
            None if error.kind() == io::ErrorKind::TimedOut => {}
            None => upstream.report("connect to", key.local, &error),
        },
    }
}

async fn carry<S: Stream>(stream: S, route: Route, upstream: Arc<Upstream>) {
    let Route { server, _admission, _permit, .. } = route;
    relay(stream, server, upstream.config.tcp_idle).await;
}
