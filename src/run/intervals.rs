//! What arrives when, where that is asked for.

use std::future;
use std::time::{Duration, Instant};

use super::transfer::StartingGate;
use crate::sample::Interval;

/// Takes note of what has arrived, every so often within the timed window.
pub(super) struct Intervals {
    every: Option<Duration>,
    /// Since when the window is open, once that is known.
    opened: Option<Instant>,
    /// The end of each interval, from the beginning of the window, and what had arrived by then.
    looks: Vec<(Duration, u64)>,
}

impl Intervals {
    /// Every so often; `None`: never.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, opened: None, looks: Vec::new() }
    }

    /// Waits for the time to look. It may be given up and begun again.
    pub(super) async fn due(&mut self, gate: &StartingGate) {
        let Some(every) = self.every else { return future::pending().await };
        let opened = match self.opened {
            Some(opened) => opened,
            None => *self.opened.insert(gate.opening().await),
        };
        // A look that comes late does not move those after it.
        let past = self.looks.last().map_or(0, |(end, _)| end.as_nanos() / every.as_nanos().max(1));
        let next = u32::try_from(past + 1).unwrap_or(u32::MAX);
        tokio::time::sleep_until((opened + every.saturating_mul(next)).into()).await;
    }

    /// So many bytes of the timed window have arrived by now.
    pub(super) fn look(&mut self, arrived: u64) {
        if let Some(opened) = self.opened {
            self.looks.push((opened.elapsed(), arrived));
        }
    }

    /// The intervals of a window that was so long and in which so many bytes arrived. The last one is what
    /// is left of it.
    pub(super) fn finish(self, elapsed: Duration, bytes: u64) -> Vec<Interval> {
        if self.every.is_none() || elapsed.is_zero() {
            return Vec::new();
        }
        let looks = self.looks.into_iter().take_while(|(end, arrived)| *end < elapsed && *arrived <= bytes);
        let mut before = 0;
        let part = |(end, arrived): (Duration, u64)| {
            let bytes = arrived.saturating_sub(before);
            before += bytes;
            Interval { end, bytes }
        };
        looks.chain([(elapsed, bytes)]).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(looks: &[(u64, u64)], elapsed: u64, bytes: u64) -> Vec<(u128, u64)> {
        let ms = Duration::from_millis;
        let mut intervals = Intervals::new(Some(ms(100)));
        intervals.looks = looks.iter().map(|(end, arrived)| (ms(*end), *arrived)).collect();
        intervals.finish(ms(elapsed), bytes).iter().map(|part| (part.end.as_millis(), part.bytes)).collect()
    }

    #[test]
    fn the_parts_are_the_whole() {
        assert_eq!(intervals(&[(101, 10), (200, 10), (305, 40)], 350, 45), [(101, 10), (200, 0), (305, 30), (350, 5)]);
        assert_eq!(intervals(&[], 50, 7), [(50, 7)]);
    }

    #[test]
    fn a_look_after_the_end_is_none() {
        assert_eq!(intervals(&[(100, 10), (200, 45)], 200, 45), [(100, 10), (200, 35)]);
        assert_eq!(intervals(&[(100, 10), (200, 50)], 210, 45), [(100, 10), (210, 35)]);
    }

    #[test]
    fn a_run_without_a_window_has_none() {
        assert_eq!(intervals(&[], 0, 0), []);
        assert_eq!(Intervals::new(None).finish(Duration::from_secs(1), 9), []);
    }
}
