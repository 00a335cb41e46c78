//! A connection, as this side of smoltcp knows it.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, RecvError};
use tokio::time::Instant;

use crate::recovery::Recovery;
use crate::{Sink, Source};

/// A socket, alone in a set.
pub(super) struct Socket {
    set: SocketSet<'static>,
    handle: SocketHandle,
}

impl Socket {
    /// A closed socket with two rings of so many bytes.
    pub(super) fn new(window: usize) -> Self {
        let ring = || tcp::SocketBuffer::new(vec![0; window]);
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(tcp::Socket::new(ring(), ring()));
        Self { set, handle }
    }

    pub(super) fn set(&mut self) -> &mut SocketSet<'static> {
        &mut self.set
    }
}

impl Deref for Socket {
    type Target = tcp::Socket<'static>;

    fn deref(&self) -> &Self::Target {
        self.set.get(self.handle)
    }
}

impl DerefMut for Socket {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.set.get_mut(self.handle)
    }
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Payload of the largest segment, or super-packet, towards a peer that fills the MTU, in bytes.
    pub(super) segment_len: usize,
    pub(super) recovery: Recovery,
    /// A packet from the peer ended the connection, and no FIN did.
    pub(super) reset: bool,
    /// The peer's FIN has come.
    pub(super) peer_finished: bool,
    pub(super) fin: Fin,
    /// Bytes that were read and written.
    pub(super) carried: usize,
    /// What an orphan had left to send when it was looked at last, in bytes.
    unsent: usize,
    /// How long it waits for the peer to take more of that, or for its FIN.
    orphaned_until: Option<Instant>,
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

/// A peer that takes nothing of what is left to be sent, or, once it has it all, sends no FIN, is waited for so
/// long once nobody reads any more: Linux' `tcp_fin_timeout`. To answer probes is not enough.
pub(super) const MAX_FIN_WAIT: Duration = Duration::from_mins(1);

impl Connection {
    pub(super) fn new(socket: Socket, segment_len: usize, mss: usize) -> Self {
        Self {
            socket,
            segment_len,
            recovery: Recovery::new(mss),
            reset: false,
            peer_finished: false,
            fin: Fin::Open,
            carried: 0,
            unsent: usize::MAX,
            orphaned_until: None,
        }
    }

    /// When an orphan has waited for too long. To be asked whenever it may have sent something.
    pub(super) fn stuck_at(&mut self, now: Instant) -> Instant {
        if self.socket.send_queue() < self.unsent {
            self.unsent = self.socket.send_queue();
            self.orphaned_until = None;
        }
        *self.orphaned_until.get_or_insert(now + MAX_FIN_WAIT)
    }

    /// Why its socket does nothing any more.
    pub(super) fn ended(&self) -> io::Error {
        if self.reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::TimedOut }.into()
    }

    /// Lends what its socket has received.
    pub(super) fn lend(&mut self, sink: &mut Sink<'_>) -> io::Result<usize> {
        let lent = self.lend_ring(sink)?;
        self.carried += lent;
        Ok(lent)
    }

    fn lend_ring(&mut self, sink: &mut Sink<'_>) -> io::Result<usize> {
        let mut lent = 0;
        // Once for each end of the ring.
        loop {
            let offered = self.socket.recv(|bytes| match bytes.len() {
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
    pub(super) fn fill(&mut self, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        let filled = self.fill_ring(most, source)?;
        self.carried += filled;
        Ok(filled)
    }

    fn fill_ring(&mut self, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        if self.fin != Fin::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.socket.may_send() {
            return Err(self.ended());
        }
        // smoltcp sends what there is, so of much only whole segments are taken: no small one between.
        let room = (self.socket.send_capacity() - self.socket.send_queue()).min(most);
        let whole = if room > self.segment_len { room - room % self.segment_len } else { room };
        if whole == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut filled = 0;
        // Once for each end of the ring.
        while filled < whole {
            let given = self.socket.send(|room| {
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
