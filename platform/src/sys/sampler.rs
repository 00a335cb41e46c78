//! Samples stacks with SIGPROF and the `pprof` crate.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::num::NonZeroU16;

use pprof::{Frames, ProfilerGuard, Symbol};

use super::Sampler;
use crate::{Cause, Error};

/// Takes samples with SIGPROF.
pub(crate) struct SignalSampler(ProfilerGuard<'static>);

impl Sampler for SignalSampler {
    fn start(frequency_hz: NonZeroU16) -> Result<Self, Error> {
        ProfilerGuard::new(i32::from(frequency_hz.get())).map(Self).map_err(|error| failed("start", error))
    }

    fn finish(self) -> Result<String, Error> {
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
        Ok(folded)
    }
}

impl fmt::Debug for SignalSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalSampler").finish_non_exhaustive()
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
