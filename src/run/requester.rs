//! The client side of requests: one thread for all connections, driven by readiness.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use platform::ProcessMeter;

use super::barrier::StartBarrier;
use super::client::{Client, Deliver};
use super::meter::{Snapshot, difference};
use super::requests::{Exchange, Requested};
use super::sockets::Sockets;
use super::transfer::TransferError;
use crate::sample::{DatagramFacts, IdleFacts, Latency, Status};
use crate::scenario::RELEASE_DELAY;

/// How long the client makes requests before the timed window.
const WARM_UP: Duration = Duration::from_millis(100);

/// Most handshakes at once before the warm-up: fewer than the backlog of a stack.
const HANDSHAKES: usize = 256;

/// A run with more failures than this ends early.
const MAX_ERRORS: u64 = 10_000;

/// How often the client checks for lost requests over UDP.
const LOOK: Duration = Duration::from_millis(20);

/// The longest wait for an event, so that cancellation is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// The client of all connections of a run, over these sockets.
pub(super) fn client(exchange: &Arc<Exchange>, targets: Vec<SocketAddr>, sockets: impl Sockets) -> Client {
    let wake = sockets.wake();
    let cancelled = Arc::new(AtomicBool::new(false));
    let cancel = {
        let cancelled = Arc::clone(&cancelled);
        Box::new(move || {
            cancelled.store(true, Ordering::Release);
            wake();
        })
    };
    let exchange = Arc::clone(exchange);
    let deliver: Deliver = Box::new(move |barrier| {
        let room = exchange.response.room(exchange.requests.depth.get().into());
        let mut requester = Requester {
            slots: (0..exchange.connections).map(|_| Slot::default()).collect(),
            counts: Counts::default(),
            pace: Pace::default(),
            idle: VecDeque::new(),
            handshakes: 0,
            made: 0,
            is_warm_up: true,
            background_bytes: 0,
            looked: sockets.now(),
            request: exchange.request.slice(0, exchange.request.len).to_vec(),
            room,
            ready: Vec::new(),
            exchange,
            targets,
            sockets,
            cancelled,
        };
        let result = requester.run(barrier);
        // Sets the counts of a run that failed early. Otherwise they are set already.
        requester.finish(0, None, None, barrier.read());
        (Box::new(requester.sockets), result)
    });
    Client { deliver, cancel }
}

struct Requester<S> {
    exchange: Arc<Exchange>,
    targets: Vec<SocketAddr>,
    sockets: S,
    cancelled: Arc<AtomicBool>,
    slots: Vec<Slot>,
    counts: Counts,
    pace: Pace,
    /// Slots that wait for a request to be due. A slot is listed once for each request that it has room for.
    idle: VecDeque<usize>,
    /// Connections with an unfinished handshake.
    handshakes: usize,
    /// Connections made so far.
    made: usize,
    is_warm_up: bool,
    /// Bytes of the streams beside the requests: first the count when the window began, at its end the bytes in it.
    background_bytes: u64,
    /// The datagram of a request.
    request: Vec<u8>,
    /// When it last checked for lost requests.
    looked: Instant,
    /// The buffer for reads.
    room: Vec<u8>,
    /// The buffer for the numbers of ready sockets.
    ready: Vec<usize>,
}

#[derive(Clone, Default)]
struct Counts {
    latency: Latency,
    errors: BTreeMap<&'static str, u64>,
    failed: u64,
    /// Over UDP: requests that were sent, responses that came in time, and responses that came again.
    sent: u64,
    arrived: u64,
    duplicated: u64,
}

/// When requests are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pace {
    /// Never: nothing is started.
    #[default]
    Stopped,
    /// As soon as the one before it has been answered.
    Closed,
    /// At even intervals from `begin` on, `rate` a second. `started` requests have been started.
    Even { begin: Instant, rate: u32, started: u64, end: Instant },
}

impl Pace {
    /// When the next request is due, which may be later than `now`; `None` if none will be.
    fn next(self, now: Instant) -> Option<Instant> {
        match self {
            Self::Stopped => None,
            Self::Closed => Some(now),
            Self::Even { begin, rate, started, end } => {
                let nanoseconds = u128::from(started) * 1_000_000_000 / u128::from(rate);
                let due = begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
                Some(due).filter(|due| *due < end)
            }
        }
    }

    /// When the next request was due; `None` if none is by `now`.
    fn due(self, now: Instant) -> Option<Instant> {
        self.next(now).filter(|due| *due <= now)
    }

    /// Counts a request that has been started.
    fn start(&mut self) {
        if let Self::Even { started, .. } = self {
            *started += 1;
        }
    }
}

/// A connection, or an empty slot for one.
#[derive(Default)]
struct Slot {
    /// Whether it has a socket, and whether that is connected.
    is_taken: bool,
    is_open: bool,
    /// When the requests in flight were due, the oldest first.
    due: VecDeque<Instant>,
    /// Bytes of them that the socket has not taken.
    unsent: usize,
    /// Bytes of the oldest request's response that have arrived.
    got: usize,
    /// Over UDP: the number of the last request. Its response has the same number.
    mark: u32,
    /// When that request was sent; `None` once it is answered or given up.
    sent: Option<Instant>,
    /// Whether that request was answered.
    is_answered: bool,
}

impl<S: Sockets> Requester<S> {
    fn run(&mut self, barrier: &StartBarrier) -> Result<(), TransferError> {
        platform::sharpen_timers();
        if self.exchange.is_idle {
            return self.idle(barrier);
        }
        if !self.exchange.connects {
            self.connect_all()?;
        }
        self.begin(Pace::Closed)?;
        self.turn_until(self.sockets.now() + WARM_UP.min(self.exchange.time), |_| false)?;
        if self.exchange.is_udp() {
            // The first ones may be lost beside a stream.
            self.turn_until(self.sockets.now() + self.exchange.drain, |this| this.exchange.answered() > 0)?;
        }
        self.stop()?;
        self.counts.verdict(self.exchange.answered())?;
        if self.exchange.answered() == 0 {
            return Err(TransferError::Silent { sent: self.counts.sent });
        }
        barrier.wait()?;
        self.exchange.warm();
        self.is_warm_up = false;
        self.counts = Counts::default();
        self.background_bytes = self.exchange.background_bytes();
        let cpu = platform::cpu_of_thread();
        let window = self.window(barrier);
        let (answered, cpu) = (self.exchange.timed(), difference(platform::cpu_of_thread(), cpu));
        self.background_bytes = self.exchange.background_bytes() - self.background_bytes;
        // Requests in flight at the end count with their latency.
        let end = window.and_then(|end| self.stop().map(|()| end))?;
        let verdict = self.counts.verdict(answered);
        let sent = self.counts.sent;
        self.finish(answered, cpu, None, end);
        if answered == 0 && self.exchange.is_udp() {
            return verdict.and(Err(TransferError::Silent { sent }));
        }
        verdict
    }

    /// Hands over the figures. Only the first call has an effect.
    fn finish(&mut self, answered: u64, cpu: Option<Duration>, idle: Option<IdleFacts>, end: Snapshot) {
        let Counts { latency, errors, sent, arrived, duplicated, .. } = mem::take(&mut self.counts);
        let facts = DatagramFacts { sent, arrived, duplicated, ..DatagramFacts::default() };
        let datagrams = self.exchange.is_udp().then_some(facts);
        let background_bytes = self.background_bytes;
        self.exchange.finish(Requested { answered, latency, errors, cpu, idle, datagrams, background_bytes, end });
    }

    /// Opens all connections, exchanges a byte on each, and holds them open. Reads the memory after each step.
    fn idle(&mut self, barrier: &StartBarrier) -> Result<(), TransferError> {
        // The first connection pays one-time costs, which are left out.
        self.connect(0).map_err(TransferError::io("connect"))?;
        self.ask_each(..1)?;
        let rss_before_bytes = rss_bytes(barrier);
        self.connect_all()?;
        self.ask_each(1..)?;
        barrier.wait()?;
        self.exchange.warm();
        self.is_warm_up = false;
        // The wakeups of another process are not known.
        let is_carried = barrier.usage().carrier_rss_bytes.is_some();
        let wakeups = || platform::wakeups_of_process().filter(|_| !is_carried);
        let (cpu, slept) = (platform::cpu_of_thread(), wakeups());
        let rss_open_bytes = rss_bytes(barrier);
        self.turn_until(self.sockets.now() + self.exchange.time, |_| false)?;
        let end = barrier.read();
        let cpu = difference(platform::cpu_of_thread(), cpu);
        let wakeups = slept.and_then(|slept| Some(wakeups()? - slept));
        let rss_idle_bytes = rss_bytes(barrier);
        let connections = self.slots.len() as u64;
        (0..self.slots.len()).for_each(|index| self.close(index));
        self.turn_until(self.sockets.now() + RELEASE_DELAY, |_| false)?;
        let rss_closed_bytes = rss_bytes(barrier);
        let idle =
            IdleFacts { connections, rss_before_bytes, rss_open_bytes, rss_idle_bytes, rss_closed_bytes, wakeups };
        let verdict = self.counts.verdict(connections);
        self.finish(0, cpu, Some(idle), end);
        verdict
    }

    /// Makes a request on some connections, and waits for the responses.
    fn ask_each(&mut self, range: impl RangeBounds<usize>) -> Result<(), TransferError> {
        for index in (0..self.slots.len()).filter(|index| range.contains(index)) {
            self.start(index, self.sockets.now())?;
        }
        self.stop()?;
        self.counts.verdict(self.exchange.answered())
    }

    /// Makes requests for the time of the run, and takes the readings at its end.
    fn window(&mut self, barrier: &StartBarrier) -> Result<Snapshot, TransferError> {
        let begin = self.sockets.now();
        let end = begin + self.exchange.time;
        self.begin(match self.exchange.requests.rate {
            None => Pace::Closed,
            Some(rate) => Pace::Even { begin, rate: rate.get(), started: 0, end },
        })?;
        self.turn_until(end, |_| false)?;
        Ok(barrier.read())
    }

    /// Opens all connections.
    fn connect_all(&mut self) -> Result<(), TransferError> {
        for index in 0..self.slots.len() {
            if !self.slots[index].is_taken {
                self.connect(index).map_err(TransferError::io("connect"))?;
            }
            while self.handshakes >= HANDSHAKES {
                self.turn(self.sockets.now() + LONGEST_WAIT)?;
            }
        }
        while self.handshakes > 0 {
            self.turn(self.sockets.now() + LONGEST_WAIT)?;
        }
        Ok(())
    }

    /// Sets the pace at which requests are started from now on.
    fn begin(&mut self, pace: Pace) -> Result<(), TransferError> {
        self.pace = pace;
        let depth = self.exchange.requests.depth.get().into();
        self.idle = (0..depth).flat_map(|_| 0..self.slots.len()).collect();
        self.start_due()
    }

    /// Starts no more requests, and waits for the responses to those in flight. A request without a response has
    /// failed.
    fn stop(&mut self) -> Result<(), TransferError> {
        // Requests that were due in the window are still made, so that their delay counts.
        if matches!(self.pace, Pace::Closed) {
            self.pace = Pace::Stopped;
        }
        self.turn_until(self.sockets.now() + self.exchange.drain, |this| {
            let is_answered = |slot: &Slot| slot.due.is_empty() && !(this.exchange.connects && slot.is_taken);
            this.slots.iter().all(is_answered) && this.pace.due(this.sockets.now()).is_none()
        })?;
        let now = self.sockets.now();
        while let Some(due) = self.pace.due(now).filter(|_| self.counts.failed <= MAX_ERRORS) {
            self.pace.start();
            self.counts.unanswered(now - due);
        }
        self.pace = Pace::Stopped;
        let is_udp = self.exchange.is_udp();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if self.exchange.connects && slot.due.is_empty() && slot.is_taken {
                self.counts.fail("not closed", 1);
            }
            (slot.sent, slot.unsent) = if is_udp { (None, 0) } else { (slot.sent, slot.unsent) };
            for due in slot.due.drain(..).filter(|_| !is_udp) {
                self.counts.unanswered(now - due);
            }
            if self.exchange.connects {
                self.close(index);
            }
        }
        Ok(())
    }

    /// Handles events until `end`, or until `is_enough` returns true.
    fn turn_until(&mut self, end: Instant, is_enough: impl Fn(&Self) -> bool) -> Result<(), TransferError> {
        loop {
            let now = self.sockets.now();
            if now >= end || is_enough(self) {
                return Ok(());
            }
            self.turn(end)?;
        }
    }

    /// Waits for events, until `end` at most, and handles them. Then starts the requests that are due.
    fn turn(&mut self, end: Instant) -> Result<(), TransferError> {
        let now = self.sockets.now();
        let look = if self.exchange.is_udp() { LOOK } else { LONGEST_WAIT };
        // Without an idle slot, a request that is due waits for an event.
        let due = self.pace.next(now).filter(|_| !self.idle.is_empty());
        let mut ready = mem::take(&mut self.ready);
        ready.clear();
        self.sockets.wait(end.min(now + look), due, &mut ready).map_err(TransferError::io("wait for events"))?;
        if self.cancelled.load(Ordering::Acquire) {
            return Err(TransferError::Cancelled);
        }
        for index in &ready {
            self.handle(*index)?;
        }
        self.ready = ready;
        if self.exchange.is_udp() {
            self.give_up()?;
        }
        self.start_due()
    }

    /// Gives up requests over UDP that have waited too long: the request or its response is lost.
    fn give_up(&mut self) -> Result<(), TransferError> {
        let now = self.sockets.now();
        if now.duration_since(self.looked) < LOOK {
            return Ok(());
        }
        self.looked = now;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.sent.is_some_and(|sent| now.duration_since(sent) > self.exchange.patience) {
                (slot.sent, slot.unsent) = (None, 0);
                // Its latency is at least this.
                if let Some(due) = slot.due.pop_front() {
                    self.counts.latency.record(now - due);
                }
                self.free(index)?;
            }
        }
        Ok(())
    }

    fn start_due(&mut self) -> Result<(), TransferError> {
        // Each slot once: a request that fails at once is not retried before the next events are handled.
        for _ in 0..self.idle.len() {
            let Some(due) = self.pace.due(self.sockets.now()) else { break };
            let Some(index) = self.idle.pop_front() else { break };
            self.pace.start();
            self.start(index, due)?;
        }
        Ok(())
    }

    /// Makes a request.
    fn start(&mut self, index: usize, due: Instant) -> Result<(), TransferError> {
        let slot = &mut self.slots[index];
        slot.due.push_back(due);
        slot.unsent += self.exchange.request.len;
        if !slot.is_taken {
            return match self.connect(index) {
                Ok(()) => Ok(()),
                Err(error) => self.broken(index, &error),
            };
        }
        self.write(index)
    }

    fn close(&mut self, index: usize) {
        self.sockets.close(index);
        self.slots[index].is_taken = false;
    }

    fn connect(&mut self, index: usize) -> io::Result<()> {
        let target = self.targets[self.made % self.targets.len()];
        self.made += 1;
        self.sockets.connect(index, target)?;
        self.handshakes += 1;
        let slot = &mut self.slots[index];
        (slot.is_taken, slot.is_open, slot.got) = (true, false, 0);
        Ok(())
    }

    fn handle(&mut self, index: usize) -> Result<(), TransferError> {
        let slot = &mut self.slots[index];
        // The socket was closed after the event.
        if !slot.is_taken {
            return Ok(());
        }
        if !slot.is_open {
            match self.sockets.is_connected(index) {
                Ok(true) => {
                    slot.is_open = true;
                    self.handshakes -= 1;
                }
                Ok(false) => return Ok(()),
                Err(error) => return self.broken(index, &error),
            }
        }
        self.write(index)?;
        self.read(index)
    }

    /// Writes requests, as far as the socket takes them.
    fn write(&mut self, index: usize) -> Result<(), TransferError> {
        let (slot, request) = (&mut self.slots[index], &self.exchange.request);
        if !slot.is_open || !slot.is_taken {
            return Ok(());
        }
        while slot.unsent > 0 {
            let written = if self.exchange.is_udp() {
                let mark = slot.mark.wrapping_add(1);
                let len = self.exchange.mark_len();
                self.request[..len].copy_from_slice(&mark.to_be_bytes()[size_of::<u32>() - len..]);
                let result = self.sockets.write(index, &self.request);
                if result.is_ok() {
                    (slot.mark, slot.sent, slot.is_answered) = (mark, Some(self.sockets.now()), false);
                    self.counts.sent += 1;
                }
                result
            } else {
                let offset = request.len - 1 - (slot.unsent - 1) % request.len;
                self.sockets.write(index, request.slice(offset, slot.unsent))
            };
            match written {
                Ok(len) => slot.unsent -= len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.broken(index, &error),
            }
        }
        Ok(())
    }

    /// Reads responses until the socket would block: only then is it certain to become ready again.
    fn read(&mut self, index: usize) -> Result<(), TransferError> {
        loop {
            let slot = &self.slots[index];
            if !slot.is_taken {
                return Ok(());
            }
            match self.sockets.read(index, &mut self.room) {
                Ok(len) if self.exchange.is_udp() => self.take_datagram(index, len)?,
                Ok(0) if self.exchange.connects && slot.due.is_empty() => {
                    self.close(index);
                    return self.free(index);
                }
                Ok(0) => return self.broken(index, &io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.take(index, len)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.broken(index, &error),
            }
        }
    }

    /// Takes bytes of responses.
    fn take(&mut self, index: usize, len: usize) -> Result<(), TransferError> {
        let (slot, response) = (&mut self.slots[index], &self.exchange.response);
        if self.exchange.verifies(self.is_warm_up) {
            response.verify(slot.got, &self.room[..len])?;
        }
        slot.got += len;
        let len = response.len;
        while self.slots[index].got >= len {
            let slot = &mut self.slots[index];
            slot.got -= len;
            // A response without a request is corrupt.
            let Some(due) = slot.due.pop_front() else {
                return Err(TransferError::Corrupt { offset: slot.got as u64 });
            };
            self.counts.latency.record(self.sockets.now() - due);
            self.exchange.answer();
            // If each request has its own connection, the slot is free once that is closed.
            if !self.exchange.connects {
                self.free(index)?;
            }
        }
        Ok(())
    }

    /// Takes a datagram: the response to the last request, a duplicate, or a late response.
    fn take_datagram(&mut self, index: usize, len: usize) -> Result<(), TransferError> {
        let (slot, response) = (&mut self.slots[index], &self.room[..len]);
        let mark = self.exchange.mark_len();
        if len != self.exchange.response.len {
            return Err(TransferError::Corrupt { offset: len as u64 });
        }
        let is_last = response[..mark] == slot.mark.to_be_bytes()[size_of::<u32>() - mark..];
        if !is_last || slot.sent.is_none() {
            self.counts.duplicated += u64::from(is_last && slot.is_answered);
            return Ok(());
        }
        if self.exchange.verifies(self.is_warm_up) {
            self.exchange.response.verify(mark, &response[mark..])?;
        }
        (slot.sent, slot.is_answered) = (None, true);
        self.counts.arrived += 1;
        if let Some(due) = slot.due.pop_front() {
            self.counts.latency.record(self.sockets.now() - due);
        }
        self.exchange.answer();
        self.free(index)
    }

    /// Uses a slot for the next request, or lets it wait until one is due.
    fn free(&mut self, index: usize) -> Result<(), TransferError> {
        if self.idle.is_empty()
            && let Some(due) = self.pace.due(self.sockets.now())
        {
            self.pace.start();
            return self.start(index, due);
        }
        self.idle.push_back(index);
        Ok(())
    }

    /// Counts a socket that broke, with the requests on it, and opens another. Before the timed window, this ends the
    /// run.
    fn broken(&mut self, index: usize, error: &io::Error) -> Result<(), TransferError> {
        let slot = &mut self.slots[index];
        if self.is_warm_up {
            self.counts.fail(kind(error), 1);
            let operation = if slot.is_open { "wait for a response" } else { "connect" };
            return Err(TransferError::Io { operation, source: io::Error::new(error.kind(), error.to_string()) });
        }
        if slot.is_taken && !slot.is_open {
            self.handshakes -= 1;
        }
        let lost = slot.due.len();
        slot.due.clear();
        (slot.is_open, slot.unsent, slot.got, slot.sent) = (false, 0, 0, None);
        self.close(index);
        self.counts.fail(kind(error), (lost as u64).max(1));
        if self.counts.failed > MAX_ERRORS {
            return self.counts.verdict(self.exchange.timed());
        }
        if !self.exchange.connects {
            self.connect(index).map_err(TransferError::io("connect again"))?;
        }
        // Tried again later, so that the clock is checked between failures.
        self.idle.extend((0..lost.max(usize::from(self.exchange.connects))).map(|_| index));
        Ok(())
    }
}

/// The resident set of the subject's process.
fn rss_bytes(barrier: &StartBarrier) -> Option<u64> {
    barrier.usage().carrier_rss_bytes.or_else(|| ProcessMeter::of(process::id()).rss_bytes())
}

impl Counts {
    /// Counts a request without a response. Its latency is at least `latency`.
    fn unanswered(&mut self, latency: Duration) {
        self.latency.record(latency);
        self.fail("unanswered", 1);
    }

    fn fail(&mut self, kind: &'static str, count: u64) {
        self.failed += count;
        *self.errors.entry(kind).or_default() += count;
    }

    /// Returns an error if any request failed.
    fn verdict(&self, answered: u64) -> Result<(), TransferError> {
        let Some((most, _)) = self.errors.iter().max_by_key(|(_, count)| **count) else { return Ok(()) };
        let status = match *most {
            "unanswered" | "timed out" | "not closed" => Status::Stalled,
            "closed early" => Status::Short,
            _ => Status::Reset,
        };
        let kinds: Vec<_> = self.errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        Err(TransferError::Requests { status, failed: self.failed, answered, kinds: kinds.join(", ") })
    }
}

/// The reason why a connection broke.
fn kind(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused",
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => "reset",
        io::ErrorKind::TimedOut => "timed out",
        io::ErrorKind::UnexpectedEof => "closed early",
        io::ErrorKind::AddrNotAvailable => "without a port",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Mutex;

    use clap::Parser;

    use super::super::meter::{Counters, Meter, Usage};
    use super::*;
    use crate::cli::Cli;
    use crate::scenario::Scenario;

    struct NoMeter;

    impl Meter for NoMeter {
        fn counters(&self) -> Counters {
            Counters::default()
        }

        fn usage(&self) -> Usage {
            Usage::default()
        }
    }

    /// Sockets with a clock of their own, which moves in [`Sockets::wait`] alone: to the moment when an answer comes,
    /// or to the end of the wait. An answer takes `delay`.
    struct Timed {
        now: Instant,
        delay: Duration,
        /// When the answer of each socket comes.
        answers: Vec<Option<Instant>>,
        /// When each request was sent.
        sent: Arc<Mutex<Vec<Instant>>>,
        made: Vec<usize>,
    }

    impl Sockets for Timed {
        fn connect(&mut self, index: usize, _: SocketAddr) -> io::Result<()> {
            self.made.push(index);
            Ok(())
        }

        fn is_connected(&mut self, _: usize) -> io::Result<bool> {
            Ok(true)
        }

        fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize> {
            match self.answers[index] {
                Some(at) if at <= self.now => {
                    self.answers[index] = None;
                    buffer[0] = 0;
                    Ok(1)
                }
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        }

        fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
            self.answers[index] = Some(self.now + self.delay);
            self.sent.lock().unwrap().push(self.now);
            Ok(bytes.len())
        }

        fn close(&mut self, _: usize) {}

        fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
            ready.append(&mut self.made);
            if ready.is_empty() {
                let next = self.answers.iter().flatten().min().copied();
                self.now = [Some(end), due, next].into_iter().flatten().min().unwrap().max(self.now);
                let due = self.answers.iter().enumerate().filter(|(_, at)| at.is_some_and(|at| at <= self.now));
                ready.extend(due.map(|(index, _)| index));
            }
            Ok(())
        }

        fn now(&self) -> Instant {
            self.now
        }

        fn wake(&self) -> super::super::sockets::Wake {
            Arc::new(|| ())
        }
    }

    /// Runs requests at a rate. Returns when they were due and sent after the begin of the window.
    fn schedule(rate: u32, parallel: usize, delay: Duration) -> Vec<(Duration, Duration)> {
        let words =
            format!("x -n lwip -m rr --layer loopback --rate {rate} --parallel {parallel} --time 2 --verify off");
        let scenario = Scenario::try_from(Cli::try_parse_from(words.replace("-n lwip ", "").split(' ')).unwrap().run);
        let exchange = Arc::new(Exchange::of(&scenario.unwrap(), &Arc::from([])).unwrap());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sockets = Timed {
            now: Instant::now(),
            delay,
            answers: vec![None; parallel],
            sent: Arc::clone(&sent),
            made: Vec::new(),
        };
        let Client { deliver, .. } = client(&exchange, vec![([127, 0, 0, 1], 1).into()], sockets);
        deliver(&StartBarrier::new(1, NoMeter)).1.unwrap();
        let answered = exchange.timed() as usize;
        let mut sent = sent.lock().unwrap().clone();
        let timed = sent.split_off(sent.len() - answered);
        let due = |index: usize| Duration::from_nanos(index as u64 * 1_000_000_000 / u64::from(rate));
        timed.iter().enumerate().map(|(index, at)| (due(index), *at - timed[0])).collect()
    }

    #[test]
    fn a_request_starts_when_it_is_due() {
        for rate in [97, 150, 199, 333, 1000, 4999] {
            let schedule = schedule(rate, 1, Duration::from_micros(100));
            assert_eq!(schedule.len(), 2 * rate as usize, "{rate}");
            assert!(schedule.iter().all(|(due, at)| due == at), "{rate}: {schedule:?}");
        }
    }

    /// A request without an idle connection starts as soon as there is one, and counts from when it was due.
    #[test]
    fn a_late_answer_delays_the_next_request() {
        let late = schedule(1000, 1, Duration::from_micros(1500));
        assert!(late.iter().enumerate().all(|(index, (_, at))| *at == Duration::from_micros(1500) * index as u32));
        let two = schedule(1000, 2, Duration::from_micros(1500));
        assert!(two.iter().all(|(due, at)| due == at), "{two:?}");
    }
}
