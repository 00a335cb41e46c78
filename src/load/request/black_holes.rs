//! Connects to an address that stays silent, beside the requests. They are held open for the whole run, so they show
//! whether connects that wait keep others from the subject.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Exchange, Requested};
use crate::load::engine::{Client, Engine, Work};
use crate::load::error::LoadError;
use crate::load::sockets::Sockets;
use crate::load::window::Window;
use crate::sample::BlackHoleFacts;

/// How long after its end a connect is tried again.
const RETRY: Duration = Duration::from_millis(100);

pub(crate) fn client(exchange: &Arc<Exchange>, target: SocketAddr, sockets: impl Sockets) -> Client {
    let is_held = vec![false; exchange.requests.blackholes.into()];
    let facts = BlackHoleFacts::default();
    Client::new(sockets, Holder { exchange: Arc::clone(exchange), target, is_held, retries: VecDeque::new(), facts })
}

struct Holder {
    exchange: Arc<Exchange>,
    target: SocketAddr,
    is_held: Vec<bool>,
    /// The others, with the times when they are tried again.
    retries: VecDeque<(usize, Instant)>,
    facts: BlackHoleFacts,
}

impl<S: Sockets> Work<S> for Holder {
    fn warm_up(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        (0..self.is_held.len()).try_for_each(|index| self.connect(&mut engine.sockets, index))
    }

    fn run(&mut self, engine: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        self.facts.ended = 0;
        engine.turn_until(self, engine.now() + self.exchange.time, |_, _| false)?;
        self.facts.open = (self.is_held.len() - self.retries.len()) as u64;
        Ok(())
    }

    fn finish(&mut self, _: &mut Engine<S>, _: &Window) -> Result<(), LoadError> {
        Ok(())
    }

    fn leave(&mut self) {
        self.exchange.finish(Requested { blackholes: Some(self.facts), ..Requested::default() });
    }

    fn connect(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError> {
        self.is_held[index] = true;
        if sockets.connect(index, self.target).is_err() {
            self.end(sockets, index);
        }
        Ok(())
    }

    /// Nobody waits for the handshakes.
    fn handshakes(&self) -> usize {
        0
    }

    fn ready(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError> {
        // The socket may have been closed after the event.
        if self.is_held[index] && has_ended(sockets, index) {
            self.end(sockets, index);
        }
        Ok(false)
    }

    fn due(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError> {
        let now = engine.now();
        while self.retries.front().is_some_and(|(_, at)| *at <= now)
            && let Some((index, _)) = self.retries.pop_front()
        {
            self.connect(&mut engine.sockets, index)?;
        }
        Ok(())
    }

    fn due_at(&self, _: Instant) -> Option<Instant> {
        self.retries.front().map(|(_, at)| *at)
    }
}

impl Holder {
    fn end<S: Sockets>(&mut self, sockets: &mut S, index: usize) {
        sockets.close(index);
        self.is_held[index] = false;
        self.facts.ended += 1;
        self.retries.push_back((index, sockets.now() + RETRY));
    }
}

/// Whether a connect has failed, or the subject has closed a connection that it accepted before it had reached the server.
fn has_ended<S: Sockets>(sockets: &mut S, index: usize) -> bool {
    match sockets.is_connected(index) {
        Ok(true) => !matches!(sockets.read(index, &mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock),
        Ok(false) => false,
        Err(_) => true,
    }
}
