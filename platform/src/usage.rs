//! Context switches, and quotas of the processor.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// How often threads have given up a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// How often a thread has waited (voluntary context switches), which is how often it was woken up.
    pub waits: u64,
    /// How often the system has taken the processor from a thread (involuntary context switches).
    pub preemptions: u64,
}

impl Switches {
    /// The switches since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            waits: self.waits.saturating_sub(earlier.waits),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
        }
    }

    /// Both kinds.
    pub const fn all(self) -> u64 {
        self.waits.saturating_add(self.preemptions)
    }
}

impl Add for Switches {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            waits: self.waits.saturating_add(other.waits),
            preemptions: self.preemptions.saturating_add(other.preemptions),
        }
    }
}

impl Sum for Switches {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// How much a quota of the processor has held threads back (`throttled` in a cgroup's `cpu.stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// Periods, of 100 ms by default, in which the quota was used up.
    pub periods: u64,
    /// For how long threads were held back after that, as the sum of all processors.
    pub time_ns: u64,
}

impl Throttled {
    /// That since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            periods: self.periods.saturating_sub(earlier.periods),
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
        }
    }

    /// By both quotas.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            periods: self.periods.saturating_add(other.periods),
            time_ns: self.time_ns.saturating_add(other.time_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{ProcessMeter, cpu_of_process, cpu_of_thread, peak_rss_bytes};

    #[test]
    fn a_busy_thread_costs_time_to_itself_and_to_the_process() {
        // In this order, the time between the two calls counts for the process only. If the system counts in ticks of
        // 10 ms or more, some ticks are lost.
        let (process, thread) = (cpu_of_process().unwrap(), cpu_of_thread().unwrap());
        let mut sum = 0_u64;
        while cpu_of_thread().unwrap() < thread + Duration::from_millis(80) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_of_process().unwrap() >= process + Duration::from_millis(20), "{sum}");
    }

    #[test]
    fn memory_that_was_touched_is_in_the_peak() {
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        assert!(peak_rss_bytes().unwrap() >= block.len() as u64);
        let meter = ProcessMeter::of(std::process::id());
        assert!(meter.rss_bytes().unwrap() >= block.len() as u64);
        assert_eq!(ProcessMeter::of(u32::MAX - 1).rss_bytes(), None);
    }
}
