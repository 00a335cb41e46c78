//! The load of a forwarder or proxy on processors and memory: mean, maximum, and at rest.

use std::time::Duration;

use super::{Measurements, UnloadedFacts};

impl Measurements {
    /// What the subject did without a load: a program, or else the process of idle connections.
    pub fn unloaded(&self) -> Option<UnloadedFacts> {
        self.program.as_ref().map(|program| program.unloaded).or_else(|| Some(self.idle.as_ref()?.unloaded))
    }

    /// The load on the processors, in percent of one: over the timed window, and in the busiest interval.
    pub fn cpu_percent(&self) -> Option<[f64; 2]> {
        let average = percent(self.cpu.subject_seconds?, self.elapsed)?;
        Some([average, self.interval_rates().into_iter().fold(average, f64::max)])
    }

    /// A short last interval is left out: one tick of the kernel's clock would change its rate too much.
    fn interval_rates(&self) -> Vec<f64> {
        let mut parts: Vec<_> = self.parts().map(|(_, length, interval)| (length, interval.cpu_seconds)).collect();
        let longest = parts.iter().map(|(length, _)| *length).max().unwrap_or_default();
        if parts.len() > 1 {
            parts.pop_if(|(length, _)| *length < longest / 2);
        }
        parts.into_iter().filter_map(|(length, seconds)| percent(seconds?, length)).collect()
    }

    /// The resident set at the ends of the intervals, in bytes; `None` without intervals.
    pub fn memory_bytes(&self) -> Option<[f64; 2]> {
        let sizes: Vec<f64> = self.intervals.iter().filter_map(|interval| Some(interval.rss_bytes? as f64)).collect();
        let maximum = sizes.iter().copied().reduce(f64::max)?;
        Some([sizes.iter().sum::<f64>() / sizes.len() as f64, maximum])
    }
}

fn percent(seconds: f64, elapsed: Duration) -> Option<f64> {
    (!elapsed.is_zero()).then(|| seconds / elapsed.as_secs_f64() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::{CpuTime, Interval, Status};
    use super::*;

    /// A run with these intervals: end in milliseconds, CPU time in milliseconds, resident set in bytes.
    fn facts(parts: &[(u64, u64, u64)]) -> Measurements {
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
        let interval = |(end_ms, cpu_ms, rss_bytes): &(u64, u64, u64)| Interval {
            end: Duration::from_millis(*end_ms),
            bytes: 0,
            cpu_seconds: Some(seconds(*cpu_ms)),
            rss_bytes: Some(*rss_bytes),
        };
        let sum = parts.iter().map(|(_, cpu_ms, _)| cpu_ms).sum();
        Measurements {
            elapsed: Duration::from_millis(parts.last().map_or(1000, |(end_ms, ..)| *end_ms)),
            cpu: CpuTime { subject_seconds: Some(seconds(sum)), ..CpuTime::default() },
            intervals: parts.iter().map(interval).collect(),
            ..Measurements::failed(Status::Ok, "")
        }
    }

    fn rounded(load: Option<[f64; 2]>) -> Option<(i64, i64)> {
        load.map(|[average, maximum]| (average.round() as i64, maximum.round() as i64))
    }

    #[test]
    fn the_busiest_interval_is_the_maximum() {
        let facts = facts(&[(1000, 800, 5), (2000, 1200, 9), (3000, 1000, 7)]);
        assert_eq!(rounded(facts.cpu_percent()), Some((100, 120)));
        assert_eq!(rounded(facts.memory_bytes()), Some((7, 9)));
    }

    #[test]
    fn a_rest_is_no_rate_beside_whole_intervals() {
        assert_eq!(rounded(facts(&[(1000, 800, 5), (2000, 800, 5), (2010, 30, 5)]).cpu_percent()), Some((81, 81)));
        assert_eq!(rounded(facts(&[(1000, 800, 5), (1600, 640, 5)]).cpu_percent()), Some((90, 107)));
        // A single interval counts, however short it is.
        assert_eq!(rounded(facts(&[(300, 270, 5)]).cpu_percent()), Some((90, 90)));
    }

    #[test]
    fn without_intervals_the_average_is_all_there_is() {
        let mut facts = facts(&[(1000, 800, 5)]);
        facts.intervals.clear();
        assert_eq!(rounded(facts.cpu_percent()), Some((80, 80)));
        assert_eq!(facts.memory_bytes(), None);
        facts.elapsed = Duration::ZERO;
        assert_eq!(facts.cpu_percent(), None);
        facts.cpu = CpuTime::default();
        assert_eq!(facts.cpu_percent(), None);
    }
}
