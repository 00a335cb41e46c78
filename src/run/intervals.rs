//! What arrives when, where that is asked for.

use std::future;
use std::time::{Duration, Instant};

use super::meter::{Spent, difference};
use super::transfer::StartingGate;
use crate::sample::Interval;

/// A rest of the window shorter than this part of an interval is none of its own: its rate would say nothing.
const SLIVER: u32 = 10;

/// Takes note of what has arrived, every so often within the timed window.
pub(super) struct Intervals {
    every: Option<Duration>,
    /// Since when the window is open, once that is known.
    opened: Option<Instant>,
    looks: Vec<Look>,
    /// What the forwarder had spent when the window opened.
    before: Spent,
}

/// The end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// From the beginning of the window.
    end: Duration,
    /// What had arrived by then.
    arrived: u64,
    /// What the forwarder had spent by then, since the window opened.
    spent: Spent,
}

impl Intervals {
    /// Every so often; `None`: never.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, opened: None, looks: Vec::new(), before: Spent::default() }
    }

    /// Waits for the time to look. It may be given up and begun again.
    pub(super) async fn due(&mut self, gate: &StartingGate) {
        let Some(every) = self.every else { return future::pending().await };
        let opened = if let Some(opened) = self.opened {
            opened
        } else {
            let opening = gate.opening().await;
            self.before = opening.spent;
            *self.opened.insert(opening.at)
        };
        // A look that comes late does not move those after it.
        let past = self.looks.last().map_or(0, |look| look.end.as_nanos() / every.as_nanos().max(1));
        let next = u32::try_from(past + 1).unwrap_or(u32::MAX);
        tokio::time::sleep_until((opened + every.saturating_mul(next)).into()).await;
    }

    /// So many bytes of the timed window have arrived by now, and so much has been spent in all.
    pub(super) fn look(&mut self, arrived: u64, spent: Spent) {
        if let Some(opened) = self.opened {
            self.looks.push(Look { end: opened.elapsed(), arrived, spent: spent.since(self.before) });
        }
    }

    /// The intervals of a window that was so long, and in which so many bytes arrived and so much was spent.
    /// The last one is what is left of it, and reaches back over a look just before the end.
    pub(super) fn finish(self, elapsed: Duration, bytes: u64, spent: Spent) -> Vec<Interval> {
        let Some(every) = self.every.filter(|_| !elapsed.is_zero()) else { return Vec::new() };
        let most = elapsed.saturating_sub(every / SLIVER);
        let looks = self.looks.into_iter().take_while(|look| look.end < most && look.arrived <= bytes);
        let mut before = (0, Some(Duration::ZERO));
        let part = |Look { end, arrived, spent }: Look| {
            let bytes = arrived.saturating_sub(before.0);
            let cpu = difference(spent.forwarder_cpu, before.1);
            before = (before.0 + bytes, spent.forwarder_cpu);
            Interval { end, bytes, cpu_seconds: cpu.map(|cpu| cpu.as_secs_f64()), rss_bytes: spent.forwarder_rss_bytes }
        };
        looks.chain([Look { end: elapsed, arrived: bytes, spent }]).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn spent(cpu_ms: u64, rss_bytes: u64) -> Spent {
        Spent { forwarder_cpu: Some(ms(cpu_ms)), forwarder_rss_bytes: Some(rss_bytes), ..Spent::default() }
    }

    fn intervals(looks: &[(u64, u64)], elapsed: u64, bytes: u64) -> Vec<(u128, u64)> {
        let mut intervals = Intervals::new(Some(ms(100)));
        let look = |(end, arrived): &(u64, u64)| Look { end: ms(*end), arrived: *arrived, spent: Spent::default() };
        intervals.looks = looks.iter().map(look).collect();
        let parts = intervals.finish(ms(elapsed), bytes, Spent::default());
        assert!(parts.iter().all(|part| part.cpu_seconds.is_none() && part.rss_bytes.is_none()), "{parts:?}");
        parts.iter().map(|part| (part.end.as_millis(), part.bytes)).collect()
    }

    #[test]
    fn the_parts_are_the_whole() {
        assert_eq!(intervals(&[(101, 10), (200, 10), (305, 40)], 350, 45), [(101, 10), (200, 0), (305, 30), (350, 5)]);
        assert_eq!(intervals(&[], 50, 7), [(50, 7)]);
    }

    #[test]
    fn a_look_after_the_end_is_none() {
        assert_eq!(intervals(&[(100, 10), (200, 45)], 200, 45), [(100, 10), (200, 35)]);
        assert_eq!(intervals(&[(100, 10), (200, 50)], 250, 45), [(100, 10), (250, 35)]);
    }

    #[test]
    fn a_sliver_belongs_to_what_is_before_it() {
        assert_eq!(intervals(&[(100, 10), (200, 40)], 209, 45), [(100, 10), (209, 35)]);
        assert_eq!(intervals(&[(100, 10), (200, 40)], 211, 45), [(100, 10), (200, 30), (211, 5)]);
        assert_eq!(intervals(&[(100, 10)], 101, 11), [(101, 11)]);
    }

    #[test]
    fn a_run_without_a_window_has_none() {
        assert_eq!(intervals(&[], 0, 0), []);
        assert_eq!(Intervals::new(None).finish(Duration::from_secs(1), 9, Spent::default()), []);
    }

    #[test]
    fn a_forwarder_spends_time_in_each_and_holds_memory_at_its_end() {
        let mut intervals = Intervals::new(Some(ms(100)));
        intervals.opened = Some(Instant::now());
        // What it had spent before does not count.
        intervals.before = spent(5000, 7);
        intervals.look(1, spent(5030, 8));
        intervals.look(2, spent(5090, 9));
        let parts = intervals.finish(Duration::from_mins(1), 3, spent(100, 6));
        let cost: Vec<_> = parts.iter().map(|part| (part.cpu_seconds, part.rss_bytes)).collect();
        assert_eq!(cost, [(Some(0.03), Some(8)), (Some(0.06), Some(9)), (Some(0.01), Some(6))]);
    }
}
