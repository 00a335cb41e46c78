//! A series in a sentence.

use clap::ValueEnum;

use super::{charts, programs, published};
use crate::measure::metric::speed_of;
use crate::measure::{CellSummary, Estimate};
use crate::report::axis::{self, Axis};
use crate::report::format;
use crate::report::series::{Kind, Series};
use crate::sample::FEWEST_RUNS;
use crate::scenario::{Cell, Forwarder, Mode, plural};

/// A cell that has a figure.
type Figure<'a> = (&'a CellSummary, Estimate);

/// The row of the published table that others are compared with: plain calls, one thread each way, and
/// super-packets that are cut and joined.
const REFERENCE_ROW: usize = 10;

/// The sentence: the fastest cell of each mode of stacks, or at each piece of work of forwarders. Programs of several roles
/// have a sentence for each role.
pub(super) fn headline(one: &Series) -> String {
    let rows = one.main_rows();
    let of_role = |(role, title)| {
        let its: Vec<_> = rows.iter().copied().filter(|row| row.role == Some(role)).collect();
        (!its.is_empty()).then_some((title, its))
    };
    let roles: Vec<(&str, _)> = programs::ROLES.into_iter().filter_map(of_role).collect();
    let sentences: Vec<_> = if roles.len() > 1 {
        let sentence = |(title, rows): &(&str, Vec<_>)| Some(format!("{title}: the {}", best(one, rows)?));
        roles.iter().filter_map(sentence).collect()
    } else {
        best(one, &rows).map(|best| format!("The {best}")).into_iter().collect()
    };
    match sentences.as_slice() {
        // The kernel's connections alone are no result.
        [] if one.kind() != Kind::Connections => "No run came to a figure.".to_owned(),
        sentences => sentences.join(" "),
    }
}

/// The rest of a sentence about the best of some rows; `None` if none has a figure.
fn best(one: &Series, rows: &[&CellSummary]) -> Option<String> {
    if one.kind() == Kind::Connections {
        let stacks = figures(rows, Cell::is_contender);
        let (best, estimate) = fastest(&stacks)?;
        let (name, rate) = (name(&best.cell), format::rate(best, estimate));
        return Some(format!("most connections in a megabyte: {name}, {rate}."));
    }
    let cells = axis::cells(rows.iter().copied());
    let phrases: Vec<_> = if one.is_forward() {
        charts::works(&cells).into_iter().filter_map(|work| fastest_forwarder(rows, work)).collect()
    } else {
        Mode::value_variants().iter().copied().filter_map(|mode| fastest_stack(rows, mode)).collect()
    };
    (!phrases.is_empty()).then(|| format!("fastest {}.", phrases.join("; the fastest ")))
}

/// The fastest cell of a mode and its settings. It also names the stacks that are not clearly slower at the same work,
/// or says that there are too few runs to know.
fn fastest_stack(all: &[&CellSummary], mode: Mode) -> Option<String> {
    // The kernel is only for comparison.
    let has_stacks = all.iter().any(|row| row.cell.is_contender());
    let rows = figures(all, |cell| cell.mode() == Some(mode) && (cell.is_contender() || !has_stacks));
    let (best, estimate) = fastest(&rows)?;
    let settings = settings(all, &best.cell, |axis| !matches!(axis.name, "netstack" | "program" | "mode"));
    let settings = settings.filter(|_| best.cell.stack().is_some()).map(|settings| format!(" with {settings}"));
    let is_rival = |cell: &Cell| cell.subject != best.cell.subject && cell.same_work(&best.cell);
    Some(format!(
        "{mode} is {} at {}{}{}",
        name(&best.cell),
        format::rate(best, estimate),
        settings.unwrap_or_default(),
        doubt(best, rows.iter().filter(|(row, _)| is_rival(&row.cell)))
    ))
}

/// The fastest forwarder at a piece of work, how many times as fast as the reference it is, and the forwarders that are
/// not clearly slower.
fn fastest_forwarder(all: &[&CellSummary], work: &Cell) -> Option<String> {
    let rows = figures(all, |cell| cell.same_work(work));
    let (best, estimate) = fastest(&rows)?;
    let settings = settings(all, work, |axis| (axis.is_work)(work)).map(|settings| format!("with {settings} "));
    Some(format!(
        "{}is {} at {}{}{}",
        settings.unwrap_or_default(),
        name(&best.cell),
        format::rate(best, estimate),
        times_reference((best, estimate), &rows),
        doubt(best, rows.iter().filter(|(row, _)| row.cell != best.cell))
    ))
}

/// The properties of a cell in which the cells differ.
fn settings(all: &[&CellSummary], cell: &Cell, wanted: impl Fn(&Axis) -> bool) -> Option<String> {
    let axes = axis::differing(&axis::cells(all.iter().copied()));
    Some(axis::phrase(cell, axes.into_iter().filter(|axis| wanted(axis)))).filter(|settings| !settings.is_empty())
}

/// How many times as fast as the reference the fastest is. Empty if it is the reference, or if the reference was not
/// run.
fn times_reference((fastest, best): Figure<'_>, all: &[Figure<'_>]) -> String {
    let is_reference = |row: &CellSummary| row.cell.forwarder().and_then(Forwarder::row) == Some(REFERENCE_ROW);
    let reference = all.iter().find(|(row, other)| is_reference(row) && other.median > 0.0);
    let reference = reference.filter(|(row, _)| row.cell != fastest.cell);
    let times = |(_, other): &Figure<'_>| format!(", {:.2} times row {REFERENCE_ROW}", best.median / other.median);
    reference.map(times).unwrap_or_default()
}

fn figures<'a>(rows: &[&'a CellSummary], wanted: impl Fn(&Cell) -> bool) -> Vec<Figure<'a>> {
    rows.iter().filter(|row| wanted(&row.cell)).filter_map(|row| Some((*row, row.estimate?))).collect()
}

fn fastest<'a>(rows: &[Figure<'a>]) -> Option<Figure<'a>> {
    let is_better =
        |row: &Figure<'_>, best: &Figure<'_>| speed_of(&row.0.cell).times_as_good(row.1.median, best.1.median) > 1.0;
    rows.iter().copied().reduce(|best, row| if is_better(&row, &best) { row } else { best })
}

/// The reason why the fastest may not be the fastest: too few runs, or intervals of rivals that overlap with its own.
fn doubt<'a>(best: &CellSummary, rivals: impl Iterator<Item = &'a Figure<'a>> + Clone) -> String {
    let fewest = rivals.clone().map(|(row, _)| row.speeds.len()).chain([best.speeds.len()]).min().unwrap_or_default();
    if fewest < FEWEST_RUNS {
        let verb = if fewest == 1 { "is" } else { "are" };
        return format!(", though {} {verb} too few to be sure", plural(fewest, "run"));
    }
    let close = rivals.filter(|(row, _)| row.ties_with(best)).map(|(row, _)| name(&row.cell));
    let mut close: Vec<_> = close.collect();
    close.dedup();
    if close.is_empty() { String::new() } else { format!(", not told apart from {}", close.join(" and ")) }
}

fn name(cell: &Cell) -> String {
    match cell.forwarder() {
        None => charts::name(cell),
        Some(forwarder) => {
            let name = published::name(forwarder);
            forwarder.row().map_or_else(|| name.clone(), |row| format!("row {row} ({name})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use netstacks::StackKind;

    use super::*;
    use crate::measure::fixture::{answering, at_a_rate, program};
    use crate::program::Role;

    #[test]
    fn the_fastest_with_a_rate_has_the_lowest_latency() {
        let runs = [(StackKind::Lwip, 64.0), (StackKind::Smoltcp, 192.0)]
            .map(|(stack, latency_us)| vec![answering(&at_a_rate(stack), latency_us); FEWEST_RUNS]);
        let series = Series::split("runs", &runs.concat(), &[]);
        assert_eq!(headline(&series[0]), "The fastest rr is lwip at a p99 of 64 µs (64 to 64).");
    }

    #[test]
    fn programs_have_a_sentence_for_each_role_and_the_kernel_is_no_rival() {
        let runs = [
            ("kernel", Some(Role::Route), 9.0),
            ("socks5", Some(Role::Route), 8.0),
            ("lwip", Some(Role::Proxy), 2.0),
            ("pasta", Some(Role::Attach), 3.0),
        ];
        let runs = runs.map(|(name, role, gbps)| vec![program(name, role, gbps); FEWEST_RUNS]);
        let all = headline(&Series::split("runs", &runs.concat(), &[])[0]);
        let [proxies, networks] =
            ["Proxies: the fastest reader is lwip at 2.", "Container networks: the fastest reader is pasta at 3."];
        assert!(all.starts_with(proxies) && all.contains(networks) && !all.contains("kernel"), "{all}");
        let one = headline(&Series::split("runs", &runs[..3].concat(), &[])[0]);
        assert!(one.starts_with("The fastest reader is lwip at 2."), "{one}");
    }
}
