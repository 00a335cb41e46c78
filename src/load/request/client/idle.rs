//! Idle connections and UDP flows: opened, asked once, held open, and closed. The memory is read after each step, and while they
//! rest.
//!
//! A connection that breaks fails the run. A flow without an answer counts as lost, as any datagram does.

pub(crate) mod kernel;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use platform::ProcessMeter;

use super::{Requester, Slot};
use crate::load::engine::Engine;
use crate::load::error::LoadError;
use crate::load::request::PATIENCE;
use crate::load::sockets::Sockets;
use crate::load::window::Window;
use crate::meter::Usage;
use crate::sample::{IdleFacts, RestFacts, Unloaded};

/// Most flows that are asked at once: a device's queue may hold 500 packets.
const AT_ONCE: usize = 256;

impl Requester {
    pub(super) fn open_idle<S: Sockets>(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        self.idle_facts.unloaded.before = self.rest(engine, window)?;
        // The first connection pays one-time costs, which are left out.
        engine.connect(self, 0..1)?;
        self.ask_each(engine, 0..1)?;
        self.end_half(engine, 0..1)?;
        self.idle_facts.rss_before_bytes = rss_bytes(window);
        self.sockets_before = window.sockets();
        engine.connect(self, 1..self.slots.len())?;
        self.ask_each(engine, 1..self.slots.len())?;
        self.end_half(engine, 1..self.slots.len())?;
        if self.answered == 0 { Err(LoadError::Silent { sent: self.counts.sent }) } else { Ok(()) }
    }

    /// Does nothing for a while. Returns what the subject's process did; a program is watched elsewhere.
    fn rest<S: Sockets>(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<Option<Unloaded>, LoadError> {
        let Some(time) = self.exchange.unloaded else { return Ok(None) };
        let then = window.read();
        engine.turn_until(self, engine.now() + time, |_, _| false)?;
        let now = window.read();
        let (Usage { own, carrier_cpu, .. }, counters) =
            (now.usage.since(then.usage), now.counters.since(then.counters));
        let is_carried = carrier_cpu.is_some();
        let (cpu, switches) =
            if is_carried { (carrier_cpu, counters.carrier_switches) } else { (own.cpu, own.switches) };
        Ok(Some(Unloaded::of(now.at - then.at, cpu, switches)))
    }

    /// Makes a request on some connections, and waits for the responses.
    fn ask_each<S: Sockets>(&mut self, engine: &mut Engine<S>, slots: Range<usize>) -> Result<(), LoadError> {
        let at_once = if self.exchange.is_udp() { AT_ONCE } else { usize::MAX };
        let mut asked = slots.start;
        for index in slots {
            let now = engine.now();
            self.start(&mut engine.sockets, index, now)?;
            if index + 1 - asked == at_once {
                let is_answered = |slot: &Slot| slot.due.is_empty();
                engine.turn_until(self, now + PATIENCE, |work, _| work.slots[asked..=index].iter().all(is_answered))?;
                asked = index + 1;
            }
        }
        self.stop(engine)?;
        self.counts.verdict(self.answered)
    }

    /// Closes the client's half of some half-closed connections, and waits until the server has read the end of each.
    fn end_half<S: Sockets>(&mut self, engine: &mut Engine<S>, slots: Range<usize>) -> Result<(), LoadError> {
        let exchange = Arc::clone(&self.exchange);
        if !exchange.is_half_closed {
            return Ok(());
        }
        let ended = slots.end as u64;
        for index in slots {
            engine.sockets.end_writing(index).map_err(LoadError::io("half-close a connection"))?;
        }
        let have_ended = || exchange.half_closed.load(Ordering::Relaxed) >= ended;
        engine.turn_until(self, engine.now() + exchange.drain, |_, _| have_ended())?;
        if !have_ended() {
            return Err(LoadError::io("half-close a connection")(io::ErrorKind::TimedOut.into()));
        }
        Ok(())
    }

    pub(super) fn hold_idle<S: Sockets>(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        // The process of a carrier is another one.
        let is_carried = window.usage().carrier_rss_bytes.is_some();
        let switches = || platform::switches_of_process().filter(|_| !is_carried);
        let begun = switches();
        self.idle_facts.rss_open_bytes = rss_bytes(window);
        let (start, time) = (engine.now(), self.exchange.time);
        for after in IdleFacts::MOMENTS.into_iter().filter(|moment| *moment < time).chain([time]) {
            engine.turn_until(self, start + after, |_, _| false)?;
            self.idle_facts.rest.push(RestFacts { after, rss_bytes: rss_bytes(window), kernel_bytes: None });
            self.sockets_at_rest.push(window.sockets());
        }
        self.idle_facts.wakeups = begun.and_then(|begun| Some(switches()?.since(begun).waits));
        Ok(())
    }

    /// Has the server end the half-closed connections that are left, and waits for its last bytes.
    fn end_other_half<S: Sockets>(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        let answered = self.answered;
        let now = engine.now();
        self.slots.iter_mut().filter(|slot| slot.is_taken).for_each(|slot| slot.due.push_back(now));
        self.exchange.rest.close();
        self.stop(engine)?;
        // They answer once more for the same connection.
        self.answered = answered;
        Ok(())
    }

    /// Closes all connections, and waits for the subject to release their memory.
    pub(super) fn close_idle<S: Sockets>(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError> {
        (self.idle_facts.connections, self.idle_facts.release) = (self.answered, self.exchange.release);
        self.idle_facts.page_bytes = platform::page_bytes();
        if self.exchange.is_half_closed {
            self.end_other_half(engine)?;
        }
        (0..self.slots.len()).for_each(|index| self.close(&mut engine.sockets, index));
        engine.turn_until(self, engine.now() + self.exchange.release, |_, _| false)?;
        self.idle_facts.rss_closed_bytes = rss_bytes(window);
        self.count_kernel_memory();
        self.idle_facts.unloaded.after = self.rest(engine, window)?;
        self.counts.verdict(self.idle_facts.connections)
    }
}

impl Requester {
    /// The sockets are open no more, so that new ones show what they took.
    fn count_kernel_memory(&mut self) {
        let others = self.slots.len() as u64 - 1;
        let loopback = match self.targets.first() {
            Some(SocketAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        };
        let bytes = self.exchange.held.bytes(others, self.sockets_before, &self.sockets_at_rest, loopback);
        for (rest, bytes) in self.idle_facts.rest.iter_mut().zip(bytes) {
            rest.kernel_bytes = bytes;
        }
    }
}

fn rss_bytes(window: &Window) -> Option<u64> {
    window.usage().carrier_rss_bytes.or_else(|| ProcessMeter::of(process::id()).rss_bytes())
}
