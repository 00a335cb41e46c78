//! Connections.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netstacks::{Admission, Ends, Gate, Listener, Request, Stream, Unreachable};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::connect::{World, reason};
use crate::relay::relay;

/// A client whose server has answered completes its handshake within so long, or not at all.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How often those are looked for that have not.
const SWEEP: Duration = Duration::from_secs(5);

/// The server's side of a connection that the stack is about to accept.
struct Route {
    server: TcpStream,
    since: Instant,
    /// For as long as the connection lasts.
    _admission: Admission,
    _permit: OwnedSemaphorePermit,
}

/// Connections that the stack is about to accept.
#[derive(Clone, Default)]
struct Routes(Arc<Mutex<HashMap<Ends, Route>>>);

impl Routes {
    /// Has the stack complete the handshake. Under one lock, so that the connection finds its route.
    fn admit(&self, request: Request, server: TcpStream, permit: OwnedSemaphorePermit) {
        let ends = request.ends();
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        routes.insert(ends, Route { server, since: Instant::now(), _admission: request.admit(), _permit: permit });
    }

    fn take(&self, ends: Ends) -> Option<Route> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&ends)
    }

    /// Forgets those whose clients have not completed the handshake.
    fn sweep(&self) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        routes.retain(|_, route| route.since.elapsed() < HANDSHAKE);
    }
}

/// Carries every connection on. Ends only with the stack.
pub(crate) async fn serve<L: Listener>(mut gate: Gate, mut listener: L, world: Arc<World>) -> io::Result<()> {
    let routes = Routes::default();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            request = gate.request() => {
                let Some(request) = request else { return Ok(()) };
                // A SYN beyond the limit is lost, and its client tries again.
                if let Some(attempt) = world.attempt() {
                    tokio::spawn(decide(request, attempt, routes.clone(), Arc::clone(&world)));
                }
            }
            _ = sweep.tick() => routes.sweep(),
            stream = listener.accept() => {
                let stream = stream?;
                let ends = Ends { local: stream.local_addr(), peer: stream.peer_addr() };
                match routes.take(ends) {
                    Some(route) => drop(tokio::spawn(carry(stream, route, Arc::clone(&world)))),
                    None => stream.reset(),
                }
            }
        }
    }
}

/// Lets the client's handshake end as the server's does.
async fn decide(request: Request, _attempt: OwnedSemaphorePermit, routes: Routes, world: Arc<World>) {
    let ends = request.ends();
    match world.connect(ends.local).await {
        Ok(server) => {
            if let Some(permit) = world.permit() {
                routes.admit(request, server, permit);
            }
        }
        Err(error) => match reason(&error) {
            Some(Unreachable::Port) => request.refuse(),
            Some(reason) => request.unreachable(reason),
            None if error.kind() == io::ErrorKind::TimedOut => {}
            None => eprintln!("connect to {}: {error}", ends.local),
        },
    }
}

async fn carry<S: Stream>(stream: S, route: Route, world: Arc<World>) {
    let Route { server, _admission, _permit, .. } = route;
    relay(stream, server, world.tcp_idle).await;
}
