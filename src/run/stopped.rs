//! Finds out whether this process was stopped, or not scheduled.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(50);

/// On a busy machine, a thread may wake this much later than it is due.
const TOLERANCE: Duration = Duration::from_millis(100);

/// A thread that wakes regularly, and records when it woke too late.
pub(super) struct StopWatcher {
    /// Dropping it ends the thread.
    end: Sender<()>,
    thread: JoinHandle<Vec<Gap>>,
}

/// A time in which the watcher should have woken and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    due: Instant,
    woke: Instant,
}

impl StopWatcher {
    pub(super) fn start() -> io::Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let watch = move || {
            let mut gaps = Vec::new();
            loop {
                let due = Instant::now() + PERIOD;
                let received = ended.recv_timeout(PERIOD);
                gaps.extend(gap(due, Instant::now()));
                if received != Err(RecvTimeoutError::Timeout) {
                    return gaps;
                }
            }
        };
        let thread = thread::Builder::new().name("stop-watcher".to_owned()).spawn(watch)?;
        Ok(Self { end, thread })
    }

    pub(super) fn finish(self) -> Vec<Gap> {
        drop(self.end);
        // The thread has no code that could panic.
        self.thread.join().unwrap_or_default()
    }
}

/// The gap of a thread that was due and woke at these times; `None` if it woke soon enough.
fn gap(due: Instant, woke: Instant) -> Option<Gap> {
    (woke.saturating_duration_since(due) > TOLERANCE).then_some(Gap { due, woke })
}

/// The part of a window that lies in gaps.
pub(super) fn time_in(gaps: &[Gap], begin: Instant, end: Instant) -> Duration {
    gaps.iter().map(|gap| gap.woke.min(end).saturating_duration_since(gap.due.max(begin))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn waking_late_is_a_gap_beyond_the_tolerance() {
        let start = Instant::now();
        let due = start + ms(1000);
        for woke in [start, due, due + ms(100)] {
            assert_eq!(gap(due, woke), None);
        }
        assert_eq!(gap(due, due + ms(101)), Some(Gap { due, woke: due + ms(101) }));
    }

    #[test]
    fn only_the_part_of_a_gap_in_the_window_counts() {
        let start = Instant::now();
        let gap = |due, woke| Gap { due: start + ms(due), woke: start + ms(woke) };
        let gaps = [gap(0, 200), gap(300, 450), gap(500, 900), gap(2000, 3000)];
        assert_eq!(time_in(&gaps, start + ms(100), start + ms(600)), ms(100 + 150 + 100));
        assert_eq!(time_in(&gaps, start + ms(1000), start + ms(1500)), Duration::ZERO);
        assert_eq!(time_in(&[], start, start + ms(1000)), Duration::ZERO);
    }

    #[test]
    fn a_watcher_ends_at_once() {
        let begin = Instant::now();
        StopWatcher::start().unwrap().finish();
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
