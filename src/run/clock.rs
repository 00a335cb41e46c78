//! A clock for work that falls due at even distances.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest distance of two ticks: each costs a switch of threads.
const SHORTEST_TICK: Duration = Duration::from_micros(50);

/// The longest distance: so late at most the end of the work is noticed.
const LONGEST_TICK: Duration = Duration::from_millis(5);

/// How often a clock ticks for so many pieces of work a second.
pub(super) fn tick(per_second: f64) -> Duration {
    Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(LONGEST_TICK).clamp(SHORTEST_TICK, LONGEST_TICK)
}

/// Ends the clock, also if the work panics.
struct End<'a>(&'a AtomicBool, thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Does some work while a thread calls `ring` at every tick: the clock of a wait for events, and that of a runtime, are
/// too coarse. Returns the CPU time of the thread, too.
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
        // Without the thread, work falls due when its owner looks at the time.
        let Ok(clock) = clock else { return (work(), None) };
        let end = End(&is_over, clock.thread().clone());
        let result = work();
        drop(end);
        (result, clock.join().ok().flatten())
    })
}
