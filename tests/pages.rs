//! Reports of the fixed samples in `tests/data`, word for word and mark for mark.

mod forward;

use std::fmt::Write as _;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use clap::Parser;
use rust_tun_perf::cell::{Cell, Subject};
use rust_tun_perf::cli::Cli;
use rust_tun_perf::plan::Plan;
use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::report::{self, Format, Series};
use rust_tun_perf::run::{Executor, RunError};
use rust_tun_perf::sample::{Head, Sample, SampleFile, line};
use rust_tun_perf::{Console, Error, main_with};
use serde_json::{Value, json};

/// An executor that must not be called.
struct Nothing;

impl Executor for Nothing {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        panic!("{:?} is not to be run", scenario.words)
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(name: &str) -> SampleFile {
    SampleFile::read(&data(name)).unwrap()
}

/// Rewrites the files with the fields of this version; those of machines that do not exist have plausible figures. Their
/// samples are in the snapshots, which then change too.
#[test]
#[ignore = "writes the files that the other tests read"]
fn write_the_files() {
    for name in ["laptop.jsonl", "server.jsonl", "forward.jsonl"] {
        let SampleFile { heads, samples, .. } = read(name);
        let heads = heads.into_iter().map(|head| Head { id: head.environment.id(), ..head }.line());
        let text: String = heads.chain(samples.iter().map(line)).map(|line| line + "\n").collect();
        std::fs::write(data(name), text).unwrap();
    }
}

fn both() -> [SampleFile; 2] {
    [read("laptop.jsonl"), read("server.jsonl")]
}

/// The series of both machines.
fn two() -> &'static [Series] {
    static SERIES: LazyLock<Vec<Series>> = LazyLock::new(|| Series::of(&both()));
    &SERIES
}

/// Returns the report of some series.
fn written(series: &[Series], format: Format) -> String {
    let mut out = Vec::new();
    report::report(series, format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the result of the command, and its standard output.
fn command(arguments: &[&str]) -> (Result<(), Error>, String) {
    let cli = Cli::try_parse_from(["rust-tun-perf", "report"].iter().chain(arguments)).unwrap();
    let mut out = Vec::new();
    let console = Console { out: &mut out, err: &mut Vec::new(), terminal: false, columns: None };
    let result = main_with(Plan::try_from(cli).unwrap(), &Nothing, |_| Nothing, console);
    (result, String::from_utf8(out).unwrap())
}

fn is_path(cell: &Cell) -> bool {
    matches!(cell.subject(), Subject::Path(_))
}

/// Counts the samples of the whole path that have a figure.
fn good(file: &SampleFile) -> usize {
    file.samples.iter().filter(|sample| sample.is_ok() && is_path(&sample.cell)).count()
}

/// Returns the elements of a page in order, with counts instead of the shapes of pictures.
fn bones(html: &str) -> String {
    let mut bones = String::new();
    let mut rest = html;
    while let Some((before, after)) = rest.split_once("<svg") {
        bones.push_str(before);
        let label = after.split_once("aria-label=\"").unwrap().1.split_once('"').unwrap().0;
        let (picture, after) = after.split_once("</svg>").unwrap();
        let count = |tag: &str| picture.matches(tag).count();
        write!(
            bones,
            "<svg {label:?}: {} circles, {} rectangles, {} lines, {} polygons, {} texts/>",
            count("<circle"),
            count("<rect"),
            count("<line") + count("<polyline"),
            count("<polygon"),
            count("<text")
        )
        .unwrap();
        rest = after;
    }
    bones.push_str(rest);
    let (before, after) = bones.split_once("<style>").unwrap();
    let (_, after) = after.split_once("</style>").unwrap();
    without_rows(&format!("{before}<style/>{after}"))
}

/// Keeps only the first row of each table, with the number of rows.
fn without_rows(html: &str) -> String {
    let parts: Vec<_> = html.split("<tbody>").collect();
    let tables = parts[1..].iter().map(|part| {
        let (body, after) = part.split_once("</tbody>").unwrap();
        let first = body.split_once("</tr>").unwrap().0;
        format!("<tbody>{first}</tr> of {} rows</tbody>{after}", body.matches("<tr>").count())
    });
    [parts[0].to_owned(), tables.collect()].concat()
}

#[test]
fn markdown_of_one_machine_and_of_two() {
    insta::assert_snapshot!("markdown", written(&two()[..1], Format::Markdown));
    insta::assert_snapshot!("markdown_of_two", written(two(), Format::Markdown));
}

#[test]
fn csv_of_two_machines() {
    let text = written(two(), Format::Csv);
    insta::assert_snapshot!("csv", text);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().unwrap().clone();
    let column = |name: &str| names.iter().position(|other| other == name).unwrap();
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), two().iter().map(|one| one.summary.cells.len()).sum::<usize>());
    // The figures are not rounded, so reading them returns the computed values.
    let medians: Vec<Option<f64>> = rows.iter().map(|row| row[column("median_gbps")].parse().ok()).collect();
    let cells = two().iter().flat_map(|one| &one.summary.cells);
    assert_eq!(medians, cells.map(|row| row.estimate.map(|estimate| estimate.median)).collect::<Vec<_>>());
}

#[test]
fn bmf_has_each_cell_under_a_unique_name() {
    let json = |series: &[Series], format| serde_json::from_str::<Value>(&written(series, format)).unwrap();
    let rows: Vec<_> = two().iter().flat_map(|one| &one.summary.cells).collect();
    let medians: Vec<f64> = rows.iter().filter_map(|row| row.estimate).map(|estimate| estimate.median).collect();
    let bmf = json(two(), Format::Bmf);
    let mut values: Vec<_> =
        bmf.as_object().unwrap().values().map(|cell| cell["gbps"]["value"].as_f64().unwrap()).collect();
    let mut expected = medians;
    values.sort_by(f64::total_cmp);
    expected.sort_by(f64::total_cmp);
    assert_eq!(values, expected);
    // With a single file, the names do not contain the file, so they stay the same from one file to the next.
    let one = json(&two()[..1], Format::Bmf);
    let cell = &two()[0].summary.cells.iter().find(|row| row.speeds.len() > 1).unwrap();
    let (name, figures) =
        one.as_object().unwrap().iter().find(|(name, _)| name.starts_with(&cell.cell.to_string())).unwrap();
    assert!(bmf.as_object().unwrap().keys().any(|other| other.ends_with(name)), "{name}");
    let estimate = cell.estimate.unwrap();
    assert_eq!(
        figures["gbps"],
        json!({
            "value": estimate.median, "lower_value": estimate.low, "upper_value": estimate.high
        })
    );
}

#[test]
fn svg_has_a_mark_for_each_cell_and_each_run() {
    let text = written(two(), Format::Svg);
    insta::assert_snapshot!("svg", text);
    let rows = || two().iter().flat_map(|one| &one.summary.cells);
    let paths = || rows().filter(|row| is_path(&row.cell));
    let figures = paths().filter(|row| row.estimate.is_some()).count();
    assert_eq!(text.matches("opacity=\"0.3\"").count(), figures, "a bar for each cell");
    assert_eq!(text.matches("<circle").count(), both().iter().map(good).sum::<usize>(), "a dot for each run");
    assert_eq!(text.matches("× ").count(), paths().count() - figures, "each failed cell says how");
    assert!(text.contains("prefers-color-scheme:dark"));
}

#[test]
fn html_has_a_mark_for_each_cell_and_each_run() {
    let html = written(two(), Format::Html);
    insta::assert_snapshot!("html", bones(&html));
    let bars = html.split_once("<div class=\"wide\">").unwrap().1.split_once("</svg>").unwrap().0;
    assert_eq!(bars.matches("<circle").count(), both().iter().map(good).sum::<usize>());
    let samples: usize = both().iter().map(|file| file.samples.len()).sum();
    let tables: Vec<_> = html.split("aria-label=\"Samples of").skip(1).collect();
    let rows: usize =
        tables.iter().map(|table| table.split_once("</table>").unwrap().0.matches("<tr>").count() - 1).sum();
    assert_eq!(rows, samples, "every sample has its row");
}

#[test]
fn a_page_loads_nothing() {
    for format in [Format::Html, Format::Svg] {
        let text = written(two(), format);
        for loads in ["http:", "https:", "src=", "href", "url(", "@import", "<script", "<link", "<iframe", "<object"] {
            let text = text.replace("http://www.w3.org/2000/svg", "").replace("style-src=", "");
            // The contents link to places on the page.
            let text = text.replace("href=\"#", "");
            assert!(!text.contains(loads), "{format:?} has {loads}");
        }
    }
}

#[test]
fn text_of_a_file_is_text_in_every_format() {
    let hostile = "</title></svg><script>alert('1')</script>|`*\n# \u{1b}[31m\u{7f}&\"";
    let mut file = read("server.jsonl");
    file.path = PathBuf::from("<img onerror=1>.jsonl");
    let mut environment = (*file.samples[0].environment).clone();
    environment.machine.cpu = Some(hostile.to_owned());
    environment.machine.kernel = Some(hostile.to_owned());
    let environment = Arc::new(environment);
    for (index, sample) in file.samples.iter_mut().enumerate() {
        sample.environment = Arc::clone(&environment);
        sample.measured.congestion = Some(hostile.to_owned());
        if index % 2 == 0 {
            sample.measured.status = rust_tun_perf::sample::Status::Panicked;
            sample.measured.detail = Some(hostile.repeat(200));
        }
    }
    file.heads.clear();
    let files = [file, read("laptop.jsonl")];
    let series = Series::of(&files);
    for format in [Format::Html, Format::Svg] {
        let text = written(&series, format);
        for markup in ["<script", "</title></svg>", "<img", "\u{1b}", "\u{7f}"] {
            assert!(!text.contains(markup), "{format:?} has {markup:?}");
        }
    }
    let markdown = written(&series, Format::Markdown);
    assert!(!markdown.replace("\\<", "").contains('<'), "no markup");
    assert!(!markdown.contains("\n# ") && !markdown.contains('\u{1b}'), "no line begins with text of the file");
    let rows = markdown.lines().filter(|line| line.starts_with('|'));
    assert!(rows.clone().count() > 50 && rows.clone().all(|row| row.ends_with('|')), "no cell is cut");
}

#[test]
fn reports_of_few_and_of_many_samples() {
    let one = |change: fn(&mut SampleFile)| {
        let mut file = read("laptop.jsonl");
        change(&mut file);
        let series = Series::of(&[file]);
        for format in [Format::Svg, Format::Markdown, Format::Csv] {
            assert!(!written(&series, format).is_empty());
        }
        written(&series, Format::Html)
    };
    let single = one(|file| file.samples.truncate(1));
    assert!(!single.contains("class=\"ladder\""));
    let none = one(|file| file.samples.retain(|sample| !sample.is_ok()));
    assert!(none.contains("Failures:") && !none.contains("<circle"), "{none}");
    let baselines = one(|file| file.samples.retain(|sample| !is_path(&sample.cell)));
    assert!(baselines.contains("loopback"));
    let many = one(|file| {
        let samples = file.samples.clone();
        for mtu in [9000, 65_535] {
            for (parallel, ipv6) in [(1, true), (4, true)] {
                let parallel = NonZeroU16::new(parallel).unwrap();
                file.samples.extend(samples.iter().cloned().map(|mut sample| {
                    let cell = sample.cell;
                    sample.cell = Cell { mtu: Some(mtu), parallel, ipv6, ..cell };
                    sample
                }));
            }
        }
    });
    assert!(many.contains("MTU 65535, 4 streams, IPv6"), "a title names the difference between the groups");
}

#[test]
fn series_have_unique_names() {
    let mut mixed = read("laptop.jsonl");
    mixed.samples.extend(read("server.jsonl").samples);
    let labels = |files: &[SampleFile]| Series::of(files).into_iter().map(|one| one.label).collect::<Vec<_>>();
    assert_eq!(labels(&both()), ["laptop", "server"]);
    assert_eq!(labels(&[mixed]), ["laptop (1)", "laptop (2)"], "two machines in a file are two series");
    assert_eq!(labels(&[read("laptop.jsonl"), read("laptop.jsonl")]), ["laptop (1)", "laptop (2)"]);
}

#[test]
fn a_table_for_a_terminal() {
    let table = |columns| {
        let mut out = Vec::new();
        report::outcome(&two()[0].samples, columns, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    insta::assert_snapshot!("table", table(None));
    let narrow = table(Some(80));
    insta::assert_snapshot!("table_of_80_columns", narrow);
    let table = narrow.split_once("\n\n").unwrap().0;
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{narrow}");
}

#[test]
fn runs_of_another_program_are_a_series_of_their_own() {
    let mut file = read("server.jsonl");
    let mut others = file.samples.clone();
    for sample in &mut others {
        sample.measured.against = true;
    }
    file.samples.extend(others);
    let series = Series::of(std::slice::from_ref(&file));
    assert_eq!(
        series.iter().map(|one| one.label.as_str()).collect::<Vec<_>>(),
        ["server, new build", "server, old build"]
    );
    assert_eq!(series.iter().map(|one| one.head.is_some()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(series[0].samples.len(), series[1].samples.len());
    let mut out = Vec::new();
    report::outcome(&file.samples, None, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap().matches("\nold build:\n").count(), 1);
}

#[test]
fn out_writes_a_whole_file_or_leaves_the_old_one() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    let _absent = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let laptop = data("laptop.jsonl");
    let (laptop, out) = (laptop.to_str().unwrap(), folder.join("laptop.csv"));
    let (result, printed) = command(&[laptop, "--format", "csv", "--out", out.to_str().unwrap()]);
    result.unwrap();
    assert_eq!(printed, "");
    let (result, printed) = command(&[laptop, "--format", "csv"]);
    result.unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), printed);

    let (result, _) = command(&["nothing.jsonl", "--format", "csv", "--out", out.to_str().unwrap()]);
    assert_eq!(result.unwrap_err().exit_code(), 2);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), printed, "the old page is still there");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "and nothing beside it");

    let nowhere = folder.join("nowhere").join("page.html");
    let error = command(&[laptop, "--format", "html", "--out", nowhere.to_str().unwrap()]).0.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    let text = error.to_string();
    assert!(
        text.starts_with("write ") && text.contains("page.html") && text.ends_with("choose another path"),
        "{text}"
    );
}
