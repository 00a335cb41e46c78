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
/// Samples cost time, so do not trust the throughput of a run with a profile.
///
/// SIGPROF interrupts system calls. The kernel restarts `read(2)` and `write(2)`, but never `poll(2)`, `epoll_wait(2)`,
/// `nanosleep(2)`, and calls on a socket with a timeout (`signal(7)`): these fail with `EINTR`.
pub struct Profiler(ProfilerGuard<'static>);

impl Profiler {
    /// Starts to take so many samples for each second of CPU time. It first reads debug information for up to a second.
    pub fn start(frequency_hz: NonZeroU16) -> Result<Self, Error> {
        ProfilerGuard::new(i32::from(frequency_hz.get())).map(Self).map_err(|error| failed("start", error))
    }

    /// Writes the flame graph of all threads. Fails if no CPU time was used, or if the graph cannot be written.
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

/// The name of the thread and its functions, the outermost first.
fn stack(frames: &Frames) -> String {
    let taken = frames.frames.iter().rposition(|inlined| inlined.iter().any(takes_samples)).map_or(0, |last| last + 1);
    let mut stack = name_of(&frames.thread_name_or_id());
    for symbol in frames.frames[taken..].iter().rev().flat_map(|inlined| inlined.iter().rev()) {
        stack.push(';');
        stack.push_str(&name_of(&symbol.name()));
    }
    stack
}

/// Whether this is a function of pprof, which leaves those in samples that its handler calls.
fn takes_samples(symbol: &Symbol) -> bool {
    let name = symbol.name();
    name.starts_with("<pprof::") || name.starts_with("pprof::")
}

/// The name without characters that end a name in a folded stack.
fn name_of(name: &str) -> String {
    name.replace(';', ",").replace('\n', " ")
}

fn failed(operation: &'static str, error: pprof::Error) -> Error {
    Error::new(Cause::SamplerBusy, operation, "a profile of this process", io::Error::other(error))
}
