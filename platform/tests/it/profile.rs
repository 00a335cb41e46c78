//! Profiles of this process. The signals of a profile reach all threads, so these tests are not unit tests.

use platform::profile::{FREQUENCY_HZ, Profiler};

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
#[test]
fn there_is_none_on_other_systems() {
    let error = Profiler::start(FREQUENCY_HZ).unwrap_err();
    assert_eq!(error.cause(), platform::Cause::Unsupported(platform::Feature::Profile));
    assert_eq!(error.class(), platform::Class::Unavailable);
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod sampled {
    use std::hint::black_box;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use super::*;

    /// A process can have only one profile at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(never)]
    fn uses_the_processor(spent: Duration) -> u64 {
        // If a virtual machine was stopped for a while, this counts as the thread's CPU time, but not as ticks of the
        // kernel. Samples are taken by ticks.
        const MOST_AT_ONCE: Duration = Duration::from_millis(10);
        let (mut sum, mut ticked, mut last) = (0_u64, Duration::ZERO, platform::cpu_of_thread().unwrap());
        while ticked < spent {
            for term in 0..100_000 {
                sum = sum.wrapping_add(black_box(term));
            }
            let now = platform::cpu_of_thread().unwrap();
            ticked += now.saturating_sub(last).min(MOST_AT_ONCE);
            last = now;
        }
        sum
    }

    #[test]
    fn a_busy_function_is_in_the_graph_with_its_thread_and_title() {
        let _turn = alone();
        let profiler = Profiler::start(FREQUENCY_HZ).unwrap();
        let busy = std::thread::Builder::new().name("busy".to_owned());
        busy.spawn(|| black_box(uses_the_processor(Duration::from_millis(300)))).unwrap().join().unwrap();
        let mut svg = Vec::new();
        profiler.finish("a test", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for expected in ["a test", "<title>busy (", "uses_the_processor"] {
            assert!(svg.contains(expected), "{expected} is missing:\n{svg}");
        }
        assert!(!svg.contains("pprof") && !svg.contains("libunwind"), "how samples are taken is no part of it:\n{svg}");
    }

    #[test]
    fn a_second_profile_has_to_wait_for_the_first() {
        let _turn = alone();
        let first = Profiler::start(FREQUENCY_HZ).unwrap();
        let error = Profiler::start(FREQUENCY_HZ).unwrap_err();
        assert_eq!(error.cause(), platform::Cause::SamplerBusy);
        drop(first);
        drop(Profiler::start(FREQUENCY_HZ).unwrap());
    }

    /// Checks the documentation of [`Profiler`] about calls that wait.
    #[cfg(target_os = "linux")]
    mod interrupted {
        use std::fs;
        use std::os::fd::{AsFd, BorrowedFd};
        use std::os::unix::thread::JoinHandleExt;
        use std::sync::mpsc;
        use std::thread;

        use nix::errno::Errno;
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use nix::sys::pthread::pthread_kill;
        use nix::sys::signal::Signal;
        use nix::unistd::{Pid, gettid, pipe, read, write};

        use super::*;

        /// Interrupts a thread that waits for the pipe, and then makes the pipe readable.
        fn interrupt<T: Send + 'static>(wait: impl FnOnce(BorrowedFd<'_>) -> T + Send + 'static) -> T {
            let _turn = alone();
            let profiler = Profiler::start(FREQUENCY_HZ).unwrap();
            let (receiver, sender) = pipe().unwrap();
            let (started, thread_id) = mpsc::channel();
            let waiting = thread::spawn(move || {
                started.send(gettid()).unwrap();
                wait(receiver.as_fd())
            });
            let id = thread_id.recv().unwrap();
            until(|| status(id, "State").is_some_and(|state| state.starts_with('S')));
            pthread_kill(waiting.as_pthread_t(), Signal::SIGPROF).unwrap();
            // A thread that has ended has no pending signal either.
            until(|| status(id, "SigPnd").is_none_or(|pending| pending.bytes().all(|digit| digit == b'0')));
            // If the wait has ended, the pipe is closed.
            let _broken = write(&sender, b"x");
            let result = waiting.join().unwrap();
            drop(profiler);
            result
        }

        /// A field of `/proc/self/task/ID/status`. `None` if the thread has ended.
        fn status(id: Pid, field: &str) -> Option<String> {
            let text = fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        }

        fn until(condition: impl Fn() -> bool) {
            while !condition() {
                thread::yield_now();
            }
        }

        #[test]
        fn a_read_goes_on() {
            assert_eq!(interrupt(|pipe| read(pipe, &mut [0; 8])), Ok(1));
        }

        #[test]
        fn a_poll_ends() {
            let result = interrupt(|pipe| poll(&mut [PollFd::new(pipe, PollFlags::POLLIN)], PollTimeout::NONE));
            assert_eq!(result, Err(Errno::EINTR));
        }
    }
}
