//! The words in which a connection's record and the bridge speak with each other.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::Duration;

use ipstack::IpStackTcpStream;
use platform::packet::flags::{ACK, RST, SYN};

use super::segment::Header;
use crate::FlowKey;

/// The window that ipstack is told, always: the real one is minded where the stream writes.
pub(super) const OPEN_WINDOW: u16 = u16::MAX;
/// Another, so that a retransmit tick is no duplicate acknowledgement.
const TICK_WINDOW: u16 = OPEN_WINDOW - 1;

/// What holds for all connections of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes that may wait for the application, and that may be under way unacknowledged.
    pub(super) budget: u32,
    pub(super) user_timeout: Duration,
}

impl Limits {
    /// First wait for the answer to a SYN-ACK, a FIN or a probe; each further one is twice as long
    /// (RFC 6298, 2.1 and 5.5). Several fit into the user time-out, however short.
    pub(super) fn first_wait(&self) -> Duration {
        Duration::from_secs(1).min(self.user_timeout / 4)
    }

    /// Longest such wait (RFC 6298, 2.5).
    pub(super) fn longest_wait(&self) -> Duration {
        Duration::from_mins(1).min(self.user_timeout / 4)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The SYN has come, and ipstack has not answered yet.
    Opening,
    /// The SYN-ACK is sent.
    Answered,
    Established,
}

/// ipstack's task for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    Running,
    /// No longer of use: it is to be ended.
    Aborting,
    Ended,
}

/// One of ipstack's streams, which [`super::hub::Hub::retire`] alone drops, once its task has ended.
///
/// Dropped before, it would block the thread until then, which is for ever where the runtime is going
/// down, and panic on a current-thread runtime (`block_in_place`). So it leaks where nobody retires
/// it: with a runtime that ends before its connections.
#[derive(Debug)]
pub(super) struct Inner(ManuallyDrop<IpStackTcpStream>);

impl Inner {
    pub(super) fn new(stream: IpStackTcpStream) -> Self {
        Self(ManuallyDrop::new(stream))
    }

    /// The stream, to be dropped.
    pub(super) fn into_stream(self) -> IpStackTcpStream {
        ManuallyDrop::into_inner(self.0)
    }
}

impl Deref for Inner {
    type Target = IpStackTcpStream;

    fn deref(&self) -> &IpStackTcpStream {
        &self.0
    }
}

impl DerefMut for Inner {
    fn deref_mut(&mut self) -> &mut IpStackTcpStream {
        &mut self.0
    }
}

/// Whose the connection is.
#[derive(Debug)]
pub(super) enum Owner {
    /// Nobody's yet. ipstack's stream waits here to be accepted.
    Waiting(Option<Box<Inner>>),
    /// A stream's.
    Held,
    /// Nobody's any more.
    Dropped,
}

/// What the bridge has to do for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Send(Header),
    Forge(Forged),
}

/// A segment without payload that ipstack is to receive, though the peer never sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forged {
    /// The SYN, once more.
    Syn(u32),
    /// An acknowledgement of what is acknowledged already: ipstack looks at its retransmission
    /// timers only when something arrives.
    RetransmitTick { seq: u32, ack: u32 },
    /// A reset; the second ends the task.
    Reset,
}

impl Forged {
    pub(super) fn header(self, key: FlowKey) -> Header {
        let (seq, ack, flags, window) = match self {
            Self::Syn(seq) => (seq, 0, SYN, OPEN_WINDOW),
            Self::RetransmitTick { seq, ack } => (seq, ack, ACK, TICK_WINDOW),
            Self::Reset => (0, 0, RST, 0),
        };
        Header { source: key.peer, destination: key.local, seq, ack, flags, window, mss: None }
    }
}

/// What becomes of a segment that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has had its effect.
    Done,
    /// ipstack gets it, with these fields, without the first `skip` bytes of payload.
    Hand { seq: u32, ack: u32, skip: usize, len: usize },
    /// It is to be stored for later.
    Store,
    /// It is to be answered with a reset.
    Refuse,
}

/// Tasks to be woken once the lock is released.
#[derive(Debug, Default)]
pub(super) struct Wakes(pub(super) [Option<Waker>; 2]);

impl Wakes {
    pub(super) fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}
