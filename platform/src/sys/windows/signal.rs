//! Wakes a task when an event of Windows is set.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, SetEvent, WaitForMultipleObjects, WaitForSingleObject,
};

/// Wakes a task when an auto-reset event is set.
///
/// A thread waits for the event, but only while the task waits. As long as the task finds packets, the thread sleeps
/// and costs nothing. An event stays set while no thread waits for it, so no wake is lost. A wake may come twice.
pub(super) struct Signal {
    event: Event,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// When set, the thread waits for the event.
    arm: OwnedHandle,
    /// When set, the thread ends.
    stop: OwnedHandle,
}

#[derive(Default)]
struct State {
    /// The thread has taken the event, and the task has not seen it.
    set: bool,
    /// The thread waits for the event, or will soon.
    armed: bool,
    waker: Option<Waker>,
    /// The thread has ended with this error of Windows.
    failed: Option<i32>,
}

/// An event that another value owns.
#[derive(Clone, Copy)]
struct Event(HANDLE);

// SAFETY: a handle is a number, and every thread of the process may use it.
unsafe impl Send for Event {}
// SAFETY: as above, and the kernel does the locking.
unsafe impl Sync for Event {}

impl Signal {
    /// # Safety
    ///
    /// `event` must be an auto-reset event that stays open for as long as this value lives.
    pub(super) unsafe fn new(event: HANDLE) -> io::Result<Self> {
        let event = Event(event);
        let shared = Arc::new(Shared { state: Mutex::default(), arm: new_event()?, stop: new_event()? });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("tun-signal".to_owned()).spawn(move || of_thread.watch(event))?;
        Ok(Self { event, shared, thread: Some(thread) })
    }

    /// Ready if the event was set since the last time that this returned ready.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.state();
        if let Some(code) = state.failed {
            return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
        }
        if std::mem::take(&mut state.set) || self.event.take() {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(cx.waker().clone());
        if !state.armed {
            set(&self.shared.arm)?;
            state.armed = true;
        }
        Poll::Pending
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // If the stop fails, the thread never ends, so waiting for it would not end either.
        if set(&self.shared.stop).is_ok() {
            let _never_panics = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Code under the lock does not panic in the middle of a change, so a poisoned state is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, event: Event) {
        let (arm, stop) = (Event(self.arm.as_raw_handle()), Event(self.stop.as_raw_handle()));
        let failed = loop {
            match arm.wait_or(stop).and_then(|go_on| if go_on { event.wait_or(stop) } else { Ok(false) }) {
                Ok(true) => self.tell(None),
                Ok(false) => return,
                Err(error) => break error,
            }
        };
        self.tell(failed.raw_os_error());
    }

    fn tell(&self, failed: Option<i32>) {
        let mut state = self.state();
        state.set = true;
        state.armed = false;
        state.failed = failed;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Event {
    /// Whether the event is set. Does not wait, and resets the event.
    fn take(self) -> bool {
        // SAFETY: the event is open, by the contract of `Signal::new`.
        (unsafe { WaitForSingleObject(self.0, 0) }) == WAIT_OBJECT_0
    }

    /// Waits until this event (`true`) or `stop` (`false`) is set.
    fn wait_or(self, stop: Self) -> io::Result<bool> {
        let handles = [stop.0, self.0];
        // SAFETY: the event is open by the contract of `Signal::new`. The events of `Shared` live until the thread has
        // ended, because the thread owns a reference. The array has two handles.
        match unsafe { WaitForMultipleObjects(handles.len() as u32, handles.as_ptr(), 0, INFINITE) } {
            WAIT_OBJECT_0 => Ok(false),
            1 => Ok(true),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Creates an auto-reset event without a name. It is not set.
pub(super) fn new_event() -> io::Result<OwnedHandle> {
    // SAFETY: all pointers of `CreateEventW` may be null.
    let handle = unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is open, and no other value owns it.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

pub(super) fn set(event: &OwnedHandle) -> io::Result<()> {
    // SAFETY: the owner keeps the event open.
    if unsafe { SetEvent(event.as_raw_handle()) } == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn pair() -> (Arc<OwnedHandle>, Signal) {
        let event = Arc::new(new_event().unwrap());
        // SAFETY: every test keeps the event until the signal was dropped.
        let signal = unsafe { Signal::new(event.as_raw_handle()) }.unwrap();
        (event, signal)
    }

    async fn is_set(signal: &mut Signal) {
        timeout(LIMIT, poll_fn(|cx| signal.poll(cx))).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_event_set_before_is_seen_once() {
        let (event, mut signal) = pair();
        set(&event).unwrap();
        is_set(&mut signal).await;
        let again = timeout(Duration::from_millis(20), poll_fn(|cx| signal.poll(cx))).await;
        assert!(again.is_err());
        drop(signal);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_parked_task_is_woken_every_time() {
        let (event, mut signal) = pair();
        let (to, mut from) = tokio::sync::mpsc::channel::<()>(1);
        let setter = Arc::clone(&event);
        let other = thread::spawn(move || {
            while from.blocking_recv().is_some() {
                set(&setter).unwrap();
            }
        });
        for _ in 0..2_000 {
            to.send(()).await.unwrap();
            is_set(&mut signal).await;
        }
        drop(to);
        other.join().unwrap();
        drop(signal);
    }

    #[tokio::test]
    async fn the_thread_ends_whether_it_waits_or_not() {
        let (event, signal) = pair();
        drop(signal);
        // SAFETY: the event outlives the signal.
        let mut signal = unsafe { Signal::new(event.as_raw_handle()) }.unwrap();
        assert!(timeout(Duration::from_millis(5), poll_fn(|cx| signal.poll(cx))).await.is_err());
        drop(signal);
        assert_eq!(Arc::strong_count(&event), 1);
    }
}
