//! The times at which requests are due.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// Never: nothing is started.
    #[default]
    Stopped,
    /// As soon as the slot is free: the one before it has been answered, and its time to think is over.
    Closed,
    /// At even intervals, `rate` a second. This thread starts number `next`, and each `step`th after it.
    Even { begin: Instant, rate: u32, next: u64, step: u64, end: Instant },
}

impl Pace {
    /// When the next request of a slot that is free from `free` on is due; `None` if none will be.
    pub(super) fn next(self, free: Instant) -> Option<Instant> {
        match self {
            Self::Stopped => None,
            Self::Closed => Some(free),
            Self::Even { begin, rate, next, end, .. } => {
                let nanoseconds = u128::from(next) * 1_000_000_000 / u128::from(rate);
                let due = begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
                Some(due).filter(|due| *due < end)
            }
        }
    }

    /// When the next request of such a slot was due; `None` if none is by `now`.
    pub(super) fn due(self, free: Instant, now: Instant) -> Option<Instant> {
        self.next(free).filter(|due| *due <= now)
    }

    pub(super) fn start(&mut self) {
        if let Self::Even { next, step, .. } = self {
            *next += *step;
        }
    }
}
