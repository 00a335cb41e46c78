//! An outage in the timed window: the path carries nothing for a while, and then it is watched until something arrives.

use std::time::{Duration, Instant};

use crate::cell::Outage;
use crate::error::RunError;
use crate::load::window::Window;
use crate::subject::Cut;

/// How often the load is read after the outage, until something has arrived.
const LOOK: Duration = Duration::from_millis(1);

pub(super) struct Interruption {
    outage: Outage,
    cut: Cut,
    state: State,
}

enum State {
    Before,
    During,
    /// It ended at this time, when so many bytes had arrived.
    After(Instant, u64),
    /// Something arrived after this time.
    Recovered(Duration),
}

impl Interruption {
    pub(super) fn new(outage: Outage, cut: Cut) -> Self {
        Self { outage, cut, state: State::Before }
    }

    /// Waits until the next step is due. Safe to cancel and call again.
    pub(super) async fn due(&self, window: &Window) {
        let Outage { at, lasts } = self.outage;
        let after = match self.state {
            State::Before => at,
            State::During => at + lasts,
            State::After(..) => return tokio::time::sleep(LOOK).await,
            State::Recovered(_) => return std::future::pending().await,
        };
        tokio::time::sleep_until((window.opening().await.at + after).into()).await;
    }

    /// Takes the step that is due, when so many bytes have arrived.
    pub(super) fn step(&mut self, arrived: u64) -> Result<(), RunError> {
        match self.state {
            State::Before => {
                (self.cut)(true)?;
                self.state = State::During;
            }
            State::During => {
                let ended = Instant::now();
                (self.cut)(false)?;
                self.state = State::After(ended, arrived);
            }
            State::After(ended, before) if arrived > before => self.state = State::Recovered(ended.elapsed()),
            State::After(..) | State::Recovered(_) => {}
        }
        Ok(())
    }

    /// From the end of the outage until something arrived.
    pub(super) fn recovery(&self) -> Option<Duration> {
        if let State::Recovered(time) = self.state { Some(time) } else { None }
    }
}
