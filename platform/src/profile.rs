//! Flame graphs of CPU time, as SVG.

use std::io::{BufRead, Write};
use std::num::NonZeroU16;

use inferno::flamegraph::{self, Options};

pub use crate::sys::Profiler;
use crate::{Cause, Error};

/// A prime, so that samples do not run in step with work of a round frequency. The kernel samples once a tick at most.
pub const FREQUENCY_HZ: NonZeroU16 = NonZeroU16::new(997).unwrap();

/// Writes the flame graph of folded stacks. Fails if there is no sample.
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
    use super::*;

    fn graph(folded: &str) -> Result<String, Error> {
        let mut svg = Vec::new();
        flame_graph(folded.as_bytes(), "row 13 <direct>", &mut svg)?;
        Ok(String::from_utf8(svg).unwrap())
    }

    #[test]
    fn folded_stacks_become_a_graph_with_a_title() {
        let folded = "main;carry;read 30\nmain;carry;write 10\nmain;carry;read 10\n";
        let svg = graph(folded).unwrap();
        assert_eq!(svg, graph(folded).unwrap(), "the same stacks become the same graph");
        assert!(svg.contains("row 13 &lt;direct&gt;"));
        assert!(svg.contains("<title>carry (50 samples, 100.00%)</title>"));
        assert!(svg.contains("<title>read (40 samples, 80.00%)</title>"));
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
