//! The bytes that arrive in each interval of the timed window, if that was asked for.

use std::future;
use std::time::{Duration, Instant};

use crate::load::window::Window;
use crate::meter::{Usage, difference};
use crate::sample::Interval;

/// If the rest of the window is shorter than an interval divided by this, it is added to the interval before.
const SLIVER: u32 = 10;

/// Records at regular times how much has arrived in the timed window.
pub(super) struct Intervals {
    every: Option<Duration>,
    opened: Option<Instant>,
    records: Vec<Record>,
    before: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// From the beginning of the window.
    end: Duration,
    arrived: u64,
    usage: Usage,
}

impl Intervals {
    /// Intervals of this length; `None` for no intervals.
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, opened: None, records: Vec::new(), before: Usage::default() }
    }

    /// So many records at the same time, for [`Self::count_by`].
    pub(super) fn recorded(count: usize) -> Self {
        let record = Record { end: Duration::ZERO, arrived: 0, usage: Usage::default() };
        Self { records: vec![record; count], ..Self::new(Some(Duration::from_secs(1))) }
    }

    /// Waits until the next record is due. Safe to cancel and call again.
    pub(super) async fn due(&mut self, window: &Window) {
        let Some(every) = self.every else { return future::pending().await };
        let opening = window.opening().await;
        // A window that did not hold its rate is made again.
        if self.opened != Some(opening.at) {
            (self.opened, self.before) = (Some(opening.at), opening.usage);
            self.records.clear();
        }
        // A late record does not move those after it.
        let past = self.records.last().map_or(0, |record| record.end.as_nanos() / every.as_nanos().max(1));
        let next = u32::try_from(past + 1).unwrap_or(u32::MAX);
        tokio::time::sleep_until((opening.at + every.saturating_mul(next)).into()).await;
    }

    /// Records the bytes that have arrived in the timed window so far, and the current usage.
    pub(super) fn record(&mut self, arrived: u64, usage: Usage) {
        if let Some(opened) = self.opened {
            self.records.push(Record { end: opened.elapsed(), arrived, usage: usage.since(self.before) });
        }
    }

    /// Replaces the times and bytes of the records with another program's: the end of each of its intervals, and its bytes.
    pub(super) fn count_by(&mut self, parts: &[(Duration, u64)]) {
        let mut arrived = 0_u64;
        let but_last = parts.len().saturating_sub(1);
        self.records.truncate(but_last);
        for (record, (end, bytes)) in self.records.iter_mut().zip(parts) {
            arrived = arrived.saturating_add(*bytes);
            (record.end, record.arrived) = (*end, arrived);
        }
    }

    /// The intervals of a window in which `bytes` arrived. The last is the rest of the window.
    pub(super) fn finish(self, elapsed: Duration, bytes: u64, usage: Usage) -> Vec<Interval> {
        let Some(every) = self.every.filter(|_| !elapsed.is_zero()) else { return Vec::new() };
        let most = elapsed.saturating_sub(every / SLIVER);
        let records = self.records.into_iter().take_while(|record| record.end < most && record.arrived <= bytes);
        let mut before = (0, Some(Duration::ZERO));
        let part = |Record { end, arrived, usage }: Record| {
            let bytes = arrived.saturating_sub(before.0);
            let cpu = difference(usage.carrier_cpu, before.1);
            before = (before.0 + bytes, usage.carrier_cpu);
            Interval { end, bytes, cpu_seconds: cpu.map(|cpu| cpu.as_secs_f64()), rss_bytes: usage.carrier_rss_bytes }
        };
        records.chain([Record { end: elapsed, arrived: bytes, usage }]).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::LinkMeter;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn usage(cpu_ms: u64, rss_bytes: u64) -> Usage {
        Usage { carrier_cpu: Some(ms(cpu_ms)), carrier_rss_bytes: Some(rss_bytes), ..Usage::default() }
    }

    fn intervals(records: &[(u64, u64)], elapsed: u64, bytes: u64) -> Vec<(u128, u64)> {
        let mut intervals = Intervals::new(Some(ms(100)));
        let record = |(end, arrived): &(u64, u64)| Record { end: ms(*end), arrived: *arrived, usage: Usage::default() };
        intervals.records = records.iter().map(record).collect();
        let parts = intervals.finish(ms(elapsed), bytes, Usage::default());
        assert!(parts.iter().all(|part| part.cpu_seconds.is_none() && part.rss_bytes.is_none()), "{parts:?}");
        parts.iter().map(|part| (part.end.as_millis(), part.bytes)).collect()
    }

    #[test]
    fn the_intervals_add_up_to_the_window() {
        assert_eq!(intervals(&[(101, 10), (200, 10), (305, 40)], 350, 45), [(101, 10), (200, 0), (305, 30), (350, 5)]);
        assert_eq!(intervals(&[], 50, 7), [(50, 7)]);
    }

    #[test]
    fn a_record_after_the_end_is_left_out() {
        assert_eq!(intervals(&[(100, 10), (200, 45)], 200, 45), [(100, 10), (200, 35)]);
        assert_eq!(intervals(&[(100, 10), (200, 50)], 250, 45), [(100, 10), (250, 35)]);
    }

    #[test]
    fn a_sliver_is_added_to_the_interval_before_it() {
        assert_eq!(intervals(&[(100, 10), (200, 40)], 209, 45), [(100, 10), (209, 35)]);
        assert_eq!(intervals(&[(100, 10), (200, 40)], 211, 45), [(100, 10), (200, 30), (211, 5)]);
        assert_eq!(intervals(&[(100, 10)], 101, 11), [(101, 11)]);
    }

    #[test]
    fn a_run_without_a_window_has_no_intervals() {
        assert_eq!(intervals(&[], 0, 0), []);
        assert_eq!(Intervals::new(None).finish(Duration::from_secs(1), 9, Usage::default()), []);
    }

    #[test]
    fn the_bytes_and_times_of_another_clock_replace_those_of_the_records() {
        let mut intervals = Intervals::new(Some(ms(1000)));
        let record = |(end, cpu_ms, rss)| Record { end: ms(end), arrived: 0, usage: usage(cpu_ms, rss) };
        intervals.records = [(1002, 30, 8), (2003, 90, 9)].map(record).to_vec();
        intervals.count_by(&[(ms(1000), 600), (ms(2000), 700)]);
        let parts = intervals.finish(ms(2500), 1200, usage(100, 6));
        let parts: Vec<_> =
            parts.iter().map(|part| (part.end.as_millis(), part.bytes, part.cpu_seconds, part.rss_bytes)).collect();
        assert_eq!(parts, [(1000, 600, Some(0.03), Some(8)), (2500, 600, Some(0.07), Some(6))]);
    }

    #[tokio::test]
    async fn a_window_that_is_made_again_has_its_own_intervals() {
        let window = Window::new(1, Box::new(LinkMeter::new([], || None)));
        let mut intervals = Intervals::new(Some(ms(1)));
        for bytes in [50, 60, 7] {
            if bytes != 60 {
                assert!(window.wait().is_ok());
            }
            intervals.due(&window).await;
            intervals.record(bytes, Usage::default());
        }
        assert_eq!(
            intervals.finish(ms(1000), 9, Usage::default()).iter().map(|part| part.bytes).collect::<Vec<_>>(),
            [7, 2]
        );
    }

    #[test]
    fn an_interval_has_the_cpu_time_and_memory_of_the_carrier() {
        let mut intervals = Intervals::new(Some(ms(100)));
        intervals.opened = Some(Instant::now());
        // The time before the window does not count.
        intervals.before = usage(5000, 7);
        intervals.record(1, usage(5030, 8));
        intervals.record(2, usage(5090, 9));
        let parts = intervals.finish(Duration::from_mins(1), 3, usage(100, 6));
        let cost: Vec<_> = parts.iter().map(|part| (part.cpu_seconds, part.rss_bytes)).collect();
        assert_eq!(cost, [(Some(0.03), Some(8)), (Some(0.06), Some(9)), (Some(0.01), Some(6))]);
    }
}
