//! The figures in the formats of programs that track them from commit to commit.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::model::Document;

/// Writes Bencher Metric Format: for each benchmark its measures, each with a value and, if it is known, an
/// interval. See <https://bencher.dev/docs/reference/bencher-metric-format/>.
pub(super) fn bmf(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let benchmarks = document.benchmarks.iter().map(|benchmark| {
        let measures = benchmark.measures.iter().map(|measure| {
            let mut figures = Map::from_iter([("value".to_owned(), json!(measure.value))]);
            if let Some([low, high]) = measure.interval {
                figures.extend([("lower_value".to_owned(), json!(low)), ("upper_value".to_owned(), json!(high))]);
            }
            (measure.name.to_owned(), Value::Object(figures))
        });
        (benchmark.name.clone(), Value::Object(measures.collect()))
    });
    writeln!(out, "{:#}", Value::Object(benchmarks.collect()))
}

/// Writes the list that github-action-benchmark takes as `customBiggerIsBetter`. Its files have one direction, so
/// measures for which less is better are left out. See <https://github.com/benchmark-action/github-action-benchmark>.
pub(super) fn gha(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let figures = document.benchmarks.iter().flat_map(|benchmark| {
        benchmark.measures.iter().filter(|measure| measure.more_is_better == Some(true)).map(|measure| {
            let name = format!("{}: {}", benchmark.name, measure.name);
            let mut figure = Map::from_iter([
                ("name".to_owned(), json!(name)),
                ("unit".to_owned(), json!(measure.unit)),
                ("value".to_owned(), json!(measure.value)),
            ]);
            let range = measure.interval.map(|[low, high]| json!(format!("{low} to {high}")));
            figure.extend(range.map(|range| ("range".to_owned(), range)));
            Value::Object(figure)
        })
    });
    writeln!(out, "{:#}", Value::Array(figures.collect()))
}
