//! The turns of a stack: who makes them, and what one turn does.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::engine::{Engine, FlowId, Intake};
use crate::StackFault;
use crate::config::again;
use crate::datagrams::Receivers;

/// The driver's longest sleep while a task makes the turns: then it checks that the task still does.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// The driver's longest sleep while connections exist, and the shortest, the resolution of tokio's timer.
pub(super) const TICK: Duration = Duration::from_millis(500);
pub(super) const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The driver's longest sleep while none exist.
pub(super) const IDLE: Duration = Duration::from_mins(1);

/// The most bytes that one call takes from a writer, and that the driver receives before readers run: they stay cached.
pub(super) const TURN_BYTES: usize = 256 << 10;

/// A batch of at least this many bytes that empties the link is acknowledged at once, so that the peer sends more while
/// they are read. The acknowledgement of a smaller batch can go with the reply.
pub(super) const BULK: usize = 16 << 10;

/// This many bytes cost one of 128 units of tokio's budget. It counts calls: one stream would delay requests by 20 ms.
pub(super) const BUDGET_BYTES: usize = 8 << 10;

/// How many full batches the driver takes before it lets other tasks run, if they stay below [`TURN_BYTES`].
pub(super) const DRIVER_BATCHES: usize = 32;

/// How many full batches a task takes, without progress of its own, before it lets other tasks run.
pub(super) const INLINE_BATCHES: usize = 4;

/// After this many turns in a row with packets for the same connection only, its task makes the turns.
pub(super) const ALONE: u32 = 4;

#[derive(Clone, Copy)]
pub(super) enum Half {
    Reader,
    Writer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Flow(FlowId),
    Datagrams,
}

/// The task or tasks that poll the link and make the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The driver. It runs or has been woken (`is_scheduled`), or it waits for the link.
    Driver { is_scheduled: bool },
    /// The tasks of one waiter. `has_driven`: they made a turn since the driver last checked.
    Task { waiter: Waiter, has_driven: bool },
}

/// The waiters that one turn brought something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nobody,
    One(Waiter),
    Several,
}

impl Changed {
    pub(super) fn add(&mut self, waiter: Waiter) {
        *self = match *self {
            Self::Nobody => Self::One(waiter),
            Self::One(first) if first == waiter => return,
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    pub(super) fn is_only(self, waiter: Waiter) -> bool {
        matches!(self, Self::Nobody) || self == Self::One(waiter)
    }
}

/// What the driver does after a turn.
pub(super) enum Next {
    /// It makes another turn at once. This turn received `taken` bytes.
    Turn { taken: usize },
    /// It lets other tasks run, then makes another turn.
    Yield,
    /// It sleeps until this time, or until it is woken.
    Sleep(Instant),
}

pub(super) struct State<E> {
    pub(super) engine: E,
    pub(super) owner: Owner,
    pub(super) has_task_turns: bool,
    /// The only waiter in the driver's last turns, if there was just one, and the number of these turns.
    pub(super) alone: (Option<Waiter>, u32),
    pub(super) parked: Vec<Parked>,
    pub(super) acceptor: Option<Waker>,
    pub(super) receivers: Receivers,
    pub(super) driver: Option<Waker>,
    /// Bytes that tasks have written since the last turn.
    pub(super) unsent: usize,
    pub(super) failure: Option<io::Error>,
}

#[derive(Default)]
pub(super) struct Parked {
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl Parked {
    pub(super) fn place(&mut self, half: Half) -> &mut Option<Waker> {
        match half {
            Half::Reader => &mut self.reader,
            Half::Writer => &mut self.writer,
        }
    }
}

/// Tasks to wake. Dropping this wakes them, so declare it before the lock guard: it is dropped after the guard.
#[derive(Default)]
pub(super) struct Wakes(Vec<Waker>);

impl Wakes {
    pub(super) fn add(&mut self, wakers: impl IntoIterator<Item = Option<Waker>>) {
        self.0.extend(wakers.into_iter().flatten());
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl<E: Engine> State<E> {
    /// Remembers a failure of the stack or the link, and wakes all tasks.
    pub(super) fn failed<T>(&mut self, result: io::Result<T>, wakes: &mut Wakes) -> io::Result<T> {
        if let Err(error) = &result {
            self.failure = Some(again(error));
            wakes.add(self.parked.iter_mut().flat_map(|parked| [parked.reader.take(), parked.writer.take()]));
            wakes.add([self.acceptor.take(), self.driver.take()]);
            wakes.0.extend(self.receivers.drain());
        }
        result
    }

    /// Receives a batch of packets, and wakes the tasks that get something.
    pub(super) fn ingress(&mut self, now: Instant, wakes: &mut Wakes) -> io::Result<(Intake, Changed)> {
        self.unsent = 0;
        let intake = self.engine.ingress(now);
        let intake = self.failed(intake, wakes)?;
        let mut changed = Changed::Nobody;
        while let Some(flow) = self.engine.table_mut().next_changed() {
            changed.add(Waiter::Flow(flow));
            if let Some(parked) = self.parked.get_mut(flow.0) {
                wakes.add([parked.reader.take(), parked.writer.take()]);
            }
        }
        if !self.engine.inbox().is_empty() {
            changed.add(Waiter::Datagrams);
            wakes.0.extend(self.receivers.drain());
        }
        // A task does not wait for the packets of others, so it might leave them on the link.
        if intake.has_passed_on {
            changed = Changed::Several;
        }
        if self.engine.table().can_accept() {
            changed = Changed::Several;
            wakes.add([self.acceptor.take()]);
        }
        Ok((intake, changed))
    }

    pub(super) fn egress(&mut self, now: Instant, wakes: &mut Wakes) -> io::Result<()> {
        let result = self.engine.egress(now);
        self.failed(result, wakes)
    }

    /// Ready if another turn is useful; else the link has the waker.
    pub(super) fn poll_link(&mut self, cx: &mut Context<'_>, wakes: &mut Wakes) -> Poll<io::Result<()>> {
        // An egress is bounded, so there may be more to send.
        if self.has_work() {
            return Poll::Ready(Ok(()));
        }
        let readable = self.engine.poll_readable(cx);
        let polled = if readable.is_ready() { readable } else { self.engine.poll_unblocked(cx) };
        polled.map(|result| self.failed(result, wakes))
    }

    /// Whether the stack may have something to send and the link has room.
    pub(super) fn has_work(&self) -> bool {
        self.engine.table().has_due() && !self.engine.is_blocked()
    }

    pub(super) fn is_owner(&self, waiter: Waiter) -> bool {
        matches!(self.owner, Owner::Task { waiter: owner, .. } if owner == waiter)
    }

    /// Makes a turn of the driver. Only the first of a poll sends before it receives. Only the last batch is
    /// acknowledged at once, if it has [`BULK`] bytes: the next poll replies to the others.
    pub(super) fn drive(
        &mut self,
        now: Instant,
        cx: &mut Context<'_>,
        is_first: bool,
        wakes: &mut Wakes,
    ) -> io::Result<Next> {
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
        if !intake.is_drained {
            return Ok(Next::Turn { taken: intake.len });
        }
        if intake.len >= BULK {
            self.egress(now, wakes)?;
        }
        // Now the tasks run. The next turn sends the bytes that they write.
        if intake.len > 0 || self.has_work() {
            return Ok(Next::Yield);
        }
        if self.poll_link(cx, wakes)?.is_ready() {
            return Ok(Next::Turn { taken: 0 });
        }
        self.owner = Owner::Driver { is_scheduled: false };
        let tick = if self.engine.table().is_empty() { IDLE } else { TICK };
        Ok(self.sleep(now, tick))
    }

    /// Sleeps until the next timer, for `longest` at most.
    pub(super) fn sleep(&mut self, now: Instant, longest: Duration) -> Next {
        let deadline = self.engine.deadline(now).map(|deadline| deadline.max(now + SHORTEST_SLEEP));
        Next::Sleep(deadline.map_or(now + longest, |deadline| deadline.min(now + longest)))
    }

    /// Counts turns in a row for one waiter alone. Returns the waiter after [`ALONE`] of them.
    pub(super) fn who_is_alone(&mut self, changed: Changed) -> Option<Waiter> {
        let waiter = match changed {
            _ if !self.has_task_turns => return None,
            Changed::Nobody => return None,
            Changed::One(waiter) => Some(waiter),
            Changed::Several => None,
        };
        let turns = if waiter == self.alone.0 { self.alone.1 + 1 } else { 1 };
        self.alone = (waiter, turns);
        waiter.filter(|_| turns >= ALONE)
    }

    /// Makes the driver the owner. Wakes it, unless it runs or has already been woken.
    pub(super) fn call_driver(&mut self, wakes: &mut Wakes) {
        let scheduled = Owner::Driver { is_scheduled: true };
        if mem::replace(&mut self.owner, scheduled) != scheduled {
            wakes.add([self.driver.clone()]);
        }
    }

    /// Does an operation for a waiter. If it would block and the waiter is the owner, makes turns until it succeeds or
    /// no packets wait. If it is still pending then, the link or the driver will wake the task.
    pub(super) fn poll_operation<T>(
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
            self.egress(now, wakes)?;
            let (intake, changed) = self.ingress(now, wakes)?;
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

    /// Sends the bytes that a waiter has written: at once if it is the owner or they are [`BULK`], else with the next
    /// turn.
    pub(super) fn written(&mut self, waiter: Waiter, len: usize, wakes: &mut Wakes) -> io::Result<()> {
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

    pub(super) fn parked(&mut self, flow: FlowId) -> &mut Parked {
        if self.parked.len() <= flow.0 {
            self.parked.resize_with(flow.0 + 1, Parked::default);
        }
        &mut self.parked[flow.0]
    }
}

pub(super) struct Shared<E>(pub(super) Arc<Mutex<State<E>>>);

impl<E> Clone for Shared<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Engine> Shared<E> {
    /// Locks the state, unless the stack has failed.
    pub(super) fn lock(&self) -> io::Result<MutexGuard<'_, State<E>>> {
        let state = self.0.lock().map_err(|_| io::Error::other(StackFault("the stack panicked".to_owned())))?;
        state.failure.as_ref().map_or(Ok(()), |failure| Err(again(failure)))?;
        Ok(state)
    }

    /// Ready only with an error.
    pub(super) fn poll_drive(&self, mut sleep: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = 0;
        for batch in 0..DRIVER_BATCHES {
            match self.drive_once(cx, batch == 0)? {
                Next::Turn { taken } => {
                    bytes += taken;
                    if bytes + taken > TURN_BYTES {
                        break;
                    }
                }
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
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    pub(super) fn drive_once(&self, cx: &mut Context<'_>, is_first: bool) -> io::Result<Next> {
        let mut wakes = Wakes::default();
        let mut state = self.lock()?;
        if state.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
        }
        state.drive(Instant::now(), cx, is_first, &mut wakes)
    }
}
