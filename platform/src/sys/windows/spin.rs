//! The next packet often comes at once, and waiting for an event costs two switches of threads.

use std::hint;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The longest spin. The thread of the driver, which fills the ring, has a low priority, so it may need this processor.
const LONGEST: Duration = Duration::from_micros(30);

/// Looks at an empty ring for a moment, if it had packets just before. Other tasks run first: they may have something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Spin {
    /// Wait for the event.
    #[default]
    Off,
    /// Let other tasks run.
    Yield,
    Look,
}

impl Spin {
    /// Pending if it wakes the task itself. Ready with a packet, or `None` if it is time to wait for the event.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut look: impl FnMut() -> io::Result<Option<T>>,
    ) -> Poll<io::Result<Option<T>>> {
        match *self {
            Self::Off => return Poll::Ready(Ok(None)),
            Self::Yield => {
                *self = Self::Look;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Self::Look => *self = Self::Off,
        }
        let end = Instant::now() + LONGEST;
        loop {
            let found = look()?;
            if found.is_some() || Instant::now() >= end {
                return Poll::Ready(Ok(found));
            }
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn an_empty_ring_is_looked_at_for_a_moment_after_packets_only() {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut looks = 0;
        let mut poll = |spin: &mut Spin, found_at: u32| {
            let before = looks;
            let polled = spin.poll(cx, || {
                looks += 1;
                Ok((looks - before == found_at).then_some("packet"))
            });
            (polled.map(Result::unwrap), looks - before)
        };
        let mut spin = Spin::Off;
        assert_eq!(poll(&mut spin, 1), (Poll::Ready(None), 0));
        spin = Spin::Yield;
        assert_eq!(poll(&mut spin, 1), (Poll::Pending, 0));
        assert_eq!(poll(&mut spin, 3), (Poll::Ready(Some("packet")), 3));
        spin = Spin::Look;
        let begun = Instant::now();
        let (polled, looks) = poll(&mut spin, u32::MAX);
        assert!(polled == Poll::Ready(None) && looks >= 1 && begun.elapsed() >= LONGEST, "{looks} looks");
        assert_eq!(poll(&mut spin, 1), (Poll::Ready(None), 0));
    }
}
