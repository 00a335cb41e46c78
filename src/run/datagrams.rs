//! Bulk bytes in datagrams, one way: what the two sides share, and the server's side.
//!
//! ```text
//! writer   client ── 0, 1, 2 … ──► server      each has a number
//!
//! reader   client ── hello ──────► server      until the server has it, for it tells where the client is
//!          client ◄─ 0, 1, 2 … ─── server
//! ```
//!
//! A run is a series of trials. Each sends datagrams for a time, evenly spaced or as fast as possible. With offload,
//! datagrams that are due within a millisecond are sent together. The last trial is the timed window. If no rate was asked
//! for, the trials before it search for the highest rate that loses next to nothing. Both sides run in this process, so
//! their counts are compared without another message. The server's side may also be a process of its own, whose counts are
//! brought here (`datagram_process`).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use netstacks::DatagramBatch;
use platform::{MAX_BYTES_TOGETHER, MAX_DATAGRAMS_TOGETHER, Offload};
use portable_atomic::AtomicU64;
use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;

use super::meter::Snapshot;
use super::pattern::Pattern;
use super::transfer::{Direction, TransferError};
use crate::sample::DatagramFacts;
use crate::scenario::{Amount, Conditions, Datagrams, Layer, Mode, Scenario, Verify, Workload};

/// The seed of the payload.
pub(super) const SEED: u64 = 0x6461_7461_6772_616D;

/// The number of the trial, and that of the datagram in it.
const HEADER: usize = 12;

/// Datagrams of one turn. Other tasks have theirs then.
pub(super) const TURN: u64 = 64;

/// At a rate, datagrams that fall due within this time are sent together, as a sender with `UDP_SEGMENT` does.
const BURST: Duration = Duration::from_millis(1);

/// A buffer of this size holds any datagrams that arrive together.
pub(super) const MAX_RECEIVED_BYTES: usize = 65_535;

/// A datagram is late if it arrives so long after the end of its trial, and after the link's delay.
const GRACE: Duration = Duration::from_millis(10);

/// If nothing has arrived for this time, and the grace, nothing more will.
const QUIET: Duration = Duration::from_millis(20);

/// The same of a process of its own: it waits for a processor before it reads what its device has queued.
const QUIET_PROCESS: Duration = Duration::from_millis(200);

/// How long the server may take to hear where the client is, over a link without delay.
const GREETING: Duration = Duration::from_secs(5);

/// The datagrams of a run.
pub(super) struct Flow {
    pub(super) direction: Direction,
    /// Payload of each, in bytes.
    pub(super) len: usize,
    /// The most that are sent and received together: 1 without offload, over memory, and on other systems than Linux.
    pub(super) batch: usize,
    /// Datagrams a second; `None` for the most of which next to none is lost.
    pub(super) rate: Option<f64>,
    /// The length of the timed window.
    pub(super) time: Duration,
    /// A datagram is late if it arrives so long after the end of its trial.
    pub(super) grace: Duration,
    /// If nothing has arrived for this time, nothing more will.
    pub(super) quiet: Duration,
    /// How long the server may take to hear where the client is.
    pub(super) greeting: Duration,
    pub(super) verify: Verify,
    /// What every datagram consists of, but for its header.
    payload: Vec<u8>,
    trial: watch::Sender<Trial>,
    /// Told to the server's side while it sends, when datagrams fall due.
    pub(super) due: Notify,
    /// Whether the server's side knows where to send to.
    greeted: AtomicBool,
    /// How many datagrams of the trial have been sent.
    sent: AtomicU64,
    /// The last trial in which all has been sent.
    complete: AtomicU32,
    arrivals: Mutex<Arrivals>,
    finish: OnceLock<Window>,
}

/// The timed window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Payload bytes that arrived in it.
    pub(super) bytes: u64,
    /// CPU time of the client's threads.
    pub(super) cpu: Option<Duration>,
    /// The whole process at its end.
    pub(super) end: Snapshot,
    pub(super) facts: DatagramFacts,
}

/// A time in which datagrams are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// From 1.
    pub(super) number: u32,
    begin: Instant,
    pub(super) time: Duration,
    /// Datagrams a second, evenly spaced; `None` for as many as are taken.
    pub(super) rate: Option<f64>,
    /// Datagrams that are sent together at this rate.
    pub(super) burst: u64,
    /// Whether it is the timed window.
    is_timed: bool,
}

impl Trial {
    pub(super) fn end(&self) -> Instant {
        self.begin + self.time
    }

    /// How many datagrams are due in it by `now`.
    pub(super) fn due(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.begin).min(self.time);
        self.rate.map_or(u64::MAX, |rate| (elapsed.as_secs_f64() * rate) as u64 + 1)
    }

    /// When the next burst is due, after this number of datagrams.
    pub(super) fn next_due_at(&self, sent: u64) -> Instant {
        self.due_at(sent + self.burst - 1)
    }

    /// When the datagram of that number is due.
    fn due_at(&self, number: u64) -> Instant {
        self.begin + self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(number as f64 / rate))
    }
}

/// How many datagrams of a trial have arrived, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) count: u64,
    pub(super) reordered: u64,
    pub(super) duplicated: u64,
    /// One more than the highest number so far.
    pub(super) next: u64,
}

/// What a server in a process of its own says of the last trial that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ProcessCounts {
    trial: u32,
    /// Whether it knows where the client is.
    greeted: bool,
    /// How many it has sent, once that is all.
    sent: Option<u64>,
    arrived: u64,
    reordered: u64,
    duplicated: u64,
}

/// The datagrams of a trial that have arrived.
#[derive(Debug)]
struct Arrivals {
    trial: u32,
    arrived: Arrived,
    /// Which of the last numbers have come: a bit for each, in a ring.
    seen: Vec<u64>,
    /// Those of all trials.
    all: u64,
    /// When they were asked for, if they are counted by another process.
    asked: Option<Instant>,
}

/// So many numbers are remembered. What comes later than that after its successors is taken for new.
const REMEMBERED: u64 = 1 << 16;

impl Arrivals {
    fn new() -> Self {
        let seen = vec![0; (REMEMBERED / 64) as usize];
        Self { trial: 0, arrived: Arrived::default(), seen, all: 0, asked: None }
    }

    /// Marks a number, and returns whether it was marked.
    fn mark(&mut self, number: u64) -> bool {
        let (word, bit) = ((number % REMEMBERED / 64) as usize, 1 << (number % 64));
        let was = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        was
    }

    fn take(&mut self, number: u64) {
        let next = self.arrived.next;
        if number >= next {
            // The places of those that are not here yet.
            for skipped in (next..number).rev().take(REMEMBERED as usize) {
                self.seen[(skipped % REMEMBERED / 64) as usize] &= !(1 << (skipped % 64));
            }
            self.mark(number);
            self.arrived.next = number + 1;
        } else if next - number <= REMEMBERED && self.mark(number) {
            self.arrived.duplicated += 1;
            return;
        } else {
            self.arrived.reordered += 1;
        }
        self.arrived.count += 1;
        self.all += 1;
    }
}

impl Flow {
    /// The datagrams of a scenario; `None` if it has none.
    pub(super) fn of(scenario: &Scenario) -> Option<Self> {
        let (Workload::Datagrams(Datagrams { mode, len }), Amount::Time { time, .. }) =
            (scenario.workload, scenario.amount)
        else {
            return None;
        };
        let len = usize::from(len.get());
        let is_together = scenario.offload != Offload::Off
            && platform::offload_supported()
            && scenario.subject.layer() != Layer::Stack;
        let batch = if is_together { (MAX_BYTES_TOGETHER / len).clamp(1, MAX_DATAGRAMS_TOGETHER) } else { 1 };
        let Conditions { delay, jitter, .. } = scenario.conditions;
        let first =
            Trial { number: 0, begin: Instant::now(), time: Duration::ZERO, rate: None, burst: 1, is_timed: false };
        let direction = if mode == Mode::Reader { Direction::ToClient } else { Direction::ToServer };
        let has_process = scenario.subject.has_process();
        let counts_elsewhere = has_process && direction == Direction::ToServer;
        let grace = GRACE + delay + jitter;
        Some(Self {
            direction,
            len,
            batch,
            rate: scenario.bitrate.map(|bits| bits.get() as f64 / (8 * len) as f64),
            time,
            grace,
            quiet: grace + if has_process { QUIET_PROCESS } else { QUIET },
            greeting: GREETING + 2 * (delay + jitter),
            verify: scenario.verify,
            payload: Pattern::new(SEED, len).slice(0, len).to_vec(),
            trial: watch::Sender::new(first),
            due: Notify::new(),
            greeted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            complete: AtomicU32::new(0),
            arrivals: Mutex::new(Arrivals { asked: counts_elsewhere.then_some(first.begin), ..Arrivals::new() }),
            finish: OnceLock::new(),
        })
    }

    /// The trials from now on.
    pub(super) fn trials(&self) -> watch::Receiver<Trial> {
        self.trial.subscribe()
    }

    /// Begins the next trial.
    pub(super) fn begin(&self, rate: Option<f64>, time: Duration, is_timed: bool) -> Trial {
        let number = self.trial.borrow().number + 1;
        {
            let mut arrivals = self.arrivals();
            let Arrivals { all, asked, .. } = *arrivals;
            *arrivals = Arrivals { trial: number, all, asked, ..Arrivals::new() };
        }
        self.sent.store(0, Ordering::Relaxed);
        let burst = rate.map_or(1, |rate| (rate * BURST.as_secs_f64()) as u64).clamp(1, self.batch as u64);
        let trial = Trial { number, begin: Instant::now(), time, rate, burst, is_timed };
        self.trial.send_replace(trial);
        trial
    }

    fn arrivals(&self) -> std::sync::MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The arrivals of the trial so far.
    pub(super) fn arrived(&self) -> Arrived {
        self.arrivals().arrived
    }

    /// The arrivals of the trial, and the time up to which they are counted at least: a process tells them later.
    pub(super) fn arrived_by(&self) -> (Arrived, Instant) {
        let arrivals = self.arrivals();
        (arrivals.arrived, arrivals.asked.unwrap_or_else(Instant::now))
    }

    /// Takes what the server's process says, which was asked for at that time. It says nothing of a trial that it does
    /// not know yet. Whether it can be true is checked when the trial is over.
    pub(super) fn set_counts(&self, counts: &ProcessCounts, asked: Instant) {
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
            self.greeted.store(true, Ordering::Release);
        }
        if let Some(sent) = counts.sent.filter(|_| is_current) {
            self.sent.store(sent, Ordering::Relaxed);
            self.complete.store(counts.trial, Ordering::Release);
        }
    }

    /// How many datagrams of the trial have been sent so far, and whether these are all of them.
    pub(super) fn sent(&self, trial: &Trial) -> (u64, bool) {
        let is_complete = self.complete.load(Ordering::Acquire) == trial.number;
        (self.sent.load(Ordering::Relaxed), is_complete)
    }

    pub(super) fn set_sent(&self, sent: u64) {
        self.sent.store(sent, Ordering::Relaxed);
    }

    /// Nothing more of a trial is sent.
    pub(super) fn complete(&self, trial: &Trial) {
        self.complete.store(trial.number, Ordering::Release);
    }

    /// Bytes that have arrived so far, in all trials.
    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrivals().all.saturating_mul(self.len as u64)
    }

    /// Bytes that have arrived so far in the timed window.
    pub(super) fn timed_bytes(&self) -> u64 {
        if self.trial.borrow().is_timed { self.arrived().count.saturating_mul(self.len as u64) } else { 0 }
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// Ends the timed window. It has only one.
    pub(super) fn finish(&self, window: &Window) {
        let _earlier = self.finish.set(*window);
    }

    pub(super) fn finished(&self) -> Option<&Window> {
        self.finish.get()
    }

    /// A batch of datagrams of a trial, back to back, still without their numbers.
    pub(super) fn datagrams(&self, trial: &Trial) -> Vec<u8> {
        let mut datagrams = self.payload.repeat(self.batch);
        for datagram in datagrams.chunks_mut(self.len) {
            datagram[..4].copy_from_slice(&trial.number.to_be_bytes());
        }
        datagrams
    }

    /// Writes their numbers into the first `count` of these datagrams, at most all, and returns these.
    pub(super) fn number<'a>(&self, datagrams: &'a mut [u8], first: u64, count: u64) -> &'a [u8] {
        let count = count.min(self.batch as u64);
        let numbered = &mut datagrams[..count as usize * self.len];
        for (datagram, number) in numbered.chunks_mut(self.len).zip(first..) {
            datagram[4..HEADER].copy_from_slice(&number.to_be_bytes());
        }
        numbered
    }

    /// Takes datagrams that have arrived together. Those of another program and of an earlier trial do not count.
    pub(super) fn take<'a>(&self, datagrams: impl Iterator<Item = &'a [u8]>) -> Result<(), TransferError> {
        let mut arrivals = self.arrivals();
        for datagram in datagrams.filter(|datagram| datagram.len() == self.len) {
            let Some((trial, rest)) = datagram.split_first_chunk() else { continue };
            let Some((number, payload)) = rest.split_first_chunk() else { continue };
            let (trial, number) = (u32::from_be_bytes(*trial), u64::from_be_bytes(*number));
            // The first trial stands for a warm-up.
            if self.verify.checks(trial == 1) && payload != &self.payload[HEADER..] {
                let same = payload.iter().zip(&self.payload[HEADER..]).take_while(|(a, b)| a == b).count();
                return Err(TransferError::Corrupt { offset: (HEADER + same) as u64 });
            }
            if trial == arrivals.trial {
                arrivals.take(number);
            }
        }
        Ok(())
    }
}

/// Receives from the client, or sends to it, as the direction says. Ends only with an error.
pub(super) async fn serve(datagrams: impl netstacks::Datagrams, flow: &Flow) -> Result<(), TransferError> {
    let mut buffer = vec![0; MAX_RECEIVED_BYTES];
    if flow.direction == Direction::ToServer {
        loop {
            for _ in 0..TURN.div_ceil(flow.batch as u64) {
                let batch = receive(&datagrams, &mut buffer).await?;
                flow.take(batch.payloads(&buffer))?;
            }
            yield_now().await;
        }
    }
    let mut trials = flow.trials();
    let hello = receive(&datagrams, &mut buffer).await?;
    flow.greeted.store(true, Ordering::Release);
    loop {
        // The sender of the trials is alive: it is in the flow.
        let _changed = trials.changed().await;
        let trial = *trials.borrow_and_update();
        send(&datagrams, (hello.local, hello.peer), flow, &trial).await?;
        flow.complete(&trial);
    }
}

/// Calls `send` with what is left, until it has taken all, or nothing. Returns how many bytes it took.
pub(super) fn send_whole(
    datagrams: &[u8],
    mut send: impl FnMut(&[u8]) -> Result<usize, TransferError>,
) -> Result<usize, TransferError> {
    let mut taken = 0;
    while taken < datagrams.len() {
        match send(&datagrams[taken..])? {
            0 => break,
            len => taken += len,
        }
    }
    Ok(taken)
}

async fn receive(datagrams: &impl netstacks::Datagrams, buffer: &mut [u8]) -> Result<DatagramBatch, TransferError> {
    datagrams.recv_batch(buffer).await.map_err(TransferError::io("receive a datagram at the stack"))
}

/// Sends the datagrams of a trial to the client.
async fn send(
    datagrams: &impl netstacks::Datagrams,
    (local, peer): (SocketAddr, SocketAddr),
    flow: &Flow,
    trial: &Trial,
) -> Result<(), TransferError> {
    let (mut batch, mut sent) = (flow.datagrams(trial), 0);
    loop {
        let now = Instant::now();
        if now >= trial.end() {
            return Ok(());
        }
        let due = trial.due(now);
        if due < sent + trial.burst {
            flow.due.notified().await;
            continue;
        }
        let turn = sent + TURN.min(due - sent);
        while sent < turn {
            let numbered = flow.number(&mut batch, sent, turn - sent);
            let taken = send_whole(numbered, |rest| match datagrams.try_send_batch(local, peer, rest, flow.len) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                taken => taken.map_err(TransferError::io("send a datagram from the stack")),
            })?;
            sent += (taken / flow.len) as u64;
            if taken < numbered.len() {
                break;
            }
        }
        flow.set_sent(sent);
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_reordered_and_repeated_datagrams_are_told_apart() {
        for (numbers, count, reordered, duplicated) in [
            (&[0, 1, 2, 3][..], 4, 0, 0),
            (&[0, 1, 5], 3, 0, 0),
            (&[0, 2, 1, 3], 4, 1, 0),
            (&[0, 1, 1, 2, 0], 3, 0, 2),
            (&[3, 3, 1, 1], 2, 1, 2),
            // Far ahead, and back: the ring has forgotten nothing that it should know.
            (&[0, REMEMBERED + 5, 6, REMEMBERED + 5, 6], 3, 1, 2),
            (&[0, 3 * REMEMBERED, 3 * REMEMBERED - 1, 1], 4, 2, 0),
        ] {
            let mut arrivals = Arrivals::new();
            for number in numbers {
                arrivals.take(*number);
            }
            let next = numbers.iter().max().unwrap_or(&0) + 1;
            assert_eq!(arrivals.arrived, Arrived { count, reordered, duplicated, next }, "{numbers:?}");
        }
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

    fn flow(mode: &str) -> Flow {
        let words = format!("x -n gvisor -m {mode} --protocol udp --datagram 100");
        let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
        Flow::of(&Scenario::try_from(cli.run).unwrap()).unwrap()
    }

    #[test]
    fn a_process_counts_what_arrives_at_it() {
        let flow = flow("writer");
        let first = flow.begin(None, Duration::ZERO, false);
        flow.set_counts(&counts(r#"{"trial":1,"arrived":7,"reordered":2,"duplicated":1}"#), first.end());
        let (arrived, counted_at) = flow.arrived_by();
        assert_eq!((arrived.count, arrived.reordered, arrived.duplicated, counted_at), (7, 2, 1, first.end()));
        // Of the second trial it has nothing yet, but it has looked.
        let later = first.end() + Duration::from_secs(1);
        flow.begin(None, Duration::ZERO, true);
        flow.set_counts(&counts(r#"{"trial":1,"arrived":8}"#), later);
        assert_eq!(flow.arrived_by(), (Arrived::default(), later));
        flow.set_counts(&counts(r#"{"trial":2,"arrived":5}"#), later);
        assert_eq!((flow.arrived_bytes(), flow.timed_bytes()), (1200, 500));
    }

    #[test]
    fn a_process_says_how_many_it_sent_when_it_has_sent_all() {
        let flow = flow("reader");
        assert!(!flow.is_greeted());
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
        assert!(flow.is_greeted() && flow.arrived() == Arrived::default());
    }
}
