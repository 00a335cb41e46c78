//! A connection of an engine, as an async stream.

use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use super::engine::{Accepted, Engine};
use super::turns::{BUDGET_BYTES, Half, Parked, Shared, TURN_BYTES, Waiter, Wakes};
use crate::{Sink, Source, Stream};

/// Takes `units` of the task's budget, or all that is left.
pub(super) fn spend(units: usize, cx: &mut Context<'_>) {
    for _ in 0..units {
        if !coop::has_budget_remaining() {
            return;
        }
        if let Poll::Ready(unit) = coop::poll_proceed(cx) {
            unit.made_progress();
        }
    }
}

pub struct Flow<E: Engine> {
    pub(super) shared: Shared<E>,
    pub(super) accepted: Accepted,
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

    /// Calls the driver if the sink or source refused: the task may not come back for the next packet.
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
