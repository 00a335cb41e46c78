//! A time in which datagrams are sent, and their schedule.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// From 1.
    pub(crate) number: u32,
    pub(super) begin: Instant,
    pub(crate) time: Duration,
    /// Datagrams a second of each flow, evenly spaced; `None` for as many as are taken.
    pub(crate) rate: Option<f64>,
    /// Datagrams that are sent together at this rate.
    pub(crate) burst: u64,
    pub(super) is_timed: bool,
}

impl Trial {
    /// Before the first trial.
    pub(super) fn none() -> Self {
        Self { number: 0, begin: Instant::now(), time: Duration::ZERO, rate: None, burst: 1, is_timed: false }
    }

    pub(crate) fn end(&self) -> Instant {
        self.begin + self.time
    }

    pub(crate) fn due(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.begin).min(self.time);
        self.rate.map_or(u64::MAX, |rate| (elapsed.as_secs_f64() * rate) as u64 + 1)
    }

    /// When the next burst is due, after this number of datagrams.
    pub(crate) fn next_due_at(&self, sent: u64) -> Instant {
        self.due_at(sent + self.burst - 1)
    }

    fn due_at(&self, number: u64) -> Instant {
        self.begin + self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(number as f64 / rate))
    }
}
