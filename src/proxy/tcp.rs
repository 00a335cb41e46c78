//! TCP connections. Each has one task, from its SYN to its end.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use netstacks::{Admission, FlowKey, FlowMap, Gate, Listener, Request, Stream, Unreachable};
use socket2::Type;
use tokio::sync::oneshot;

use super::limits::{Limits, Place};
use super::relay::relay;
use super::upstream::{Server, Upstream, check_scope, reason};

/// How long a stack may take to yield a connection after its handshake. It does so at once, if its accept queue has room.
const ACCEPT: Duration = Duration::from_secs(5);

/// The tasks that wait for the stack to accept their connections. A reused port may have several. Their servers are the
/// same and have got no byte yet, so the first stream goes to the first task.
struct Waiting<S>(Arc<Mutex<FlowMap<VecDeque<oneshot::Sender<S>>>>>);

impl<S> Clone for Waiting<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Stream> Waiting<S> {
    fn lock(&self) -> MutexGuard<'_, FlowMap<VecDeque<oneshot::Sender<S>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client's handshake is complete and the stack has accepted the connection. `None` if that fails.
    async fn accepted(&self, request: Request) -> Option<(S, Admission)> {
        let key = request.key();
        let mut task = self.wait_for(key);
        let mut admission = request.admit();
        if !admission.opened().await {
            return None;
        }
        let stream = tokio::time::timeout(ACCEPT, &mut task.accepted).await.ok()?.ok()?;
        Some((stream, admission))
    }

    /// A place among the tasks that wait for this connection.
    fn wait_for(&self, key: FlowKey) -> Waits<'_, S> {
        let (sender, accepted) = oneshot::channel();
        self.lock().entry(key).or_default().push_back(sender);
        Waits { waiting: self, key, accepted }
    }

    /// Gives a stream to the task that waits for it. Without one, its client is reset.
    fn deliver(&self, mut stream: S) {
        let key = FlowKey { local: stream.local_addr(), peer: stream.peer_addr() };
        let mut waiting = self.lock();
        while let Some(sender) = waiting.get_mut(&key).and_then(VecDeque::pop_front) {
            match sender.send(stream) {
                Ok(()) => return,
                Err(unsent) => stream = unsent,
            }
        }
        drop(waiting);
        stream.reset();
    }
}

struct Waits<'a, S: Stream> {
    waiting: &'a Waiting<S>,
    key: FlowKey,
    accepted: oneshot::Receiver<S>,
}

impl<S: Stream> Drop for Waits<'_, S> {
    fn drop(&mut self) {
        self.accepted.close();
        let mut waiting = self.waiting.lock();
        if let Some(senders) = waiting.get_mut(&self.key) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiting.remove(&self.key);
            }
        }
        drop(waiting);
        // The client ended the handshake of this task, and began another from the same port, whose stream came here.
        if let Ok(stream) = self.accepted.try_recv() {
            self.waiting.deliver(stream);
        }
    }
}

/// Forwards every connection. Returns only when the stack ends.
pub(super) async fn serve<L: Listener>(
    mut gate: Gate,
    mut listener: L,
    upstream: Arc<Upstream>,
    limits: Arc<Limits>,
) -> io::Result<()> {
    let waiting = Waiting(Arc::default());
    loop {
        tokio::select! {
            request = gate.request() => {
                let Some(request) = request else { return Ok(()) };
                if limits.own.sent(Type::STREAM, request.key().peer) {
                    continue;
                }
                // A SYN beyond the limit is dropped, and its client retransmits it.
                if let Some(place) = limits.place() {
                    tokio::spawn(forward(request, place, waiting.clone(), Arc::clone(&upstream)).boxed());
                }
            }
            stream = listener.accept() => waiting.deliver(stream?),
        }
    }
}

async fn forward<S: Stream>(request: Request, mut place: Place, waiting: Waiting<S>, upstream: Arc<Upstream>) {
    let connected = tokio::select! {
        connected = connect(request, &waiting, &upstream) => connected,
        () = place.evicted() => None,
    };
    let Some((client, admission, server)) = connected else { return };
    let Some(_connected) = place.connected() else {
        admission.reset();
        return client.reset();
    };
    relay(client, Some(admission), server, upstream.config.tcp_idle).await;
}

/// Connects to the server, and ends the client's handshake in the same way. If the client gives up, the attempt ends.
async fn connect<S: Stream>(
    mut request: Request,
    waiting: &Waiting<S>,
    upstream: &Upstream,
) -> Option<(S, Admission, Server)> {
    let key = request.key();
    let connected = tokio::select! {
        connected = async { check_scope(key)?; upstream.connect(key.local).await } => connected,
        () = request.abandoned() => return None,
    };
    match connected {
        Ok(server) => {
            let (client, admission) = waiting.accepted(request).await?;
            return Some((client, admission, server));
        }
        Err(error) => match reason(&error) {
            Some(Unreachable::Port) => request.refuse(),
            Some(reason) => request.unreachable(reason),
            None if error.kind() == io::ErrorKind::TimedOut => {}
            None => upstream.report("connect to", key.local, &error),
        },
    }
    None
}

#[cfg(all(test, feature = "smoltcp"))]
mod tests;
