//! A connection, as this side of smoltcp knows it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError};
use tokio::time::Instant;

use crate::{Sink, Source};

pub(super) struct Connection {
    pub(super) socket: SocketHandle,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) stage: Stage,
    /// Payload of the largest segment, or super-packet, towards a peer that fills the MTU, in bytes.
    pub(super) segment_len: usize,
    /// A packet from the peer ended the connection, and no FIN did.
    pub(super) reset: bool,
    /// The peer's FIN has come.
    pub(super) peer_finished: bool,
    pub(super) fin: Fin,
    /// What a released connection had left to send when it was looked at last, in bytes.
    pub(super) unsent: usize,
    /// How long it waits for the peer to take more of that, or for its FIN.
    pub(super) orphaned_until: Instant,
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// Nobody has asked for it.
    Open,
    /// smoltcp has not been asked for it yet: see `SmoltcpEngine::close`.
    Due,
    /// smoltcp sends it behind what is queued.
    Asked,
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// smoltcp's, in the middle of a handshake.
    Handshake,
    /// In the queue for `accept`.
    Ready,
    /// A stream's.
    Accepted,
    /// Nobody's: to be forgotten once it is closed.
    Released,
}

/// A peer that takes nothing of what is left to be sent, or, once it has it all, sends no FIN, is waited for so
/// long once nobody reads any more: Linux' `tcp_fin_timeout`. To answer probes is not enough.
pub(super) const MAX_FIN_WAIT: Duration = Duration::from_mins(1);

impl Connection {
    /// Whether a released connection has waited for too long.
    pub(super) fn is_stuck(&mut self, socket: &tcp::Socket<'static>, now: Instant) -> bool {
        if socket.send_queue() < self.unsent {
            self.unsent = socket.send_queue();
            self.orphaned_until = now + MAX_FIN_WAIT;
        }
        now >= self.orphaned_until
    }

    /// Why its socket does nothing any more.
    pub(super) fn ended(&self) -> io::Error {
        if self.reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::TimedOut }.into()
    }

    /// Lends what its socket has received.
    pub(super) fn lend(&self, socket: &mut tcp::Socket<'static>, sink: &mut Sink<'_>) -> io::Result<usize> {
        let mut lent = 0;
        // Once for each end of the ring.
        loop {
            let offered = socket.recv(|bytes| match bytes.len() {
                0 => (0, Err(io::ErrorKind::WouldBlock.into())),
                len => match sink(&[IoSlice::new(bytes)]) {
                    Ok(0) => (0, Err(io::ErrorKind::WouldBlock.into())),
                    Ok(taken) => (taken.min(len), Ok((taken.min(len), taken >= len))),
                    Err(error) => (0, Err(error)),
                },
            });
            match offered {
                Ok(Ok((taken, true))) => lent += taken,
                Ok(Ok((taken, false))) => return Ok(lent + taken),
                _ if lent > 0 => return Ok(lent),
                Ok(Err(error)) => return Err(error),
                Err(RecvError::Finished) => return Ok(0),
                Err(RecvError::InvalidState) => return Err(self.ended()),
            }
        }
    }

    /// Lends a source what its socket has room for.
    pub(super) fn fill(
        &self,
        socket: &mut tcp::Socket<'static>,
        most: usize,
        source: &mut Source<'_>,
    ) -> io::Result<usize> {
        if self.fin != Fin::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !socket.may_send() {
            return Err(self.ended());
        }
        // smoltcp sends what there is, so of much only whole segments are taken: no small one between.
        let room = (socket.send_capacity() - socket.send_queue()).min(most);
        let whole = if room > self.segment_len { room - room % self.segment_len } else { room };
        if whole == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut filled = 0;
        // Once for each end of the ring.
        while filled < whole {
            let given = socket.send(|room| {
                let len = room.len().min(whole - filled);
                match source(&mut room[..len]) {
                    Ok(given) => (given.min(len), Ok((given.min(len), given < len))),
                    Err(error) => (0, Err(error)),
                }
            });
            match given {
                Ok(Ok((given, false))) => filled += given,
                Ok(Ok((given, true))) => return Ok(filled + given),
                _ if filled > 0 => break,
                Ok(Err(error)) => return Err(error),
                Err(tcp::SendError::InvalidState) => return Err(self.ended()),
            }
        }
        Ok(filled)
    }
}
