//! Async streams on top of a state machine: smoltcp and lwIP need a caller that passes them packets and the time.
//!
//! A *turn* sends packets, receives one batch, and wakes the tasks of connections that have changed. A task reads
//! arrived bytes and queues bytes without a turn. The [`Owner`] makes the turns: the driver, a background task, or,
//! while only one connection is busy, its task, unless [`Workaround::TaskTurns`] is off. Then a byte crosses no other
//! task, and the driver just checks at intervals that the task still makes turns.
//!
//! All tasks of a stack share one lock, held for one operation or one turn. Tasks are woken after it is released.

mod datagrams;
mod engine;
pub(crate) mod isn;
pub(crate) mod segment;
mod stream;
mod table;
#[cfg(all(test, feature = "smoltcp"))]
mod tests;
mod turns;

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use crate::datagrams::Receivers;
use crate::{Driver, Listener, Stream, Workaround, Workarounds};

pub(crate) use self::datagrams::DrivenDatagrams;
pub(crate) use self::engine::{Accepted, Engine, FlowId, Intake};
pub use self::stream::Flow;
pub(crate) use self::table::{Stage, Table, most_half_open};
use self::turns::{Owner, Shared, State, TICK, Wakes};

/// Makes the listener, the datagrams and the driver of an engine.
pub(crate) fn start<E: Engine>(engine: E, workarounds: Workarounds) -> (DrivenListener<E>, DrivenDatagrams<E>, Driver) {
    let state = State {
        engine,
        owner: Owner::Driver { is_scheduled: true },
        has_task_turns: workarounds.has(Workaround::TaskTurns),
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

async fn drive<E: Engine>(shared: Shared<E>) -> io::Result<()> {
    let mut sleep = Box::pin(tokio::time::sleep(TICK));
    poll_fn(|cx| shared.poll_drive(sleep.as_mut(), cx)).await
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
            if let Some(accepted) = state.engine.table_mut().accept() {
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
