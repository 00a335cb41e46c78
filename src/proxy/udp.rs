//! Exchanges of datagrams.

mod flows;

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use netstacks::{Answers, Datagrams, FlowKey};
use platform::Received;
use socket2::{SockRef, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::Instant;

pub(super) use self::flows::Flows;
use self::flows::Running;
use super::limits::Limits;
use super::upstream::{Upstream, reason};

/// No datagram is longer (RFC 768).
const MAX_DATAGRAM_LEN: usize = 65_535;

/// How often one flow receives, and how many bytes it forwards at most, before the others have their turn.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 256 << 10;

thread_local! {
    /// Room for the datagrams that a server has sent together. They are passed on before anything else is done.
    static DATAGRAM: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATAGRAM_LEN]);
}

/// One client's datagrams to one server, and the answers.
struct Flow {
    socket: UdpSocket,
    used: Mutex<Instant>,
    is_answered: AtomicBool,
}

impl Flow {
    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// What a flow's answers are carried back with.
#[derive(Clone)]
struct Back<D> {
    datagrams: D,
    answers: Answers,
    flows: Flows,
    upstream: Arc<Upstream>,
    limits: Arc<Limits>,
}

/// Carries every datagram on, and its answers back. Instances of a stack share their `flows`. Ends only with the stack.
pub(super) async fn serve<D: Datagrams>(
    datagrams: D,
    answers: Answers,
    flows: Flows,
    upstream: Arc<Upstream>,
    limits: Arc<Limits>,
) -> io::Result<()> {
    let back = Back { datagrams, answers, flows, upstream, limits };
    let mut buffer = vec![0; MAX_DATAGRAM_LEN];
    loop {
        let batch = back.datagrams.recv_batch(&mut buffer).await?;
        let key = FlowKey { local: batch.local, peer: batch.peer };
        // A group has no one host that answers.
        if key.local.ip().is_multicast() {
            continue;
        }
        let sent = match back.flows.get(key).map_or_else(|| back.open(key), |flow| Ok(Some(flow))) {
            Ok(Some(flow)) => flow.send(&buffer[..batch.len], batch.segment_len),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            back.tell(key, &error);
        }
    }
}

impl Flow {
    /// Sends datagrams of `segment_len` bytes each. If the kernel has no room for one, the rest is lost.
    fn send(&self, payloads: &[u8], segment_len: usize) -> io::Result<()> {
        self.touch();
        // The runtime does not know yet that a new socket is writable, so the kernel is asked.
        let socket = SockRef::from(&self.socket);
        let (mut sent, mut result, mut is_second_try) = (0, Ok(()), false);
        loop {
            match platform::send_datagrams(&socket, None, &payloads[sent..], segment_len) {
                Ok(len) => {
                    sent += len;
                    is_second_try = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return result,
                Err(error) => {
                    result = result.and(Err(error));
                    // The first error may be that of an earlier datagram, so this one gets a second try.
                    if is_second_try {
                        sent = payloads.len().min(sent + segment_len.max(1));
                    }
                    is_second_try = !is_second_try;
                }
            }
            if sent >= payloads.len() && !is_second_try {
                return result;
            }
        }
    }
}

impl<D: Datagrams> Back<D> {
    /// Makes a flow. Returns `None` if there is no memory for it, and for the proxy's own datagrams.
    fn open(&self, key: FlowKey) -> io::Result<Option<Arc<Flow>>> {
        if self.limits.own.sent(Type::DGRAM, key.peer) {
            return Ok(None);
        }
        self.flows.make_place(self.upstream.config.max_flows);
        let socket = self.upstream.datagrams(key.local)?;
        let of = SockRef::from(&socket);
        let bytes = of.recv_buffer_size()? + of.send_buffer_size()?;
        let charge = || self.limits.charge(bytes);
        let Some(memory) = charge().or_else(|| self.flows.evict_unanswered().then(charge).flatten()) else {
            return Ok(None);
        };
        let flow = Arc::new(Flow { socket, used: Mutex::new(Instant::now()), is_answered: AtomicBool::new(false) });
        let task = tokio::spawn(self.clone().carry(key, Arc::clone(&flow)).boxed()).abort_handle();
        self.flows.insert(key, Running { flow: Arc::clone(&flow), task, _memory: memory });
        Ok(Some(flow))
    }

    /// Tells the client that its datagram has not arrived, where there is more to say than that.
    fn tell(&self, key: FlowKey, error: &io::Error) {
        match reason(error) {
            Some(reason) => self.answers.unreachable(key, reason),
            None => self.upstream.report("send to", key.local, error),
        }
    }

    /// Carries answers back until there have been none, and nothing to answer, for too long.
    async fn carry(self, key: FlowKey, flow: Arc<Flow>) {
        loop {
            let until = flow.used() + self.upstream.config.udp_idle;
            // A refusal makes a socket of datagrams fail, but not readable.
            let ready = flow.socket.ready(Interest::READABLE | Interest::ERROR);
            match tokio::time::timeout_at(until, ready).await {
                Ok(Ok(ready)) => {
                    if ready.is_error() {
                        self.tell_failure(key, &flow);
                    }
                    self.pass(key, &flow);
                    // The others' turn: nothing here waits for anything while there are datagrams.
                    tokio::task::yield_now().await;
                }
                Ok(Err(_)) => break,
                Err(_) if flow.used() + self.upstream.config.udp_idle <= Instant::now() => break,
                Err(_) => {}
            }
        }
        self.flows.remove(key, &flow);
    }

    /// Tells the client what the kernel has heard of its datagrams.
    fn tell_failure(&self, key: FlowKey, flow: &Flow) {
        let heard = || flow.socket.take_error()?.ok_or_else(|| io::ErrorKind::WouldBlock.into());
        if let Ok(error) = flow.socket.try_io(Interest::ERROR, heard) {
            self.tell(key, &error);
        }
    }

    /// Forwards datagrams that have arrived, up to [`BATCH_BYTES`].
    fn pass(&self, key: FlowKey, flow: &Flow) {
        DATAGRAM.with_borrow_mut(|buffer| {
            let mut bytes = 0;
            for _ in 0..BATCH {
                let receive = || platform::recv_datagrams(&SockRef::from(&flow.socket), buffer);
                match flow.socket.try_io(Interest::READABLE, receive) {
                    Ok(Received { len, segment_len, .. }) => {
                        flow.touch();
                        if !flow.is_answered.swap(true, Ordering::Relaxed) {
                            self.flows.answered(key);
                        }
                        self.answer(key, &buffer[..len], segment_len);
                        bytes += len;
                        if bytes >= BATCH_BYTES {
                            return;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    Err(error) => return self.tell(key, &error),
                }
            }
        });
    }

    /// Sends datagrams to the client. If the device is full, the rest is lost.
    fn answer(&self, key: FlowKey, payloads: &[u8], segment_len: usize) {
        let mut sent = 0;
        loop {
            match self.datagrams.try_send_batch(key.local, key.peer, &payloads[sent..], segment_len) {
                Ok(len) => sent += len,
                // It is too long for the client's network.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => sent += segment_len.max(1),
                Err(_) => return,
            }
            if sent >= payloads.len() {
                return;
            }
        }
    }
}
