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
//!                                           through a program that keeps the close to itself, the client closes
//!
//! idle   client ── byte ─────► server      once on each connection or UDP flow, and then nothing
//!        client ◄─ byte ────── server
//!        client ── FIN ──────► server      with --half-closed; at the end, the server sends its half's last byte
//!        client ◄─ byte, FIN ─ server
//! ```
//!
//! Over UDP, a request and its response are one datagram each. Both begin with the same number, which matches them. A
//! request without a response in time counts as lost, not as failed. A request of crr has a port of its own.

pub(crate) mod black_holes;
pub(crate) mod client;
mod counts;
mod pace;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use netstacks::Datagrams;
use portable_atomic::AtomicU64;
use serde::Serialize;
use tokio::sync::Semaphore;

use self::client::idle::kernel::Held;
use super::engine::Client;
use super::pattern::Pattern;
use super::sockets::Sockets;
use super::stream::{Stream, Streams};
use super::{Delivered, Figures, Kind, Retransmits, Served, Sides, Targets, Task, divided, threads};
use crate::cell::{Impairments, Protocol, Requests, Verify, Workload};
use crate::plan::scenario::{Amount, Scenario};
use crate::plural;
use crate::sample::{BlackHoleFacts, DatagramFacts, IdleFacts, Latency, Measurements, RequestFacts};

const SEED: u64 = 0x7271_7374_7265_7370;

/// A response over UDP counts as lost after this time, plus four times the delay and jitter of the link.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long the responses to requests in flight at the end of the window may take, over a link without delay.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of the number at the beginning of a request over UDP and of its response, in bytes, if the message is as long.
const MARK: usize = 4;

const MOST_AT_ONCE: usize = 64 << 10;

#[derive(Clone)]
pub(crate) struct RequestLoad {
    exchange: Arc<Exchange>,
    beside: Streams,
    threads: usize,
}

#[derive(Serialize)]
pub(crate) struct RequestsTask {
    protocol: Protocol,
    request_bytes: usize,
    response_bytes: usize,
    mark_bytes: usize,
    closes: bool,
    seed: u64,
}

pub(crate) struct Exchange {
    pub(crate) requests: Requests,
    pub(crate) protocol: Protocol,
    /// How many copies of a datagram may arrive: a link may duplicate it. TCP takes each byte once.
    pub(crate) copies: u64,
    pub(crate) patience: Duration,
    pub(crate) drain: Duration,
    streams: Arc<[Stream]>,
    pub(crate) connects: bool,
    pub(crate) is_idle: bool,
    release: Duration,
    held: Held,
    /// How long the subject of idle connections is watched without a load; `None` for a program.
    unloaded: Option<Duration>,
    /// Whether the close of the server does not arrive, as the warm-up has shown; through a program alone.
    is_end_withheld: Option<AtomicBool>,
    is_half_closed: bool,
    half_closed: AtomicU64,
    /// Closed when the servers of half-closed connections may end them.
    rest: Semaphore,
    pub(crate) connections: usize,
    pub(crate) time: Duration,
    pub(crate) request: Pattern,
    pub(crate) response: Pattern,
    verify: Verify,
    answered: AtomicU64,
    timed: AtomicU64,
    is_timed: AtomicBool,
    finished: Mutex<Option<Requested>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Requested {
    pub(crate) answered: u64,
    pub(crate) latency: Latency,
    pub(crate) errors: BTreeMap<&'static str, u64>,
    pub(crate) idle: Option<IdleFacts>,
    pub(crate) datagrams: Option<DatagramFacts>,
    pub(crate) background_bytes: u64,
    pub(crate) blackholes: Option<BlackHoleFacts>,
}

impl Requested {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.latency.add(&other.latency);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.idle = self.idle.take().or(other.idle);
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

impl RequestLoad {
    fn has_holes(&self) -> bool {
        self.exchange.requests.blackholes > 0
    }
}

impl Figures for RequestLoad {
    fn arrived(&self) -> u64 {
        self.exchange.bytes_of(self.exchange.answered())
    }

    fn timed_bytes(&self) -> u64 {
        self.exchange.bytes_of(self.exchange.timed.load(Ordering::Relaxed))
    }

    fn progress(&self) -> Option<(String, &'static str)> {
        Some((plural(self.exchange.answered(), "response"), "--time and --parallel"))
    }

    fn crossed(&self) -> [RangeInclusive<u64>; 2] {
        let Exchange { request, response, copies, .. } = &*self.exchange;
        let [to_server, to_client] = self.beside.crossed_bytes();
        [(to_server, request), (to_client, response)].map(|(streams, message)| {
            let len = message.period as u64;
            let least = streams + self.exchange.answered() * len;
            least..=copies * (least + self.exchange.unanswered() * len)
        })
    }

    fn delivered(&self) -> Delivered {
        let Some(made) = self.exchange.finished() else { return Delivered::default() };
        let has_streams = !self.beside.each.is_empty();
        let requests = RequestFacts {
            answered: made.answered,
            errors: made.errors.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect(),
            latency: made.latency,
            blackholes: made.blackholes,
        };
        let figures = Measurements {
            bytes: self.exchange.bytes_of(made.answered),
            retransmits: self.beside.retransmits().filter(|_| has_streams),
            background_bytes: has_streams.then_some(made.background_bytes),
            datagrams: made.datagrams,
            idle: made.idle,
            ends_withheld: self.exchange.is_end_withheld() || self.beside.is_end_withheld(),
            requests: (!self.exchange.is_idle).then_some(requests),
            ..Measurements::default()
        };
        Delivered { figures, ..Delivered::default() }
    }
}

impl Kind for RequestLoad {
    fn threads(&self) -> usize {
        self.threads + self.beside.threads() + usize::from(self.has_holes())
    }

    fn descriptors(&self) -> [usize; 2] {
        let [clients, servers] = self.beside.descriptors();
        let Exchange { connections, requests, .. } = &*self.exchange;
        let connections = connections + usize::from(requests.blackholes);
        [clients + connections, servers + if self.exchange.is_udp() { 0 } else { connections }]
    }

    fn targets(&self) -> Targets {
        let (tcp, udp) = (self.beside.each.len(), self.exchange.is_udp());
        Targets { tcp: tcp + usize::from(!udp), spreads: self.exchange.closes(), udp, silent: self.has_holes() }
    }

    fn served_by(&self, target: usize, retransmits: &dyn Fn() -> Option<Retransmits>) {
        self.beside.served_by(target, retransmits);
    }

    fn task(&self, first_port: u16) -> Task {
        let exchange = &self.exchange;
        let requests = RequestsTask {
            protocol: exchange.protocol,
            request_bytes: exchange.request.period,
            response_bytes: exchange.response.period,
            mark_bytes: exchange.mark_len(),
            closes: exchange.connects,
            seed: SEED,
        };
        Task { requests: Some(requests), ..self.beside.task(first_port) }
    }
}

impl Sides for RequestLoad {
    fn of(scenario: &Scenario) -> Option<Self> {
        let beside = Streams::beside(scenario);
        let exchange = Exchange::of(scenario, &beside.each)?;
        let sockets = if exchange.is_idle { 1 } else { exchange.connections };
        Some(Self { threads: threads(scenario, 1, sockets), exchange: Arc::new(exchange), beside })
    }

    fn clients<S: Sockets, E>(
        &self,
        targets: &[SocketAddr],
        sockets: &mut impl FnMut(Protocol, usize) -> Result<S, E>,
    ) -> Result<Vec<Client>, E> {
        let exchange = &self.exchange;
        let (of_streams, others) = targets.split_at(self.beside.each.len());
        let mut clients = self.beside.clients(of_streams, sockets)?;
        let (others, silent) = others.split_at(others.len() - usize::from(self.has_holes()));
        if let [silent] = silent {
            let sockets = sockets(Protocol::Tcp, exchange.requests.blackholes.into())?;
            clients.push(black_holes::client(exchange, *silent, sockets));
        }
        let of = (exchange.protocol, exchange.connections);
        clients.extend(divided(self.threads, of, sockets, |thread, mine, sockets| {
            client::client(exchange, mine.len(), others.to_vec(), (thread, self.threads), sockets)
        })?);
        Ok(clients)
    }

    /// A connection that is of no stream carries requests.
    fn serve(&self, connection: impl netstacks::Stream, target: Option<usize>) -> Option<Served> {
        if target.is_some_and(|index| index < self.beside.each.len()) {
            return self.beside.serve(connection, target);
        }
        let exchange = Arc::clone(&self.exchange);
        Some(async move { server::serve(connection, &exchange).await }.boxed())
    }

    fn serve_datagrams(&self, source: impl Datagrams) -> Option<Served> {
        let exchange = Arc::clone(&self.exchange);
        self.exchange.is_udp().then(|| async move { server::serve_datagrams(source, &exchange).await }.boxed())
    }
}

impl Exchange {
    fn of(scenario: &Scenario, streams: &Arc<[Stream]>) -> Option<Self> {
        let requests = match scenario.cell.workload() {
            workload if workload.is_held() => scenario.cell.requests(),
            workload => workload.requests()?,
        };
        let Amount::Time { time, .. } = scenario.amount else { return None };
        let Impairments { delay, jitter, duplicate_ppm, .. } = scenario.cell.impairments;
        let protocol = scenario.cell.protocol;
        let is_idle = scenario.cell.workload().is_held();
        let drain = DRAIN_TIMEOUT + 4 * (delay + jitter);
        Some(Self {
            requests,
            protocol,
            copies: if protocol == Protocol::Udp && duplicate_ppm > 0 { 2 } else { 1 },
            // A flow is asked once, and a program may take long to make it.
            patience: if is_idle { drain } else { PATIENCE + 4 * (delay + jitter) },
            drain,
            streams: Arc::clone(streams),
            connects: matches!(scenario.cell.workload(), Workload::Crr(_) | Workload::UdpCrr(_)),
            is_idle,
            is_end_withheld: scenario.cell.subject().is_carrier().then(AtomicBool::default),
            is_half_closed: scenario.cell.workload() == Workload::HalfClosed,
            half_closed: AtomicU64::new(0),
            rest: Semaphore::const_new(0),
            release: scenario.release,
            held: Held::of(scenario),
            unloaded: scenario.cell.program.is_none().then_some(scenario.cell.rest),
            connections: scenario.cell.parallel.get().into(),
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

    pub(crate) fn closes(&self) -> bool {
        self.connects && !self.is_udp() && !self.is_end_withheld() || self.rest.is_closed()
    }

    /// Whether clients close, because the close of the server does not arrive.
    pub(crate) fn is_end_withheld(&self) -> bool {
        self.is_end_withheld.as_ref().is_some_and(|withheld| withheld.load(Ordering::Relaxed))
    }

    async fn rest(&self) {
        self.half_closed.fetch_add(1, Ordering::Relaxed);
        // Nothing is acquired: the semaphore is only ever closed.
        let _closed = self.rest.acquire().await;
    }

    pub(crate) fn background_bytes(&self) -> u64 {
        self.streams.iter().map(Stream::arrived).sum()
    }

    pub(crate) fn mark_len(&self) -> usize {
        MARK.min(self.request.period).min(self.response.period)
    }

    fn room(&self, messages: &Pattern) -> Vec<u8> {
        let depth = usize::from(self.requests.depth.get());
        vec![0; messages.period.saturating_mul(depth).min(MOST_AT_ONCE)]
    }

    fn is_timed(&self) -> bool {
        self.is_timed.load(Ordering::Relaxed)
    }

    fn answer(&self, is_timed: bool) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if is_timed {
            self.timed.fetch_add(1, Ordering::Relaxed);
        }
    }

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

    pub(crate) fn bytes_of(&self, count: u64) -> u64 {
        count * (self.request.period + self.response.period) as u64
    }

    fn finish(&self, made: Requested) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *finished {
            Some(others) => others.add(made),
            None => *finished = Some(made),
        }
    }

    pub(crate) fn finished(&self) -> Option<Requested> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
