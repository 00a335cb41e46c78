//! What a run cost: CPU time and memory.

use std::time::Duration;

use crate::sys::{Native, System};

/// CPU time, user and system, of all threads of this process so far. `None` where the system does
/// not say. Linux counts threads that run on other processors up to their last tick.
pub fn cpu_of_process() -> Option<Duration> {
    Native::cpu_of_process()
}

/// CPU time, user and system, of the calling thread so far. `None` where the system does not say.
pub fn cpu_of_thread() -> Option<Duration> {
    Native::cpu_of_thread()
}

/// How often the threads of this process have slept so far, and so woken up. `None` where the system does not say.
pub fn wakeups_of_process() -> Option<u64> {
    Native::wakeups_of_process()
}

/// The largest resident set of this process so far, in bytes. `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    Native::peak_rss_bytes()
}

/// How long the host of this virtual machine took the processors since the machine started, as the mean of all
/// processors. Within a second it grows by at most a second. `None` where the system does not say.
pub fn stolen_time() -> Option<Duration> {
    Native::stolen_time()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_busy_thread_costs_time_to_itself_and_to_the_process() {
        // In this order the time between the two is the process'. Where both are counted in ticks, of 10 ms or more,
        // some are lost.
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
    }
}
