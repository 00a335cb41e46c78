//! The clients of datagrams: the flows of a thread. The first thread also leads the trials.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::arrivals::Arrived;
use super::jitter::Jitter;
use super::search::{Outcome, TRIAL, lower, search};
use super::{Delivery, Flow, Flows, MAX_RECEIVED_BYTES, TURN, Trial};
use crate::load::engine::{Client, Engine, Work};
use crate::load::error::{LoadError, unless_blocked};
use crate::load::sockets::Sockets;
use crate::load::stream::Direction;
use crate::load::window::Window;
use crate::sample::DatagramFacts;

/// How often a client says where it is, until the server knows.
const HELLO: Duration = Duration::from_millis(50);

/// How often a thread checks what it cannot be woken for.
const LOOK: Duration = Duration::from_millis(1);

/// The shortest interval between rings for the server: each costs a thread switch.
const SHORTEST_RING: Duration = Duration::from_micros(50);

/// The client for these of the flows. The one that has the first flow leads the trials.
pub(crate) fn client(flows: &Arc<Flows>, mine: Range<usize>, target: SocketAddr, sockets: impl Sockets) -> Client {
    flows.wakes.lock().unwrap_or_else(PoisonError::into_inner).push(sockets.canceller());
    let work = Datagrams {
        leads: mine.start == 0,
        ends: mine.map(|flow| End { flow, batch: Vec::new(), sent: 0, retry: None }).collect(),
        flows: Arc::clone(flows),
        target,
        trial: Trial::none(),
        is_complete: true,
        handshakes: 0,
        hello: None,
        ring: None,
        rate: None,
        windows: 0,
        buffer: vec![0; MAX_RECEIVED_BYTES],
    };
    Client::new(sockets, work)
}

struct Datagrams {
    flows: Arc<Flows>,
    leads: bool,
    ends: Vec<End>,
    target: SocketAddr,
    /// The trial that this thread makes, and whether it has sent all.
    trial: Trial,
    is_complete: bool,
    handshakes: usize,
    /// When the server is told next where the clients are, while it does not know.
    hello: Option<Instant>,
    /// When the server's senders are rung next: the timers of runtimes are too coarse.
    ring: Option<Instant>,
    rate: Option<f64>,
    /// Timed windows that this thread has made.
    windows: u32,
    buffer: Vec<u8>,
}

struct End {
    /// Its index in the flows of all threads.
    flow: usize,
    /// Room for datagrams that are sent together.
    batch: Vec<u8>,
    sent: u64,
    /// When to send again after the socket had no room, unless it becomes ready before.
    retry: Option<Instant>,
}

impl<S: Sockets> Work<S> for Datagrams {
    fn warm_up(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        engine.connect(self, 0..self.ends.len())?;
        self.greet(engine)?;
        if !self.leads {
            return engine.turn_while(self, |work| !work.flows.is_warm.load(Ordering::Acquire));
        }
        self.rate = match self.flows.rate {
            Some(rate) => self.trial(engine, Some(rate), TRIAL.min(self.flows.time)).map(|_| Some(rate)),
            None => search(|rate, time| self.trial(engine, rate, time)),
        }?;
        self.flows.is_warm.store(true, Ordering::Release);
        self.flows.wake();
        Ok(())
    }

    fn run(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        self.windows += 1;
        if self.leads {
            self.flows.begin(self.rate, self.flows.time, true);
        } else {
            engine.turn_while(self, |work| !work.flows.trial().is_timed)?;
        }
        let end = self.flows.trial().end();
        engine.turn_until(self, end, |_, _| false)
    }

    fn finish(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        if !self.leads {
            return engine.turn_while(self, |work| work.flows.finish.get().is_none() && !work.begins_again());
        }
        let trial = self.flows.trial();
        let made = self.settle(engine, &trial)?;
        if made.arrived.count == 0 {
            return Err(LoadError::Silent { sent: made.sent });
        }
        if !made.passes() && self.windows < self.flows.windows {
            self.rate = Some(lower(self.rate, &made, self.flows.time));
            // A trial that is not timed: the other threads wait for the next one that is.
            self.trial(engine, self.rate, TRIAL.min(self.flows.time))?;
            self.flows.again.store(self.windows, Ordering::Release);
            self.flows.wake();
            return Ok(());
        }
        let found = self.rate.filter(|_| self.flows.rate.is_none());
        let _first = self.flows.finish.set(Delivery {
            bytes: made.in_time() * self.flows.len as u64,
            read_bytes: made.in_time[Direction::ToClient as usize] * self.flows.len as u64,
            facts: DatagramFacts {
                sent: made.sent,
                arrived: made.arrived.count,
                reordered: made.arrived.reordered,
                duplicated: made.arrived.duplicated,
                jitter_ns: Jitter::mean(self.flows.each.iter().map(|flow| flow.arrivals().jitter))
                    .and_then(|jitter| u64::try_from(jitter.as_nanos()).ok()),
                found_per_second: found.map(|rate| rate as u64),
            },
        });
        Ok(())
    }

    fn is_again(&self) -> bool {
        self.begins_again()
    }

    fn connect(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        self.handshakes += 1;
        sockets.connect(index, self.target).map_err(LoadError::io("make a socket"))
    }

    fn handshakes(&self) -> usize {
        self.handshakes
    }

    fn ready(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        // A socket has no handshake: it is ready at once.
        self.handshakes = self.handshakes.saturating_sub(1);
        self.ends[index].retry = None;
        if self.flow(index).direction == Direction::ToServer {
            return Ok(false);
        }
        for _ in 0..TURN {
            let received = unless_blocked("receive a datagram", || {
                passing(sockets.read_datagrams(index, &mut self.buffer), (0, 1))
            })?;
            let Some((len, segment_len)) = received else { return Ok(false) };
            self.flows.take(Direction::ToClient, self.buffer[..len].chunks(segment_len.max(1)))?;
            // The window does not wait for the rest of a batch.
            if Instant::now() >= self.trial.end() {
                break;
            }
        }
        Ok(true)
    }

    fn due(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        let now = Instant::now();
        if self.hello.is_some_and(|hello| hello <= now) {
            self.hello = Some(now + HELLO);
            self.say_hello(&mut engine.sockets)?;
        }
        let trial = self.flows.trial();
        if trial.number != self.trial.number {
            self.begin(&trial);
        }
        if now >= trial.end() {
            self.complete(&trial);
            return Ok(());
        }
        for index in 0..self.ends.len() {
            if self.ends[index].retry.is_none_or(|retry| retry <= now) {
                self.send(&mut engine.sockets, index, now)?;
            }
        }
        if self.ring.is_some_and(|ring| ring <= now) {
            self.ring_servers();
            self.ring = Some(trial.next_due_at(trial.due(now)).max(now + SHORTEST_RING));
        }
        Ok(())
    }

    fn due_at(&self, now: Instant) -> Option<Instant> {
        let look = self.hello.map(|_| now + LOOK);
        if self.is_complete {
            return look;
        }
        let sends = self.ends.iter().filter(|end| self.flows.each[end.flow].direction == Direction::ToServer);
        let due = sends.map(|end| end.retry.unwrap_or_else(|| self.trial.next_due_at(end.sent)));
        due.chain(look).chain(self.ring).chain([self.trial.end()]).min()
    }
}

impl Datagrams {
    /// Whether the last window of this thread did not hold the rate, and there is another.
    fn begins_again(&self) -> bool {
        self.flows.again.load(Ordering::Acquire) == self.windows
    }

    fn flow(&self, index: usize) -> &Flow {
        &self.flows.each[self.ends[index].flow]
    }

    /// Says where the clients are until the server knows those of all threads: only then may a trial begin.
    fn greet<S: Sockets>(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        let is_known = |work: &Self| work.flows.are_greeted();
        if is_known(self) {
            return Ok(());
        }
        self.hello = Some(engine.now());
        engine.turn_until(self, engine.now() + self.flows.greeting, |work, _| is_known(work))?;
        self.hello = None;
        if is_known(self) { Ok(()) } else { Err(LoadError::Ungreeted) }
    }

    /// The sockets to which the server does not know how to send.
    fn unknown(&self) -> impl Iterator<Item = usize> {
        (0..self.ends.len())
            .filter(|index| self.flow(*index).direction == Direction::ToClient && !self.flow(*index).is_greeted())
    }

    fn say_hello<S: Sockets>(&self, sockets: &mut S) -> Result<(), LoadError> {
        for index in self.unknown() {
            let hello = super::hello(self.ends[index].flow);
            unless_blocked("send a datagram", || passing(sockets.write(index, &hello), 0))?;
        }
        Ok(())
    }

    fn trial<S: Sockets>(
        &mut self,
        engine: &mut Engine<S>,
        rate: Option<f64>,
        time: Duration,
    ) -> Result<Outcome, LoadError> {
        let trial = self.flows.begin(rate, time, false);
        engine.turn_until(self, trial.end(), |_, _| false)?;
        self.settle(engine, &trial)
    }

    fn begin(&mut self, trial: &Trial) {
        for end in &mut self.ends {
            (end.batch, end.sent, end.retry) = (self.flows.datagrams(end.flow, trial), 0, None);
        }
        let has_servers = (0..self.ends.len()).any(|index| self.flow(index).direction == Direction::ToClient);
        self.ring = (has_servers && trial.rate.is_some()).then_some(trial.begin);
        (self.trial, self.is_complete) = (*trial, false);
    }

    /// The time of a trial is over: this thread sends nothing more in it, and the server notices.
    fn complete(&mut self, trial: &Trial) {
        if !self.is_complete {
            (0..self.ends.len())
                .map(|index| self.flow(index))
                .filter(|flow| flow.direction == Direction::ToServer)
                .for_each(|flow| flow.complete(trial));
            self.ring_servers();
            self.is_complete = true;
        }
    }

    fn ring_servers(&self) {
        for flow in (0..self.ends.len()).map(|index| self.flow(index)) {
            if flow.direction == Direction::ToClient {
                flow.due.notify_one();
            }
        }
    }

    fn send<S: Sockets>(&mut self, sockets: &mut S, index: usize, now: Instant) -> Result<(), LoadError> {
        let (end, flows) = (&mut self.ends[index], &self.flows);
        let flow = &flows.each[end.flow];
        if flow.direction == Direction::ToClient {
            return Ok(());
        }
        let (sent, is_full) = flows.send_due(flow, (&self.trial, &mut end.batch), end.sent, |rest| {
            let taken =
                unless_blocked("send a datagram", || passing(sockets.write_datagrams(index, rest, flows.len), 0));
            taken.map(Option::unwrap_or_default)
        })?;
        (end.sent, end.retry) = (sent, is_full.then_some(now + LOOK));
        Ok(())
    }

    /// Waits until all that was sent has arrived, or nothing comes any more.
    fn settle<S: Sockets>(&mut self, engine: &mut Engine<S>, trial: &Trial) -> Result<Outcome, LoadError> {
        let mut late = None;
        let mut last = (0, Instant::now());
        loop {
            let (sent, is_complete) = self.flows.sent(trial);
            let (outcome, now) = self.outcome(trial, sent, is_complete)?;
            if now > trial.end() + self.flows.grace {
                late.get_or_insert(outcome.in_time);
            }
            if outcome.arrived.count != last.0 {
                last = (outcome.arrived.count, now);
            }
            let is_quiet = now.duration_since(last.1) > self.flows.quiet;
            if is_complete && (outcome.arrived.count >= sent || is_quiet) {
                return Ok(Outcome { in_time: late.unwrap_or(outcome.in_time), ..outcome });
            }
            engine.turn_until(self, engine.now() + LOOK, |_, _| false)?;
        }
    }

    /// The arrivals of all flows so far, and the time up to which they are counted at least.
    fn outcome(&self, trial: &Trial, sent: u64, is_complete: bool) -> Result<(Outcome, Instant), LoadError> {
        let mut outcome = Outcome { sent, ..Outcome::default() };
        let mut counted = None::<Instant>;
        for flow in &self.flows.each {
            let (sent, (arrived, now)) = (flow.sent(trial).0, flow.arrived_by());
            // A server in a process of its own may lie.
            if is_complete && arrived.next > sent {
                return Err(LoadError::Overcounted { sent, arrived: arrived.next });
            }
            let all = &mut outcome.arrived;
            *all = Arrived {
                count: all.count.saturating_add(arrived.count),
                reordered: all.reordered.saturating_add(arrived.reordered),
                duplicated: all.duplicated.saturating_add(arrived.duplicated),
                next: 0,
            };
            let in_time = &mut outcome.in_time[flow.direction as usize];
            *in_time = in_time.saturating_add(if is_complete { arrived.count.min(sent) } else { arrived.count });
            counted = Some(counted.map_or(now, |counted| counted.min(now)));
        }
        Ok((outcome, counted.unwrap_or_else(Instant::now)))
    }
}

/// A result, or `nothing` if the error only says what became of an earlier datagram.
fn passing<T>(result: io::Result<T>, nothing: T) -> io::Result<T> {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(nothing),
        result => result,
    }
}

/// Linux alone runs a stack in a process of its own.
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
