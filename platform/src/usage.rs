//! CPU time and memory of this process.

use std::time::Duration;

use crate::sys::{Native, System};

/// CPU time, user and system, of all threads of this process so far. `None` if the system does not report it. For
/// threads that run on other processors, Linux counts only the time up to their last tick.
///
/// ```
/// let before = platform::cpu_of_process();
/// // The work to measure.
/// let spent = platform::cpu_of_process().zip(before).map(|(after, before)| after - before);
/// println!("{spent:?}");
/// ```
pub fn cpu_of_process() -> Option<Duration> {
    Native::cpu_of_process()
}

/// CPU time, user and system, of the calling thread so far. `None` if the system does not report it.
pub fn cpu_of_thread() -> Option<Duration> {
    Native::cpu_of_thread()
}

/// How often the threads of this process have slept and woken up so far. `None` if the system does not report it.
pub fn wakeups_of_process() -> Option<u64> {
    Native::wakeups_of_process()
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

    #[test]
    fn memory_that_was_touched_is_in_the_peak() {
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        assert!(peak_rss_bytes().unwrap() >= block.len() as u64);
    }
}
