//! What the two sides of a run share: the protocol, the counts, and the moment it begins.
//!
//! Each stream delivers its warm-up and then its timed payload on the same connection:
//!
//! ```text
//! reader   client ── go ──► server        client counts what arrives; its clock runs from the go
//!          client ◄─ bytes ─ server       to the last byte's arrival
//!
//! writer   client ── bytes ─► server      server counts what arrives and acknowledges the total;
//!          client ◄─ total ── server      the client's clock runs from its first write to that
//! ```
//!
//! With a time instead of an amount, a reader's server sends until the client, whose clock it is,
//! tells it to stop, and then closes; a writer's client closes its half when its time is over.

use std::io;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use platform::TcpStatistics;
use tokio::sync::Notify;

use super::meter::{Meter, Reading, Spent};
use super::pattern::{Mismatch, Pattern};
use crate::plan::{Amount, Mode, Scenario, Verify};
use crate::sample::Status;

/// What the client sends to ask for bytes.
pub(super) const GO: u8 = b'G';

/// The seed of a run's first stream; the others follow.
const SEED: u64 = 0x7475_6E70_6572_6601;

/// What streams of one mode deliver together.
pub(super) struct Payload {
    pub(super) mode: Mode,
    /// How many streams.
    pub(super) streams: u16,
    pub(super) amount: Amount,
    pub(super) warmup_bytes: u64,
    pub(super) buffer_bytes: usize,
    pub(super) verify: Verify,
}

/// One stream's share of a run.
pub(super) struct Lane {
    pub(super) mode: Mode,
    pub(super) pattern: Pattern,
    pub(super) warmup_bytes: u64,
    pub(super) amount: Amount,
    pub(super) buffer_bytes: usize,
    verify: Verify,
    /// Bytes that have arrived by the end of the timed window, the warm-up's included.
    arrived: AtomicU64,
    finish: OnceLock<Finish>,
    /// The reader's client has enough.
    stop: AtomicBool,
    /// The server's end of a reader's connection, where it is the kernel's: that one sends.
    sender: OnceLock<TcpStream>,
}

/// Which part of a stream is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    WarmUp,
    Timed,
    /// The time is over, and what was under way arrives.
    Drain,
}

/// What is to be told of a stream at the end of its timed window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    /// Payload bytes that arrived in the timed window.
    pub(super) bytes: u64,
    /// CPU time of the client's thread in the timed window.
    pub(super) cpu: Option<Duration>,
    /// Segments that the kernel sent again in the timed window, at whichever end is the kernel's and sends.
    pub(super) retransmits: Option<u64>,
    /// The connection at the end of the window.
    pub(super) tcp: TcpStatistics,
    /// The whole process at the end of the window.
    pub(super) end: Reading,
}

impl Lane {
    /// The shares of all streams of a scenario.
    pub(super) fn split(scenario: &Scenario) -> Vec<Self> {
        Self::shares(&Payload {
            // The device alone has no client, and nobody asks.
            mode: scenario.subject.mode().unwrap_or(Mode::Writer),
            streams: scenario.parallel.get(),
            amount: scenario.amount,
            warmup_bytes: scenario.warmup_bytes,
            buffer_bytes: scenario.buffer_bytes.get(),
            verify: scenario.verify,
        })
    }

    /// The shares of all streams: what is to be delivered is split evenly, the first streams taking
    /// what remains.
    pub(super) fn shares(payload: &Payload) -> Vec<Self> {
        let lanes = u64::from(payload.streams);
        let share = |total: u64, index: u64| total / lanes + u64::from(index < total % lanes);
        (0..lanes)
            .map(|index| Self {
                mode: payload.mode,
                pattern: Pattern::new(SEED.wrapping_add(index), payload.buffer_bytes),
                warmup_bytes: share(payload.warmup_bytes, index),
                amount: match payload.amount {
                    // The plan has at least one byte for each stream.
                    Amount::Bytes(total) => {
                        Amount::Bytes(NonZeroU64::new(share(total.get(), index)).unwrap_or(NonZeroU64::MIN))
                    }
                    time @ Amount::Time(_) => time,
                },
                buffer_bytes: payload.buffer_bytes,
                verify: payload.verify,
                arrived: AtomicU64::new(0),
                finish: OnceLock::new(),
                stop: AtomicBool::new(false),
                sender: OnceLock::new(),
            })
            .collect()
    }

    /// Takes note of bytes that arrived at `offset` of the stream, and checks them if this phase's
    /// bytes are to be checked.
    pub(super) fn receive(&self, phase: Phase, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        self.check(phase, offset, bytes)?;
        if phase != Phase::Drain {
            self.have_arrived(offset + bytes.len() as u64);
        }
        Ok(())
    }

    /// Checks bytes of `offset` of the stream, if this phase's bytes are to be checked.
    pub(super) fn check(&self, phase: Phase, offset: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let check = match self.verify {
            Verify::Off => false,
            Verify::Sample => phase == Phase::WarmUp,
            Verify::Full => true,
        };
        if check {
            self.pattern.verify(offset, bytes)?;
        }
        Ok(())
    }

    /// Takes note of how many bytes have arrived in all.
    pub(super) fn have_arrived(&self, bytes: u64) {
        self.arrived.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Ends the timed window of this stream, of which there is only one.
    pub(super) fn finish(&self, finish: &Finish) {
        let _earlier = self.finish.set(*finish);
    }

    pub(super) fn finished(&self) -> Option<Finish> {
        self.finish.get().copied()
    }

    /// Makes the server's end of the connection known.
    pub(super) fn served_by(&self, socket: TcpStream) {
        let _earlier = self.sender.set(socket);
    }

    /// How many segments the kernel has sent again so far; `client` is what it says of the client's end. `None`
    /// where it does not say.
    pub(super) fn retransmits(&self, client: TcpStatistics) -> Option<u64> {
        match (self.mode, self.sender.get()) {
            (Mode::Reader, Some(server)) => platform::tcp_statistics(server).retransmits,
            _ => client.retransmits,
        }
    }

    pub(super) fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error("{operation}: {source}")]
    Io { operation: &'static str, source: io::Error },
    #[error("the stream ended after {got} of {expected} bytes")]
    Short { got: u64, expected: u64 },
    #[error("packets were lost: {got} of {expected} bytes came back")]
    Lost { got: u64, expected: u64 },
    #[error("byte {offset} of the stream is not what was sent")]
    Corrupt { offset: u64 },
    #[error("the run was given up")]
    Cancelled,
}

impl From<Mismatch> for TransferError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Corrupt { offset: mismatch.offset }
    }
}

impl TransferError {
    /// For `map_err`.
    pub(super) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// What the failure makes of the run.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::UnexpectedEof => Status::Short,
                // Nobody answered for as long as one side has patience.
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Status::Stalled,
                _ => Status::Reset,
            },
            Self::Short { .. } | Self::Lost { .. } => Status::Short,
            Self::Corrupt { .. } => Status::Corrupt,
            Self::Cancelled => Status::Timeout,
        }
    }
}

/// The moment at which all streams, warm, begin together; and what had been spent by then.
pub(super) struct StartingGate {
    streams: usize,
    meter: Box<dyn Meter>,
    state: Mutex<GateState>,
    changed: Condvar,
    /// Tells the opening to a task, of which there is at most one.
    opening: Notify,
}

#[derive(Default)]
struct GateState {
    waiting: usize,
    cancelled: bool,
    opened: Option<Reading>,
}

impl StartingGate {
    /// A gate for so many streams, at which the meter is read.
    pub(super) fn new(streams: usize, meter: impl Meter) -> Self {
        Self {
            streams,
            meter: Box::new(meter),
            state: Mutex::default(),
            changed: Condvar::new(),
            opening: Notify::new(),
        }
    }

    /// Waits for the other streams. The last to come opens the gate for all.
    pub(super) fn wait(&self) -> Result<(), TransferError> {
        let last = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting += 1;
            state.waiting == self.streams
        };
        // Read before the clock: the reading's own cost is outside the timed window. And before the lock, for it
        // may take a while.
        let tally = last.then(|| self.meter.tally());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = tally {
            state.opened = Some(Reading { at: Instant::now(), spent: self.meter.spent(), tally });
            self.changed.notify_all();
            self.opening.notify_one();
        }
        while state.opened.is_none() && !state.cancelled {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// What has been spent by now.
    pub(super) fn read(&self) -> Reading {
        // The clock first: what follows is outside the timed window.
        let at = Instant::now();
        Reading { at, spent: self.meter.spent(), tally: self.meter.tally() }
    }

    /// What the program under test has spent by now, in little time.
    pub(super) fn spent(&self) -> Spent {
        self.meter.spent()
    }

    /// What had been spent when the gate opened, if it has.
    pub(super) fn opened(&self) -> Option<Reading> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).opened
    }

    /// Waits, in a task, for the moment at which it opens. It may be given up and begun again.
    pub(super) async fn opening(&self) -> Reading {
        loop {
            if let Some(reading) = self.opened() {
                return reading;
            }
            self.opening.notified().await;
        }
    }

    /// Lets everyone go who waits, to fail.
    pub(super) fn cancel(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
        self.changed.notify_all();
    }
}
