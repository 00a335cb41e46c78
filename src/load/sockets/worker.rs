//! A worker of a stack: a runtime on the thread of a client.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use platform::Switches;
use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::time::timeout;

use crate::load::meter::Cost;

/// The timers of a runtime end so much later at most. For the rest of a wait, the thread sleeps by itself.
const COARSE: Duration = Duration::from_millis(2);

/// The longest sleep. The timers of the runtime, which have a resolution of a millisecond, wait meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A runtime that runs its tasks, the driver of a stack and its server, while the client of its thread waits.
pub(crate) struct Worker {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    alarm: Arc<Alarm>,
    /// The processor time of the tasks so far.
    served: Duration,
}

/// When a wait ends, and the waker of the client that waits. `None` if the client runs or has been woken.
#[derive(Default)]
struct Alarm(Mutex<Option<(Instant, Waker)>>);

impl Worker {
    /// A worker without tasks. It has timers, and no descriptors: the links are in memory.
    pub(crate) fn new() -> io::Result<Self> {
        let alarm = Arc::new(Alarm::default());
        let idle = Arc::clone(&alarm);
        let runtime = Builder::new_current_thread().enable_time().on_thread_park(move || idle.sleep()).build()?;
        Ok(Self { runtime: Some(runtime), alarm, served: Duration::ZERO })
    }

    /// Tasks that are spawned meanwhile are its own.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.runtime.as_ref().map(Runtime::enter)
    }

    /// Runs the tasks until `poll` is ready. Returns `None` if it is not ready for so long, or a little earlier. What
    /// `poll` takes is the client's.
    pub(crate) fn run<T>(&mut self, longest: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let end = Instant::now() + longest;
        // The processor time of the thread when the client began to wait, while it waits.
        let mut left = None;
        let mut served = Duration::ZERO;
        let waker = Waker::from(Arc::clone(&self.alarm));
        let mut have_run = false;
        let client = poll_fn(|cx| {
            served += since(left.take());
            // Set before the poll, which may wake at once.
            *self.alarm.lock() = Some((end, cx.waker().clone()));
            if let Poll::Ready(result) = poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(Some(result));
            }
            let is_over = Instant::now() >= end;
            // Without a wait, too, the tasks have a turn.
            if mem::replace(&mut have_run, true) && is_over {
                return Poll::Ready(None);
            }
            if is_over {
                waker.wake_by_ref();
            }
            left = platform::cpu_of_thread();
            Poll::Pending
        });
        let result = self.runtime.as_ref().and_then(|runtime| {
            let coarse = longest.saturating_sub(COARSE);
            runtime.block_on(async {
                if coarse.is_zero() { client.await } else { timeout(coarse, client).await.ok().flatten() }
            })
        });
        *self.alarm.lock() = None;
        self.served += served + since(left);
        result
    }

    /// The cost of the thread so far without the tasks. Only these wait, so all its switches are theirs.
    pub(crate) fn cost_of_client(&self) -> Cost {
        let Cost { cpu, switches } = Cost::of_thread();
        Cost { cpu: cpu.map(|cpu| cpu.saturating_sub(self.served)), switches: switches.map(|_| Switches::default()) }
    }
}

/// The processor time of the thread since it was `begun`; none without that.
fn since(begun: Option<Duration>) -> Duration {
    let ended = begun.and_then(|_| platform::cpu_of_thread());
    ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended.saturating_sub(begun))
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A runtime waits for its threads when it is dropped. This one has none, and it may be dropped within a task.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when no task can run. If the wait ends before a timer of the runtime could end it, sleeps until then, but
    /// not so long that other timers are much later. Then it wakes the client, which waits again if there is time left.
    fn sleep(&self) {
        let soon = Instant::now() + COARSE;
        let alarm = self.lock().take_if(|(end, _)| *end <= soon);
        if let Some((end, waker)) = alarm {
            thread::sleep(end.saturating_duration_since(Instant::now()).min(LONGEST_SLEEP));
            waker.wake();
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let alarm = self.lock().take();
        if let Some((_, waker)) = alarm {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// A worker with a task that counts its turns.
    fn counting() -> (Worker, Arc<AtomicUsize>) {
        let (worker, turns) = (Worker::new().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&turns);
        let tasks = worker.enter();
        tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
        drop(tasks);
        (worker, turns)
    }

    #[test]
    fn tasks_have_a_turn_in_a_wait_of_no_length_and_none_if_the_client_has_work() {
        let (mut worker, turns) = counting();
        assert_eq!(worker.run(Duration::ZERO, |_| Poll::Ready(7)), Some(7));
        assert_eq!(turns.load(Ordering::Relaxed), 0);
        assert_eq!(worker.run(Duration::ZERO, |_| Poll::<()>::Pending), None);
        assert!(turns.load(Ordering::Relaxed) > 0);
    }

    /// A timer of the runtime would take a millisecond.
    #[test]
    fn a_short_wait_ends_when_it_is_over() {
        let mut worker = Worker::new().unwrap();
        let wait = Duration::from_micros(300);
        let elapsed = |_| {
            let begin = Instant::now();
            assert_eq!(worker.run(wait, |_| Poll::<()>::Pending), None);
            begin.elapsed()
        };
        let shortest = (0..50).map(elapsed).skip(1).min().unwrap();
        assert!(shortest >= wait && shortest < 2 * wait, "{shortest:?}");
    }

    /// The timer of a task, such as that of a delayed acknowledgement.
    #[test]
    fn a_timer_of_a_task_does_not_wait_for_the_end_of_a_wait() {
        let mut worker = Worker::new().unwrap();
        let elapsed = |_| {
            let (ended, tasks) = (Arc::new(Mutex::new(None)), worker.enter());
            let (of_task, begin) = (Arc::clone(&ended), Instant::now());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_micros(1)).await;
                *of_task.lock().unwrap() = Some(begin.elapsed());
            });
            drop(tasks);
            for _ in 0..5 {
                worker.run(Duration::from_micros(1900), |_| Poll::<()>::Pending);
            }
            ended.lock().unwrap().unwrap()
        };
        let shortest = (0..50).map(elapsed).min().unwrap();
        assert!(shortest < Duration::from_micros(1800), "{shortest:?}");
    }

    #[test]
    fn a_wake_ends_a_wait() {
        let mut worker = Worker::new().unwrap();
        // Longer and shorter than the runtime's timers can measure.
        for wait in [Duration::from_mins(1), Duration::from_millis(1)] {
            let mut woken = None;
            let result = worker.run(wait, |cx| match woken.take() {
                None => {
                    let waker = cx.waker().clone();
                    woken = Some(thread::spawn(move || waker.wake()));
                    Poll::Pending
                }
                Some(thread) => Poll::Ready(thread.join()),
            });
            result.unwrap().unwrap();
        }
    }

    /// The client's cost covers its own code, and not the tasks.
    #[test]
    fn the_costs_of_client_and_tasks_are_told_apart() {
        let (mut worker, _turns) = counting();
        let cpu = |worker: &Worker| worker.cost_of_client().cpu;
        let (Some(before), all_before) = (cpu(&worker), platform::cpu_of_thread().unwrap_or_default()) else { return };
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            worker.run(Duration::from_millis(20), |_| Poll::<()>::Pending);
        }
        let client = cpu(&worker).unwrap().saturating_sub(before);
        let all = platform::cpu_of_thread().unwrap().saturating_sub(all_before);
        assert!(client < all / 2, "{client:?} of {all:?}");
    }

    #[test]
    fn what_the_client_does_when_it_is_polled_is_its_own() {
        let mut worker = Worker::new().unwrap();
        let work = Duration::from_millis(10);
        let (Some(begin), Some(before)) = (platform::cpu_of_thread(), worker.cost_of_client().cpu) else { return };
        worker.run(Duration::ZERO, |_| {
            let begin = platform::cpu_of_thread().unwrap();
            while platform::cpu_of_thread().unwrap() < begin + work {}
            Poll::<()>::Pending
        });
        let client = worker.cost_of_client().cpu.unwrap().saturating_sub(before);
        let all = platform::cpu_of_thread().unwrap().saturating_sub(begin);
        assert!(client >= 2 * work && client <= all, "{client:?} of {all:?}");
    }
}
