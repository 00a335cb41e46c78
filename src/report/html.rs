//! One page that needs nothing else: no script, no font, no request.

mod samples;

use std::io::{self, Write};

use askama::Template;
use netstacks::StackKind;

use super::forward::Signs;
use super::plot::{self, Bar, Clock, Group, Mark, Picture, Width};
use super::table::{self, Sheet};
use super::{Series, axis, finding, format, forward, ladder, markdown, series, svg};
use crate::measure::CellSummary;
use crate::plan::Layer;
use crate::sample::{Cell, Head, Sample, StackCell};

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    title: &'static str,
    key: &'static str,
    theme: String,
    findings: Vec<String>,
    bars: Figure,
    /// Each with what follows its name.
    side_by_side: Vec<(&'static str, Sheet)>,
    parts: Vec<Part<'a>>,
    environments: Vec<(String, Vec<String>)>,
    /// Whether each part needs its name.
    several: bool,
}

/// A series.
struct Part<'a> {
    series: &'a Series,
    machine: String,
    shared: String,
    /// What is measured, and what makes it work.
    sides: [&'static str; 2],
    /// Of forwarders the published table, with what its figures are.
    published: Option<(&'static str, Sheet)>,
    figures: Sheet,
    failures: Vec<String>,
    warnings: Vec<String>,
    ladder: Option<Figure>,
    cost: Option<Figure>,
    drift: Option<Figure>,
    /// Of the picture of the cost: a class of the style sheet, and a mark with its name.
    legend: Vec<(&'static str, String)>,
    clock: &'static str,
    over_time: Vec<Small>,
    within_runs: Vec<Small>,
    repeat: Option<Repeat>,
    samples: Sheet,
}

/// A picture for a wide and for a narrow place.
#[derive(Default)]
struct Figure {
    wide: String,
    narrow: String,
}

/// One of many small pictures.
struct Small {
    name: String,
    svg: String,
}

/// How to make the samples again.
struct Repeat {
    all: String,
    seed: u64,
    cells: Vec<String>,
}

/// Writes the page.
///
/// # Errors
///
/// The writer's own.
pub(super) fn html(all: &[Series], out: &mut impl Write) -> io::Result<()> {
    let several = all.len() > 1;
    let groups = svg::groups(all);
    let findings: Vec<_> = all.iter().map(|one| finding::finding(one, several.then_some(one.label.as_str()))).collect();
    let label = format!("Throughput of each cell. {}", findings.join(" "));
    let page = Page {
        title: svg::title(all),
        key: svg::KEY,
        theme: plot::theme(),
        bars: Figure::of(&label, |width| plot::bars(&groups, width).map(Some))?.unwrap_or_default(),
        side_by_side: markdown::side_by_side(all, Signs::WORDS),
        parts: all.iter().map(Part::of).collect::<io::Result<_>>()?,
        environments: series::environments(all),
        findings,
        several,
    };
    page.write_into(out).map_err(io::Error::other)
}

impl Figure {
    fn of(label: &str, draw: impl Fn(Width) -> io::Result<Option<Picture>>) -> io::Result<Option<Self>> {
        match (draw(Width::Wide)?, draw(Width::Narrow)?) {
            (Some(wide), Some(narrow)) => Ok(Some(Self { wide: wide.inline(label)?, narrow: narrow.inline(label)? })),
            _ => Ok(None),
        }
    }
}

impl<'a> Part<'a> {
    fn of(series: &'a Series) -> io::Result<Self> {
        let (samples, summary) = (&series.samples, &series.summary);
        let rungs = rungs(series);
        let clock = Clock::of(samples).name();
        Ok(Self {
            series,
            machine: series.machine(),
            shared: series.shared().join(", "),
            sides: if series.is_forward() { ["forwarder", "load"] } else { ["stack", "client"] },
            published: series.is_forward().then(|| (forward::KEY, forward::overview(series, Signs::WORDS))),
            figures: table::sheet(summary),
            failures: format::details(summary),
            warnings: format::warnings(summary),
            ladder: Figure::of("Throughput of each layer alone and of the whole path", |width| {
                if rungs.is_empty() { Ok(None) } else { plot::bars(&rungs, width).map(Some) }
            })?,
            cost: Figure::of("CPU seconds for a gigabyte against throughput, a mark for each cell", |width| {
                plot::cost(&series.main_rows(), width)
            })?,
            drift: Figure::of("How far each run is from its cell's median, over the time", |width| {
                plot::drift(samples, summary, width)
            })?,
            legend: legend(series),
            clock,
            over_time: small(series, "over the time", |row| plot::over_time(samples, row).map(Some))?,
            within_runs: small(series, "within each run", |row| plot::within_runs(samples, row))?,
            repeat: series.head.as_ref().map(|head| Repeat::of(head, samples)),
            samples: samples::sheet(series),
        })
    }
}

fn legend(series: &Series) -> Vec<(&'static str, String)> {
    let rows = series.main_rows();
    let legend = Mark::ALL.into_iter().filter_map(|mark| {
        let cell = &rows.iter().find(|row| Mark::of(&row.cell) == mark)?.cell;
        Some((mark.class(), format!("{} {}", mark.sign(), kind(cell))))
    });
    legend.collect()
}

/// What a mark stands for.
fn kind(cell: &Cell) -> &'static str {
    match cell {
        Cell::Stack(cell) => cell.netstack.map_or("kernel", StackKind::name),
        Cell::Forward(cell) => forward::kind(cell.forwarder),
    }
}

/// A small picture for each cell that has a figure.
fn small(
    series: &Series,
    what: &str,
    draw: impl Fn(&CellSummary) -> io::Result<Option<Picture>>,
) -> io::Result<Vec<Small>> {
    let mut pictures = Vec::new();
    for row in series.summary.cells.iter().filter(|row| row.estimate.is_some()) {
        if let Some(picture) = draw(row)? {
            let name = row.cell.to_string();
            pictures.push(Small { svg: picture.inline(&format!("Throughput {what}: {name}"))?, name });
        }
    }
    Ok(pictures)
}

/// The ladders as bars: a group for each piece of work and runtime, at its top the layers that the stacks
/// share.
fn rungs(series: &Series) -> Vec<Group<'_>> {
    let ladders = ladder::ladders(&series.summary);
    let work = |cell: &StackCell| StackCell { netstack: None, ..cell.clone() };
    let axes = ladder::axes(&ladders);
    let mut works: Vec<_> = ladders.iter().map(|ladder| work(ladder.cell)).collect();
    works.sort();
    works.dedup();
    let groups = works.into_iter().map(|done| {
        let mine = || ladders.iter().filter(|ladder| work(ladder.cell) == done);
        let mut rows: Vec<&CellSummary> = Vec::new();
        rows.extend(mine().find_map(|ladder| ladder.loopback));
        rows.extend(mine().find_map(|ladder| ladder.device));
        rows.extend(mine().flat_map(|ladder| [ladder.stack, Some(ladder.path)]).flatten());
        let bars = rows.into_iter().map(|row| Bar { label: row.cell.stack().map(rung).unwrap_or_default(), row });
        let title = axis::phrase(&done.into(), axes.iter().copied().filter(|axis| *axis != axis::Axis::Stack));
        Group { title, bars: bars.collect() }
    });
    groups.collect()
}

fn rung(cell: &StackCell) -> String {
    match (cell.layer, cell.netstack) {
        (Layer::Stack, Some(stack)) => format!("{stack}, in memory"),
        (Layer::Path, Some(stack)) => format!("{stack}, whole path"),
        (Layer::Loopback, _) => "kernel, loopback".to_owned(),
        (layer, _) => layer.to_string(),
    }
}

impl Repeat {
    fn of(head: &Head, samples: &[Sample]) -> Self {
        let rounds = samples.iter().filter_map(|sample| sample.facts.round).max();
        let words: Vec<_> = arguments(&head.arguments, rounds).iter().map(|word| quoted(word)).collect();
        Self {
            all: format::one_line(&format!("rust-tun-perf {}", words.join(" "))),
            seed: head.seed,
            cells: head.plan.iter().map(|arguments| format::one_line(&format!("rust-tun-perf {arguments}"))).collect(),
        }
    }
}

/// The arguments that make as many rounds as there are, into no file: the reader may have one of that name,
/// and would go on with it.
fn arguments(head: &[String], rounds: Option<u32>) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut words = head.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" | "-o" | "--runs" => _ = words.next(),
            word if word.starts_with("--out=") || word.starts_with("--runs=") => {}
            word if word.starts_with("-o") => {}
            word => arguments.push(word.to_owned()),
        }
    }
    arguments.extend(rounds.map(|rounds| format!("--runs={rounds}")));
    arguments
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_=.,:/+%@".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_make_the_rounds_that_there_are_and_no_file() {
        let shown = |line: &str, rounds| {
            let words: Vec<_> = line.split(' ').map(ToOwned::to_owned).collect();
            arguments(&words, rounds).join(" ")
        };
        for line in [
            "matrix --out my.jsonl --runs 10 --time 1",
            "matrix --runs=10 --out=my.jsonl --time 1",
            "matrix -o my.jsonl --time 1",
            "matrix --time 1 -omy.jsonl",
        ] {
            assert_eq!(shown(line, Some(7)), "matrix --time 1 --runs=7", "{line}");
        }
        assert_eq!(shown("matrix --mtu 1500", None), "matrix --mtu 1500");
    }
}
