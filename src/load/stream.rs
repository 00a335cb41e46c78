//! Bulk bytes in streams of TCP or QUIC: the parts that both sides share.
//!
//! Each stream delivers its warm-up and then its timed payload on the same connection:
//!
//! ```text
//! reader   client ── go ──► server        the client counts the bytes that arrive; its clock runs from
//!          client ◄─ bytes ─ server       the go to the arrival of the last byte
//!
//! writer   client ── bytes ─► server      the server counts the bytes that arrive and acknowledges the total;
//!          client ◄─ total ── server      the client's clock runs from its first write to the acknowledgement
//! ```
//!
//! Through a program, the end that sends tells the other one its total beside the connection: a program may end a connection of
//! which one half is closed, or pass no end on.

pub(crate) mod client;
pub(crate) mod server;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use platform::TcpStatistics;
use portable_atomic::AtomicU64;
use serde::Serialize;
use tokio::sync::Notify;

use super::engine::Client;
use super::error::LoadError;
use super::pattern::Pattern;
use super::sockets::Sockets;
use super::{Delivered, Figures, Kind, Retransmits, Served, Sides, Targets, Task, divided, threads};
use crate::cell::{Mode, Protocol, Verify};
use crate::plan::scenario::{Amount, Scenario};
use crate::plural;
use crate::sample::{Measurements, TcpFacts};

pub(crate) const GO: u8 = b'G';

/// A stream with a bit rate sends the bytes of this much time at once.
const PORTION: Duration = Duration::from_millis(2);

/// The seed of a run's first stream; the others follow, and begin anew after so many.
const SEED: u64 = 0x7475_6E70_6572_6601;
const SEEDS: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    ToClient,
    ToServer,
}

#[derive(Clone)]
pub(crate) struct Streams {
    pub(crate) each: Arc<[Stream]>,
    threads: usize,
}

#[derive(Serialize)]
pub(crate) struct StreamTask {
    port: u16,
    direction: Direction,
    warmup_bytes: u64,
    /// `null`: until the client closes.
    bytes: Option<u64>,
    buffer_bytes: usize,
    seed: u64,
}

pub(crate) struct Stream {
    pub(crate) direction: Direction,
    pub(crate) seed: u64,
    pub(crate) pattern: Arc<Pattern>,
    pub(crate) warmup_bytes: u64,
    pub(crate) amount: Amount,
    pub(crate) buffer_bytes: usize,
    bytes_per_second: Option<f64>,
    verify: Verify,
    pub(crate) is_served_elsewhere: bool,
    /// Whether both halves stay open until all has arrived.
    keeps_halves: bool,
    /// How many bytes the end that sends has sent in all, set at the end of the window.
    sent: OnceLock<u64>,
    is_sent: Notify,
    /// Whether the end of the stream did not arrive, after all of its bytes had.
    is_end_withheld: AtomicBool,
    /// Bytes that arrived until the end of the timed window, including the warm-up.
    arrived: AtomicU64,
    finish: OnceLock<Finish>,
    crossed: OnceLock<u64>,
    stop: AtomicBool,
    /// The retransmits of a reader's server, if they can be known: this end sends.
    sender: OnceLock<Retransmits>,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];

    pub(super) const fn of(mode: Mode) -> &'static [Self] {
        match mode {
            Mode::Reader => &[Self::ToClient],
            Mode::Both => &Self::BOTH,
            _ => &[Self::ToServer],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    Timed,
    /// The time is over, and the bytes that are still in flight arrive.
    Drain,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) bytes: u64,
    /// Segments that the kernel retransmitted in the timed window: at the end that sends if it has it, else at the client's.
    pub(crate) retransmits: Option<u64>,
    pub(crate) tcp: TcpStatistics,
}

impl Streams {
    pub(super) fn beside(scenario: &Scenario) -> Self {
        let each = scenario.cell.background.map_or_else(Arc::default, |mode| Self::split(scenario, mode, 1));
        Self { threads: each.len(), each }
    }

    /// So many streams in each direction of a mode. The bytes are split evenly; the first streams take the remainder.
    fn split(scenario: &Scenario, mode: Mode, streams: u64) -> Arc<[Stream]> {
        // The two ends of a stream, and every sixteenth stream, have one pattern: it takes memory.
        let patterns: Vec<_> = (SEED..)
            .take(streams.min(SEEDS) as usize)
            .map(|seed| Arc::new(Pattern::new(seed, scenario.cell.buffer_len())))
            .collect();
        let share = |total: u64, index: u64| total / streams + u64::from(index < total % streams);
        let stream = |direction: Direction, index: u64| Stream {
            direction,
            seed: SEED + index % SEEDS,
            pattern: Arc::clone(&patterns[(index % SEEDS) as usize]),
            warmup_bytes: share(scenario.warmup_bytes, index),
            amount: match scenario.amount {
                // The plan ensures at least one byte for each stream.
                Amount::Bytes(total) => {
                    Amount::Bytes(NonZeroU64::new(share(total.get(), index)).unwrap_or(NonZeroU64::MIN))
                }
                amount @ Amount::Time { .. } => amount,
            },
            buffer_bytes: scenario.cell.buffer_len(),
            bytes_per_second: scenario.cell.bitrate.map(|bits| bits.get() as f64 / 8.0 / streams as f64),
            verify: scenario.verify,
            is_served_elsewhere: scenario.cell.subject().has_process(),
            keeps_halves: scenario.cell.subject().is_carrier(),
            sent: OnceLock::new(),
            is_sent: Notify::new(),
            is_end_withheld: AtomicBool::new(false),
            crossed: OnceLock::new(),
            arrived: AtomicU64::new(0),
            finish: OnceLock::new(),
            stop: AtomicBool::new(false),
            sender: OnceLock::new(),
        };
        let directions = Direction::of(mode).iter();
        directions.flat_map(|direction| (0..streams).map(|index| stream(*direction, index))).collect()
    }

    fn all(&self, direction: Direction) -> impl Iterator<Item = &Stream> {
        self.each.iter().filter(move |stream| stream.direction == direction)
    }

    pub(super) fn crossed_bytes(&self) -> [u64; 2] {
        self.crossed().map(|range| *range.start())
    }

    pub(super) fn is_end_withheld(&self) -> bool {
        self.each.iter().any(|stream| stream.is_end_withheld.load(Ordering::Relaxed))
    }

    pub(super) fn retransmits(&self) -> Option<u64> {
        self.each.iter().filter_map(Stream::finished).map(|finish| finish.retransmits).sum()
    }
}

impl Figures for Streams {
    fn awaited(&self) -> Option<usize> {
        Some(self.each.len())
    }

    fn arrived(&self) -> u64 {
        self.each.iter().map(Stream::arrived).sum()
    }

    fn timed_bytes(&self) -> u64 {
        self.each.iter().map(Stream::timed_bytes).sum()
    }

    fn progress(&self) -> Option<(String, &'static str)> {
        Some((plural(self.arrived(), "byte"), "--bytes and --warmup"))
    }

    fn is_complete(&self) -> bool {
        self.each.iter().all(|stream| stream.finished().is_some())
    }

    /// A stream that was not read to its end may have any number of bytes beyond those that arrived.
    fn crossed(&self) -> [RangeInclusive<u64>; 2] {
        Direction::BOTH.map(|direction| {
            let least = self.all(direction).map(Stream::crossed).sum();
            let is_whole = self.all(direction).all(|stream| stream.crossed.get().is_some());
            least..=if is_whole { least } else { u64::MAX }
        })
    }

    fn delivered(&self) -> Delivered {
        let first = self.each.iter().find_map(Stream::finished);
        let bytes =
            |direction| -> u64 { self.all(direction).filter_map(Stream::finished).map(|finish| finish.bytes).sum() };
        let [written, read] = Direction::BOTH.map(bytes);
        let figures = Measurements {
            bytes: written + read,
            bytes_back: Some(read),
            retransmits: self.retransmits(),
            tcp: first.and_then(|finish| facts(&finish.tcp)),
            ends_withheld: self.is_end_withheld(),
            ..Measurements::default()
        };
        Delivered { figures, ..Delivered::default() }
    }
}

fn facts(statistics: &TcpStatistics) -> Option<TcpFacts> {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let facts = TcpFacts {
        rtt_us: statistics.rtt.map(us),
        min_rtt_us: statistics.min_rtt.map(us),
        congestion_window_bytes: statistics.congestion_window_bytes,
        send_window_bytes: statistics.send_window_bytes,
        receive_window_bytes: statistics.receive_window_bytes,
    };
    (facts != TcpFacts::default()).then_some(facts)
}

impl Kind for Streams {
    fn threads(&self) -> usize {
        self.threads
    }

    /// The server has both ends of a connection, and a listener for each.
    fn descriptors(&self) -> [usize; 2] {
        [self.each.len(), 2 * self.each.len()]
    }

    fn targets(&self) -> Targets {
        Targets { tcp: self.each.len(), ..Targets::default() }
    }

    fn served_by(&self, target: usize, retransmits: &dyn Fn() -> Option<Retransmits>) {
        if let Some(stream) = self.each.get(target)
            && let Some(retransmits) = retransmits()
        {
            let _earlier = stream.sender.set(retransmits);
        }
    }

    fn task(&self, first_port: u16) -> Task {
        let task = |(port, stream): (u16, &Stream)| StreamTask {
            port,
            direction: stream.direction,
            warmup_bytes: stream.warmup_bytes,
            bytes: match stream.amount {
                Amount::Bytes(bytes) => Some(bytes.get()),
                Amount::Time { .. } => None,
            },
            buffer_bytes: stream.buffer_bytes,
            seed: stream.seed,
        };
        Task { streams: (first_port..).zip(&*self.each).map(task).collect(), ..Task::default() }
    }
}

impl Sides for Streams {
    fn of(scenario: &Scenario) -> Option<Self> {
        let mode = scenario.cell.workload().is_stream().then(|| scenario.cell.mode.unwrap_or(Mode::Writer))?;
        let each = Self::split(scenario, mode, scenario.cell.parallel.get().into());
        let processors = platform::parallelism().unwrap_or(1);
        Some(Self { threads: threads(scenario, processors, each.len()), each })
    }

    fn clients<S: Sockets, E>(
        &self,
        targets: &[SocketAddr],
        sockets: &mut impl FnMut(Protocol, usize) -> Result<S, E>,
    ) -> Result<Vec<Client>, E> {
        divided(self.threads, (Protocol::Tcp, self.each.len()), sockets, |_, mine, sockets| {
            client::client(&self.each, mine, targets, sockets)
        })
    }

    fn serve(&self, connection: impl netstacks::Stream, target: Option<usize>) -> Option<Served> {
        let index = target.filter(|index| *index < self.each.len())?;
        let streams = Arc::clone(&self.each);
        Some(async move { server::serve(connection, &streams[index]).await }.boxed())
    }
}

impl Stream {
    /// How many bytes may be sent now, after `sent` bytes since the `begin` of the window, or when the next are due.
    fn allowed(&self, begin: Instant, sent: u64) -> Result<usize, Instant> {
        let Some(rate) = self.bytes_per_second else { return Ok(self.buffer_bytes) };
        let due = begin + Duration::try_from_secs_f64(sent as f64 / rate).unwrap_or(Duration::MAX / 4);
        let portion = (rate * PORTION.as_secs_f64()) as usize;
        if due <= Instant::now() { Ok(portion.clamp(1, self.buffer_bytes)) } else { Err(due) }
    }

    /// The end that sends has sent all. Only the first call has an effect.
    pub(crate) fn has_sent(&self, total: u64) {
        let _earlier = self.sent.set(total);
        self.is_sent.notify_one();
    }

    pub(crate) fn receive(&self, phase: Phase, offset: u64, bytes: &[u8]) -> Result<(), LoadError> {
        self.check(phase, offset, bytes)?;
        if phase != Phase::Drain {
            self.set_arrived(offset + bytes.len() as u64);
        }
        Ok(())
    }

    pub(crate) fn check(&self, phase: Phase, offset: u64, bytes: &[u8]) -> Result<(), LoadError> {
        if self.verify.checks(phase == Phase::WarmUp) {
            self.pattern.verify(offset, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn set_arrived(&self, bytes: u64) {
        self.arrived.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// The bytes that arrived in all, if it was read to its end, else those until the end of its window.
    fn crossed(&self) -> u64 {
        self.crossed.get().copied().unwrap_or_else(|| self.arrived())
    }

    pub(crate) fn timed_bytes(&self) -> u64 {
        self.arrived().saturating_sub(self.warmup_bytes)
    }

    /// Whether the timed window is over for all `streams`. Both directions end together: one alone is another load.
    pub(crate) fn is_over(begin: Instant, streams: &[Self]) -> bool {
        let Some(Self { amount, .. }) = streams.first() else { return true };
        let elapsed = begin.elapsed();
        if matches!(amount, Amount::Time { time, .. } if elapsed < *time) {
            return false;
        }
        Direction::BOTH.into_iter().all(|direction| {
            let mut beside = streams.iter().filter(|stream| stream.direction == direction).peekable();
            beside.peek().is_none() || amount.is_over(elapsed, beside.map(Self::timed_bytes).sum())
        })
    }

    /// Ends the timed window of this stream. Only the first call has an effect.
    pub(crate) fn finish(&self, finish: &Finish) {
        let _earlier = self.finish.set(*finish);
    }

    pub(crate) fn finished(&self) -> Option<Finish> {
        self.finish.get().copied()
    }

    /// How many segments have been retransmitted so far. `client` has the statistics of the client's end.
    pub(crate) fn retransmits(&self, client: TcpStatistics) -> Option<u64> {
        match (self.direction, self.sender.get()) {
            (Direction::ToClient, Some(server)) => server(),
            _ => client.retransmits,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// The faster direction would go on alone, and the figure would be that of no load.
    #[test]
    fn both_directions_end_together() {
        let words = "x -m both --layer loopback";
        let scenario = Scenario::try_from(Cli::try_parse_from(words.split(' ')).unwrap().run).unwrap();
        let streams = Streams::of(&scenario).unwrap().each;
        let begin = Instant::now().checked_sub(Duration::from_millis(1100)).unwrap();
        let is_over_with = |to_client: u64, to_server: u64| {
            for stream in &*streams {
                let timed = if stream.direction == Direction::ToClient { to_client } else { to_server };
                stream.set_arrived(stream.warmup_bytes + timed);
            }
            Stream::is_over(begin, &streams)
        };
        let (much, some, little) = (2_000_000_000, 150_000_000, 1_000_000);
        assert!(is_over_with(much, much));
        assert!(!is_over_with(much, some) && !is_over_with(some, much) && !is_over_with(some, some));
        assert!(is_over_with(much, little), "a direction that would not have its bytes in ten times the time");
        assert!(!Stream::is_over(Instant::now(), &streams));
    }
}
