//! Bulk bytes in datagrams: the parts that both sides share.
//!
//! ```text
//! writer   client ── 0, 1, 2 … ──► server      each has a number
//!
//! reader   client ── hello ──────► server      until the server has it, for it tells where the client is
//!          client ◄─ 0, 1, 2 … ─── server
//! ```
//!
//! A run has several flows, each one way, and is a series of trials, evenly spaced or as fast as possible. The last is
//! the timed window; those before it search for a rate (`search`). The server's side may be a process, with one flow.

mod arrivals;
pub(crate) mod client;
mod flow;
mod jitter;
mod search;
pub(crate) mod server;
mod trial;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use platform::{MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER};
use serde::Serialize;
use tokio::sync::watch;

use self::arrivals::Arrivals;
use self::flow::Flow;
pub(crate) use self::flow::ProcessCounts;
pub(crate) use self::trial::Trial;
use super::engine::Client;
use super::error::LoadError;
use super::pattern::Pattern;
use super::sockets::kernel::Bulk;
use super::sockets::{Cancel, Sockets};
use super::stream::Direction;
use super::{Delivered, Figures, Kind, Served, Sides, Targets, Task, divided, threads};
use crate::cell::{Datagrams, Gso, Impairments, Layer, Offload, Protocol, Verify, Workload};
use crate::plan::scenario::{Amount, Scenario};
use crate::plural;
use crate::sample::{DatagramFacts, Measurements};

const SEED: u64 = 0x6461_7461_6772_616D;

/// The number of the flow, of the trial, and of the datagram in it. The first two have 16 bits.
const HEADER: usize = 12;

/// The word by which a client says where it is. It is shorter than any datagram of a flow.
const HELLO: &[u8] = b"hello";

/// Datagrams of one turn. Other tasks have theirs then.
const TURN: u64 = 64;

/// At a rate, datagrams that fall due within this time are sent together, as a sender with `UDP_SEGMENT` does.
const BURST: Duration = Duration::from_millis(1);

const MAX_RECEIVED_BYTES: usize = 65_535;

/// A datagram is late if it arrives so long after the end of its trial, and after the link's delay.
const GRACE: Duration = Duration::from_millis(10);

/// If nothing has arrived for this time, and the grace, nothing more will.
const QUIET: Duration = Duration::from_millis(20);

/// The same of a process of its own: it waits for a processor before it reads what its device has queued.
const QUIET_PROCESS: Duration = Duration::from_millis(200);

/// How long the server may take to hear where the client is, over a link without delay.
const GREETING: Duration = Duration::from_secs(5);

fn hello(flow: usize) -> Vec<u8> {
    let number = (flow as u16).to_be_bytes();
    [HELLO, if flow == 0 { &[] } else { &number }].concat()
}

fn greeting(flows: &Flows, datagram: &[u8]) -> Option<usize> {
    let index = match datagram.strip_prefix(HELLO)? {
        [] => 0,
        number => u16::from_be_bytes(number.try_into().ok()?).into(),
    };
    flows.each.get(index).filter(|flow| flow.direction == Direction::ToClient).map(|_| index)
}

#[derive(Clone)]
pub(crate) struct DatagramLoad {
    pub(crate) flows: Arc<Flows>,
    threads: usize,
}

#[derive(Serialize)]
pub(crate) struct DatagramsTask {
    port: u16,
    direction: Direction,
    bytes: usize,
    seed: u64,
    verify: Verify,
}

pub(crate) struct Flows {
    pub(crate) len: usize,
    /// The most that are sent and received together: 1 without offload, over memory, and on other systems than Linux.
    batch: usize,
    /// Datagrams a second in all flows; `None` for the most of which next to none is lost.
    rate: Option<f64>,
    time: Duration,
    grace: Duration,
    quiet: Duration,
    greeting: Duration,
    pub(crate) verify: Verify,
    payload: Pattern,
    each: Vec<Flow>,
    trial: watch::Sender<Trial>,
    is_warm: AtomicBool,
    /// The most timed windows, if their rate is searched for; and the last of them that did not hold it, from 1.
    windows: u32,
    again: AtomicU32,
    wakes: Mutex<Vec<Cancel>>,
    finish: OnceLock<Delivery>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) facts: DatagramFacts,
}

impl Figures for DatagramLoad {
    fn arrived(&self) -> u64 {
        self.flows.arrived_bytes()
    }

    fn timed_bytes(&self) -> u64 {
        self.flows.timed_bytes()
    }

    fn progress(&self) -> Option<(String, &'static str)> {
        Some((plural(self.arrived(), "byte"), "--time"))
    }

    fn delivered(&self) -> Delivered {
        let Some(made) = self.flows.finish.get() else { return Delivered::default() };
        let figures = Measurements {
            bytes: made.bytes,
            bytes_back: Some(made.read_bytes),
            datagrams: Some(made.facts),
            ..Measurements::default()
        };
        Delivered { figures, ..Delivered::default() }
    }
}

impl Kind for DatagramLoad {
    fn threads(&self) -> usize {
        self.threads
    }

    fn descriptors(&self) -> [usize; 2] {
        [self.flows.each.len(), 0]
    }

    fn targets(&self) -> Targets {
        Targets { udp: true, ..Targets::default() }
    }

    fn bulk(&self, buffer_bytes: usize) -> Option<Bulk> {
        Some(Bulk { buffer_bytes, coalesces: self.flows.batch > 1 })
    }

    fn task(&self, first_port: u16) -> Task {
        let Flows { len, verify, .. } = *self.flows;
        let direction = self.flows.direction();
        let datagrams = DatagramsTask { port: first_port, direction, bytes: len, seed: SEED, verify };
        Task { datagrams: Some(datagrams), ..Task::default() }
    }
}

impl Sides for DatagramLoad {
    fn of(scenario: &Scenario) -> Option<Self> {
        let flows = Flows::of(scenario)?;
        Some(Self { threads: threads(scenario, 1, flows.each.len()), flows: Arc::new(flows) })
    }

    fn clients<S: Sockets, E>(
        &self,
        targets: &[SocketAddr],
        sockets: &mut impl FnMut(Protocol, usize) -> Result<S, E>,
    ) -> Result<Vec<Client>, E> {
        divided(self.threads, (Protocol::Udp, self.flows.each.len()), sockets, |_, mine, sockets| {
            client::client(&self.flows, mine, targets[0], sockets)
        })
    }

    fn serve(&self, _: impl netstacks::Stream, _: Option<usize>) -> Option<Served> {
        None
    }

    fn serve_datagrams(&self, source: impl netstacks::Datagrams) -> Option<Served> {
        let flows = Arc::clone(&self.flows);
        Some(async move { server::serve(source, &flows).await }.boxed())
    }
}

impl Flows {
    pub(crate) fn of(scenario: &Scenario) -> Option<Self> {
        let (Workload::Datagrams(Datagrams { mode, len }), Amount::Time { time, .. }) =
            (scenario.cell.workload(), scenario.amount)
        else {
            return None;
        };
        let len = usize::from(len.get());
        let is_together = scenario.cell.offload != Offload::Off
            && platform::offload_supported()
            && scenario.cell.layer != Layer::Stack
            && scenario.cell.gso != Some(Gso::Off);
        let Impairments { delay, jitter, .. } = scenario.cell.impairments;
        let first = Trial::none();
        let has_process = scenario.cell.subject().has_process();
        let directions = Direction::of(mode);
        let flow = |direction: Direction| {
            let counts_elsewhere = has_process && direction == Direction::ToServer;
            Flow::new(direction, counts_elsewhere.then_some(first.begin))
        };
        let of =
            |direction: &Direction| (0..scenario.cell.parallel.get()).map(|_| flow(*direction)).collect::<Vec<_>>();
        let grace = GRACE + delay + jitter;
        Some(Self {
            len,
            batch: if is_together { (MAX_BYTES_TOGETHER / len).clamp(1, MAX_DATAGRAMS_TOGETHER) } else { 1 },
            rate: scenario.cell.bitrate.map(|bits| (directions.len() as f64) * bits.get() as f64 / (8 * len) as f64),
            time,
            grace,
            quiet: grace + if has_process { QUIET_PROCESS } else { QUIET },
            greeting: GREETING + 2 * (delay + jitter),
            verify: scenario.verify,
            payload: Pattern::new(SEED, len),
            each: directions.iter().flat_map(of).collect(),
            trial: watch::Sender::new(first),
            is_warm: AtomicBool::new(false),
            windows: if scenario.cell.searches() { search::windows(time, scenario.timeout) } else { 1 },
            again: AtomicU32::new(0),
            wakes: Mutex::default(),
            finish: OnceLock::new(),
        })
    }

    pub(crate) fn direction(&self) -> Direction {
        self.each.first().map_or(Direction::ToServer, |flow| flow.direction)
    }

    pub(crate) fn trials(&self) -> watch::Receiver<Trial> {
        self.trial.subscribe()
    }

    fn trial(&self) -> Trial {
        *self.trial.borrow()
    }

    pub(crate) fn begin(&self, rate: Option<f64>, time: Duration, is_timed: bool) -> Trial {
        let number = self.trial.borrow().number + 1;
        let rate = rate.map(|rate| rate / self.each.len() as f64);
        let burst = rate.map_or(1, |rate| (rate * BURST.as_secs_f64()) as u64).clamp(1, self.batch as u64);
        let trial = Trial { number, begin: Instant::now(), time, rate, burst, is_timed };
        self.each.iter().for_each(|flow| flow.begin(&trial));
        self.trial.send_replace(trial);
        self.wake();
        trial
    }

    fn are_greeted(&self) -> bool {
        self.each.iter().all(|flow| flow.direction == Direction::ToServer || flow.is_greeted())
    }

    fn wake(&self) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }

    pub(crate) fn sent(&self, trial: &Trial) -> (u64, bool) {
        let flows = self.each.iter().map(|flow| flow.sent(trial));
        flows.fold((0, true), |(sent, is_complete), flow| (sent.saturating_add(flow.0), is_complete && flow.1))
    }

    fn bytes(&self, count: impl Fn(&Arrivals) -> u64) -> u64 {
        let all = self.each.iter().fold(0_u64, |all, flow| all.saturating_add(count(&flow.arrivals())));
        all.saturating_mul(self.len as u64)
    }

    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.bytes(|arrivals| arrivals.all)
    }

    pub(crate) fn timed_bytes(&self) -> u64 {
        if self.trial.borrow().is_timed { self.bytes(|arrivals| arrivals.arrived.count) } else { 0 }
    }

    pub(crate) fn set_counts(&self, counts: &ProcessCounts, asked: Instant) {
        self.each.iter().for_each(|flow| flow.set_counts(counts, asked));
    }

    fn datagrams(&self, flow: usize, trial: &Trial) -> Vec<u8> {
        let mut datagrams = self.payload.slice(0, self.len).repeat(self.batch);
        let head = (flow as u32) << 16 | (trial.number & 0xFFFF);
        for datagram in datagrams.chunks_mut(self.len) {
            datagram[..4].copy_from_slice(&head.to_be_bytes());
        }
        datagrams
    }

    fn number<'a>(&self, datagrams: &'a mut [u8], first: u64, count: u64) -> &'a [u8] {
        let count = count.min(self.batch as u64);
        let numbered = &mut datagrams[..count as usize * self.len];
        for (datagram, number) in numbered.chunks_mut(self.len).zip(first..) {
            datagram[4..HEADER].copy_from_slice(&number.to_be_bytes());
        }
        numbered
    }

    /// Sends the datagrams of a flow that are due, at most those of one turn, if enough are due. `write` gets datagrams back
    /// to back, and returns the bytes that it took. Returns how many were sent in all, and whether the rest has no room.
    fn send_due(
        &self,
        flow: &Flow,
        (trial, batch): (&Trial, &mut [u8]),
        mut sent: u64,
        mut write: impl FnMut(&[u8]) -> Result<usize, LoadError>,
    ) -> Result<(u64, bool), LoadError> {
        let due = trial.due(Instant::now());
        if due < sent + trial.burst {
            return Ok((sent, false));
        }
        let turn = sent + TURN.min(due - sent);
        let mut is_full = false;
        while sent < turn && !is_full {
            let numbered = self.number(batch, sent, turn - sent);
            let mut taken = 0;
            while taken < numbered.len() && !is_full {
                let len = write(&numbered[taken..])?;
                taken += len;
                is_full = len == 0;
            }
            sent += (taken / self.len) as u64;
        }
        flow.set_sent(sent);
        Ok((sent, is_full))
    }

    /// Takes datagrams that have arrived together. Those of another program and of an earlier trial do not count.
    fn take<'a>(&self, direction: Direction, datagrams: impl Iterator<Item = &'a [u8]>) -> Result<(), LoadError> {
        let now = Instant::now();
        // Datagrams that arrive together are mostly of one flow.
        let mut current: Option<(usize, MutexGuard<'_, Arrivals>)> = None;
        for datagram in datagrams.filter(|datagram| datagram.len() == self.len) {
            let Some((head, rest)) = datagram.split_first_chunk() else { continue };
            let Some((number, payload)) = rest.split_first_chunk() else { continue };
            let (head, number) = (u32::from_be_bytes(*head), u64::from_be_bytes(*number));
            let (index, trial) = ((head >> 16) as usize, head & 0xFFFF);
            // The first trial stands for a warm-up.
            if self.verify.checks(trial == 1) {
                self.payload.verify(HEADER as u64, payload)?;
            }
            let is_first = current.as_ref().is_none_or(|(current, _)| *current != index);
            if is_first {
                drop(current.take());
                let flow = self.each.get(index).filter(|flow| flow.direction == direction);
                current = flow.map(|flow| (index, flow.arrivals()));
            }
            if let Some((_, arrivals)) =
                current.as_mut().filter(|(_, arrivals)| trial == arrivals.trial.number & 0xFFFF)
            {
                if is_first {
                    arrivals.note(number, now);
                }
                arrivals.take(number);
            }
        }
        Ok(())
    }
}

/// Linux alone runs a stack in a process of its own.
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
