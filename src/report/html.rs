//! One page that needs nothing else: no script, no font, no request.

use std::io::{self, Write};

use askama::Template;
use netstacks::StackKind;

use super::plot::{self, Bar, Clock, Group, Picture, Width};
use super::table::{self, Column, Sheet};
use super::{Series, UNKNOWN, axis, finding, format, ladder, markdown, series, svg};
use crate::measure::CellSummary;
use crate::plan::Layer;
use crate::sample::{Cell, Head, Sample};

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    title: &'static str,
    key: &'static str,
    theme: String,
    findings: Vec<String>,
    bars: Figure,
    side_by_side: Option<Sheet>,
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
    figures: Sheet,
    failures: Vec<String>,
    warnings: Vec<String>,
    ladder: Option<Figure>,
    cost: Option<Figure>,
    drift: Option<Figure>,
    /// Of the picture of the cost: a class of the style sheet, and a mark with its name.
    legend: Vec<(&'static str, &'static str)>,
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
        title: svg::TITLE,
        key: svg::KEY,
        theme: plot::theme(),
        bars: Figure::of(&label, |width| plot::bars(&groups, width).map(Some))?.unwrap_or_default(),
        side_by_side: several.then(|| markdown::side_by_side(all)),
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
            samples: every_sample(series),
        })
    }
}

fn legend(series: &Series) -> Vec<(&'static str, &'static str)> {
    let marks = [
        (Some(StackKind::Lwip), ("lwip", "● lwip")),
        (Some(StackKind::Ipstack), ("ipstack", "▲ ipstack")),
        (Some(StackKind::Smoltcp), ("smoltcp", "■ smoltcp")),
        (None, ("kernel", "◆ kernel")),
    ];
    let rows = series.main_rows();
    let is_there = |stack: Option<StackKind>| rows.iter().any(|row| row.cell.netstack == stack);
    marks.into_iter().filter(|(stack, _)| is_there(*stack)).map(|(_, mark)| mark).collect()
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
    let work = |cell: &Cell| Cell { netstack: None, ..cell.clone() };
    let axes = ladder::axes(&ladders);
    let mut works: Vec<_> = ladders.iter().map(|ladder| work(&ladder.path.cell)).collect();
    works.sort();
    works.dedup();
    let groups = works.into_iter().map(|done| {
        let mine = || ladders.iter().filter(|ladder| work(&ladder.path.cell) == done);
        let mut rows: Vec<&CellSummary> = Vec::new();
        rows.extend(mine().find_map(|ladder| ladder.loopback));
        rows.extend(mine().find_map(|ladder| ladder.device));
        rows.extend(mine().flat_map(|ladder| [ladder.stack, Some(ladder.path)]).flatten());
        let bars = rows.into_iter().map(|row| Bar { label: rung(&row.cell), row, stack: row.cell.netstack });
        let title = axis::phrase(&done, axes.iter().copied().filter(|axis| *axis != axis::Axis::Stack));
        Group { title, bars: bars.collect() }
    });
    groups.collect()
}

fn rung(cell: &Cell) -> String {
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

/// A sample's column: its head, whether it holds numbers, and what a sample has in it.
type Fact = (&'static str, bool, fn(&Sample) -> Option<String>);

const FACTS: [Fact; 15] = [
    ("round", true, |sample| sample.facts.round.map(|round| round.to_string())),
    ("cell", false, |sample| Some(sample.cell.to_string())),
    ("status", false, |sample| Some(sample.facts.status.to_string())),
    ("Gbps", true, |sample| sample.is_ok().then(|| format!("{:.3}", sample.gbps()))),
    ("seconds", true, |sample| Some(format!("{:.3}", sample.facts.elapsed.as_secs_f64()))),
    ("bytes", true, |sample| Some(sample.facts.bytes.to_string())),
    ("client CPU s", true, |sample| sample.facts.cpu.client_seconds.map(format::cost)),
    ("stack CPU s", true, |sample| sample.facts.cpu.stack_seconds.map(format::cost)),
    ("peak MiB", true, |sample| sample.facts.peak_rss_bytes.map(format::mebibytes)),
    ("retrans.", true, |sample| sample.facts.retransmits.map(|count| count.to_string())),
    ("drops", true, |sample| sample.facts.device_drops.map(|count| count.to_string())),
    ("packets in", true, |sample| Some(sample.facts.packets.rx.to_string())),
    ("packets out", true, |sample| Some(sample.facts.packets.tx.to_string())),
    ("bytes/packet", true, |sample| sample.bytes_per_packet().map(format::count)),
    ("detail", false, |sample| sample.facts.detail.as_deref().map(format::shortened)),
];

fn every_sample(series: &Series) -> Sheet {
    let value = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    Sheet {
        columns: FACTS.iter().map(|(title, is_number, _)| Column::new(*title, *is_number)).collect(),
        rows: series
            .samples
            .iter()
            .map(|sample| FACTS.iter().map(|(_, _, fact)| value(fact(sample))).collect())
            .collect(),
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
