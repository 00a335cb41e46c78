//! Performs a play: the clients on one end of the link, the application above the stack, and the time between the moves.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::app::{Acceptor, App, Close};
use super::peer::{Gone, Peer};
use super::play::{Move, Opening, Play};
use super::{Broken, Invariant, Pace, Played, streams};
use crate::{Lab, link, ms};

/// How long the stack has for what a move makes it do at once.
const SETTLE: Duration = ms(1);

/// The port of the client at place 0, and the place of the client of a play.
const FIRST_PORT: u16 = 40_000;
const FIRST: u16 = 0;

/// Bytes that the server writes to a client that has vanished.
const WRITTEN_IN_VAIN: usize = 1000;

/// A client, and the server's side of its connection.
pub(super) struct Pair {
    pub(super) peer: Peer,
    pub(super) app: App,
    address: SocketAddr,
    /// The server's side of the connection before, from the same address. It goes when this one is accepted.
    before: Option<App>,
}

impl Pair {
    fn state(&self) -> String {
        format!("{}; {}", self.peer.state(), self.app.state())
    }
}

/// Clients by their places, and the server.
pub(super) struct Stage<'a> {
    lab: &'a Lab,
    pace: Pace,
    acceptor: Acceptor,
    pairs: BTreeMap<u16, Pair>,
    /// Whether the stack may join a client to the stream of another.
    pub(super) joins_clients: bool,
}

/// Performs a play. Fails with the first invariant that is broken.
pub(super) async fn perform(play: &Play, lab: &mut Lab, pace: Pace) -> Played {
    let Some(mut stage) = Stage::new(lab, pace) else { return Ok(()) };
    stage.make(FIRST, &Move::Connects(play.opening.clone()))?;
    stage.until_open(FIRST).await?;
    for one in &play.moves {
        stage.make(FIRST, one)?;
        stage.settle(time_of(one)).await?;
    }
    stage.be_kind()?;
    stage.end(FIRST, play.server_first).await?;
    stage.begin_again().await
}

/// How long a move takes, with what it makes the stack do at once.
pub(super) fn time_of(one: &Move) -> Duration {
    if let Move::Pass(time) = one { ms((*time).into()) } else { SETTLE }
}

impl<'a> Stage<'a> {
    pub(super) fn new(lab: &'a mut Lab, pace: Pace) -> Option<Self> {
        let listener = lab.take_listener()?;
        lab.wire().is_lossy = true;
        Some(Self { lab, pace, acceptor: Acceptor::new(listener), pairs: BTreeMap::new(), joins_clients: false })
    }

    /// Makes a move with the client at this place.
    pub(super) fn make(&mut self, at: u16, one: &Move) -> Played {
        match one {
            Move::Connects(opening) => return self.connect(at, opening),
            Move::ServerAccepts(accepts) => {
                self.acceptor.is_accepting = *accepts;
                // A handshake that waits for room in the queue may time out.
                self.blame(false);
                return Ok(());
            }
            _ => {}
        }
        let Some(Pair { peer, app, .. }) = self.pairs.get_mut(&at) else { return Ok(()) };
        match *one {
            Move::ServerWrites(len) => app.write(len.into()),
            Move::ServerReads(len) => app.wants(len.into()),
            Move::ServerEnds => app.close(Close::Shutdown),
            Move::ServerDrops => app.close(Close::Drop),
            Move::ServerResets => app.close(Close::Reset),
            Move::Pass(_) | Move::Connects(_) | Move::ServerAccepts(_) => {}
            // A client that is gone makes no moves.
            _ if peer.gone.is_some() || peer.was_reset => {}
            Move::ClientSends { len, cut, ends, fault } => peer.send(len.into(), cut.into(), ends, fault)?,
            Move::ClientSendsAgain { cut, fault } => peer.send_again(cut.into(), fault)?,
            Move::ClientStopsReading => peer.read(false)?,
            Move::ClientReads => peer.read(true)?,
            Move::ClientResets => peer.reset()?,
            Move::ClientVanishes => peer.vanish(),
            Move::LoseAcks(count) => peer.lost_acks = count,
            Move::Lose(count) => peer.losses = count,
            Move::Overtake => peer.overtakes = true,
            Move::ClientForges(ref forged) => peer.forge(forged)?,
            Move::Changed(ref changes) => {
                if peer.put_changed(changes)? {
                    self.lab.wire().has_strangers = true;
                    self.blame(true);
                }
            }
        }
        Ok(())
    }

    /// From now on nothing is expected of the connections of all clients, and their bytes may be wrong if they `may_differ`.
    pub(super) fn blame(&mut self, may_differ: bool) {
        for Pair { peer, app, .. } in self.pairs.values_mut() {
            peer.is_blameless = false;
            app.may_differ |= may_differ;
        }
    }

    /// Begins a connection, in the place of the one before.
    fn connect(&mut self, at: u16, opening: &Opening) -> Played {
        let address = SocketAddr::new(link::peer_ip(opening.ipv6), FIRST_PORT + at);
        let [server, ..] = link::stack_addresses(opening.ipv6);
        let streams = streams(at);
        let client = self.lab.client_from(address, server);
        let mut peer = Peer::new(client, self.lab.verifies_checksums, opening, streams.clone());
        // A connection that nobody has accepted yet, or that had higher numbers, could be taken for the new one.
        let is_told_apart = |before: &Pair| before.app.has_accepted && before.peer.is_before(opening.isn);
        peer.is_blameless = self.acceptor.is_accepting && self.pairs.get(&at).is_none_or(is_told_apart);
        peer.syn()?;
        let before = self.pairs.remove(&at).map(|pair| pair.app);
        peer.is_again = before.is_some();
        let app = App::new(streams, self.joins_clients);
        self.pairs.insert(at, Pair { peer, app, address, before });
        Ok(())
    }

    /// From now on nothing is lost, and both sides read everything.
    pub(super) fn be_kind(&mut self) -> Played {
        self.acceptor.is_accepting = true;
        self.pairs.values_mut().try_for_each(|pair| {
            pair.app.wants(usize::MAX);
            pair.peer.be_kind()
        })
    }

    /// Both sides do what they owe until the connection has ended.
    pub(super) async fn end(&mut self, at: u16, server_first: bool) -> Played {
        let Some(Pair { peer, app, .. }) = self.pairs.get_mut(&at) else { return Ok(()) };
        let (gone, close) = (peer.gone, app.close);
        if !peer.is_blameless {
            app.close(Close::Shutdown);
            return peer.end();
        }
        if gone.is_none() {
            self.until_open(at).await?;
        }
        match (gone, close) {
            (Some(gone), _) => self.end_of_gone(at, gone).await,
            (None, Some(Close::Reset)) => {
                let seen = "no RST came after the server's reset";
                self.until(at, self.pace.bound, Invariant::End, seen, |pair| pair.peer.was_reset).await
            }
            (None, Some(Close::Drop)) => self.end_of_dropped(at).await,
            (None, _) => {
                if server_first {
                    self.end_server(at).await?;
                    self.end_client(at).await
                } else {
                    self.end_client(at).await?;
                    self.end_server(at).await
                }
            }
        }
    }

    /// The client has gone, and the server hears of it, unless it only waits for the last ACK or has read the end.
    async fn end_of_gone(&mut self, at: u16, gone: Gone) -> Played {
        let Some(Pair { peer, app, .. }) = self.pairs.get_mut(&at) else { return Ok(()) };
        let is_vanished = gone == Gone::Vanished;
        if !app.has_accepted || peer.has_ended || app.close.is_some_and(|close| is_vanished || close != Close::Shutdown)
        {
            return Ok(());
        }
        app.write(WRITTEN_IN_VAIN);
        let (bound, expected) = if is_vanished {
            (self.pace.bound + self.pace.user_timeout, ErrorKind::TimedOut)
        } else {
            (self.pace.bound, ErrorKind::ConnectionReset)
        };
        let seen = "the server did not hear that the client has gone";
        self.until(at, bound, Invariant::End, seen, |pair| pair.app.failed.is_some()).await?;
        let failed = self.pairs.get(&at).and_then(|pair| pair.app.failed);
        Invariant::End.holds(failed == Some(expected), || format!("the server's error is {failed:?}"))
    }

    /// The client's half ends: all bytes and the FIN are acknowledged, and the server has read them.
    async fn end_client(&mut self, at: u16) -> Played {
        let Some(pair) = self.pairs.get_mut(&at) else { return Ok(()) };
        pair.peer.end()?;
        let seen = "the client's bytes and its FIN did not get through";
        let ended = |pair: &Pair| pair.app.has_read_end && pair.peer.is_acknowledged();
        self.until(at, self.pace.bound, Invariant::Progress, seen, ended).await?;
        let Some(Pair { peer, app, .. }) = self.pairs.get(&at) else { return Ok(()) };
        let (read, sent) = (app.read, peer.next);
        Invariant::Bytes.holds(read == sent, || format!("the server read the end after {read} of {sent} bytes"))
    }

    /// The server's half ends: all bytes and the FIN have arrived.
    async fn end_server(&mut self, at: u16) -> Played {
        let Some(pair) = self.pairs.get_mut(&at) else { return Ok(()) };
        pair.app.close(Close::Shutdown);
        let seen = "the server's bytes and its FIN did not get through";
        self.until(at, self.pace.bound, Invariant::Progress, seen, |pair| pair.peer.has_received_end()).await
    }

    /// The server has dropped its stream. The client ends too, and hears of bytes that nobody has read by a RST.
    async fn end_of_dropped(&mut self, at: u16) -> Played {
        let Some(pair) = self.pairs.get_mut(&at) else { return Ok(()) };
        pair.peer.end()?;
        let seen = "the stream is dropped, and the connection did not end";
        let ended = |pair: &Pair| pair.peer.was_reset || pair.peer.is_over();
        self.until(at, self.pace.bound, Invariant::End, seen, ended).await?;
        let Some(Pair { peer, app, .. }) = self.pairs.get(&at) else { return Ok(()) };
        let unread = peer.next - app.read;
        let told = peer.was_reset || unread == 0 || app.was_reading;
        Invariant::End.holds(told, || format!("the connection ended as if the server had read the last {unread} bytes"))
    }

    /// A new connection from the same port is served: the stack has let go of the old one.
    async fn begin_again(mut self) -> Played {
        let Some(pair) = self.pairs.get(&FIRST) else { return Ok(()) };
        let opening = pair.peer.opening_again();
        self.connect(FIRST, &opening)?;
        self.pairs.values_mut().for_each(|pair| pair.peer.is_blameless = true);
        let seen = "a new connection from the same port is not served";
        self.until(FIRST, self.pace.freed, Invariant::Freed, seen, |pair| pair.peer.is_open && pair.app.has_accepted)
            .await?;
        self.make(FIRST, &Move::ClientResets)?;
        self.settle(SETTLE).await
    }

    pub(super) async fn settle(&mut self, time: Duration) -> Played {
        self.run(Instant::now() + time, |_| false).await.map(drop)
    }

    pub(super) async fn until_open(&mut self, at: u16) -> Played {
        self.until(at, self.pace.bound, Invariant::Progress, "no SYN+ACK came", |pair| pair.peer.is_open).await
    }

    /// Waits until `done`. The clients send again what is not acknowledged in time.
    pub(super) async fn until(
        &mut self,
        at: u16,
        bound: Duration,
        invariant: Invariant,
        seen: &str,
        done: impl Fn(&Pair) -> bool,
    ) -> Played {
        let begin = Instant::now();
        let done = |stage: &Self| stage.pairs.get(&at).is_none_or(&done);
        loop {
            if self.run(Instant::now() + self.pace.retry, &done).await? {
                return Ok(());
            }
            let Some(pair) = self.pairs.get(&at) else { return Ok(()) };
            let is_late = begin.elapsed() >= bound;
            // An unexpected end is the cause, and the wait for something else its effect.
            if is_late || pair.peer.was_reset || pair.app.failed.is_some() {
                let within = if is_late { format!(" within {bound:?}") } else { String::new() };
                return Err(Broken::new(invariant, format!("{seen}{within}; {}", pair.state())));
            }
            // A short link has no room for the packets of all.
            let (its, others): (Vec<_>, Vec<_>) = self.pairs.iter_mut().partition(|(place, _)| **place == at);
            its.into_iter().chain(others).try_for_each(|(_, pair)| pair.peer.time_out())?;
        }
    }

    /// Runs the clients and the server until a time, or until `done`.
    async fn run(&mut self, until: Instant, done: impl Fn(&Self) -> bool) -> Result<bool, Broken> {
        loop {
            self.pairs.values_mut().try_for_each(|pair| pair.peer.receive(&pair.app))?;
            if done(self) {
                return Ok(true);
            }
            match timeout_at(until, poll_fn(|cx| self.poll(cx))).await {
                Ok(result) => result?,
                Err(_) => return Ok(false),
            }
        }
    }

    /// Ready if the server has done anything, or packets have come.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Played> {
        if let Poll::Ready(stream) = self.acceptor.poll(cx) {
            let stream = stream?;
            let [_, peer] = stream.addresses();
            if let Some(pair) = self.pairs.values_mut().find(|pair| pair.address == peer) {
                pair.before = None;
                pair.app.accept(stream);
            }
            return Poll::Ready(Ok(()));
        }
        for pair in self.pairs.values_mut() {
            if let Poll::Ready(result) = pair.app.poll(cx) {
                return Poll::Ready(result);
            }
        }
        self.lab.wire().poll_readable(cx).map(Ok)
    }
}
