//! Measures the cost of checksums, by wall time:
//!
//!     cargo bench --bench wire
//!     cargo bench --bench wire -- --output-format bencher
//!     cargo bench --bench wire -- 'wire::'
//!
//! - `wire::…` are six benchmarks that emit and parse packets with smoltcp, with and without checksums (`packets.rs`).
//! - `checksum/…` compare implementations of the checksum, over bytes that are in the cache and bytes that are not
//!   (`sums.rs`, `cold.rs`).
//! - `path/…` are whole paths through a stack, with and without checksums (`path.rs`).
//!
//! At the end a table goes to standard output, in seconds per gigabyte: first the checksums, then the whole paths. The
//! format `bencher` has no table, because each of its lines is one benchmark. criterion's own estimates, with their
//! intervals, are in `target/criterion/BENCHMARK/new/estimates.json`.

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

/// Set in the child process. Its parent passes on its lines.
const PASSED_ON: &str = "WIRE_PASSED_ON";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let bencher =
        has("--output-format=bencher") || arguments.windows(2).any(|pair| pair == ["--output-format", "bencher"]);
    if bencher && env::var_os(PASSED_ON).is_none() {
        return pass_on(&arguments[1..]).unwrap();
    }
    // `cargo test` only checks that everything runs.
    let measure = has("--bench") && !has("--test");
    let table = run(measure);
    if !bencher {
        print!("{table}");
    }
    ExitCode::SUCCESS
}

/// Runs more than a hundred benchmarks within three minutes.
fn run(measure: bool) -> Table {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(500))
        // More resamples would take longer, and change the intervals by almost nothing.
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

/// Runs this program again, and passes on its lines without the empty ones. criterion prints those between benchmarks,
/// but the format does not have them.
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
