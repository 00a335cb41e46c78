//! A clock for work that is due at even intervals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest interval between ticks: each tick costs a thread switch.
const SHORTEST_TICK: Duration = Duration::from_micros(50);

/// The longest interval between ticks: the end of the work is noticed at most this late.
const LONGEST_TICK: Duration = Duration::from_millis(5);

/// The interval between ticks for this number of pieces of work a second.
pub(super) fn tick(per_second: f64) -> Duration {
    Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(LONGEST_TICK).clamp(SHORTEST_TICK, LONGEST_TICK)
}

/// Ends the clock when it is dropped, even if the work panics.
struct End<'a>(&'a AtomicBool, thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Does some work while a thread calls `ring` at every tick, because the timeouts of event loops and runtimes are too
/// coarse. Also returns the CPU time of the thread.
pub(super) fn with_clock<T>(
    tick: Duration,
    ring: impl Fn() + Send + Sync,
    work: impl FnOnce() -> T,
) -> (T, Option<Duration>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clock = thread::Builder::new().name("clock".to_owned()).spawn_scoped(scope, || {
            platform::sharpen_timers();
            let mut next = Instant::now();
            while !is_over.load(Ordering::Acquire) {
                let now = Instant::now();
                if now < next {
                    thread::park_timeout(next - now);
                    continue;
                }
                ring();
                next += tick;
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
