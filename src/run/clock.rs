//! A clock for work that is due at certain times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest interval between rings: each costs a thread switch.
const SHORTEST: Duration = Duration::from_micros(50);

/// Ends the clock when it is dropped, even if the work panics.
struct End<'a>(&'a AtomicBool, thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Does some work while a thread calls `ring`, which returns when it has to be called again: the timeouts of runtimes are
/// too coarse. Also returns the CPU time of the thread.
pub(super) fn with_clock<T>(
    ring: impl Fn() -> Instant + Send + Sync,
    work: impl FnOnce() -> T,
) -> (T, Option<Duration>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clock = thread::Builder::new().name("clock".to_owned()).spawn_scoped(scope, || {
            platform::sharpen_timers();
            while !is_over.load(Ordering::Acquire) {
                let next = ring().max(Instant::now() + SHORTEST);
                while !is_over.load(Ordering::Acquire) {
                    let left = next.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    thread::park_timeout(left);
                }
            }
            platform::cpu_of_thread()
        });
        // Without the thread, work may be done late: when its owner next checks the time.
        let Ok(clock) = clock else { return (work(), None) };
        let end = End(&is_over, clock.thread().clone());
        let result = work();
        drop(end);
        (result, clock.join().ok().flatten())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Mutex;

    use super::*;

    #[test]
    fn it_rings_at_each_time_that_was_asked_for_and_not_before() {
        const INTERVAL: Duration = Duration::from_millis(7);
        let (begin, rings) = (Instant::now(), Mutex::new(Vec::new()));
        let ring = || {
            let mut rings = rings.lock().unwrap();
            rings.push(Instant::now());
            begin + INTERVAL * rings.len() as u32
        };
        with_clock(ring, || thread::sleep(INTERVAL * 5));
        let rings = rings.into_inner().unwrap();
        assert!(rings.len() > 1, "{rings:?}");
        assert!(rings.iter().enumerate().all(|(index, at)| *at >= begin + INTERVAL * index as u32), "{rings:?}");
    }
}
