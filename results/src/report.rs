//! Samples and figures as text. `content` makes the parts of a report, of the types of `model`, and a format writes them.

mod axis;
mod compare;
mod content;
mod format;
mod html;
mod issue;
mod markdown;
mod model;
mod plot;
mod programs;
mod records;
mod save;
mod series;
mod svg;
mod terminal;
mod text;

use std::io::{self, Write};

use clap::ValueEnum;
use conformance::Case;
use conformance::manners::Manner;
use platform::doctor::Check;

pub use self::compare::comparison;
pub use self::issue::{issue, issue_of_manners};
use self::model::{Block, Document};
pub use self::programs::{program, programs};
pub use self::save::{SaveError, make_folder, save};
pub use self::series::Series;
pub use self::text::text;
use crate::sample::{self, MannerScore, Sample, SampleFile, Score};

/// The formats of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for a document
    Markdown,
    /// One page, with pictures, that needs nothing else
    Html,
    /// The bars alone
    Svg,
    /// A line for each cell
    Csv,
    /// Bencher Metric Format: JSON with the figures of each cell
    Bmf,
}

/// Writes the report of one or more series in a format.
pub fn report(series: &[Series], format: Format, out: &mut impl Write) -> io::Result<()> {
    write(&content::document(series), format, out)
}

/// Writes the results of conformance of one or more files in a format.
pub fn scorecard(files: &[SampleFile], format: Format, out: &mut impl Write) -> io::Result<()> {
    write(&content::scorecard::document(files), format, out)
}

/// Writes the results of manners of one or more files in a format.
pub fn manners_of_files(files: &[SampleFile], format: Format, out: &mut impl Write) -> io::Result<()> {
    let scores: Vec<_> = files.iter().flat_map(|file| &file.manners).collect();
    write(&content::manners::document(&scores), format, out)
}

/// Writes results of manners for a terminal with this many `columns`; `None` means no limit.
pub fn manners(scores: &[MannerScore], is_verbose: bool, columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    terminal::terminal(content::manners::outcome(scores, is_verbose), columns, out)
}

/// Writes a list of cases of manners for a terminal with this many `columns`; `None` means no limit.
pub fn list_of_manners(cases: &[Manner], columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    terminal::terminal(vec![Block::Table(content::manners::list(cases))], columns, out)
}

fn write(document: &Document, format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Markdown => markdown::markdown(document, out)?,
        Format::Html => html::html(document, out)?,
        Format::Svg => svg::svg(document, out)?,
        Format::Csv => records::csv(document, out)?,
        Format::Bmf => records::bmf(document, out)?,
    }
    out.flush()
}

/// Writes results of conformance for a terminal with this many `columns`; `None` means no limit. Failures come first, and the rest
/// only if it is asked for.
pub fn scores(scores: &[Score], is_verbose: bool, columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    terminal::terminal(content::scorecard::outcome(scores, is_verbose), columns, out)
}

/// Writes a list of cases for a terminal with this many `columns`; `None` means no limit.
pub fn cases(cases: &[Case], columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    terminal::terminal(vec![Block::Table(content::scorecard::list(cases))], columns, out)
}

/// Writes the rows of the published table of forwarders for a terminal, with the numbers by which `--row` takes them.
pub fn rows(columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    terminal::terminal(vec![Block::Table(content::published::list())], columns, out)
}

/// Writes the table of the README if a matrix has it, and else its cells, for a terminal with this many `columns`, or the published table of forwarders as Markdown.
pub fn outcome(samples: &[Sample], columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    let all = Series::split("", samples, &[]);
    let main = content::main(&all);
    // Two builds are compared cell by cell.
    if !main.is_empty() && !samples.iter().any(|sample| sample.measured.against) {
        return terminal::terminal(main, columns, out);
    }
    for (index, one) in all.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        if all.len() > 1 && !one.label.is_empty() {
            writeln!(out, "{}:\n", one.label)?;
        }
        if one.is_forward() {
            markdown::blocks(&content::published(one), out)?;
        } else {
            terminal::terminal(content::cells::blocks(one), columns, out)?;
        }
    }
    out.flush()
}

/// Writes the sample as one JSON object on a line, and nothing else.
pub fn json(sample: &Sample, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", sample::line_of_its_own(sample))?;
    out.flush()
}

/// Writes a check of the doctor at once: the next may take a while.
pub fn check(check: &Check, out: &mut impl Write) -> io::Result<()> {
    let Check { name, verdict, finding, remedy, .. } = check;
    write!(out, "{verdict:<8} {name:<18} {finding}")?;
    if let Some(remedy) = remedy {
        write!(out, "; {remedy}")?;
    }
    writeln!(out)?;
    out.flush()
}
