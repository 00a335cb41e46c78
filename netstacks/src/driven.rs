//! Async streams on top of a state machine.
//!
//! smoltcp and lwIP do nothing by themselves: a caller has to pass them packets and the time. One round of this is a
//! *turn*: it sends packets, receives one batch of packets, and wakes the tasks of connections that have changed.
//!
//! A task reads bytes that have already arrived, and queues bytes to be sent, without a turn. The [`Owner`] makes the
//! turns:
//!
//! - With several busy connections the owner is the driver, a background task. One turn receives packets for all of
//!   them; then their tasks run; the next turn sends the bytes that these tasks have written.
//! - If only one connection is busy, its task is the owner. It makes the turns inline and registers its own waker with
//!   the link. So a byte crosses no other task, and the next packet wakes only this task. The driver just checks at
//!   intervals that the task still makes turns.
//!
//! All tasks of a stack share one lock. It is held for one operation of a stream or one turn. Tasks are woken after
//! it is released.

mod datagrams;
mod engine;
pub(crate) mod isn;
pub(crate) mod segment;
mod table;
#[cfg(all(test, feature = "smoltcp"))]
mod tests;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;
use tokio::time::{Instant, Sleep};

use crate::datagrams::Receivers;
use crate::{Driver, Listener, Sink, Source, StackFault, Stream};

pub(crate) use self::datagrams::DrivenDatagrams;
pub(crate) use self::engine::{Accepted, Engine, FlowId, Intake};
pub(crate) use self::table::{MAX_FLOWS, Stage, Table, most_half_open};

/// The driver's longest sleep while a task makes the turns: then it checks that the task still does.
const LOOK: Duration = Duration::from_millis(10);

/// The driver's longest sleep while connections exist: connections at rest must cost no more than a few wake-ups a second,
/// and tokio wakes twice for a timer. The shortest sleep is the resolution of that timer.
const TICK: Duration = Duration::from_millis(500);
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The driver's longest sleep while none exist.
const IDLE: Duration = Duration::from_mins(1);

/// The most bytes that one call takes from a writer, and that the driver receives before the readers run. So the bytes
/// and their buffers are still in the processor's cache.
const TURN_BYTES: usize = 256 << 10;

/// A batch of at least this many bytes is acknowledged at once, so that the peer sends more while they are read. The
/// acknowledgement of a smaller batch can go with the reply.
const BULK: usize = 16 << 10;

/// This many bytes cost a task one unit of tokio's budget while it shares the stack. tokio gives a task 128 units each
/// time it runs, and counts calls, not bytes: with 256 KiB for each call, one stream would delay the requests beside it
/// by 20 ms.
const BUDGET_BYTES: usize = 8 << 10;

/// How many full batches the driver takes before it lets other tasks run. [`TURN_BYTES`] may end this earlier.
const DRIVER_BATCHES: usize = 32;

/// How many full batches a task takes, without progress of its own, before it lets other tasks run.
const INLINE_BATCHES: usize = 4;

/// After this many turns in a row with packets for the same connection only, its task makes the turns.
const ALONE: u32 = 4;

/// The tasks that wait for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiter {
    /// The tasks of a connection.
    Flow(FlowId),
    /// The tasks that receive datagrams.
    Datagrams,
}

/// The task or tasks that poll the link and make the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The driver. It runs or has been woken (`is_scheduled`), or it waits for the link.
    Driver { is_scheduled: bool },
    /// The tasks of one waiter. `has_driven`: they made a turn since the driver last checked.
    Task { waiter: Waiter, has_driven: bool },
}

/// The waiters that one turn brought something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    Nobody,
    One(Waiter),
    Several,
}

impl Changed {
    fn add(&mut self, waiter: Waiter) {
        *self = match *self {
            Self::Nobody => Self::One(waiter),
            Self::One(first) if first == waiter => return,
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    fn is_only(self, waiter: Waiter) -> bool {
        matches!(self, Self::Nobody) || self == Self::One(waiter)
    }
}

/// What the driver does after a turn.
enum Next {
    /// It makes another turn at once. This turn received `taken` bytes.
    Turn { taken: usize },
    /// It lets other tasks run, then makes another turn.
    Yield,
    /// It sleeps until this time, or until it is woken.
    Sleep(Instant),
}

struct State<E> {
    engine: E,
    owner: Owner,
    /// The only waiter in the driver's last turns, if there was just one, and the number of these turns.
    alone: (Option<Waiter>, u32),
    parked: Vec<Parked>,
    acceptor: Option<Waker>,
    /// The tasks that wait for a datagram.
    receivers: Receivers,
    driver: Option<Waker>,
    /// Bytes that tasks have written since the last turn.
    unsent: usize,
    failure: Option<Failure>,
}

/// The error that ended a stack.
struct Failure {
    kind: io::ErrorKind,
    message: String,
    /// It is a [`StackFault`].
    is_fault: bool,
}

/// The tasks that wait for a connection.
#[derive(Default)]
struct Parked {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Parked {
    fn place(&mut self, half: Half) -> &mut Option<Waker> {
        match half {
            Half::Reader => &mut self.reader,
            Half::Writer => &mut self.writer,
        }
    }
}

/// Tasks to wake. Dropping this wakes them, so declare it before the lock guard: it is dropped after the guard.
#[derive(Default)]
struct Wakes(Vec<Waker>);

impl Wakes {
    fn add(&mut self, wakers: impl IntoIterator<Item = Option<Waker>>) {
        self.0.extend(wakers.into_iter().flatten());
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl<E: Engine> State<E> {
    /// Returns the error that ended the stack, if it has ended.
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(Failure { kind, message, is_fault: true }) => Err(io::Error::new(*kind, StackFault(message.clone()))),
            Some(Failure { kind, message, .. }) => Err(io::Error::new(*kind, message.clone())),
        }
    }

    /// Remembers a failure of the stack or the link, and wakes all tasks.
    fn failed<T>(&mut self, result: io::Result<T>, wakes: &mut Wakes) -> io::Result<T> {
        if let Err(error) = &result {
            let is_fault = StackFault::is_in(error);
            self.failure = Some(Failure { kind: error.kind(), message: error.to_string(), is_fault });
            wakes.add(self.parked.iter_mut().flat_map(|parked| [parked.reader.take(), parked.writer.take()]));
            wakes.add([self.acceptor.take(), self.driver.take()]);
            wakes.0.extend(self.receivers.drain());
        }
        result
    }

    /// Sends what is due, receives a batch of packets, and wakes the tasks that get something.
    fn turn(&mut self, now: Instant, wakes: &mut Wakes) -> io::Result<(Intake, Changed)> {
        self.egress(now, wakes)?;
        self.ingress(now, wakes)
    }

    fn ingress(&mut self, now: Instant, wakes: &mut Wakes) -> io::Result<(Intake, Changed)> {
        self.unsent = 0;
        let intake = self.engine.ingress(now);
        let intake = self.failed(intake, wakes)?;
        let mut changed = Changed::Nobody;
        while let Some(flow) = self.engine.touched() {
            changed.add(Waiter::Flow(flow));
            if let Some(parked) = self.parked.get_mut(flow.0) {
                wakes.add([parked.reader.take(), parked.writer.take()]);
            }
        }
        if !self.engine.inbox().is_empty() {
            changed.add(Waiter::Datagrams);
            wakes.0.extend(self.receivers.drain());
        }
        if self.engine.can_accept() {
            changed = Changed::Several;
            wakes.add([self.acceptor.take()]);
        }
        Ok((intake, changed))
    }

    fn egress(&mut self, now: Instant, wakes: &mut Wakes) -> io::Result<()> {
        let result = self.engine.egress(now);
        self.failed(result, wakes)
    }

    /// Ready if another turn is useful; else the link has the waker.
    fn poll_link(&mut self, cx: &mut Context<'_>, wakes: &mut Wakes) -> Poll<io::Result<()>> {
        // An egress is bounded, so there may be more to send.
        if self.has_work() {
            return Poll::Ready(Ok(()));
        }
        let readable = self.engine.poll_readable(cx);
        let polled = if readable.is_ready() { readable } else { self.engine.poll_unblocked(cx) };
        polled.map(|result| self.failed(result, wakes))
    }

    /// Whether the stack may have something to send and the link has room.
    fn has_work(&self) -> bool {
        self.engine.has_due() && !self.engine.is_blocked()
    }

    fn is_owner(&self, waiter: Waiter) -> bool {
        matches!(self.owner, Owner::Task { waiter: owner, .. } if owner == waiter)
    }

    /// Makes a turn of the driver. Only the first turn of a poll sends before it receives. The next poll sends the
    /// replies to the other batches, together with the bytes that the tasks write. Only a batch of at least [`BULK`]
    /// bytes is acknowledged at once.
    fn drive(&mut self, now: Instant, cx: &mut Context<'_>, is_first: bool, wakes: &mut Wakes) -> io::Result<Next> {
        if let Owner::Task { waiter, has_driven: true } = self.owner {
            self.owner = Owner::Task { waiter, has_driven: false };
            // The task waits for packets only, so the driver runs the timers.
            if self.engine.deadline(now).is_some_and(|deadline| deadline <= now) {
                self.egress(now, wakes)?;
            }
            return Ok(self.sleep(now, LOOK));
        }
        self.owner = Owner::Driver { is_scheduled: true };
        if is_first {
            self.egress(now, wakes)?;
        }
        let (intake, changed) = self.ingress(now, wakes)?;
        if let Some(waiter) = self.who_is_alone(changed).filter(|_| !wakes.0.is_empty()) {
            self.owner = Owner::Task { waiter, has_driven: true };
            return Ok(self.sleep(now, LOOK));
        }
        if intake.len >= BULK {
            self.egress(now, wakes)?;
        }
        if !intake.is_drained {
            return Ok(Next::Turn { taken: intake.len });
        }
        // Now the tasks run. The next turn sends the bytes that they write.
        if intake.len > 0 || self.has_work() {
            return Ok(Next::Yield);
        }
        if self.poll_link(cx, wakes)?.is_ready() {
            return Ok(Next::Turn { taken: 0 });
        }
        self.owner = Owner::Driver { is_scheduled: false };
        let tick = if self.engine.is_idle() { IDLE } else { TICK };
        Ok(self.sleep(now, tick))
    }

    /// Sleeps until the next timer, for `longest` at most.
    fn sleep(&mut self, now: Instant, longest: Duration) -> Next {
        let deadline = self.engine.deadline(now).map(|deadline| deadline.max(now + SHORTEST_SLEEP));
        Next::Sleep(deadline.map_or(now + longest, |deadline| deadline.min(now + longest)))
    }

    /// Counts turns in a row for one waiter alone. Returns the waiter after [`ALONE`] of them.
    fn who_is_alone(&mut self, changed: Changed) -> Option<Waiter> {
        let waiter = match changed {
            Changed::Nobody => return None,
            Changed::One(waiter) => Some(waiter),
            Changed::Several => None,
        };
        let turns = if waiter == self.alone.0 { self.alone.1 + 1 } else { 1 };
        self.alone = (waiter, turns);
        waiter.filter(|_| turns >= ALONE)
    }

    /// Makes the driver the owner. Wakes it, unless it runs or has already been woken.
    fn call_driver(&mut self, wakes: &mut Wakes) {
        let scheduled = Owner::Driver { is_scheduled: true };
        if mem::replace(&mut self.owner, scheduled) != scheduled {
            wakes.add([self.driver.clone()]);
        }
    }

    /// Does an operation for a waiter. If it would block and the waiter is the owner, makes turns until it succeeds or
    /// no packets wait. If it is still pending then, the link or the driver will wake the task.
    fn poll_operation<T>(
        &mut self,
        waiter: Waiter,
        cx: &mut Context<'_>,
        wakes: &mut Wakes,
        mut operation: impl FnMut(&mut E) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut operate = |engine: &mut E| match operation(engine) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        };
        // A busy writer receives acknowledgements first: they free memory that is still in the processor's cache.
        if self.unsent >= BULK {
            if self.is_owner(waiter) {
                self.owner = Owner::Task { waiter, has_driven: true };
            }
            let (_, changed) = self.ingress(Instant::now(), wakes)?;
            if !changed.is_only(waiter) {
                self.call_driver(wakes);
            }
        }
        if let Poll::Ready(result) = operate(&mut self.engine) {
            return Poll::Ready(result);
        }
        for _ in 0..INLINE_BATCHES {
            if !self.is_owner(waiter) {
                if self.has_work() {
                    self.call_driver(wakes);
                }
                return Poll::Pending;
            }
            self.owner = Owner::Task { waiter, has_driven: true };
            let now = Instant::now();
            let (intake, changed) = self.turn(now, wakes)?;
            if !changed.is_only(waiter) {
                self.call_driver(wakes);
            }
            if let Poll::Ready(result) = operate(&mut self.engine) {
                if intake.len >= BULK {
                    self.egress(now, wakes)?;
                }
                return Poll::Ready(result);
            }
            if intake.is_drained && self.is_owner(waiter) {
                self.egress(now, wakes)?;
                if self.poll_link(cx, wakes)?.is_pending() {
                    return Poll::Pending;
                }
            }
        }
        wakes.0.push(cx.waker().clone());
        Poll::Pending
    }

    /// Sends the bytes that a waiter has written: at once if it is the owner, or if at least [`BULK`] bytes are unsent;
    /// else the driver's next turn sends them.
    fn written(&mut self, waiter: Waiter, len: usize, wakes: &mut Wakes) -> io::Result<()> {
        self.unsent += len;
        if !self.is_owner(waiter) && self.unsent < BULK {
            self.call_driver(wakes);
            return Ok(());
        }
        self.egress(Instant::now(), wakes)?;
        if !self.is_owner(waiter) && self.has_work() {
            self.call_driver(wakes);
        }
        Ok(())
    }

    fn parked(&mut self, flow: FlowId) -> &mut Parked {
        if self.parked.len() <= flow.0 {
            self.parked.resize_with(flow.0 + 1, Parked::default);
        }
        &mut self.parked[flow.0]
    }
}

struct Shared<E>(Arc<Mutex<State<E>>>);

impl<E> Clone for Shared<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Engine> Shared<E> {
    /// Locks the state, unless the stack has failed.
    fn lock(&self) -> io::Result<MutexGuard<'_, State<E>>> {
        let state = self.0.lock().map_err(|_| io::Error::other("the stack panicked"))?;
        state.check()?;
        Ok(state)
    }
}

/// Makes the listener, the datagrams and the driver of an engine.
pub(crate) fn start<E: Engine>(engine: E) -> (DrivenListener<E>, DrivenDatagrams<E>, Driver) {
    let state = State {
        engine,
        owner: Owner::Driver { is_scheduled: true },
        alone: (None, 0),
        parked: Vec::new(),
        acceptor: None,
        receivers: Receivers::default(),
        driver: None,
        unsent: 0,
        failure: None,
    };
    let shared = Shared(Arc::new(Mutex::new(state)));
    let listener = DrivenListener { shared: shared.clone() };
    let datagrams = DrivenDatagrams::new(shared.clone());
    (listener, datagrams, Box::pin(drive(shared)))
}

/// Makes the turns while no task makes them.
async fn drive<E: Engine>(shared: Shared<E>) -> io::Result<()> {
    let mut sleep = Box::pin(tokio::time::sleep(TICK));
    poll_fn(|cx| shared.poll_drive(sleep.as_mut(), cx)).await
}

impl<E: Engine> Shared<E> {
    /// Ready only with an error.
    fn poll_drive(&self, mut sleep: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = 0;
        for batch in 0..DRIVER_BATCHES {
            match self.drive_once(cx, batch == 0)? {
                Next::Turn { taken } => bytes += taken,
                Next::Yield => break,
                Next::Sleep(until) => {
                    // A sleep that ends too early costs less than resetting the timer for each turn.
                    if sleep.is_elapsed() || until < sleep.deadline() {
                        sleep.as_mut().reset(until);
                    }
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
            if bytes >= TURN_BYTES {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn drive_once(&self, cx: &mut Context<'_>, is_first: bool) -> io::Result<Next> {
        let mut wakes = Wakes::default();
        let mut state = self.lock()?;
        if state.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
        }
        state.drive(Instant::now(), cx, is_first, &mut wakes)
    }
}

/// The listener of an engine.
pub struct DrivenListener<E: Engine> {
    shared: Shared<E>,
}

impl<E: Engine> Listener for DrivenListener<E> {
    type Stream = Flow<E>;

    async fn accept(&mut self) -> io::Result<Flow<E>> {
        let accepted = poll_fn(|cx| {
            let mut state = self.shared.lock()?;
            if let Some(accepted) = state.engine.accept() {
                return Poll::Ready(io::Result::Ok(accepted));
            }
            state.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await?;
        Ok(Flow { shared: self.shared.clone(), accepted })
    }
}

impl<E: Engine> Drop for DrivenListener<E> {
    fn drop(&mut self) {
        let mut wakes = Wakes::default();
        // A stack that has failed accepts nothing.
        let Ok(mut state) = self.shared.lock() else { return };
        state.engine.close_listener();
        state.call_driver(&mut wakes);
    }
}

/// The reading or the writing task of a connection.
#[derive(Clone, Copy)]
enum Half {
    Reader,
    Writer,
}

/// Takes `units` of the task's budget, or all that is left.
fn spend(units: usize, cx: &mut Context<'_>) {
    for _ in 0..units {
        if !coop::has_budget_remaining() {
            return;
        }
        if let Poll::Ready(unit) = coop::poll_proceed(cx) {
            unit.made_progress();
        }
    }
}

/// A connection of an engine.
pub struct Flow<E: Engine> {
    shared: Shared<E>,
    accepted: Accepted,
}

impl<E: Engine> Flow<E> {
    /// Does an operation of this connection. If it is pending, stores the task's waker.
    fn poll_operation(
        &self,
        half: Half,
        cx: &mut Context<'_>,
        operation: impl FnMut(&mut E) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // Without a budget, a task with a fast peer would never let other tasks run.
        let budget = ready!(coop::poll_proceed(cx));
        let flow = self.accepted.flow;
        let mut wakes = Wakes::default();
        let mut state = self.shared.lock()?;
        // Take the stored waker out, so that a turn of this task does not wake itself.
        let stored = mem::take(state.parked(flow).place(half));
        let polled = state.poll_operation(Waiter::Flow(flow), cx, &mut wakes, operation);
        if let Poll::Ready(result) = polled {
            budget.made_progress();
            let Ok(len) = result else { return Poll::Ready(result) };
            if !state.is_owner(Waiter::Flow(flow)) {
                spend(len / BUDGET_BYTES, cx);
            }
            if let Half::Writer = half {
                state.written(Waiter::Flow(flow), len, &mut wakes)?;
            }
            return Poll::Ready(result);
        }
        let own = stored.filter(|waker| waker.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone());
        *state.parked(flow).place(half) = Some(own);
        Poll::Pending
    }

    /// Calls the driver if the sink or source refused: the task then waits for something else, and may not come back
    /// for the next packet.
    fn leave(&self, polled: Poll<io::Result<usize>>, refused: bool) -> Poll<io::Result<usize>> {
        if polled.is_pending() && refused {
            let mut wakes = Wakes::default();
            self.shared.lock()?.call_driver(&mut wakes);
        }
        polled
    }
}

impl<E: Engine> AsyncRead for Flow<E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let flow = self.accepted.flow;
        let unfilled = buffer.initialize_unfilled();
        if unfilled.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let len = ready!(self.poll_operation(Half::Reader, cx, |engine| engine.recv(flow, unfilled)))?;
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<E: Engine> AsyncWrite for Flow<E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let flow = self.accepted.flow;
        let bytes = &bytes[..bytes.len().min(TURN_BYTES)];
        self.poll_operation(Half::Writer, cx, |engine| engine.send(flow, bytes))
    }

    /// Does nothing: the stack already has all written bytes.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wakes = Wakes::default();
        let mut state = self.shared.lock()?;
        state.engine.finish(self.accepted.flow);
        Poll::Ready(state.written(Waiter::Flow(self.accepted.flow), 0, &mut wakes))
    }
}

impl<E: Engine> Stream for Flow<E> {
    fn local_addr(&self) -> SocketAddr {
        self.accepted.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.accepted.peer
    }

    fn poll_read_with(&mut self, cx: &mut Context<'_>, sink: &mut Sink<'_>) -> Poll<io::Result<usize>> {
        let flow = self.accepted.flow;
        let mut refused = false;
        let mut sink = |slices: &[IoSlice<'_>]| {
            let taken = sink(slices);
            refused = !matches!(taken, Ok(1..));
            taken
        };
        let polled = self.poll_operation(Half::Reader, cx, |engine| engine.lend(flow, &mut sink));
        self.leave(polled, refused)
    }

    fn poll_write_with(&mut self, cx: &mut Context<'_>, source: &mut Source<'_>) -> Poll<io::Result<usize>> {
        let flow = self.accepted.flow;
        let mut refused = false;
        let mut source = |room: &mut [u8]| {
            let filled = source(room);
            refused = filled.is_err();
            filled
        };
        let polled = self.poll_operation(Half::Writer, cx, |engine| engine.fill(flow, TURN_BYTES, &mut source));
        self.leave(polled, refused)
    }

    fn has_failed(&self) -> bool {
        self.shared.lock().map_or(true, |state| state.engine.has_failed(self.accepted.flow))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flow = self.accepted.flow;
        let mut wakes = Wakes::default();
        let Ok(mut state) = self.shared.lock() else { return Poll::Ready(()) };
        if state.engine.has_failed(flow) {
            return Poll::Ready(());
        }
        state.parked(flow).reader = Some(cx.waker().clone());
        if state.is_owner(Waiter::Flow(flow)) {
            state.call_driver(&mut wakes);
        }
        Poll::Pending
    }

    fn reset(self) {
        // A stack that has failed has no connections to reset. The drop that follows makes the driver send the RST.
        if let Ok(mut state) = self.shared.lock() {
            state.engine.reset(self.accepted.flow);
        }
    }
}

impl<E: Engine> Drop for Flow<E> {
    fn drop(&mut self) {
        let mut wakes = Wakes::default();
        // A stack that has failed has no connections to close.
        let Ok(mut state) = self.shared.lock() else { return };
        *state.parked(self.accepted.flow) = Parked::default();
        state.engine.release(self.accepted.flow);
        state.call_driver(&mut wakes);
    }
}
