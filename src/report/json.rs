//! A sample as one JSON object on a line.

use std::io::{self, Write};

use crate::sample::{self, Sample};

/// Writes the sample, and nothing else.
///
/// # Errors
///
/// Errors of the writer.
pub fn json(sample: &Sample, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", sample::line_of_its_own(sample))?;
    out.flush()
}
