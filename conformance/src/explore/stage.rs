//! Performs a play: the client on one end of the link, the application above the stack, and the time between the moves.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::app::{App, Close};
use super::peer::{Gone, Peer};
use super::play::{Move, Play};
use super::{Broken, Invariant, LONGEST, Pace, Played};
use crate::{Lab, pattern};

/// How long the stack has for what a move makes it do at once.
const SETTLE: Duration = Duration::from_millis(1);

/// Bytes that the server writes to a client that has vanished.
const WRITTEN_IN_VAIN: usize = 1000;

struct Stage<'a> {
    lab: &'a Lab,
    pace: Pace,
    peer: Peer,
    app: App,
}

/// Performs a play. Fails with the first invariant that is broken.
pub(super) async fn perform(play: &Play, lab: &mut Lab, pace: Pace) -> Played {
    let Some(listener) = lab.take_listener() else { return Ok(()) };
    let streams = [pattern(1, LONGEST).into(), pattern(2, LONGEST).into()];
    let peer = Peer::new(lab.client(), lab.verifies_checksums, play, streams.clone());
    let mut stage = Stage { lab, pace, peer, app: App::new(listener, streams) };
    stage.peer.syn()?;
    stage.until(pace.bound, Invariant::Progress, "no SYN+ACK came", |peer, _| peer.is_open).await?;
    for one in &play.moves {
        stage.make(*one)?;
        let time = if let Move::Pass(ms) = one { Duration::from_millis((*ms).into()) } else { SETTLE };
        stage.settle(time).await?;
    }
    stage.peer.be_kind()?;
    stage.app.wants(usize::MAX);
    stage.end(play.server_first).await?;
    stage.begin_again().await
}

impl Stage<'_> {
    fn make(&mut self, one: Move) -> Played {
        let Self { peer, app, .. } = self;
        match one {
            Move::ServerWrites(len) => app.write(len.into()),
            Move::ServerReads(len) => app.wants(len.into()),
            Move::ServerEnds => app.close(Close::Shutdown),
            Move::ServerDrops => app.close(Close::Drop),
            Move::ServerResets => app.close(Close::Reset),
            Move::Pass(_) => {}
            // A client that is gone makes no moves.
            _ if peer.gone.is_some() || peer.was_reset => {}
            Move::ClientSends { len, cut, ends, fault } => peer.send(len.into(), cut.into(), ends, fault)?,
            Move::ClientSendsAgain { cut, fault } => peer.send_again(cut.into(), fault)?,
            Move::ClientStopsReading => peer.read(false)?,
            Move::ClientReads => peer.read(true)?,
            Move::ClientResets => peer.reset()?,
            Move::ClientVanishes => peer.vanish(),
            Move::LoseAcks(count) => peer.lose_acks(count),
            Move::Lose(count) => peer.lose(count),
            Move::Overtake => peer.overtake(),
        }
        Ok(())
    }

    /// Both do what they owe until the connection has ended.
    async fn end(&mut self, server_first: bool) -> Played {
        match (self.peer.gone, self.app.close) {
            (Some(gone), _) => self.end_of_gone(gone).await,
            (None, Some(Close::Reset)) => {
                let bound = self.pace.bound;
                self.until(bound, Invariant::End, "no RST came after the server's reset", |peer, _| peer.was_reset)
                    .await
            }
            (None, Some(Close::Drop)) => self.end_of_dropped().await,
            (None, _) => {
                if server_first {
                    self.end_server().await?;
                    self.end_client().await
                } else {
                    self.end_client().await?;
                    self.end_server().await
                }
            }
        }
    }

    /// The client has gone, and the server hears of it. A server that only waits for the last ACK, or has read the client's
    /// end, may hear nothing.
    async fn end_of_gone(&mut self, gone: Gone) -> Played {
        let Self { peer, app, pace, .. } = self;
        let is_vanished = gone == Gone::Vanished;
        if !app.has_accepted()
            || peer.has_ended
            || app.close.is_some_and(|close| is_vanished || close != Close::Shutdown)
        {
            return Ok(());
        }
        app.write(WRITTEN_IN_VAIN);
        let (bound, expected) = if is_vanished {
            (pace.bound + pace.user_timeout, ErrorKind::TimedOut)
        } else {
            (pace.bound, ErrorKind::ConnectionReset)
        };
        let hears = |_: &Peer, app: &App| app.failed.is_some();
        self.until(bound, Invariant::End, "the server did not hear that the client has gone", hears).await?;
        let failed = self.app.failed;
        Invariant::End.holds(failed == Some(expected), || format!("the server's error is {failed:?}"))
    }

    /// The client's half ends: all bytes and the FIN are acknowledged, and the server has read them.
    async fn end_client(&mut self) -> Played {
        self.peer.end()?;
        let ended = |peer: &Peer, app: &App| app.has_read_end && peer.is_acknowledged();
        self.until(self.pace.bound, Invariant::Progress, "the client's bytes and its FIN did not get through", ended)
            .await?;
        let (read, sent) = (self.app.read, self.peer.next);
        Invariant::Bytes.holds(read == sent, || format!("the server read the end after {read} of {sent} bytes"))
    }

    /// The server's half ends: all bytes and the FIN have arrived.
    async fn end_server(&mut self) -> Played {
        self.app.close(Close::Shutdown);
        let ended = |peer: &Peer, _: &App| peer.has_received_end();
        self.until(self.pace.bound, Invariant::Progress, "the server's bytes and its FIN did not get through", ended)
            .await
    }

    /// The server has dropped its stream. The client ends too, and hears of bytes that nobody has read by a RST.
    async fn end_of_dropped(&mut self) -> Played {
        self.peer.end()?;
        let ended = |peer: &Peer, _: &App| peer.was_reset || peer.is_over();
        self.until(self.pace.bound, Invariant::End, "the stream is dropped, and the connection did not end", ended)
            .await?;
        let unread = self.peer.next - self.app.read;
        let told = self.peer.was_reset || unread == 0 || self.app.was_reading;
        Invariant::End.holds(told, || format!("the connection ended as if the server had read the last {unread} bytes"))
    }

    /// A new connection from the same port is served: the stack has let go of the old one.
    async fn begin_again(self) -> Played {
        let Self { lab, pace, peer, app } = self;
        let mut new = Stage { lab, pace, peer: peer.again(), app: app.again() };
        new.peer.syn()?;
        let served = |peer: &Peer, app: &App| peer.is_open && app.has_accepted();
        new.until(pace.freed, Invariant::Freed, "a new connection from the same port is not served", served).await?;
        new.peer.reset()?;
        new.settle(SETTLE).await
    }

    /// Describes both sides, for the text of a failure.
    fn state(&self) -> String {
        format!("{}; {}", self.peer.state(), self.app.state())
    }

    /// Lets time pass.
    async fn settle(&mut self, time: Duration) -> Played {
        self.run(Instant::now() + time, |_, _| false).await.map(drop)
    }

    /// Waits until `done`. The client sends again what is not acknowledged in time.
    async fn until(
        &mut self,
        bound: Duration,
        invariant: Invariant,
        seen: &str,
        done: impl Fn(&Peer, &App) -> bool,
    ) -> Played {
        let begin = Instant::now();
        loop {
            if self.run(Instant::now() + self.pace.retry, &done).await? {
                return Ok(());
            }
            if begin.elapsed() >= bound {
                return Err(Broken::new(invariant, format!("{seen} within {bound:?}; {}", self.state())));
            }
            // An unexpected end is the cause, and the wait for something else its effect.
            let is_late = self.peer.was_reset || self.app.failed.is_some();
            if is_late {
                return Err(Broken::new(invariant, format!("{seen}; {}", self.state())));
            }
            self.peer.time_out()?;
        }
    }

    /// Runs the client and the application until a time, or until `done`.
    async fn run(&mut self, until: Instant, done: impl Fn(&Peer, &App) -> bool) -> Result<bool, Broken> {
        loop {
            self.peer.receive(&self.app)?;
            if done(&self.peer, &self.app) {
                return Ok(true);
            }
            let Self { lab, app, .. } = self;
            let ready = poll_fn(|cx| match app.poll(cx) {
                Poll::Ready(result) => Poll::Ready(result),
                Poll::Pending => lab.wire().poll_readable(cx).map(|()| Ok(())),
            });
            match timeout_at(until, ready).await {
                Ok(result) => result?,
                Err(_) => return Ok(false),
            }
        }
    }
}
