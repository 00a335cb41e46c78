//! Requests, and idle connections: the parts that both sides share.
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
//! idle   client ── byte ─────► server      once on each connection or UDP flow, and then nothing
//!        client ◄─ byte ────── server
//!        client ── FIN ──────► server      with --half-closed; at the end, the server sends its half's last byte
//!        client ◄─ byte, FIN ─ server
//! ```
//!
//! Over UDP, a request and its response are one datagram each. Both begin with the same number, which matches them. A
//! request without a response in time counts as lost, not as failed. A request of crr has a port of its own.
//!
//! Without a rate, a request is due when the one before it has been answered (a closed loop): while the stack pauses,
//! nothing is due. With a rate, requests are due at even intervals, whether earlier ones were answered or not (an open
//! loop).

pub(crate) mod black_holes;
pub(crate) mod client;
mod counts;
mod pace;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portable_atomic::AtomicU64;
use tokio::sync::Semaphore;

use super::pattern::Pattern;
use super::stream::Stream;
use crate::sample::{BlackHoleFacts, DatagramFacts, IdleFacts, Latency};
use crate::scenario::{Amount, Impairments, Protocol, Requests, Scenario, Verify, Workload};

/// The seed of the payload of requests and responses.
pub(crate) const SEED: u64 = 0x7271_7374_7265_7370;

/// A response over UDP counts as lost after this time, plus four times the delay and jitter of the link.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long the responses to requests in flight at the end of the window may take, over a link without delay. A request
/// without a response by then has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of the number at the beginning of a request over UDP and of its response, in bytes. A shorter message has a
/// shorter number.
const MARK: usize = 4;

/// The most that is read at once, in bytes.
const MOST_AT_ONCE: usize = 64 << 10;

/// The requests of a run.
pub(crate) struct Exchange {
    pub(crate) requests: Requests,
    pub(crate) protocol: Protocol,
    /// How many copies of a datagram may arrive: a link may duplicate it. TCP takes each byte once.
    pub(crate) copies: u64,
    /// How long a response over UDP may take.
    pub(crate) patience: Duration,
    /// How long the last responses may take.
    pub(crate) drain: Duration,
    /// The streams beside the requests.
    streams: Arc<[Stream]>,
    /// Whether each request has a connection of its own.
    pub(crate) connects: bool,
    /// Whether the connections or flows are only held open.
    pub(crate) is_idle: bool,
    /// How long their memory may take to be released.
    release: Duration,
    /// Whether the client closes its half of each of them.
    is_half_closed: bool,
    /// The connections of which the server has read the end.
    half_closed: AtomicU64,
    /// Closed when the servers of half-closed connections may end them.
    rest: Semaphore,
    /// Connections at once.
    pub(crate) connections: usize,
    /// The length of the timed window.
    pub(crate) time: Duration,
    pub(crate) request: Pattern,
    pub(crate) response: Pattern,
    verify: Verify,
    /// Responses so far, including the warm-up.
    answered: AtomicU64,
    /// Responses in the timed window.
    timed: AtomicU64,
    /// Whether the timed window has begun.
    is_timed: AtomicBool,
    /// The results of the threads that have ended.
    finished: Mutex<Option<Requested>>,
}

/// The requests of a timed window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requested {
    /// How many were answered in it.
    pub(crate) answered: u64,
    /// The latency of each, and of those that were in flight at the end.
    pub(crate) latency: Latency,
    /// How many failed, by reason.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// The memory of the connections, if they were only held open.
    pub(crate) idle: Option<IdleFacts>,
    /// The counts of the datagrams, over UDP.
    pub(crate) datagrams: Option<DatagramFacts>,
    /// Payload bytes of the streams beside them.
    pub(crate) background_bytes: u64,
    /// The connects to a silent address beside them.
    pub(crate) blackholes: Option<BlackHoleFacts>,
}

impl Requested {
    /// Adds the requests of another thread.
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.latency.add(&other.latency);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.idle = self.idle.or(other.idle);
        self.datagrams = match (self.datagrams, other.datagrams) {
            (Some(own), Some(other)) => Some(DatagramFacts {
                sent: own.sent + other.sent,
                arrived: own.arrived + other.arrived,
                duplicated: own.duplicated + other.duplicated,
                ..own
            }),
            (own, other) => own.or(other),
        };
        self.background_bytes += other.background_bytes;
        self.blackholes = self.blackholes.or(other.blackholes);
    }
}

impl Exchange {
    /// The requests of a scenario beside these streams; `None` if it has none.
    pub(crate) fn of(scenario: &Scenario, streams: &Arc<[Stream]>) -> Option<Self> {
        let requests = match scenario.workload {
            // A byte each way.
            workload if workload.held().is_some() => Requests::default(),
            workload => workload.requests()?,
        };
        let Amount::Time { time, .. } = scenario.amount else { return None };
        let Impairments { delay, jitter, duplicate, .. } = scenario.impairments;
        let protocol = scenario.workload.protocol().unwrap_or_default();
        let is_idle = scenario.workload.held().is_some();
        let drain = DRAIN_TIMEOUT + 4 * (delay + jitter);
        Some(Self {
            requests,
            protocol,
            copies: if protocol == Protocol::Udp && duplicate > 0 { 2 } else { 1 },
            // A flow is asked once, and a program may take long to make it.
            patience: if is_idle { drain } else { PATIENCE + 4 * (delay + jitter) },
            drain,
            streams: Arc::clone(streams),
            connects: matches!(scenario.workload, Workload::Crr(_) | Workload::UdpCrr(_)),
            is_idle,
            is_half_closed: scenario.workload == Workload::HalfClosed,
            half_closed: AtomicU64::new(0),
            rest: Semaphore::const_new(0),
            release: scenario.release,
            connections: scenario.parallel.get().into(),
            time,
            request: Pattern::of_messages(SEED, requests.request_bytes.get() as usize),
            response: Pattern::of_messages(SEED, requests.response_bytes.get() as usize),
            verify: scenario.verify,
            answered: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            is_timed: AtomicBool::new(false),
            finished: Mutex::default(),
        })
    }

    pub(crate) fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Whether the server closes each connection after its next response.
    pub(crate) fn closes(&self) -> bool {
        self.connects && !self.is_udp() || self.rest.is_closed()
    }

    /// Holds a connection whose client has closed its half, until the client wants its end.
    async fn rest(&self) {
        self.half_closed.fetch_add(1, Ordering::Relaxed);
        // Nothing is acquired: the semaphore is only ever closed.
        let _closed = self.rest.acquire().await;
    }

    /// The connections of which the server has read the end.
    fn half_closed(&self) -> u64 {
        self.half_closed.load(Ordering::Relaxed)
    }

    /// Bytes that have arrived of the streams beside the requests.
    pub(crate) fn background_bytes(&self) -> u64 {
        self.streams.iter().map(Stream::arrived).sum()
    }

    /// Length of the number at the beginning of a request over UDP and of its response, in bytes.
    pub(crate) fn mark_len(&self) -> usize {
        MARK.min(self.request.period).min(self.response.period)
    }

    /// A buffer for reading a row of these messages. At most as many arrive at once as are in flight.
    fn room(&self, messages: &Pattern) -> Vec<u8> {
        let depth = usize::from(self.requests.depth.get());
        vec![0; messages.period.saturating_mul(depth).min(MOST_AT_ONCE)]
    }

    /// Whether the timed window has begun.
    fn is_timed(&self) -> bool {
        self.is_timed.load(Ordering::Relaxed)
    }

    /// Counts a response.
    fn answer(&self, is_timed: bool) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if is_timed {
            self.timed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Responses so far, including the warm-up.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Most requests that may have been sent and were not answered: they failed, were lost, or were in flight.
    pub(crate) fn unanswered(&self) -> u64 {
        let Some(made) = self.finished() else { return 0 };
        let lost = made.datagrams.map_or(0, |datagrams| datagrams.lost());
        let under_way = self.connections as u64 * u64::from(self.requests.depth.get());
        made.errors.values().sum::<u64>() + lost + 2 * under_way
    }

    /// Ends the warm-up.
    fn begin(&self) {
        self.is_timed.store(true, Ordering::Relaxed);
    }

    /// Responses in the timed window so far.
    pub(crate) fn timed(&self) -> u64 {
        self.timed.load(Ordering::Relaxed)
    }

    /// Payload of `count` requests and their responses, in bytes.
    pub(crate) fn bytes_of(&self, count: u64) -> u64 {
        count * (self.request.period + self.response.period) as u64
    }

    /// Adds the results of a thread.
    fn finish(&self, made: Requested) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *finished {
            Some(others) => others.add(made),
            None => *finished = Some(made),
        }
    }

    /// The results of the threads that have ended.
    pub(crate) fn finished(&self) -> Option<Requested> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
