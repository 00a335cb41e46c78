//! The JSON schema of the lines in sample files.

use std::fs;
use std::path::{Path, PathBuf};

use rust_tun_perf::sample;
use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns every committed file of samples.
fn files() -> Vec<PathBuf> {
    let folders = ["docs/data", "tests/data"].map(|folder| Path::new(ROOT).join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect()
}

#[test]
fn every_committed_line_matches_the_schema() {
    let schema = serde_json::from_str(sample::schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let files = files();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let mut line: Value = serde_json::from_str(line).unwrap();
            assert!(validator.is_valid(&line), "{}, line {}: {line}", file.display(), number + 1);
            // Each kind of line has one of these fields. A wrong type must be rejected.
            for field in ["plan", "bytes", "netstack"] {
                if line.get(field).is_some_and(|value| !value.is_null()) {
                    line[field] = Value::from(-1);
                    assert!(!validator.is_valid(&line), "{}, line {}: {field}", file.display(), number + 1);
                }
            }
        }
    }
}
