//! Figures to text. One file a format.

mod axis;
mod compare;
mod csv;
mod doctor;
mod finding;
mod format;
mod forward;
mod html;
mod json;
mod ladder;
mod markdown;
mod plot;
mod progress;
mod save;
mod series;
mod svg;
mod table;
mod text;

use std::io::{self, Write};

pub use self::compare::comparison;
pub use self::doctor::check;
pub use self::forward::forward_table;
pub use self::json::json;
pub use self::progress::Progress;
pub use self::save::{SaveError, save};
pub use self::series::Series;
pub use self::table::table;
pub use self::text::text;
use crate::cli::Format;

/// What stands where a figure would, when the system does not say it.
const UNKNOWN: &str = "–";

/// Writes the report of one or more series in a format.
///
/// # Errors
///
/// The writer's own.
pub fn report(series: &[Series], format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Markdown => markdown::markdown(series, out)?,
        Format::Html => html::html(series, out)?,
        Format::Svg => svg::svg(series, out)?,
        Format::Csv => csv::csv(series, out)?,
    }
    out.flush()
}
