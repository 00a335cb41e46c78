//! Bulk bytes in datagrams: the parts that both sides share.
//!
//! ```text
//! writer   client ── 0, 1, 2 … ──► server      each has a number
//!
//! reader   client ── hello ──────► server      until the server has it, for it tells where the client is
//!          client ◄─ 0, 1, 2 … ─── server
//! ```
//!
//! A run has several flows, each one way, and is a series of trials. A trial sends datagrams for a time, evenly spaced or
//! as fast as possible. With offload, datagrams that are due within a millisecond are sent together. The last trial is the
//! timed window. If no rate was asked for, the trials before it search for the highest rate that loses next to nothing
//! (`search`). Both sides run in this process, so their counts are compared without another message. The server's side may
//! also be a process of its own, which has one flow, and whose counts are brought here (`process`).

mod arrivals;
pub(crate) mod client;
mod search;
pub(crate) mod server;
mod trial;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use platform::{MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER, Offload};
use portable_atomic::AtomicU64;
use serde::Deserialize;
use tokio::sync::{Notify, watch};

use self::arrivals::{Arrivals, Arrived};
pub(crate) use self::trial::Trial;
use super::dealt;
use super::error::LoadError;
use super::pattern::Pattern;
use super::sockets::Cancel;
use super::sockets::kernel::Bulk;
use super::stream::Direction;
use crate::sample::DatagramFacts;
use crate::scenario::{Amount, Datagrams, Impairments, Layer, Mode, Scenario, Verify, Workload};

/// The seed of the payload.
pub(crate) const SEED: u64 = 0x6461_7461_6772_616D;

/// The number of the flow, of the trial, and of the datagram in it. The first two have 16 bits.
const HEADER: usize = 12;

/// The word by which a client says where it is. It is shorter than any datagram of a flow.
const HELLO: &[u8] = b"hello";

/// Datagrams of one turn. Other tasks have theirs then.
const TURN: u64 = 64;

/// At a rate, datagrams that fall due within this time are sent together, as a sender with `UDP_SEGMENT` does.
const BURST: Duration = Duration::from_millis(1);

/// A buffer of this size holds any datagrams that arrive together.
const MAX_RECEIVED_BYTES: usize = 65_535;

/// A datagram is late if it arrives so long after the end of its trial, and after the link's delay.
const GRACE: Duration = Duration::from_millis(10);

/// If nothing has arrived for this time, and the grace, nothing more will.
const QUIET: Duration = Duration::from_millis(20);

/// The same of a process of its own: it waits for a processor before it reads what its device has queued.
const QUIET_PROCESS: Duration = Duration::from_millis(200);

/// How long the server may take to hear where the client is, over a link without delay.
const GREETING: Duration = Duration::from_secs(5);

/// The datagram by which a client says where it is: a word, and the number of the flow if that is not 0.
fn hello(flow: usize) -> Vec<u8> {
    let number = (flow as u16).to_be_bytes();
    [HELLO, if flow == 0 { &[] } else { &number }].concat()
}

/// The flow to a client that says where it is.
fn greeting(flows: &Flows, datagram: &[u8]) -> Option<usize> {
    let index = match datagram.strip_prefix(HELLO)? {
        [] => 0,
        number => u16::from_be_bytes(number.try_into().ok()?).into(),
    };
    flows.each.get(index).filter(|flow| flow.direction == Direction::ToClient).map(|_| index)
}

/// The datagrams of a run.
pub(crate) struct Flows {
    /// Payload of each, in bytes.
    pub(crate) len: usize,
    /// The most that are sent and received together: 1 without offload, over memory, and on other systems than Linux.
    batch: usize,
    /// Datagrams a second in all flows; `None` for the most of which next to none is lost.
    rate: Option<f64>,
    /// The length of the timed window.
    time: Duration,
    /// A datagram is late if it arrives so long after the end of its trial.
    grace: Duration,
    /// If nothing has arrived for this time, nothing more will.
    quiet: Duration,
    /// How long the server may take to hear where the client is.
    greeting: Duration,
    pub(crate) verify: Verify,
    /// The bytes of every datagram, but for its header.
    payload: Vec<u8>,
    each: Vec<Flow>,
    trial: watch::Sender<Trial>,
    /// Whether the trials before the timed window are over.
    is_warm: AtomicBool,
    /// End the waits of the client threads, when a trial begins.
    wakes: Mutex<Vec<Cancel>>,
    finish: OnceLock<Delivery>,
}

/// Datagrams in one direction, between one socket and the server.
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    /// Told to the server's side while it sends, when datagrams fall due.
    due: Notify,
    /// Whether the server's side knows where to send to.
    greeted: AtomicBool,
    /// How many datagrams of the trial have been sent.
    sent: AtomicU64,
    /// The last trial in which all has been sent.
    complete: AtomicU32,
    arrivals: Mutex<Arrivals>,
}

/// The datagrams of the timed window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    /// Payload bytes that arrived in it.
    pub(crate) bytes: u64,
    /// The part of them that clients received.
    pub(crate) read_bytes: u64,
    pub(crate) facts: DatagramFacts,
}

/// What a server in a process of its own says of the last trial that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessCounts {
    trial: u32,
    /// Whether it knows where the client is.
    greeted: bool,
    /// How many it has sent, once that is all.
    sent: Option<u64>,
    arrived: u64,
    reordered: u64,
    duplicated: u64,
}

impl Flow {
    fn new(direction: Direction, asked: Option<Instant>) -> Self {
        Self {
            direction,
            due: Notify::new(),
            greeted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            complete: AtomicU32::new(0),
            arrivals: Mutex::new(Arrivals::new(asked)),
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the last trial.
    fn begin(&self, trial: u32) {
        self.arrivals().begin(trial);
        self.sent.store(0, Ordering::Relaxed);
    }

    /// The arrivals of the trial, and the time up to which they are counted at least: a process tells them later.
    fn arrived_by(&self) -> (Arrived, Instant) {
        let arrivals = self.arrivals();
        (arrivals.arrived, arrivals.asked.unwrap_or_else(Instant::now))
    }

    /// How many datagrams of the trial have been sent so far, and whether these are all of them.
    fn sent(&self, trial: &Trial) -> (u64, bool) {
        let is_complete = self.complete.load(Ordering::Acquire) == trial.number;
        (self.sent.load(Ordering::Relaxed), is_complete)
    }

    fn set_sent(&self, sent: u64) {
        self.sent.store(sent, Ordering::Relaxed);
    }

    /// Nothing more of a trial is sent.
    fn complete(&self, trial: &Trial) {
        self.complete.store(trial.number, Ordering::Release);
    }

    fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// Notes that the server knows where the client is. Returns whether it knew before.
    fn greet(&self) -> bool {
        self.greeted.swap(true, Ordering::AcqRel)
    }

    /// Takes what the server's process says, which was asked for at that time. It says nothing of a trial that it does
    /// not know yet. Whether it can be true is checked when the trial is over.
    fn set_counts(&self, counts: &ProcessCounts, asked: Instant) {
        let mut arrivals = self.arrivals();
        let is_current = counts.trial == arrivals.trial;
        if self.direction == Direction::ToServer {
            arrivals.asked = Some(asked);
            if is_current {
                let ProcessCounts { arrived: count, reordered, duplicated, .. } = *counts;
                arrivals.all = arrivals.all.saturating_add(count.saturating_sub(arrivals.arrived.count));
                arrivals.arrived = Arrived { count, reordered, duplicated, next: count };
            }
            return;
        }
        if counts.greeted {
            self.greet();
        }
        if let Some(sent) = counts.sent.filter(|_| is_current) {
            self.set_sent(sent);
            self.complete.store(counts.trial, Ordering::Release);
        }
    }
}

impl Flows {
    /// The datagrams of a scenario; `None` if it has none.
    pub(crate) fn of(scenario: &Scenario) -> Option<Self> {
        let (Workload::Datagrams(Datagrams { mode, len }), Amount::Time { time, .. }) =
            (scenario.workload, scenario.amount)
        else {
            return None;
        };
        let len = usize::from(len.get());
        let is_together = scenario.offload != Offload::Off
            && platform::offload_supported()
            && scenario.subject.layer() != Layer::Stack;
        let Impairments { delay, jitter, .. } = scenario.impairments;
        let first = Trial::none();
        let has_process = scenario.subject.has_process();
        let directions: &[Direction] = match mode {
            Mode::Reader => &[Direction::ToClient],
            Mode::Both => &[Direction::ToServer, Direction::ToClient],
            _ => &[Direction::ToServer],
        };
        let flow = |direction: Direction| {
            let counts_elsewhere = has_process && direction == Direction::ToServer;
            Flow::new(direction, counts_elsewhere.then_some(first.begin))
        };
        let flows = dealt(directions, scenario.parallel.get().into(), scenario);
        let grace = GRACE + delay + jitter;
        Some(Self {
            len,
            batch: if is_together { (MAX_BYTES_TOGETHER / len).clamp(1, MAX_DATAGRAMS_TOGETHER) } else { 1 },
            rate: scenario.bitrate.map(|bits| (directions.len() as f64) * bits.get() as f64 / (8 * len) as f64),
            time,
            grace,
            quiet: grace + if has_process { QUIET_PROCESS } else { QUIET },
            greeting: GREETING + 2 * (delay + jitter),
            verify: scenario.verify,
            payload: Pattern::new(SEED, len).slice(0, len).to_vec(),
            each: flows.into_iter().map(|(direction, _)| flow(direction)).collect(),
            trial: watch::Sender::new(first),
            is_warm: AtomicBool::new(false),
            wakes: Mutex::default(),
            finish: OnceLock::new(),
        })
    }

    /// The direction of the first flow.
    pub(crate) fn direction(&self) -> Direction {
        self.each.first().map_or(Direction::ToServer, |flow| flow.direction)
    }

    /// The number of flows.
    pub(crate) fn count(&self) -> usize {
        self.each.len()
    }

    /// The buffers of the kernel's sockets.
    pub(crate) fn bulk(&self, buffer_bytes: usize) -> Bulk {
        Bulk { buffer_bytes, coalesces: self.batch > 1 }
    }

    /// The trials from now on.
    pub(crate) fn trials(&self) -> watch::Receiver<Trial> {
        self.trial.subscribe()
    }

    fn trial(&self) -> Trial {
        *self.trial.borrow()
    }

    /// Begins the next trial, at a rate of all flows together.
    pub(crate) fn begin(&self, rate: Option<f64>, time: Duration, is_timed: bool) -> Trial {
        let number = self.trial.borrow().number + 1;
        self.each.iter().for_each(|flow| flow.begin(number));
        let rate = rate.map(|rate| rate / self.each.len() as f64);
        let burst = rate.map_or(1, |rate| (rate * BURST.as_secs_f64()) as u64).clamp(1, self.batch as u64);
        let trial = Trial { number, begin: Instant::now(), time, rate, burst, is_timed };
        self.trial.send_replace(trial);
        self.wake();
        trial
    }

    /// Whether the server knows where all clients are to which it sends.
    fn are_greeted(&self) -> bool {
        self.each.iter().all(|flow| flow.direction == Direction::ToServer || flow.is_greeted())
    }

    /// The trials before the timed window are over, for all threads.
    fn end_warm_up(&self) {
        self.is_warm.store(true, Ordering::Release);
        self.wake();
    }

    fn is_warm(&self) -> bool {
        self.is_warm.load(Ordering::Acquire)
    }

    fn wake(&self) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }

    /// Ends the wait of a thread when a trial begins.
    fn wakes(&self, wake: Cancel) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// How many datagrams of the trial have been sent so far, and whether these are all of them.
    pub(crate) fn sent(&self, trial: &Trial) -> (u64, bool) {
        let flows = self.each.iter().map(|flow| flow.sent(trial));
        flows.fold((0, true), |(sent, is_complete), flow| (sent.saturating_add(flow.0), is_complete && flow.1))
    }

    /// Bytes that have arrived so far, in all trials.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.each
            .iter()
            .fold(0_u64, |all, flow| all.saturating_add(flow.arrivals().all))
            .saturating_mul(self.len as u64)
    }

    /// Bytes that have arrived so far in the timed window.
    pub(crate) fn timed_bytes(&self) -> u64 {
        if !self.trial.borrow().is_timed {
            return 0;
        }
        let count = self.each.iter().fold(0_u64, |all, flow| all.saturating_add(flow.arrivals().arrived.count));
        count.saturating_mul(self.len as u64)
    }

    /// Takes what the server's process says of its flow.
    pub(crate) fn set_counts(&self, counts: &ProcessCounts, asked: Instant) {
        self.each.iter().for_each(|flow| flow.set_counts(counts, asked));
    }

    /// Ends the timed window. It has only one.
    fn finish(&self, delivery: Delivery) {
        let _earlier = self.finish.set(delivery);
    }

    pub(crate) fn finished(&self) -> Option<&Delivery> {
        self.finish.get()
    }

    /// A batch of datagrams of a flow in a trial, back to back, still without their numbers.
    fn datagrams(&self, flow: usize, trial: &Trial) -> Vec<u8> {
        let mut datagrams = self.payload.repeat(self.batch);
        let head = (flow as u32) << 16 | (trial.number & 0xFFFF);
        for datagram in datagrams.chunks_mut(self.len) {
            datagram[..4].copy_from_slice(&head.to_be_bytes());
        }
        datagrams
    }

    /// Writes their numbers into the first `count` of these datagrams, at most all, and returns these.
    fn number<'a>(&self, datagrams: &'a mut [u8], first: u64, count: u64) -> &'a [u8] {
        let count = count.min(self.batch as u64);
        let numbered = &mut datagrams[..count as usize * self.len];
        for (datagram, number) in numbered.chunks_mut(self.len).zip(first..) {
            datagram[4..HEADER].copy_from_slice(&number.to_be_bytes());
        }
        numbered
    }

    /// Sends the datagrams of a flow that are due by `now`, at most those of one turn, if enough are due. `sent` have been
    /// sent. Calls `write` with datagrams back to back; it returns the bytes that it took. Returns how many were sent in all,
    /// and whether the rest has no room.
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
        // Datagrams that arrive together are mostly of one flow.
        let mut current: Option<(usize, MutexGuard<'_, Arrivals>)> = None;
        for datagram in datagrams.filter(|datagram| datagram.len() == self.len) {
            let Some((head, rest)) = datagram.split_first_chunk() else { continue };
            let Some((number, payload)) = rest.split_first_chunk() else { continue };
            let (head, number) = (u32::from_be_bytes(*head), u64::from_be_bytes(*number));
            let (index, trial) = ((head >> 16) as usize, head & 0xFFFF);
            // The first trial stands for a warm-up.
            if self.verify.checks(trial == 1) && payload != &self.payload[HEADER..] {
                let same = payload.iter().zip(&self.payload[HEADER..]).take_while(|(a, b)| a == b).count();
                return Err(LoadError::Corrupt { offset: (HEADER + same) as u64 });
            }
            if current.as_ref().is_none_or(|(current, _)| *current != index) {
                drop(current.take());
                let flow = self.each.get(index).filter(|flow| flow.direction == direction);
                current = flow.map(|flow| (index, flow.arrivals()));
            }
            if let Some((_, arrivals)) = current.as_mut().filter(|(_, arrivals)| trial == arrivals.trial & 0xFFFF) {
                arrivals.take(number);
            }
        }
        Ok(())
    }
}

/// Linux alone runs a stack in a process of its own.
#[cfg(all(test, target_os = "linux"))]
mod process_tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// The counts that a process prints.
    fn counts(text: &str) -> ProcessCounts {
        serde_json::from_str(text).unwrap()
    }

    fn flow(mode: &str) -> Flows {
        let words = format!("x -n gvisor -m {mode} --protocol udp --datagram 100");
        let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
        Flows::of(&Scenario::try_from(cli.run).unwrap()).unwrap()
    }

    #[test]
    fn a_process_counts_what_arrives_at_it() {
        let flow = flow("writer");
        let first = flow.begin(None, Duration::ZERO, false);
        flow.set_counts(&counts(r#"{"trial":1,"arrived":7,"reordered":2,"duplicated":1}"#), first.end());
        let (arrived, counted_at) = flow.each[0].arrived_by();
        assert_eq!((arrived.count, arrived.reordered, arrived.duplicated, counted_at), (7, 2, 1, first.end()));
        // Of the second trial it has nothing yet, but it has looked.
        let later = first.end() + Duration::from_secs(1);
        flow.begin(None, Duration::ZERO, true);
        flow.set_counts(&counts(r#"{"trial":1,"arrived":8}"#), later);
        assert_eq!(flow.each[0].arrived_by(), (Arrived::default(), later));
        flow.set_counts(&counts(r#"{"trial":2,"arrived":5}"#), later);
        assert_eq!((flow.arrived_bytes(), flow.timed_bytes()), (1200, 500));
    }

    #[test]
    fn a_process_says_how_many_it_sent_when_it_has_sent_all() {
        let flow = flow("reader");
        assert!(!flow.each[0].is_greeted());
        let trial = flow.begin(None, Duration::ZERO, false);
        for (text, sent) in [
            (r#"{"trial":0,"greeted":true,"sent":5}"#, (0, false)),
            (r#"{"trial":1,"sent":null,"arrived":9}"#, (0, false)),
            (r#"{"trial":1,"sent":6}"#, (6, true)),
        ] {
            flow.set_counts(&counts(text), Instant::now());
            assert_eq!(flow.sent(&trial), sent, "{text}");
        }
        // The client counts what arrives.
        assert!(flow.each[0].is_greeted() && flow.each[0].arrived_by().0 == Arrived::default());
    }
}
