//! Reports of forwarders.

use std::num::NonZeroU16;
use std::path::PathBuf;

use rust_tun_perf::cell::{Cell, Forwarder, Generator, Mode, ROWS};
use rust_tun_perf::report::{self, Format, Series};
use rust_tun_perf::sample::{Sample, SampleFile};

use super::{bones, read, two, written};

fn series() -> Vec<Series> {
    Series::of(&[read("forward.jsonl")])
}

/// Returns the rows of the first table of a document, each as its cells.
fn first_table(markdown: &str) -> Vec<Vec<&str>> {
    let table = markdown.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    table.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the samples with changed cells.
fn changed(samples: &[Sample], change: impl Fn(Cell) -> Cell) -> Vec<Sample> {
    let other = |sample: &Sample| Sample { cell: change(sample.cell.clone()), ..sample.clone() };
    samples.iter().map(other).collect()
}

#[test]
fn markdown_has_the_published_table() {
    let text = written(&series(), Format::Markdown);
    insta::assert_snapshot!("markdown", text);
    let table = first_table(&text);
    assert_eq!(
        table[0],
        ["#", "Mode", "Offload", "Channel", "Gbps", "Retr", "CPU Avg", "CPU Max", "Mem Avg", "Mem Max", "Reord."]
    );
    let numbers: Vec<_> = table[2..].iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(numbers, (1..=18).map(|row| row.to_string()).collect::<Vec<_>>());
}

#[test]
fn the_table_after_all_rows_lists_failures_and_warnings() {
    let table = |samples: &[Sample]| {
        let mut out = Vec::new();
        report::outcome(samples, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let samples = read("forward.jsonl").samples;
    let text = table(&samples);
    insta::assert_snapshot!("table", text);
    // One run of each row, and stacks after them.
    let stacks = read("laptop.jsonl").samples;
    let one: Vec<_> = samples.iter().take(ROWS.len()).chain(&stacks).cloned().collect();
    let text = table(&one);
    assert!(text.starts_with("forwarders:\n") && text.contains("stack"), "{text}");
    assert_eq!(first_table(&text)[2..].len(), ROWS.len());
    assert!(first_table(&text)[2][4].parse::<f64>().is_ok(), "a single run has no interval: {text}");
}

#[test]
fn csv_has_the_axes_of_stacks_and_forwarders() {
    let all: Vec<_> = series().into_iter().chain(two()[..1].to_vec()).collect();
    let text = written(&all, Format::Csv);
    insta::assert_snapshot!("csv", written(&series(), Format::Csv));
    let stacks = written(&two()[..1], Format::Csv);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().unwrap().clone();
    let column = |name: &str| names.iter().position(|other| other == name).unwrap();
    for record in reader.records().map(Result::unwrap) {
        let has = |names: &[&str]| names.iter().any(|name| !record[column(name)].is_empty());
        let is_forward = !record[column("forwarder")].is_empty();
        assert_eq!(has(&["forwarder", "hop", "generator", "cpu_percent", "rss_bytes"]), is_forward);
        assert_eq!(has(&["netstack", "runtime", "window_bytes"]), !is_forward);
    }
    assert!(text.ends_with(stacks.split_once('\n').unwrap().1), "the lines of stacks do not change");
}

#[test]
fn svg_has_a_bar_for_each_row_and_a_dot_for_each_run() {
    let text = written(&series(), Format::Svg);
    insta::assert_snapshot!("svg", text);
    let summary = &series()[0].summary;
    let figures = summary.cells.iter().filter(|row| row.estimate.is_some()).count();
    assert_eq!(text.matches("opacity=\"0.3\"").count(), figures);
    assert_eq!(text.matches("<circle").count(), summary.cells.iter().map(|row| row.speeds.len()).sum::<usize>());
    assert_eq!(text.matches("× ").count(), ROWS.len() - figures, "each failed row says how");
    // In the order of the table, which is by number.
    let places: Vec<_> =
        ["\n1 Async\n", "\n10 Sync, offload\n", "\n12 Sync (Concurrent), offload\n", "\n18 Sync, whole\n"]
            .map(|label| text.find(label).unwrap_or_else(|| panic!("{label:?} in {text}")))
            .to_vec();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn html_has_every_sample() {
    let html = written(&series(), Format::Html);
    insta::assert_snapshot!("html", bones(&html));
    let bars = html.split_once("<div class=\"wide\">").unwrap().1.split_once("</svg>").unwrap().0;
    assert_eq!(bars.matches("<circle").count(), read("forward.jsonl").samples.iter().filter(|one| one.is_ok()).count());
    assert!(!html.contains("class=\"ladder\"") && !html.contains("other mode"), "only stacks have these");
}

#[test]
fn a_file_of_both_kinds_is_two_series() {
    let mut both = read("laptop.jsonl");
    let forward = read("forward.jsonl");
    both.path = PathBuf::from("both.jsonl");
    both.heads.extend(forward.heads.clone());
    // Alternating, as two machines that take turns would write them.
    let stacks = std::mem::take(&mut both.samples);
    for index in 0..stacks.len().max(forward.samples.len()) {
        both.samples.extend(stacks.get(index).into_iter().chain(forward.samples.get(index)).cloned());
    }
    let all = Series::of(std::slice::from_ref(&both));
    assert_eq!(all.iter().map(|one| one.label.as_str()).collect::<Vec<_>>(), ["both", "both, forwarders"]);
    let commands = all.iter().map(|one| one.head.as_ref().unwrap().arguments[0].as_str());
    assert_eq!(commands.collect::<Vec<_>>(), ["matrix", "forward"]);
    let markdown = written(&all, Format::Markdown);
    assert!(!markdown.contains("Side by side"), "no cell is in more than one series");
    for part in ["### Overview: both\n", "### Overview: both, forwarders\n", "### Layers: both\n"] {
        assert!(markdown.contains(part), "{part}");
    }
    let parts = |one: &SampleFile| written(&Series::of(std::slice::from_ref(one)), Format::Csv).lines().count() - 1;
    assert_eq!(parts(&both), parts(&read("laptop.jsonl")) + parts(&forward));
    let html = written(&all, Format::Html);
    let bars = html.split_once("<div class=\"wide\">").unwrap().1.split_once("</svg>").unwrap().0;
    let alone = written(&two()[..1], Format::Svg).matches("<circle").count();
    assert_eq!(bars.matches("<circle").count(), alone + forward.samples.iter().filter(|one| one.is_ok()).count());
    assert!(written(&all, Format::Svg).contains("\nforwarders\n"));
    let twice = written(&Series::of(&[both, read("laptop.jsonl"), read("forward.jsonl")]), Format::Markdown);
    assert!(twice.contains("Median Gbps of stacks, ") && twice.contains("Median Gbps of forwarders, "), "{twice}");
}

#[test]
fn other_loads_and_other_settings_are_told_apart() {
    let mut file = read("forward.jsonl");
    let samples = file.samples.clone();
    file.samples.extend(changed(&samples, |cell| Cell { mode: Some(Mode::Both), ..cell }));
    file.samples.extend(changed(&samples, |cell| Cell { generator: Generator::Iperf3, ..cell }));
    // No row has three workers.
    let is_concurrent = |sample: &&Sample| sample.cell.forwarder().and_then(Forwarder::row) == Some(12);
    let others: Vec<_> = samples.iter().filter(is_concurrent).cloned().collect();
    file.samples.extend(changed(&others, |cell| Cell { workers: NonZeroU16::new(3), ..cell }));
    let all = Series::of(&[file]);
    let text = written(&all, Format::Markdown);
    let table = first_table(&text);
    assert_eq!(table[0][4..7], ["client", "generator", "Gbps"]);
    assert_eq!(
        table[2..5].iter().map(|row| (row[0], row[4], row[5])).collect::<Vec<_>>(),
        [("1", "upload", "own"), ("1", "upload", "iperf3"), ("1", "both", "own")]
    );
    let last = table.last().unwrap();
    assert_eq!(last[..4], ["–", "Sync (3 Concurrent)", "✅", "❌"]);
    let svg = written(&all, Format::Svg);
    for title in ["both", "upload, load by iperf3", "upload"] {
        assert!(svg.contains(&format!("\n{title}\n")), "{title}");
    }
}

#[test]
fn a_property_that_go_lacks_is_shared_by_the_others() {
    let mut file = read("forward.jsonl");
    file.samples.retain(|sample| [Some(10), Some(15)].contains(&sample.cell.forwarder().and_then(Forwarder::row)));
    let text = written(&Series::of(&[file]), Format::Markdown);
    let shared: Vec<_> = text.lines().filter(|line| line.starts_with("In every run: ")).collect();
    assert_eq!(shared.len(), 2);
    for line in shared {
        assert!(line.starts_with("In every run: direct, upload, offload on, "), "{line}");
        assert!(line.ends_with(" In every run that has it: sync, 1 worker."), "{line}");
    }
    assert!(text.contains("|  # | forwarder |  Gbps |"), "{text}");
}
