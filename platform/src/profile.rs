//! Flame graphs of CPU time. A flame graph is an SVG picture. Each function lies on its caller, and is as wide as the
//! time that was spent in it and in the functions that it calls.

use std::io::{BufRead, Write};
use std::num::NonZeroU16;

use inferno::flamegraph::{self, Options};

use crate::sys::{Native, Sampler, System};
use crate::{Cause, Error};

/// A sample frequency that is high enough for a graph. It is a prime, so that samples do not run in step with work
/// that repeats at a round frequency. The kernel takes at most one sample a tick (`CONFIG_HZ`, often 250 a second).
pub const FREQUENCY_HZ: NonZeroU16 = NonZeroU16::new(997).unwrap();

/// Samples the stacks of this process's threads while they use CPU time. A process has at most one profiler at a time.
/// Only Linux and macOS have one.
///
/// Samples are taken in a handler of SIGPROF, and this signal interrupts system calls. The kernel restarts `read(2)`,
/// `write(2)`, `recv(2)`, `send(2)` and similar calls (`SA_RESTART`), also on a TUN device. It never restarts
/// `poll(2)`, `epoll_wait(2)`, `select(2)`, `nanosleep(2)`, and calls on a socket with `SO_RCVTIMEO` or `SO_SNDTIMEO`
/// (`signal(7)`): these fail with `EINTR`, and the caller has to call again. tokio, [`std::thread::sleep`], and the
/// locks and channels of std do so. A plain [`Read::read`](std::io::Read::read) of a socket with a timeout does not.
///
/// Samples cost time, so do not trust the throughput of a run with a profile.
#[derive(Debug)]
pub struct Profiler(<Native as System>::Sampler);

impl Profiler {
    /// Starts to take samples: `frequency_hz` samples for each second of CPU time; see [`FREQUENCY_HZ`]. It first reads
    /// the debug information of this program, which takes up to a second, so call it before the run begins.
    ///
    /// # Errors
    ///
    /// [`crate::Class::Unavailable`] on other systems, [`crate::Class::Failed`] if another profiler is running.
    pub fn start(frequency_hz: NonZeroU16) -> Result<Self, Error> {
        Sampler::start(frequency_hz).map(Self)
    }

    /// Stops the samples and writes the flame graph of all threads. At the bottom of the graph are the names of the
    /// threads. Resolving the names of functions takes a second and some memory.
    ///
    /// # Errors
    ///
    /// [`crate::Class::Failed`] if there is no sample, because no CPU time was used, or if the graph cannot be written.
    pub fn finish(self, title: &str, out: impl Write) -> Result<(), Error> {
        let folded = self.0.finish()?;
        flame_graph(folded.as_bytes(), title, out)
    }
}

/// Writes the flame graph of folded stacks. Each stack is a line: its functions, the outermost first, separated by
/// semicolons, then a space and the number of samples. A function has the same colour in every graph.
///
/// # Errors
///
/// [`crate::Class::Failed`] if no line ends with a number, or if the graph cannot be written.
pub fn flame_graph(folded: impl BufRead, title: &str, out: impl Write) -> Result<(), Error> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    options.hash = true;
    // For an empty profile, inferno writes a graph with a message and returns an error.
    flamegraph::from_reader(&mut options, folded, out)
        .map_err(|source| Error::new(Cause::EmptyProfile, "draw", format!("the flame graph of {title}"), source))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn graph(folded: &str) -> Result<String, Error> {
        let mut svg = Vec::new();
        flame_graph(folded.as_bytes(), "row 13 <direct>", &mut svg)?;
        Ok(String::from_utf8(svg).unwrap())
    }

    #[test]
    fn folded_stacks_become_a_graph_with_a_title() {
        let svg = graph("main;carry;read 30\nmain;carry;write 10\nmain;carry;read 10\n").unwrap();
        assert!(svg.contains("row 13 &lt;direct&gt;"));
        assert!(svg.contains("<title>carry (50 samples, 100.00%)</title>"));
        assert!(svg.contains("<title>read (40 samples, 80.00%)</title>"));
    }

    #[test]
    fn the_same_stacks_become_the_same_graph() {
        let folded = "main;one;two 3\nmain;three 4\n";
        assert_eq!(graph(folded).unwrap(), graph(folded).unwrap());
    }

    #[test]
    fn without_a_sample_there_is_no_graph() {
        for empty in ["", "main;carry\n"] {
            let error = graph(empty).unwrap_err();
            assert_eq!(error.cause(), Cause::EmptyProfile);
            let text = error.to_string();
            assert!(text.starts_with("draw the flame graph of row 13 <direct>: "), "{text}");
        }
    }
}
