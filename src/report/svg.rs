//! The bars alone, as a picture for a document.

use std::io::{self, Write};

use super::plot::{self, Bar, Group, Width};
use super::{Series, axis, forward};
use crate::measure::CellSummary;
use crate::plan::{ROWS, RuntimeKind};
use crate::sample::{Cell, ForwardCell, StackCell};

/// What is what in the bars.
pub(super) const KEY: &str =
    "Bar and number: median. Line: its 95 % interval. Dot: a run. Ring: an outlier, which counts like any other.";

/// The title of what is shown.
pub(super) fn title(series: &[Series]) -> &'static str {
    match (series.iter().all(Series::is_forward), series.iter().any(Series::is_forward)) {
        (true, _) => "Forwarders between two TUN devices",
        (false, true) => "Userspace TCP/IP stacks over a TUN device, and forwarders between two",
        (false, false) => "Userspace TCP/IP stacks over a TUN device",
    }
}

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
    out.write_all(picture.standalone(title(series), &captions)?.as_bytes())
}

/// What all cells of all series have alike.
fn shared(series: &[Series]) -> Option<String> {
    let words = axis::shared(&main_cells(&series.iter().collect::<Vec<_>>()));
    (!words.is_empty()).then(|| words.join(", "))
}

/// The bars of the main rows: a group for each piece of work, in it the stacks, runtimes and series that did
/// it, or the forwarders.
pub(super) fn groups(series: &[Series]) -> Vec<Group<'_>> {
    let (forwards, stacks): (Vec<_>, Vec<_>) = series.iter().partition(|one| one.is_forward());
    let mut groups = groups_of(&stacks);
    let mut others = groups_of(&forwards);
    if !stacks.is_empty() {
        for group in &mut others {
            let title = if group.title.is_empty() { String::new() } else { format!(": {}", group.title) };
            group.title = format!("forwarders{title}");
        }
    }
    groups.append(&mut others);
    groups
}

/// The same of series of one kind.
fn groups_of<'a>(series: &[&'a Series]) -> Vec<Group<'a>> {
    let cells = main_cells(series);
    let axes = axis::differing(&cells);
    let groups = jobs(&cells).into_iter().map(|job| {
        let mut rows: Vec<(&CellSummary, &Series)> = Vec::new();
        for one in series {
            rows.extend(one.main_rows().into_iter().filter(|row| row.cell.same_work(&job)).map(|row| (row, *one)));
        }
        rows.sort_by(|(left, _), (right, _)| left.cell.cmp(&right.cell));
        let bars = rows.into_iter().map(|(row, one)| {
            let mut label = vec![name(&row.cell)];
            if axes.contains(&axis::Axis::Runtime) {
                label.extend(axis::Axis::Runtime.value(&row.cell));
            }
            if series.len() > 1 {
                label.push(one.label.clone());
            }
            Bar { label: label.join(", "), row }
        });
        let bars = bars.collect();
        Group { title: axis::phrase(&job, axes.iter().copied().filter(|axis| axis.is_of_work(&job))), bars }
    });
    groups.collect()
}

/// The pieces of work that the cells do, each as a cell without that in which rivals differ.
pub(super) fn jobs(cells: &[&Cell]) -> Vec<Cell> {
    let job = |cell: &&Cell| match (*cell).clone() {
        Cell::Stack(cell) => StackCell { netstack: None, runtime: RuntimeKind::CurrentThread, ..cell }.into(),
        Cell::Forward(cell) => ForwardCell { forwarder: ROWS[0], ..cell }.into(),
    };
    let mut jobs: Vec<Cell> = cells.iter().map(job).collect();
    jobs.sort();
    jobs.dedup();
    jobs
}

/// What a bar is called.
fn name(cell: &Cell) -> String {
    match cell {
        Cell::Stack(cell) => cell.name(),
        Cell::Forward(cell) => forward::label(cell.forwarder),
    }
}

fn main_cells<'a>(series: &[&'a Series]) -> Vec<&'a Cell> {
    series.iter().flat_map(|one| one.main_rows()).map(|row| &row.cell).collect()
}
