//! CPU time and memory of this process.

use std::iter::Sum;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys::{Native, System};

/// CPU time, user and system, of all threads of this process so far. `None` if the system does not report it. For
/// threads that run on other processors, Linux counts only the time up to their last tick.
pub fn cpu_of_process() -> Option<Duration> {
    Native::cpu_of_process()
}

/// CPU time, user and system, of the calling thread so far. `None` if the system does not report it.
pub fn cpu_of_thread() -> Option<Duration> {
    Native::cpu_of_thread()
}

/// How often threads have given up a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
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

/// The context switches of all threads of this process so far. `None` if the system does not report them.
pub fn switches_of_process() -> Option<Switches> {
    Native::switches_of_process()
}

/// The context switches of the calling thread so far. `None` if the system does not report them; only Linux does.
pub fn switches_of_thread() -> Option<Switches> {
    Native::switches_of_thread()
}

/// The largest resident set of this process so far, in bytes. `None` if the system does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    Native::peak_rss_bytes()
}

/// How long the host has taken the processors from this virtual machine since it started (steal time), as the mean of
/// all processors. In one second it grows by at most one second. `None` if the system does not report it.
pub fn stolen_time() -> Option<Duration> {
    Native::stolen_time()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_sleeps_is_switched_and_so_is_its_process() {
        let (process, thread) = (switches_of_process().unwrap(), switches_of_thread().unwrap());
        (0..3).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(switches_of_thread().unwrap().since(thread).waits >= 3);
        assert!(switches_of_process().unwrap().since(process).waits >= 3);
        assert_eq!(process.since(process), Switches::default());
    }

    #[test]
    fn memory_that_was_touched_is_in_the_peak() {
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        assert!(peak_rss_bytes().unwrap() >= block.len() as u64);
    }
}
