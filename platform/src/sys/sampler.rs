//! Samples stacks with SIGPROF and the `pprof` crate.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::num::NonZeroU16;

use pprof::{Frames, ProfilerGuard, Symbol};

use crate::profile::flame_graph;
use crate::{Cause, Error};

/// Samples the stacks of this process's threads while they use CPU time. A process has at most one profiler at a time.
/// Only Linux and macOS have one. Samples cost time, so do not trust the throughput of a run with a profile.
///
/// Samples are taken in a handler of SIGPROF, which interrupts system calls. The kernel restarts `read(2)`, `write(2)`
/// and similar calls, also on a TUN device. It never restarts `poll(2)`, `epoll_wait(2)`, `nanosleep(2)`, and calls on
/// a socket with `SO_RCVTIMEO` or `SO_SNDTIMEO` (`signal(7)`): these fail with `EINTR`, and the caller has to call
/// again, as tokio and std do, but not a plain [`Read::read`](std::io::Read::read) of a socket with a timeout.
pub struct Profiler(ProfilerGuard<'static>);

impl Profiler {
    /// Starts to take so many samples for each second of CPU time. It first reads the debug information of this
    /// program, which takes up to a second, so call it before the run begins.
    /// [`Class::Unavailable`](crate::Class::Unavailable) on other systems; fails if another profiler is running.
    pub fn start(frequency_hz: NonZeroU16) -> Result<Self, Error> {
        ProfilerGuard::new(i32::from(frequency_hz.get())).map(Self).map_err(|error| failed("start", error))
    }

    /// Stops the samples and writes the flame graph of all threads. At the bottom of the graph are the names of the
    /// threads. Resolving the names of functions takes a second and some memory. Fails if there is no sample, because
    /// no CPU time was used, or if the graph cannot be written.
    pub fn finish(self, title: &str, out: impl io::Write) -> Result<(), Error> {
        let report = self.0.report().build().map_err(|error| failed("finish", error))?;
        drop(self.0);
        let mut counts = BTreeMap::<_, isize>::new();
        for (frames, count) in report.data {
            *counts.entry(stack(&frames)).or_default() += count;
        }
        let mut folded = String::new();
        for (stack, count) in counts {
            // Writing to a string cannot fail.
            let _written = writeln!(folded, "{stack} {count}");
        }
        flame_graph(folded.as_bytes(), title, out)
    }
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler").finish_non_exhaustive()
    }
}

/// The name of the thread and its functions, the outermost first. A sample, and each of its inlined frames, begins with
/// the innermost function.
fn stack(frames: &Frames) -> String {
    let taken = frames.frames.iter().rposition(|inlined| inlined.iter().any(takes_samples)).map_or(0, |last| last + 1);
    let mut stack = name_of(&frames.thread_name_or_id());
    for symbol in frames.frames[taken..].iter().rev().flat_map(|inlined| inlined.iter().rev()) {
        stack.push(';');
        stack.push_str(&name_of(&symbol.name()));
    }
    stack
}

/// Whether this is a function of pprof: it walks the stack in the signal handler, or collects the samples at the end.
/// pprof removes the handler from samples, but not the functions that the handler calls and that were not inlined.
fn takes_samples(symbol: &Symbol) -> bool {
    let name = symbol.name();
    name.starts_with("<pprof::") || name.starts_with("pprof::")
}

/// The name without characters that end a name in a folded stack. The name of an array type has a semicolon.
fn name_of(name: &str) -> String {
    name.replace(';', ",").replace('\n', " ")
}

fn failed(operation: &'static str, error: pprof::Error) -> Error {
    Error::new(Cause::SamplerBusy, operation, "a profile of this process", io::Error::other(error))
}
