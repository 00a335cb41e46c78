//! The bars alone, as a picture for a document.

use std::io::{self, Write};

use super::plot::{self, Bar, Group, Width};
use super::{Series, axis};
use crate::measure::CellSummary;
use crate::plan::RuntimeKind;
use crate::sample::Cell;

/// The title of what is shown.
pub(super) const TITLE: &str = "Userspace TCP/IP stacks over a TUN device";
/// What is what in the bars.
pub(super) const KEY: &str =
    "Bar and number: median. Line: its 95 % interval. Dot: a run. Ring: an outlier, which counts like any other.";

/// Writes the picture.
///
/// # Errors
///
/// The writer's own.
pub(super) fn svg(series: &[Series], out: &mut impl Write) -> io::Result<()> {
    let picture = plot::bars(&groups(series), Width::Wide)?;
    let mut captions = vec![KEY.to_owned()];
    captions.extend(shared(series).map(|shared| format!("In every run: {shared}.")));
    captions.extend(
        series.iter().map(
            |one| {
                if series.len() > 1 { format!("{}: {}", one.label, one.machine()) } else { one.machine() }
            },
        ),
    );
    let captions: Vec<_> = captions.iter().map(|caption| super::format::shortened(caption)).collect();
    out.write_all(picture.standalone(TITLE, &captions)?.as_bytes())
}

/// What all cells of all series have alike.
fn shared(series: &[Series]) -> Option<String> {
    let words = axis::shared(&main_cells(series));
    (!words.is_empty()).then(|| words.join(", "))
}

/// The bars of the main rows: a group for each piece of work, in it the stacks, runtimes and series that did
/// it.
pub(super) fn groups(series: &[Series]) -> Vec<Group<'_>> {
    let cells = main_cells(series);
    let axes = axis::differing(&cells);
    let mut jobs: Vec<Cell> = cells.iter().map(|cell| job_of(cell)).collect();
    jobs.sort();
    jobs.dedup();
    let groups = jobs.into_iter().map(|job| {
        let mut rows: Vec<(&CellSummary, &Series)> = Vec::new();
        for one in series {
            rows.extend(one.main_rows().into_iter().filter(|row| job_of(&row.cell) == job).map(|row| (row, one)));
        }
        rows.sort_by(|(left, _), (right, _)| left.cell.cmp(&right.cell));
        let bars = rows.into_iter().map(|(row, one)| {
            let mut label =
                vec![row.cell.netstack.map_or_else(|| row.cell.layer.to_string(), |stack| stack.to_string())];
            if axes.contains(&axis::Axis::Runtime) {
                label.extend(axis::Axis::Runtime.value(&row.cell));
            }
            if series.len() > 1 {
                label.push(one.label.clone());
            }
            Bar { label: label.join(", "), row, stack: row.cell.netstack }
        });
        let bars = bars.collect();
        Group { title: axis::phrase(&job, axes.iter().copied().filter(|axis| axis.is_of_work())), bars }
    });
    groups.collect()
}

/// A cell without that in which rivals differ.
fn job_of(cell: &Cell) -> Cell {
    Cell { netstack: None, runtime: RuntimeKind::CurrentThread, ..cell.clone() }
}

fn main_cells(series: &[Series]) -> Vec<&Cell> {
    series.iter().flat_map(Series::main_rows).map(|row| &row.cell).collect()
}
