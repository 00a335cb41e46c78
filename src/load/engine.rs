//! The engine of every load: a thread that drives its sockets by readiness.
//!
//! The engine waits until a socket is ready or something is due, and calls the [`Work`]. It never waits beyond the next due
//! time, and it has no periodic tick. A work knows nothing of threads.

use std::any::Any;
use std::io;
use std::mem;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::LoadError;
use super::sockets::{Cancel, Sockets};
use super::window::Window;
use crate::meter::Cost;

/// Most unfinished handshakes of a thread: fewer than the backlog of a stack.
const HANDSHAKES: usize = 256;

/// How long handshakes may take without progress. Within one host it takes this long only if there is no reply.
const CONNECT: Duration = Duration::from_secs(10);

/// The longest wait for an event, so that cancellation is noticed.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Delivers the part of a client thread. Also returns its sockets: as long as they live, the server sees no end.
pub(crate) type Deliver = Box<dyn FnOnce(&Window) -> (Box<dyn Any + Send>, Result<(), LoadError>) + Send>;

pub(crate) struct Client {
    pub(crate) deliver: Deliver,
    pub(crate) cancel: Cancel,
}

impl Client {
    pub(crate) fn new<S: Sockets>(sockets: S, mut work: impl Work<S>) -> Self {
        let cancelled = Arc::new(AtomicBool::new(false));
        let end_wait = sockets.canceller();
        let cancel = {
            let cancelled = Arc::clone(&cancelled);
            Box::new(move || {
                cancelled.store(true, Ordering::Release);
                end_wait();
            })
        };
        let mut engine = Engine { sockets, cancelled, ready: Vec::new(), again: Vec::new() };
        let deliver: Deliver = Box::new(move |window| {
            let result = engine.deliver(&mut work, window);
            work.leave();
            (Box::new(engine), result)
        });
        Self { deliver, cancel }
    }

    /// The same client on one processor.
    pub(crate) fn pinned(self, processor: u16) -> Self {
        self.after("stay on a processor", move || platform::pin_thread(processor))
    }

    /// The same client in the network namespace of a file.
    pub(crate) fn within(self, network: PathBuf) -> Self {
        self.after("enter a network", move || platform::join_netns(&network))
    }

    fn after(self, operation: &'static str, prepare: impl FnOnce() -> io::Result<()> + Send + 'static) -> Self {
        let Self { deliver, cancel } = self;
        let deliver: Deliver = Box::new(move |window| match prepare() {
            Ok(()) => deliver(window),
            Err(source) => (Box::new(()), Err(LoadError::io(operation)(source))),
        });
        Self { deliver, cancel }
    }
}

/// The work of a client thread on its sockets, which have numbers from 0.
pub(crate) trait Work<S: Sockets>: Send + 'static {
    fn warm_up(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError>;

    /// Does what is timed. The window is over for this thread when it returns.
    fn run(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError>;

    fn finish(&mut self, engine: &mut Engine<S>, window: &Window) -> Result<(), LoadError>;

    /// Whether the window did not hold what it should have, and is made again by all threads.
    fn is_again(&self) -> bool {
        false
    }

    /// Hands over what was counted, also after a failure.
    fn leave(&mut self) {}

    fn connect(&mut self, sockets: &mut S, index: usize) -> Result<(), LoadError>;

    fn handshakes(&self) -> usize;

    /// Reads and writes a socket that is ready. Returns whether there is more to do at once.
    fn ready(&mut self, sockets: &mut S, index: usize) -> Result<bool, LoadError>;

    /// Does what is due by now. The engine calls it after each wait.
    fn due(&mut self, engine: &mut Engine<S>) -> Result<(), LoadError>;

    /// When something is due next, which may be later than `now`.
    fn due_at(&self, now: Instant) -> Option<Instant>;
}

/// The sockets of a client thread, and the events that wait for its work.
pub(crate) struct Engine<S> {
    pub(crate) sockets: S,
    cancelled: Arc<AtomicBool>,
    ready: Vec<usize>,
    /// Those that are handled in the next turn, whether ready or not.
    again: Vec<usize>,
}

impl<S: Sockets> Engine<S> {
    fn deliver(&mut self, work: &mut impl Work<S>, window: &Window) -> Result<(), LoadError> {
        let _timers = platform::sharpen_timers();
        work.warm_up(self, window)?;
        loop {
            window.wait()?;
            let begun = Cost::of_thread();
            work.run(self, window)?;
            window.end(Cost::of_thread().since(begun));
            work.finish(self, window)?;
            if !work.is_again() {
                break;
            }
        }
        // Sockets in memory send their last acknowledgements in a wait. The server may need them to end.
        let now = self.now();
        self.sockets.wait(now, Some(now), &mut self.ready).map_err(LoadError::io("wait for events"))
    }

    pub(crate) fn now(&self) -> Instant {
        self.sockets.now()
    }

    /// Handles a socket in the next turn, as if it were ready.
    pub(crate) fn again(&mut self, index: usize) {
        self.again.push(index);
    }

    pub(crate) fn connect(&mut self, work: &mut impl Work<S>, sockets: Range<usize>) -> Result<(), LoadError> {
        for index in sockets {
            work.connect(&mut self.sockets, index)?;
            self.await_handshakes(work, HANDSHAKES - 1)?;
        }
        self.await_handshakes(work, 0)
    }

    fn await_handshakes<W: Work<S>>(&mut self, work: &mut W, most: usize) -> Result<(), LoadError> {
        while work.handshakes() > most {
            let left = work.handshakes();
            self.turn_until(work, self.now() + CONNECT, |work, _| work.handshakes() < left)?;
            if work.handshakes() == left {
                return Err(LoadError::io("connect")(io::ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    pub(crate) fn turn_until<W: Work<S>>(
        &mut self,
        work: &mut W,
        end: Instant,
        is_enough: impl Fn(&W, Instant) -> bool,
    ) -> Result<(), LoadError> {
        loop {
            let now = self.now();
            if now >= end || is_enough(work, now) {
                return Ok(());
            }
            self.turn(work, end)?;
        }
    }

    pub(crate) fn turn_while<W: Work<S>>(
        &mut self,
        work: &mut W,
        goes_on: impl Fn(&W) -> bool,
    ) -> Result<(), LoadError> {
        while goes_on(work) {
            self.turn(work, self.now() + LONGEST_WAIT)?;
        }
        // What a cancelled socket reads looks like the end of its stream.
        if self.cancelled.load(Ordering::Acquire) { Err(LoadError::Cancelled) } else { Ok(()) }
    }

    /// Waits for events, until `end` at most, and handles them. Then does what is due.
    fn turn(&mut self, work: &mut impl Work<S>, end: Instant) -> Result<(), LoadError> {
        let now = self.sockets.now();
        let due = if self.again.is_empty() { work.due_at(now) } else { Some(now) };
        let mut ready = mem::take(&mut self.ready);
        mem::swap(&mut ready, &mut self.again);
        self.sockets.wait(end.min(now + LONGEST_WAIT), due, &mut ready).map_err(LoadError::io("wait for events"))?;
        if self.cancelled.load(Ordering::Acquire) {
            return Err(LoadError::Cancelled);
        }
        for index in ready.drain(..) {
            if work.ready(&mut self.sockets, index)? {
                self.again.push(index);
            }
        }
        self.ready = ready;
        work.due(self)
    }
}
