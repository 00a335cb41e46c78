//! The examples of the README, word for word.

use std::fs;
use std::process::Command;

use clap::Parser;
use rust_tun_perf::cli::Cli;

use crate::machine::no_device;
use crate::processes::{PROGRAM, folder, run, stderr, stdout};

const README: &str = include_str!("../README.md");

/// The examples that are parsed, and not run: each with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("matrix --preset stacks --out stacks.jsonl", "it takes an hour"),
    ("matrix --preset cores", "it takes minutes"),
    ("matrix --preset programs", "it takes minutes"),
    (
        "-m upload -n lwip --protocol udp",
        "a search may find no rate on a busy machine; tests/workloads.rs has a limited one",
    ),
    ("conform -n smoltcp", "it takes minutes; the test of the scorecard runs its cases"),
    ("conform -n smoltcp --issue DIR", "it takes minutes; tests/conform.rs has one of two cases"),
    ("matrix --against OLD-PROGRAM", "it takes minutes; tests/compare.rs has a shorter one"),
    ("forward --all", "it takes minutes, and needs Go; the gate runs six rows"),
];

/// Returns the command of the first block, and those of the table of questions. In the table, `-m` and further options
/// change the command before them, or that of the block.
fn examples() -> Vec<String> {
    let block = README.lines().find_map(|line| line.strip_prefix("    cargo run --release -- ")).unwrap();
    let mut examples = vec![block.to_owned()];
    let rows = README.lines().skip_while(|line| !line.starts_with("| question")).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let mut first = block.to_owned();
        for words in row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2) {
            if words.starts_with("cargo ") {
                continue; // A step of the gate.
            }
            let example = match words.split_once(' ') {
                Some(("-m", mode)) if !mode.contains(' ') => {
                    format!("{words} {}", first.splitn(3, ' ').nth(2).unwrap())
                }
                _ if words.starts_with("--") => format!("{first} {words}"),
                _ => {
                    words.clone_into(&mut first);
                    words.to_owned()
                }
            };
            examples.push(example);
        }
    }
    examples
}

#[test]
fn the_examples_succeed_word_for_word() {
    skip_if!(no_device());
    let examples = examples();
    assert!(examples.len() > 15 && examples.iter().any(|one| one == "-m crr -n lwip --parallel 1000"), "{examples:?}");
    assert!(NOT_RUN.iter().all(|(one, _)| examples.iter().any(|words| words == one)), "{examples:?}");
    let folder = folder("readme");
    fs::copy("docs/data/stacks.jsonl", folder.join("stacks.jsonl")).unwrap();
    let profile = stdout(&run("programs show smoltcp")).replacen("smoltcp", "my", 1);
    fs::write(folder.join("my.toml"), profile.replace("\"rust-tun-perf\"", &format!("{PROGRAM:?}"))).unwrap();
    for words in &examples {
        let arguments = words.split_whitespace();
        if NOT_RUN.iter().any(|(one, _)| one == words) {
            let parsed = Cli::try_parse_from(["rust-tun-perf"].into_iter().chain(arguments));
            assert!(parsed.is_ok(), "{words}: {:?}", parsed.err());
        } else {
            let output = Command::new(PROGRAM).args(arguments).current_dir(&folder).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{words}: {}", stderr(&output));
        }
    }
}
