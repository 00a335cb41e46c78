//! What a checksum costs, by the wall clock:
//!
//!     cargo bench --bench wire
//!     cargo bench --bench wire -- --output-format bencher
//!     cargo bench --bench wire -- 'wire::'
//!
//! - `wire::…` are six benchmarks of smoltcp's packets, made and read with their checksums and without
//!   (`packets.rs`).
//! - `checksum/…` are implementations of the checksum side by side, over bytes that are in the cache and over
//!   bytes that are not (`sums.rs`, `cold.rs`).
//! - `path/…` are whole paths through a stack, with checksums and without (`path.rs`).
//!
//! At the end comes a table of what was measured, in seconds for each gigabyte: the sums, and the whole paths
//! below them. It goes to the standard output, but not in the format `bencher`, in which each line there is
//! one benchmark. criterion's own estimates, with their intervals, lie in
//! `target/criterion/BENCHMARK/new/estimates.json`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may panic")]

#[path = "../../netstacks/benches/cell/mod.rs"]
mod cell;
mod cold;
#[cfg(feature = "smoltcp")]
mod packets;
mod path;
mod sums;
mod table;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, io};

use criterion::Criterion;

use self::table::Table;

/// Set for the process whose lines another one passes on.
const PASSED_ON: &str = "WIRE_PASSED_ON";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let bencher =
        has("--output-format=bencher") || arguments.windows(2).any(|pair| pair == ["--output-format", "bencher"]);
    if bencher && env::var_os(PASSED_ON).is_none() {
        return pass_on(&arguments[1..]).unwrap();
    }
    // `cargo test` only tries whether everything runs.
    let measure = has("--bench") && !has("--test");
    let table = run(measure);
    if !bencher {
        print!("{table}");
    }
    ExitCode::SUCCESS
}

/// More than a hundred benchmarks within three minutes.
fn run(measure: bool) -> Table {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(500))
        // With more of them an interval changes by nothing that could be seen, and they take as long.
        .nresamples(5_000)
        .without_plots()
        .configure_from_args();
    let mut table = Table::default();
    #[cfg(feature = "smoltcp")]
    packets::bench(&mut criterion);
    sums::bench(&mut criterion, &mut table);
    path::bench(&mut criterion, &mut table, measure);
    criterion.final_summary();
    table
}

/// Runs this program once more, and passes on what it prints but for the empty lines, which criterion puts
/// between benchmarks and which are none of the format's.
fn pass_on(arguments: &[String]) -> io::Result<ExitCode> {
    let mut child =
        Command::new(env::current_exe()?).args(arguments).env(PASSED_ON, "1").stdout(Stdio::piped()).spawn()?;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line?;
        if !line.is_empty() {
            println!("{line}");
        }
    }
    Ok(if child.wait()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
