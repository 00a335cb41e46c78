//! Fuzz target: lines of files of samples, as other programs or hands may have changed them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fuzz target fails by panic")]

use std::path::Path;
use std::sync::LazyLock;

use clap::ValueEnum;
use rust_tun_perf::report::{self, Format, Series};
use rust_tun_perf::sample::{Head, SampleFile, line_of_its_own, parse_line, score_line};
use serde_json::{Value, json};

use super::input::{self, Input};
use super::json::change;

/// Lines with every kind of field.
static LINES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = if root.ends_with("fuzz") { root.parent().unwrap() } else { root };
    let files =
        ["tests/data/forward.jsonl", "tests/data/laptop.jsonl", "docs/data/networks.jsonl", "docs/data/requests.jsonl"];
    let samples = files.iter().flat_map(|file| SampleFile::read(&root.join(file)).unwrap().samples);
    samples.map(|sample| serde_json::from_str(&line_of_its_own(&sample)).unwrap()).collect()
});

/// A line with some fields changed is refused, or it says the same when it is written and read again, and every format can
/// report it.
pub(crate) fn read(bytes: &[u8]) {
    if let Some(text) = input::text(bytes) {
        return file(text);
    }
    let mut input = Input::new(bytes);
    let mut samples = Vec::new();
    for _ in 0..2 {
        let mut line = LINES[usize::from(input.word()) % LINES.len()].clone();
        for _ in 0..input.byte() % 4 {
            change(&mut line, &mut input);
        }
        if input.byte() & 3 != 0 {
            agree(&mut line);
        }
        let mut text = line.to_string().into_bytes();
        if input.byte().is_multiple_of(8) {
            let at = usize::from(input.word()) % text.len();
            text[at] = input.byte();
        }
        let Ok(text) = str::from_utf8(&text) else { continue };
        let Ok(sample) = parse_line(text) else { continue };
        assert_eq!(parse_line(&line_of_its_own(&sample)).as_ref(), Ok(&sample));
        samples.push(sample);
    }
    if samples.is_empty() {
        return;
    }
    report::outcome(&samples, Some(80), &mut Vec::new()).unwrap();
    let file = SampleFile {
        path: "samples.jsonl".into(),
        samples,
        heads: Vec::new(),
        scores: Vec::new(),
        manners: Vec::new(),
    };
    let series = Series::of(&[file]);
    let format = Format::value_variants()[usize::from(input.byte()) % Format::value_variants().len()];
    report::report(&series, format, &mut Vec::new()).unwrap();
}

/// A whole file is refused, or says the same when its lines are written and read again.
fn file(text: &str) {
    let path = Path::new("samples.jsonl");
    let Ok(file) = SampleFile::parse(path, text) else { return };
    let heads = file.heads.iter().map(Head::line);
    let lines = heads.chain(file.samples.iter().map(line_of_its_own)).chain(file.scores.iter().map(score_line));
    let again: String = lines.map(|line| line + "\n").collect();
    let again = SampleFile::parse(path, &again).unwrap();
    assert_eq!((&again.heads, &again.samples, &again.scores), (&file.heads, &file.samples, &file.scores));
    for format in Format::value_variants() {
        if file.samples.is_empty() {
            report::scorecard(std::slice::from_ref(&file), *format, &mut Vec::new()).unwrap();
        } else {
            report::report(&Series::of(std::slice::from_ref(&file)), *format, &mut Vec::new()).unwrap();
        }
    }
}

/// Has the figure agree with the bytes and the time, without which the line is refused at once.
fn agree(line: &mut Value) {
    if let (Some(bytes), Some(elapsed)) = (line["bytes"].as_u64(), line["elapsed_ns"].as_u64()) {
        let gbps = if elapsed == 0 { 0.0 } else { bytes as f64 * 8.0 / elapsed as f64 };
        line["gbps"] = json!((gbps * 1e6).round() / 1e6);
    }
}
