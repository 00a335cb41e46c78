//! Figures to text. One file a format.

mod doctor;
mod json;
mod progress;
mod text;

pub use doctor::check;
pub use json::json;
pub use progress::Progress;
pub use text::text;

/// Provisional.
pub fn table(summary: &crate::measure::Summary, out: &mut impl std::io::Write) -> std::io::Result<()> {
    for row in &summary.cells {
        writeln!(out, "{} {:?} {:?}", row.cell, row.estimate, row.failures)?;
    }
    Ok(())
}
