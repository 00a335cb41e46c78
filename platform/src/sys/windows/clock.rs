//! Timers: by default those of Windows end with a tick of 15.6 ms.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Media::{TIMERR_NOERROR, timeBeginPeriod, timeEndPeriod};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer, TIMER_ALL_ACCESS,
    WaitForMultipleObjects,
};

use super::machine;
use super::signal::{new_event, set};
use crate::alarm::Alarm;

/// The period of the ticks in milliseconds, while they are as fine as Windows makes them.
const PERIOD_MS: u32 = 1;

#[derive(Debug)]
#[must_use = "the timers are coarse again when it is dropped"]
pub struct SharpTimers(bool);

/// Also calibrates the counts of cycles, which takes some milliseconds, so that no timed window has to.
pub fn sharpen_timers() -> SharpTimers {
    machine::calibrate();
    // SAFETY: the call takes a number. Windows counts the calls.
    SharpTimers(unsafe { timeBeginPeriod(PERIOD_MS) } == TIMERR_NOERROR)
}

impl Drop for SharpTimers {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: as above. This ends what the value has begun.
            unsafe { timeEndPeriod(PERIOD_MS) };
        }
    }
}

/// A completion port waits in whole milliseconds, so a thread with a timer wakes the poll.
#[derive(Debug)]
pub struct PollClock {
    waker: Waker,
    /// Begins with the first wait.
    alarm: Option<Alarm>,
}

struct Wakes(Arc<mio::Waker>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        // Without it, the poll ends some milliseconds later.
        let _late = self.0.wake();
    }
}

impl PollClock {
    pub fn new(waker: &Arc<mio::Waker>) -> Self {
        Self { waker: Arc::new(Wakes(Arc::clone(waker))).into(), alarm: None }
    }

    pub fn poll_until(&mut self, poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            self.alarm.get_or_insert_with(Alarm::new).set(end, &self.waker);
        }
        poll.poll(events, Some(left))
    }
}

#[derive(Debug)]
pub(crate) struct Pause {
    ended: Option<OwnedHandle>,
    timer: Option<OwnedHandle>,
}

impl Default for Pause {
    fn default() -> Self {
        // Windows before 10 1803 and Wine refuse the flag. Then the timer ends with a tick.
        let timer = new_timer(CREATE_WAITABLE_TIMER_HIGH_RESOLUTION).or_else(|| new_timer(0));
        Self { ended: new_event().ok(), timer }
    }
}

impl Pause {
    pub(crate) fn end(&self, _of: &Thread) {
        // If it fails, the thread waits no longer than it would without an event.
        let _unheard = self.ended.as_ref().map(set);
    }

    pub(crate) fn until(&self, at: Option<Instant>) {
        let left = at.map(|at| at.saturating_duration_since(Instant::now()));
        let (Some(ended), Some(timer)) = (&self.ended, &self.timer) else {
            // Windows has no more handles.
            return thread::sleep(left.unwrap_or(Duration::MAX).min(Duration::from_millis(1)));
        };
        if let Some(left) = left {
            let due = due(left);
            // SAFETY: the timer is open, `due` is read by the call, and there is no routine to call.
            if unsafe { SetWaitableTimer(timer.as_raw_handle(), &raw const due, 0, None, ptr::null(), 0) } == 0 {
                return thread::sleep(left.min(Duration::from_millis(1)));
            }
        }
        let handles: [HANDLE; 2] = [ended.as_raw_handle(), timer.as_raw_handle()];
        let len = if left.is_some() { handles.len() } else { 1 };
        // SAFETY: the handles are open while `self` is borrowed, and there are at least `len`.
        unsafe { WaitForMultipleObjects(len as u32, handles.as_ptr(), 0, INFINITE) };
    }
}

/// A time from now for a timer of Windows: negative, in units of 100 ns, rounded up.
fn due(left: Duration) -> i64 {
    i64::try_from(left.as_nanos().div_ceil(100)).map_or(i64::MIN, |units| -units)
}

/// Creates a timer that resets itself after a wait.
fn new_timer(flags: u32) -> Option<OwnedHandle> {
    // SAFETY: all pointers may be null.
    let handle = unsafe { CreateWaitableTimerExW(ptr::null(), ptr::null(), flags, TIMER_ALL_ACCESS) };
    // SAFETY: the handle is open, and no other value owns it.
    (!handle.is_null()).then(|| unsafe { OwnedHandle::from_raw_handle(handle) })
}

#[cfg(test)]
mod tests {
    use mio::Token;

    use super::*;

    #[test]
    fn a_time_from_now_is_negative_and_never_too_short() {
        assert_eq!(due(Duration::from_millis(2)), -20_000);
        assert_eq!((due(Duration::from_nanos(1)), due(Duration::ZERO), due(Duration::MAX)), (-1, 0, i64::MIN));
    }

    /// The best of many waits, because a busy machine may be late with any of them.
    #[test]
    fn a_poll_of_two_milliseconds_does_not_take_a_tick() {
        let _timers = sharpen_timers();
        let mut poll = Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), Token(0)).unwrap());
        let (mut clock, mut events) = (PollClock::new(&waker), Events::with_capacity(4));
        let waits = (0..100).map(|_| {
            let (begun, wait) = (Instant::now(), Duration::from_millis(2));
            while begun.elapsed() < wait {
                clock.poll_until(&mut poll, &mut events, begun + wait).unwrap();
            }
            begun.elapsed()
        });
        let best = waits.min().unwrap();
        assert!(best < Duration::from_millis(8), "{best:?}");
        // It is the thread's doing, too: it has woken the poll.
        let at = Instant::now() + Duration::from_millis(2);
        clock.alarm.as_ref().unwrap().set(at, &clock.waker);
        // The wake-up of the last wait may come first.
        while Instant::now() < at {
            poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
            assert!(!events.is_empty());
        }
    }
}
