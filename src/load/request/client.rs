//! The client side of requests: the connections of a thread, driven by readiness.

mod datagrams;
pub(super) mod idle;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use platform::SocketCount;

use super::counts::{Counts, kind};
use super::pace::Pace;
use super::{Exchange, Requested};
use crate::cell::Requests;
use crate::load::engine::{Client, Engine, Work};
use crate::load::error::LoadError;
use crate::load::sockets::Sockets;
use crate::load::window::Window;
use crate::sample::{DatagramFacts, IdleFacts};

/// How long a thread makes requests before the timed window.
const WARM_UP: Duration = Duration::from_millis(100);

/// How long the close of a server may come after its response, in the warm-up through a program.
const END: Duration = Duration::from_millis(500);

/// A run with more failures than this ends early.
const MAX_ERRORS: u64 = 10_000;

/// How often a thread checks for lost requests over UDP.
const LOOK: Duration = Duration::from_millis(20);

/// The client of so many connections, in thread `index` of so many threads. Connections go to the targets in turn.
pub(crate) fn client(
    exchange: &Arc<Exchange>,
    connections: usize,
    targets: Vec<SocketAddr>,
    (index, threads): (usize, usize),
    sockets: impl Sockets,
) -> Client {
    let requester = Requester {
        targets,
        slots: (0..connections).map(|_| Slot::default()).collect(),
        counts: Counts::default(),
        pace: Pace::default(),
        idle: VecDeque::new(),
        handshakes: 0,
        made: index,
        thread: (index, threads),
        is_warm_up: true,
        answered: 0,
        in_window: 0,
        background_bytes: 0,
        idle_facts: IdleFacts::default(),
        sockets_before: None,
        sockets_at_rest: Vec::new(),
        looked: sockets.now(),
        request: exchange.request.slice(0, exchange.request.period).to_vec(),
        room: exchange.room(&exchange.response),
        exchange: Arc::clone(exchange),
    };
    Client::new(sockets, requester)
}

pub(super) struct Requester {
    exchange: Arc<Exchange>,
    targets: Vec<SocketAddr>,
    /// The number of this thread, and of all.
    thread: (usize, usize),
    slots: Vec<Slot>,
    counts: Counts,
    pace: Pace,
    /// Slots by the times from which they are free. A slot is listed once for each request that it has room for.
    idle: VecDeque<(usize, Instant)>,
    handshakes: usize,
    made: usize,
    is_warm_up: bool,
    /// Requests that were answered so far, and those in the window.
    answered: u64,
    in_window: u64,
    /// Bytes of the streams beside the requests: first the count when the window began, at its end the bytes in it.
    background_bytes: u64,
    idle_facts: IdleFacts,
    /// The sockets in the subject's network with the first connection alone, and at each moment of rest.
    sockets_before: Option<SocketCount>,
    sockets_at_rest: Vec<Option<SocketCount>>,
    request: Vec<u8>,
    /// When it last checked for lost requests.
    looked: Instant,
    room: Vec<u8>,
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
    is_answered: bool,
}

impl<S: Sockets> Work<S> for Requester {
    fn warm_up(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        if self.exchange.is_idle {
            return self.open_idle(engine, window);
        }
        if !self.exchange.connects {
            engine.connect(self, 0..self.slots.len())?;
        }
        self.begin(engine, Pace::Closed)?;
        engine.turn_until(self, engine.now() + WARM_UP.min(self.exchange.time), |_, _| false)?;
        if self.exchange.is_udp() {
            // The first ones may be lost beside a stream.
            engine.turn_until(self, engine.now() + self.exchange.drain, |work, _| !work.is_silent(work.answered))?;
        }
        self.stop(engine)?;
        self.check(self.answered)
    }

    fn run(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        // What was counted so far does not count.
        self.exchange.is_timed.store(true, Ordering::Relaxed);
        self.is_warm_up = false;
        if self.exchange.is_idle {
            return self.hold_idle(engine, window);
        }
        self.counts = Counts::default();
        let warm = self.answered;
        self.background_bytes = self.background_bytes();
        let begin = engine.now();
        let end = begin + self.exchange.time;
        let (index, threads) = self.thread;
        let pace = match self.exchange.requests.rate {
            None => Pace::Closed,
            Some(rate) => Pace::Even { begin, rate: rate.get(), next: index as u64, step: threads as u64, end },
        };
        self.begin(engine, pace)?;
        engine.turn_until(self, end, |_, _| false)?;
        self.in_window = self.answered - warm;
        self.background_bytes = self.background_bytes() - self.background_bytes;
        Ok(())
    }

    /// Requests in flight at the end count with their latency.
    fn finish(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        if self.exchange.is_idle {
            return self.close_idle(engine, window);
        }
        self.stop(engine)?;
        self.check(self.in_window)
    }

    fn leave(&mut self) {
        let Counts { latency, errors, sent, arrived, duplicated, .. } = mem::take(&mut self.counts);
        let facts = DatagramFacts { sent, arrived, duplicated, ..DatagramFacts::default() };
        self.exchange.finish(Requested {
            answered: self.in_window,
            latency,
            errors,
            idle: Some(mem::take(&mut self.idle_facts)).filter(|idle| idle.connections > 0),
            datagrams: self.exchange.is_udp().then_some(facts),
            background_bytes: self.background_bytes,
            blackholes: None,
        });
    }

    fn connect(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        self.open(sockets, index).map_err(LoadError::io("connect"))
    }

    fn handshakes(&self) -> usize {
        self.handshakes
    }

    fn ready(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        let slot = &mut self.slots[index];
        // The socket was closed after the event.
        if !slot.is_taken {
            return Ok(false);
        }
        if !slot.is_open {
            match sockets.is_connected(index) {
                Ok(true) => {
                    slot.is_open = true;
                    self.handshakes -= 1;
                }
                Ok(false) => return Ok(false),
                Err(error) => return self.broken(sockets, index, &error).map(|()| false),
            }
        }
        self.write(sockets, index)?;
        self.read(sockets, index)?;
        Ok(false)
    }

    fn due(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        if self.exchange.is_udp() {
            self.give_up(&mut engine.sockets)?;
        }
        self.start_due(&mut engine.sockets)
    }

    fn due_at(&self, _: Instant) -> Option<Instant> {
        // Without an idle slot, a request that is due waits for an event.
        let next = self.idle.front().and_then(|(_, free)| self.pace.next(*free));
        // Flows at rest wait for nothing.
        let looks = self.exchange.is_udp() && (self.is_warm_up || !self.exchange.is_idle);
        let look = looks.then(|| self.looked + LOOK);
        next.into_iter().chain(look).min()
    }
}

impl Requester {
    /// Whether datagrams were sent, and none was answered. A request on a connection that has no answer is an error already.
    fn is_silent(&self, answered: u64) -> bool {
        answered == 0 && self.counts.sent > 0
    }

    /// Fails if a request has failed, or if none was answered. The first request of a thread may be due later.
    fn check(&self, answered: u64) -> Result<(), LoadError> {
        self.counts.verdict(answered)?;
        if self.is_silent(answered) { Err(LoadError::Silent { sent: self.counts.sent }) } else { Ok(()) }
    }

    /// Bytes of the streams beside the requests, which the first thread counts.
    fn background_bytes(&self) -> u64 {
        if self.thread.0 == 0 { self.exchange.background_bytes() } else { 0 }
    }

    /// Sets the pace. The first time to think is not as long for all slots: else all requests would be due together for ever.
    fn begin<S: Sockets>(&mut self, engine: &mut Engine<S>, pace: Pace) -> Result<(), LoadError> {
        self.pace = pace;
        let Requests { depth, think, .. } = self.exchange.requests;
        let (now, (index, threads)) = (engine.now(), self.thread);
        let all = self.slots.len() * threads * usize::from(depth.get());
        let free = |turn: usize| now + think.mul_f64((turn * threads + index) as f64 / all as f64);
        self.idle = (0..self.slots.len() * usize::from(depth.get()))
            .map(|turn| (turn % self.slots.len(), free(turn)))
            .collect();
        self.start_due(&mut engine.sockets)
    }

    /// Starts no more requests, and waits for the responses to those in flight.
    fn stop<S: Sockets>(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        // Requests that were due in the window are still made, so that their delay counts.
        if matches!(self.pace, Pace::Closed) {
            self.pace = Pace::Stopped;
        }
        let mut end = engine.now() + self.exchange.drain;
        engine.turn_until(self, end, |work, now| {
            work.slots.iter().all(|slot| slot.due.is_empty()) && work.pace.due(now, now).is_none()
        })?;
        let exchange = Arc::clone(&self.exchange);
        let trial = exchange.is_end_withheld.as_ref().filter(|_| self.is_warm_up && exchange.closes());
        if trial.is_some() {
            end = end.min(engine.now() + END);
        }
        engine
            .turn_until(self, end, |work, _| !work.exchange.closes() || work.slots.iter().all(|slot| !slot.is_taken))?;
        let is_open = |slot: &Slot| slot.due.is_empty() && slot.is_taken;
        if let Some(withheld) = trial.filter(|_| self.slots.iter().any(is_open)) {
            withheld.store(true, Ordering::Relaxed);
        }
        let now = engine.now();
        while let Some(due) = self.pace.due(now, now).filter(|_| self.counts.failed <= MAX_ERRORS) {
            self.pace.start();
            self.counts.unanswered(now - due);
        }
        self.pace = Pace::Stopped;
        let is_udp = self.exchange.is_udp();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if self.exchange.closes() && slot.due.is_empty() && slot.is_taken {
                self.counts.fail("not closed", 1);
            }
            (slot.sent, slot.unsent) = if is_udp { (None, 0) } else { (slot.sent, slot.unsent) };
            for due in slot.due.drain(..).filter(|_| !is_udp) {
                self.counts.unanswered(now - due);
            }
            if self.exchange.connects {
                self.close(&mut engine.sockets, index);
            }
        }
        Ok(())
    }

    fn start_due<S: Sockets>(&mut self, sockets: &mut S) -> Result<(), LoadError> {
        // Each slot once: a request that fails at once is not retried before the next events are handled.
        for _ in 0..self.idle.len() {
            let Some(&(index, free)) = self.idle.front() else { break };
            let Some(due) = self.pace.due(free, sockets.now()) else { break };
            self.idle.pop_front();
            self.pace.start();
            self.start(sockets, index, due)?;
        }
        Ok(())
    }

    fn start<S: Sockets>(&mut self, sockets: &mut S, index: usize, due: Instant) -> Result<(), LoadError> {
        let slot = &mut self.slots[index];
        slot.due.push_back(due);
        slot.unsent += self.exchange.request.period;
        if !slot.is_taken {
            return match self.open(sockets, index) {
                Ok(()) => Ok(()),
                Err(error) => self.broken(sockets, index, &error),
            };
        }
        self.write(sockets, index)
    }

    fn close<S: Sockets>(&mut self, sockets: &mut S, index: usize) {
        if self.exchange.is_end_withheld() {
            sockets.reset(index);
        } else {
            sockets.close(index);
        }
        self.slots[index].is_taken = false;
    }

    fn open<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> io::Result<()> {
        let target = self.targets[self.made % self.targets.len()];
        self.made += 1;
        sockets.connect(index, target)?;
        self.handshakes += 1;
        let slot = &mut self.slots[index];
        (slot.is_taken, slot.is_open, slot.got) = (true, false, 0);
        Ok(())
    }

    fn write<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        let (slot, request) = (&mut self.slots[index], &self.exchange.request);
        if !slot.is_open || !slot.is_taken {
            return Ok(());
        }
        while slot.unsent > 0 {
            let written = if self.exchange.is_udp() {
                let mark = slot.mark.wrapping_add(1);
                let len = self.exchange.mark_len();
                self.request[..len].copy_from_slice(&mark.to_be_bytes()[size_of::<u32>() - len..]);
                let result = sockets.write(index, &self.request);
                if result.is_ok() {
                    (slot.mark, slot.sent, slot.is_answered) = (mark, Some(sockets.now()), false);
                    self.counts.sent += 1;
                }
                result
            } else {
                let offset = request.period - 1 - (slot.unsent - 1) % request.period;
                sockets.write(index, request.slice(offset as u64, slot.unsent))
            };
            match written {
                Ok(len) => slot.unsent -= len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.broken(sockets, index, &error),
            }
        }
        Ok(())
    }

    /// Reads responses until the socket would block: only then is it certain to become ready again.
    fn read<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        loop {
            let slot = &self.slots[index];
            if !slot.is_taken || !slot.is_open {
                return Ok(());
            }
            match sockets.read(index, &mut self.room) {
                Ok(len) if self.exchange.is_udp() => self.take_datagram(sockets, index, len)?,
                Ok(0) if self.exchange.closes() && slot.due.is_empty() => {
                    self.close(sockets, index);
                    return self.free(sockets, index);
                }
                Ok(0) => return self.broken(sockets, index, &io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.take(sockets, index, len)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.broken(sockets, index, &error),
            }
        }
    }

    fn take<S: Sockets>(&mut self, sockets: &mut S, index: usize, len: usize) -> Result<(), LoadError> {
        let (slot, response) = (&mut self.slots[index], &self.exchange.response);
        if self.exchange.verify.checks(self.is_warm_up) {
            response.verify(slot.got as u64, &self.room[..len])?;
        }
        slot.got += len;
        let len = response.period;
        while self.slots[index].got >= len {
            let slot = &mut self.slots[index];
            slot.got -= len;
            // A response without a request is corrupt.
            let Some(due) = slot.due.pop_front() else {
                return Err(LoadError::Corrupt { offset: slot.got as u64 });
            };
            self.answer(sockets.now() - due);
            // If each request has its own connection, the slot is free once that is closed.
            if !self.exchange.connects || self.exchange.is_end_withheld() {
                self.free(sockets, index)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, latency: Duration) {
        self.counts.latency.record(latency);
        self.answered += 1;
        self.exchange.answer(!self.is_warm_up);
    }

    /// Uses a slot for the next request, or lets it wait until one is due.
    fn free<S: Sockets>(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        // The next request over UDP has another port.
        if self.exchange.connects && self.slots[index].is_taken {
            self.close(sockets, index);
        }
        let now = sockets.now();
        let free = now + self.exchange.requests.think;
        if self.idle.is_empty()
            && let Some(due) = self.pace.due(free, now)
        {
            self.pace.start();
            return self.start(sockets, index, due);
        }
        self.idle.push_back((index, free));
        Ok(())
    }

    /// Counts a socket that broke, with its requests, and opens another. Before the timed window, this ends the run.
    fn broken<S: Sockets>(&mut self, sockets: &mut S, index: usize, error: &io::Error) -> Result<(), LoadError> {
        let slot = &mut self.slots[index];
        if self.is_warm_up {
            self.counts.fail(kind(error), 1);
            let operation = match (slot.is_open, slot.due.is_empty()) {
                (false, _) => "connect",
                (true, false) => "wait for a response",
                (true, true) => "hold a connection open",
            };
            return Err(LoadError::Io { operation, source: io::Error::new(error.kind(), error.to_string()) });
        }
        if slot.is_taken && !slot.is_open {
            self.handshakes -= 1;
        }
        let lost = slot.due.len();
        slot.due.clear();
        (slot.is_open, slot.unsent, slot.got, slot.sent) = (false, 0, 0, None);
        self.close(sockets, index);
        self.counts.fail(kind(error), (lost as u64).max(1));
        if self.counts.failed > MAX_ERRORS {
            return self.counts.verdict(self.answered);
        }
        // A connection at rest is not made again.
        if !self.exchange.connects && !self.exchange.is_idle {
            self.open(sockets, index).map_err(LoadError::io("connect again"))?;
        }
        // Tried again later, so that the clock is checked between failures.
        let free = sockets.now() + self.exchange.requests.think;
        self.idle.extend((0..lost.max(usize::from(self.exchange.connects))).map(|_| (index, free)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
