//! The server side of requests, and the parts that both sides share.
//!
//! ```text
//! rr     client ── request ──► server      on each connection, again and again; the clock of a request runs from
//!        client ◄─ response ── server      when it was due to the last byte of its response
//!
//! crr    client ── connect ──► server      a connection for each request; its clock runs from the connect, or from
//!        client ── request ──► server      when it was due, to the last byte of the response
//!        client ◄─ response ── server
//!        client ◄─── close ─── server      as servers of short connections do
//!
//! idle   client ── byte ─────► server      once on each connection, and then nothing
//!        client ◄─ byte ────── server
//! ```
//!
//! Over UDP, a request and its response are one datagram each. Both begin with the same number, which matches them. A
//! request without a response in time counts as lost, not as failed.
//!
//! Without a rate, a request is due when the one before it has been answered (a closed loop): while the stack pauses,
//! nothing is due. With a rate, requests are due at even intervals, whether earlier ones were answered or not (an open
//! loop).

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portable_atomic::AtomicU64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;

use super::meter::Snapshot;
use super::pattern::Pattern;
use super::transfer::{Stream, TransferError};
use crate::sample::{DatagramFacts, IdleFacts, Latency};
use crate::scenario::{Amount, Conditions, Protocol, Requests, Scenario, Verify, Workload};

/// The seed of the payload of requests and responses.
pub(super) const SEED: u64 = 0x7271_7374_7265_7370;

/// A response over UDP counts as lost after this time, plus four times the delay and jitter of the link.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long the responses to requests in flight at the end of the window may take, over a link without delay. A request
/// without a response by then has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of the number at the beginning of a request over UDP and of its response, in bytes. A shorter message has a
/// shorter number.
const MARK: usize = 4;

/// Requests over UDP that the server answers before it yields.
const BATCH: usize = 64;

/// The most that is read at once, in bytes.
const CHUNK: usize = 64 << 10;

/// The requests of a run.
pub(super) struct Exchange {
    pub(super) requests: Requests,
    protocol: Protocol,
    /// How many copies of a datagram may arrive: a link may duplicate it. TCP takes each byte once.
    pub(super) copies: u64,
    /// How long a response over UDP may take.
    pub(super) patience: Duration,
    /// How long the last responses may take.
    pub(super) drain: Duration,
    /// The streams beside the requests.
    streams: Arc<[Stream]>,
    /// Whether each request has a connection of its own.
    pub(super) connects: bool,
    /// Whether the connections are only held open.
    pub(super) is_idle: bool,
    /// Connections at once.
    pub(super) connections: usize,
    /// The length of the timed window.
    pub(super) time: Duration,
    pub(super) request: Message,
    pub(super) response: Message,
    verify: Verify,
    /// Responses so far, including the warm-up.
    answered: AtomicU64,
    /// Responses of the warm-up, set when it is over.
    warm: AtomicU64,
    finish: OnceLock<Requested>,
}

/// The requests of a timed window.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    /// How many were answered in it.
    pub(super) answered: u64,
    /// The latency of each, and of those that were in flight at the end.
    pub(super) latency: Latency,
    /// How many failed, by reason.
    pub(super) errors: BTreeMap<&'static str, u64>,
    /// CPU time of the client's thread.
    pub(super) cpu: Option<Duration>,
    /// The memory of the connections, if they were only held open.
    pub(super) idle: Option<IdleFacts>,
    /// The counts of the datagrams, over UDP.
    pub(super) datagrams: Option<DatagramFacts>,
    /// Payload bytes of the streams beside them.
    pub(super) background_bytes: u64,
    /// The whole process at the end of the window.
    pub(super) end: Snapshot,
}

impl Exchange {
    /// The requests of a scenario beside these streams; `None` if it has none.
    pub(super) fn of(scenario: &Scenario, streams: &Arc<[Stream]>) -> Option<Self> {
        let requests = match scenario.workload {
            // A byte each way.
            Workload::Idle => Requests::default(),
            workload => workload.requests()?,
        };
        let Amount::Time { time, .. } = scenario.amount else { return None };
        let Conditions { delay, jitter, duplicate_ppm, .. } = scenario.conditions;
        let protocol = scenario.workload.protocol().unwrap_or_default();
        Some(Self {
            requests,
            protocol,
            copies: if protocol == Protocol::Udp && duplicate_ppm > 0 { 2 } else { 1 },
            patience: PATIENCE + 4 * (delay + jitter),
            drain: DRAIN_TIMEOUT + 4 * (delay + jitter),
            streams: Arc::clone(streams),
            connects: matches!(scenario.workload, Workload::Crr(_)),
            is_idle: scenario.workload == Workload::Idle,
            connections: scenario.parallel.get().into(),
            time,
            request: Message::new(requests.request_bytes.get() as usize),
            response: Message::new(requests.response_bytes.get() as usize),
            verify: scenario.verify,
            answered: AtomicU64::new(0),
            warm: AtomicU64::new(0),
            finish: OnceLock::new(),
        })
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Bytes that have arrived of the streams beside the requests.
    pub(super) fn background_bytes(&self) -> u64 {
        self.streams.iter().map(Stream::arrived).sum()
    }

    /// Length of the number at the beginning of a request over UDP and of its response, in bytes.
    pub(super) fn mark_len(&self) -> usize {
        MARK.min(self.request.len).min(self.response.len)
    }

    /// Whether messages are compared with the pattern, in the warm-up or after it.
    pub(super) fn verifies(&self, is_warm_up: bool) -> bool {
        self.verify.checks(is_warm_up)
    }

    /// Counts a response.
    pub(super) fn answer(&self) {
        // Only one thread writes it.
        self.answered.store(self.answered() + 1, Ordering::Relaxed);
    }

    /// Responses so far, including the warm-up.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Most requests that may have been sent and were not answered: they failed, were lost, or were in flight.
    pub(super) fn unanswered(&self) -> u64 {
        let Some(made) = self.finished() else { return 0 };
        let lost = made.datagrams.map_or(0, |datagrams| datagrams.lost());
        let under_way = self.connections as u64 * u64::from(self.requests.depth.get());
        made.errors.values().sum::<u64>() + lost + 2 * under_way
    }

    /// Ends the warm-up.
    pub(super) fn warm(&self) {
        self.warm.store(self.answered(), Ordering::Relaxed);
    }

    /// Responses in the timed window so far.
    pub(super) fn timed(&self) -> u64 {
        self.answered() - self.warm.load(Ordering::Relaxed)
    }

    /// Payload of `count` requests and their responses, in bytes.
    pub(super) fn bytes_of(&self, count: u64) -> u64 {
        count * (self.request.len + self.response.len) as u64
    }

    /// Ends the timed window. Only the first call has an effect.
    pub(super) fn finish(&self, requested: Requested) {
        let _earlier = self.finish.set(requested);
    }

    pub(super) fn finished(&self) -> Option<&Requested> {
        self.finish.get()
    }
}

/// A request or a response. All messages of one length are alike.
pub(super) struct Message {
    /// Its length, in bytes.
    pub(super) len: usize,
    /// One long message, or many short ones in a row.
    bytes: Vec<u8>,
}

impl Message {
    fn new(len: usize) -> Self {
        let pattern = Pattern::new(SEED, len);
        let one = (0..len).step_by(CHUNK).flat_map(|at| pattern.slice(at as u64, CHUNK.min(len - at)).to_vec());
        let one: Vec<u8> = one.collect();
        let count = (CHUNK / len).max(1);
        Self { len, bytes: one.repeat(count) }
    }

    /// The bytes of a message from `offset` on, and of the messages after it: at most `len` bytes, at least one.
    pub(super) fn slice(&self, offset: usize, len: usize) -> &[u8] {
        let start = offset % self.len;
        &self.bytes[start..self.bytes.len().min(start + len)]
    }

    /// Compares bytes that arrived at `offset` of a message with that message and the ones after it.
    pub(super) fn verify(&self, mut offset: usize, mut bytes: &[u8]) -> Result<(), TransferError> {
        while !bytes.is_empty() {
            let expected = self.slice(offset, bytes.len());
            let (head, rest) = bytes.split_at(expected.len());
            if head != expected {
                let at = head.iter().zip(expected).take_while(|(a, b)| a == b).count();
                return Err(TransferError::Corrupt { offset: (offset + at) as u64 });
            }
            (offset, bytes) = (offset + head.len(), rest);
        }
        Ok(())
    }

    /// A buffer for reading these messages. At most `depth` of them arrive at once.
    pub(super) fn room(&self, depth: usize) -> Vec<u8> {
        vec![0; self.len.saturating_mul(depth).min(CHUNK)]
    }
}

/// Answers the requests of one connection until the client closes it, or answers one and closes.
///
/// A connection that breaks is no failure of the server: the client counts it.
pub(super) async fn serve(mut connection: impl netstacks::Stream, exchange: &Exchange) -> Result<(), TransferError> {
    match answer(&mut connection, exchange).await {
        Err(TransferError::Io { .. }) => Ok(()),
        result => result,
    }
}

async fn answer(connection: &mut impl netstacks::Stream, exchange: &Exchange) -> Result<(), TransferError> {
    let Exchange { request, response, requests, .. } = exchange;
    let mut buffer = request.room(requests.depth.get().into());
    let mut got = 0;
    loop {
        let len = connection.read(&mut buffer).await.map_err(TransferError::io("read a request"))?;
        if len == 0 {
            break;
        }
        if exchange.verifies(exchange.warm.load(Ordering::Relaxed) == 0) {
            request.verify(got, &buffer[..len])?;
        }
        got += len;
        let mut due = got / request.len * response.len;
        got %= request.len;
        let mut sent = 0;
        while due > 0 {
            let bytes = response.slice(sent, due);
            let len = connection.write(bytes).await.map_err(TransferError::io("write a response"))?;
            if len == 0 {
                return Err(TransferError::io("write a response")(io::ErrorKind::WriteZero.into()));
            }
            (sent, due) = (sent + len, due - len);
        }
        if exchange.connects && sent > 0 {
            break;
        }
    }
    connection.shutdown().await.map_err(TransferError::io("close a connection at the stack"))
}

/// Answers requests over UDP. Returns only with an error.
pub(super) async fn serve_datagrams(
    datagrams: impl netstacks::Datagrams,
    exchange: &Exchange,
) -> Result<(), TransferError> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut response = exchange.response.slice(0, exchange.response.len).to_vec();
    let mark = exchange.mark_len();
    loop {
        for _ in 0..BATCH {
            let datagram = datagrams.recv(&mut buffer).await.map_err(TransferError::io("receive a request"))?;
            let request = &buffer[..datagram.len];
            if request.len() != exchange.request.len {
                continue;
            }
            if exchange.verifies(exchange.warm.load(Ordering::Relaxed) == 0) {
                exchange.request.verify(mark, &request[mark..])?;
            }
            response[..mark].copy_from_slice(&request[..mark]);
            match datagrams.try_send(datagram.local, datagram.peer, &response) {
                // Without room, the response is lost.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(TransferError::io("send a response")(error));
                }
                _ => {}
            }
        }
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn messages_follow_each_other_and_a_changed_byte_is_found() {
        for len in [1, 7, 1000, CHUNK, CHUNK + 1, 1_000_000] {
            let message = Message::new(len);
            // As a sender cuts them.
            let (mut sent, mut offset) = (Vec::new(), 0);
            while offset < 2 * len + 1 {
                let bytes = message.slice(offset, (2 * len + 1 - offset).min(999));
                sent.extend_from_slice(bytes);
                offset += bytes.len();
            }
            assert_eq!(sent[..len], sent[len..2 * len], "{len}");
            // As a receiver gets them.
            message.verify(0, &sent).unwrap();
            message.verify(3, &sent[3.min(2 * len)..]).unwrap();
            sent[2 * len] ^= 1;
            let error = message.verify(0, &sent).unwrap_err();
            assert!(matches!(error, TransferError::Corrupt { offset } if offset == 2 * len as u64), "{error}");
        }
    }
}
