//! The checks of the doctor, a line each.

use std::io::{self, Write};

use platform::doctor::Check;

/// Writes a check at once: the next may take a while.
///
/// # Errors
///
/// Errors of the writer.
pub fn check(check: &Check, out: &mut impl Write) -> io::Result<()> {
    let Check { name, verdict, finding, remedy, .. } = check;
    write!(out, "{verdict:<8} {name:<18} {finding}")?;
    if let Some(remedy) = remedy {
        write!(out, "; {remedy}")?;
    }
    writeln!(out)?;
    out.flush()
}
