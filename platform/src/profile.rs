//! Where a process spends its CPU time, as a flame graph: a picture in SVG in which a function is as wide as the time
//! spent in it and in what it calls, and lies on its caller.

use std::io::{BufRead, Write};
use std::num::NonZeroU16;

use inferno::flamegraph::{self, Options};

use crate::sys::{Native, Sampler, System};
use crate::{Cause, Error};

/// How many samples a second tell enough: a prime, so that they do not keep step with work that comes back at a round
/// frequency. The kernel takes at most one a tick (`CONFIG_HZ`), often 250.
pub const FREQUENCY_HZ: NonZeroU16 = NonZeroU16::new(997).unwrap();

/// Takes samples of what the threads of this process do while they use CPU time; there is one in a process at a time. On
/// Linux and macOS.
///
/// It works by SIGPROF, which interrupts what a thread is just doing. The handler asks the kernel to restart what waits
/// (`SA_RESTART`): `read(2)`, `write(2)`, `recv(2)`, `send(2)` and their like go on as if nothing had been, on a TUN device
/// too. What the kernel never restarts ends with `EINTR`: `poll(2)`, `epoll_wait(2)`, `select(2)`, `nanosleep(2)`, and
/// a socket with `SO_RCVTIMEO` or `SO_SNDTIMEO` (`signal(7)`). Who calls these has to call again. tokio and
/// [`std::thread::sleep`] do, and so do std's locks and channels; a plain [`Read::read`](std::io::Read::read) of a socket
/// with a timeout does not.
///
/// Samples cost time, so no figure of a run with a profile is to be trusted.
#[derive(Debug)]
pub struct Profiler(<Native as System>::Sampler);

impl Profiler {
    /// Begins to take samples, this often for each second of CPU time: see [`FREQUENCY_HZ`]. That it first reads
    /// this program's debug information takes up to a second, so it is to be called before the run begins.
    ///
    /// # Errors
    ///
    /// [`crate::Class::Unavailable`] on other systems, [`crate::Class::Failed`] where a profile is being taken already.
    pub fn start(frequency_hz: NonZeroU16) -> Result<Self, Error> {
        Sampler::start(frequency_hz).map(Self)
    }

    /// Ends that, and writes the flame graph of all threads, each by its name at the bottom. Finding the names of functions
    /// takes a second and some memory.
    ///
    /// # Errors
    ///
    /// [`crate::Class::Failed`]: there is no sample, because no CPU time was used, or the graph could not be written.
    pub fn finish(self, title: &str, out: impl Write) -> Result<(), Error> {
        let folded = self.0.finish()?;
        flame_graph(folded.as_bytes(), title, out)
    }
}

/// Writes the flame graph of folded stacks: a line for each, its functions from the outermost inwards, separated by
/// semicolons, then a blank and how many samples it has. A function has the same colour in every graph.
///
/// # Errors
///
/// [`crate::Class::Failed`]: there is no line with a number at its end, or the graph could not be written.
pub fn flame_graph(folded: impl BufRead, title: &str, out: impl Write) -> Result<(), Error> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    options.hash = true;
    // Of an empty profile inferno makes an error, and a graph that says so.
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
