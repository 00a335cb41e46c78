//! The bytes that arrive in each part of the timed window. They show a subject that slows down, and how much the rate changes.

use std::mem;
use std::time::{Duration, Instant};

use crate::sample::SHORTEST_WINDOW;

/// The most readings that are kept: a window may last a day.
const MOST: usize = 1024;

#[derive(Default)]
pub(super) struct Readings {
    kept: Vec<(Instant, u64)>,
    /// A reading that comes sooner after the one before is left out.
    every: Duration,
}

impl Readings {
    pub(super) fn add(&mut self, at: Instant, arrived: u64) {
        let Some((last, _)) = self.kept.last() else { return self.kept.push((at, arrived)) };
        let since = at.saturating_duration_since(*last);
        if since < self.every {
            return;
        }
        if self.kept.len() == MOST {
            let mut is_kept = false;
            self.kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.every = since * 2;
        }
        self.kept.push((at, arrived));
    }

    /// The bytes of each of equal parts of a window in which `bytes` arrived. Between two readings, bytes arrive at an even rate.
    /// `None` for a window that is too short, and for one without bytes.
    pub(super) fn parts<const N: usize>(&self, opened: Instant, elapsed: Duration, bytes: u64) -> Option<[u64; N]> {
        if elapsed < SHORTEST_WINDOW || bytes == 0 {
            return None;
        }
        // Those before it are of a window that did not hold its rate.
        let readings =
            self.kept.iter().filter_map(|(at, arrived)| Some((at.checked_duration_since(opened)?, *arrived)));
        let inside = readings.filter(|(at, arrived)| *at < elapsed && *arrived <= bytes).chain([(elapsed, bytes)]);
        let arrived_by = |time: Duration| {
            let (mut begin, mut before) = (Duration::ZERO, 0);
            for (end, arrived) in inside.clone() {
                if end >= time {
                    let length = end.saturating_sub(begin).max(Duration::from_nanos(1));
                    let share = time.saturating_sub(begin).div_duration_f64(length);
                    return before + (arrived.saturating_sub(before) as f64 * share) as u64;
                }
                (begin, before) = (end, arrived);
            }
            bytes
        };
        let mut before = 0;
        Some(std::array::from_fn(|part| {
            let end = arrived_by(elapsed * (part as u32 + 1) / N as u32).clamp(before, bytes);
            end - mem::replace(&mut before, end)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thirds of a window of so many seconds, with readings of milliseconds and bytes.
    fn thirds(seconds: u64, readings: impl IntoIterator<Item = (u64, u64)>, bytes: u64) -> Option<[u64; 3]> {
        let opened = Instant::now();
        let mut all = Readings::default();
        readings.into_iter().for_each(|(ms, arrived)| all.add(opened + Duration::from_millis(ms), arrived));
        assert!(all.kept.len() <= MOST);
        all.parts(opened, Duration::from_secs(seconds), bytes)
    }

    #[test]
    fn bytes_between_two_readings_come_at_an_even_rate() {
        assert_eq!(thirds(3, [(500, 100), (1500, 300), (2000, 400)], 410), Some([200, 200, 10]));
        assert_eq!(thirds(3, [], 300), Some([100, 100, 100]));
        // A reading after the end, and one of more than arrived.
        assert_eq!(thirds(3, [(2500, 310), (3500, 300)], 300), Some([100, 100, 100]));
        // One before the window.
        let (begin, mut all) = (Instant::now(), Readings::default());
        all.add(begin, 250);
        let second = Duration::from_secs(1);
        assert_eq!(all.parts(begin + second, 3 * second, 300), Some([100, 100, 100]));
    }

    #[test]
    fn a_short_or_an_empty_window_has_no_thirds() {
        assert_eq!(thirds(0, [(100, 5)], 5), None);
        assert_eq!(thirds(3, [(100, 0)], 0), None);
    }

    #[test]
    fn a_day_has_thirds_too() {
        const DAY: u64 = 86_400;
        let half = |ms: u64| ms.min(DAY * 500);
        let [first, second, third] =
            thirds(DAY, (0..DAY * 4).map(|n| (n * 250, half(n * 250))), DAY * 500).unwrap_or_default();
        assert!(first.abs_diff(DAY * 1000 / 3) < DAY && second.abs_diff(DAY * 500 / 3) < DAY, "{first}, {second}");
        assert!(third < DAY, "{third}");
    }
}
