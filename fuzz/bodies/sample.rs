//! Fuzz target: lines of files of samples, as other programs or hands may have changed them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fuzz target fails by panic")]

use std::path::Path;
use std::sync::LazyLock;

use clap::ValueEnum;
use rust_tun_perf::cli::Format;
use rust_tun_perf::report::{self, Series};
use rust_tun_perf::sample::{SampleFile, line_of_its_own, parse_line};
use serde_json::{Value, json};

use super::input::Input;

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
    let file = SampleFile { path: "samples.jsonl".into(), samples, heads: Vec::new(), scores: Vec::new() };
    let series = Series::of(&[file]);
    let format = Format::value_variants()[usize::from(input.byte()) % Format::value_variants().len()];
    report::report(&series, format, &mut Vec::new()).unwrap();
}

/// Replaces a value somewhere in the line.
fn change(line: &mut Value, input: &mut Input<'_>) {
    let mut place = line;
    loop {
        let choice = usize::from(input.byte());
        // A whole object or list may be replaced, too.
        if choice % 16 == 15 {
            break;
        }
        let len = place.as_object().map(serde_json::Map::len).or(place.as_array().map(Vec::len)).unwrap_or(0);
        if len == 0 {
            break;
        }
        place = match place {
            Value::Object(object) => object.values_mut().nth(choice % len).unwrap(),
            Value::Array(array) => &mut array[choice % len],
            _ => break,
        };
    }
    let number = u64::from_be_bytes(std::array::from_fn(|_| input.byte()));
    *place = match input.byte() % 14 {
        0 => Value::Null,
        1 => json!(0),
        2 => json!(-1),
        3 => json!(1e308),
        4 => json!(u64::MAX),
        5 => json!(number),
        6 => json!(number % 1000),
        7 => json!(number as f64 / 1e9),
        8 => json!(""),
        9 => json!("|<b>&\u{202e}\n'"),
        10 => json!([]),
        11 => json!({}),
        12 => json!(number % 2 == 0),
        _ => json!(u32::MAX),
    };
}

/// Has the figure agree with the bytes and the time, without which the line is refused at once.
fn agree(line: &mut Value) {
    if let (Some(bytes), Some(elapsed)) = (line["bytes"].as_u64(), line["elapsed_ns"].as_u64()) {
        let gbps = if elapsed == 0 { 0.0 } else { bytes as f64 * 8.0 / elapsed as f64 };
        line["gbps"] = json!((gbps * 1e6).round() / 1e6);
    }
}
