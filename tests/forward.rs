//! Forwarders between two TUN devices, in namespaces of their own.
//!
//! They need `/dev/net/tun`, and root or user namespaces. Some also need go or iperf3. A test that cannot run prints
//! SKIP with the reason.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::refusal;
use crate::machine::{missing_program, no_device, no_root};
use crate::pairs::{Row, covering, product};
use crate::processes::{PROGRAM, assert_said, folder, printed, stderr, stdout, write_script};

/// The rows of the table, by their options. Every kind of loop and of hand-off runs over both IP versions.
const RUST_ROWS: [&str; 13] = [
    "--io async --offload off",
    "--io async --offload off --hop channel --ipv6",
    "--io framed --offload off --hop channel --ipv6",
    "--io async --ipv6",
    "--io async --hop channel",
    "--io async --hop pool",
    "--io framed --hop channel",
    "--offload off --ipv6",
    "--offload off --hop channel",
    "",
    "--hop channel --ipv6",
    "--workers 2 --ipv6",
    "--offload whole --ipv6",
];
const GO_ROWS: [&str; 5] = [
    "--forwarder go --offload off",
    "--forwarder go --offload off --hop channel --ipv6",
    "--forwarder go --ipv6",
    "--forwarder go --hop channel",
    "--forwarder go --hop pool --ipv6",
];

/// Ends a test that would wait for ever.
const DEADLINE: Duration = Duration::from_mins(1);

/// Returns the program's error if the forwarder in Go cannot run here.
fn no_go() -> Option<String> {
    let probe = run("--forwarder go --time 0.05 --warmup 0");
    (probe.status.code() == Some(3)).then(|| stderr(&probe))
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("forward").args(arguments.split_whitespace());
    // Otherwise the allocator keeps an arena for each processor, and the memory depends on the machine.
    command.env("MALLOC_ARENA_MAX", "1");
    command
}

fn run(arguments: &str) -> Output {
    command(arguments).output().unwrap()
}

/// Returns the sample of a run, which must succeed.
fn sample(arguments: &str) -> Value {
    let sample = printed(&run(&format!("{arguments} --json")));
    assert_eq!((&sample["kind"], &sample["status"]), (&"sample".into(), &"ok".into()), "{arguments}");
    sample
}

/// Makes a program of this name in a folder, as a shell script.
fn program(folder: &Path, name: &str, script: &str) {
    write_script(&folder.join(name), script);
}

#[test]
fn every_row_in_rust_carries_every_byte_both_ways() {
    skip_if!(no_device());
    for arguments in RUST_ROWS {
        // This is the limit for a debug build. Its code alone takes a good part of it.
        let sample = both_ways(arguments, 48_000_000);
        assert!(sample["reordered"].is_u64(), "{arguments}: {}", sample["reordered"]);
    }
}

#[test]
fn every_row_in_go_carries_every_byte_both_ways() {
    skip_if!(no_device().or_else(no_go));
    for arguments in GO_ROWS {
        // The memory depends on Go's garbage collector, which runs late on a busy machine.
        let sample = both_ways(arguments, 64_000_000);
        assert!(sample["reordered"].is_null(), "{arguments}: {}", sample["reordered"]);
    }
}

/// Loads a forwarder in both directions, and checks the sample.
fn both_ways(arguments: &str, most_memory: u64) -> Value {
    let sample = sample(&format!("{arguments} --bidir --time 0.5 --warmup 4MB --verify full"));
    let number = |name: &str| sample[name].as_u64().unwrap();
    let (all, back) = (number("bytes"), number("bytes_back"));
    assert!(back > 0 && all > back, "{arguments}: {all} bytes, {back} of them back");
    assert_eq!(sample["verified"], "full");
    assert!(sample["cpu"]["subject_seconds"].as_f64().unwrap() > 0.0, "{arguments}");
    let memory = number("peak_rss_bytes");
    assert!((1 << 20..most_memory).contains(&memory), "{arguments}: {memory} bytes");
    let packets = &sample["packets"];
    assert!(packets["rx_bytes"].as_u64().unwrap() > all && packets["tx_bytes"].as_u64().unwrap() > all);
    sample
}

#[test]
fn every_combination_carries_or_is_refused_by_its_option() {
    let ways = product([
        &["--io sync", "--io async", "--io framed", "--io uring"],
        &["--offload off", "--offload on", "--offload whole"],
        &["--hop direct", "--hop channel", "--hop pool"],
        &["", "--workers 2", "--thread 1"],
    ]);
    let is_allowed = |way: &Row<4>| {
        let arguments = format!("forward {}", way.join(" "));
        refusal(&arguments.split_whitespace().collect::<Vec<_>>()).is_none()
    };
    let (allowed, refused): (Vec<_>, Vec<_>) = ways.into_iter().partition(is_allowed);
    let refused: Vec<_> = refused.iter().map(|way| way.join(" ")).collect();
    insta::assert_snapshot!(refused.join("\n"));
    skip_if!(no_device());
    for way in covering(&allowed) {
        let arguments = way.join(" ");
        let output = run(&format!("{arguments} --time 0.1 --warmup 1MB --verify full"));
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", stderr(&output));
    }
}

#[test]
fn super_packets_pass_through_with_offload() {
    skip_if!(no_device());
    let size = |arguments: &str| {
        let sample = sample(&format!("{arguments} --time 0.3 --warmup 1MB"));
        let packets = &sample["packets"];
        let each = |way: &str| packets[format!("{way}_bytes")].as_f64().unwrap() / packets[way].as_f64().unwrap();
        (each("rx"), each("tx"))
    };
    for arguments in ["--offload whole", "--offload whole --ipv6", "--offload on"] {
        let (read, written) = size(arguments);
        assert!(read > 10_000.0 && written > 10_000.0, "{arguments}: {read} bytes in, {written} out");
    }
    let (read, written) = size("--offload off");
    assert!(read <= 1500.0 && (read - written).abs() < 50.0, "{read} bytes in, {written} out");
}

#[test]
fn iperf3_generates_the_load() {
    skip_if!(no_device().or_else(|| missing_program(&["iperf3"])));
    for arguments in ["", "--reverse", "--bidir --parallel 2", "--offload whole --ipv6 --congestion reno"] {
        let sample = sample(&format!("--generator iperf3 {arguments} --time 1"));
        assert_eq!(sample["generator"], "iperf3");
        assert_eq!(sample["congestion"], if arguments.contains("reno") { "reno" } else { "cubic" });
        assert!(sample["bytes"].as_u64().unwrap() > 1_000_000, "{arguments}");
        let seconds = sample["elapsed_ns"].as_u64().unwrap() as f64 / 1e9;
        // Fewer than ten seconds, which are iperf3's default. Its server takes a moment to begin and to end.
        assert!((0.5..8.0).contains(&seconds), "{arguments}: {seconds} s");
        assert!(sample["retransmits"].is_u64(), "{arguments}");
        assert_eq!(sample["bytes_back"].is_u64(), arguments.contains("bidir"), "{arguments}");
        assert!(!sample["intervals"].as_array().unwrap().is_empty());
    }
}

#[test]
fn a_missing_or_failing_iperf3_is_reported_in_its_words() {
    skip_if!(no_device());
    let folder = folder("forward-iperf3");
    let with = |script: Option<&str>| {
        if let Some(script) = script {
            program(&folder, "iperf3", script);
        }
        command("--generator iperf3 --time 1").env("PATH", &folder).output().unwrap()
    };
    assert_said(&with(None), 3, &["start iperf3", "install it"]);
    assert_said(&with(Some("echo 'no such interface' >&2; exit 1")), 1, &["no such interface"]);
    let server = "case $1 in --server) echo listening; exec /bin/sleep 60;; esac";
    let refused = with(Some(&format!("{server}; echo '{{\"error\": \"the server is busy\"}}'; exit 1")));
    assert_said(&refused, 1, &["iperf3: the server is busy"]);
    let crashed = with(Some(&format!("{server}; kill -SEGV $$")));
    assert_said(&crashed, 1, &["the client of iperf3 died of SIGSEGV"]);
}

#[test]
fn a_missing_go_is_reported_with_the_remedy() {
    skip_if!(no_device());
    let folder = folder("forward-no-go");
    let output =
        command("--forwarder go --time 0.1").env("PATH", &folder).env("XDG_CACHE_HOME", &folder).output().unwrap();
    assert_said(&output, 3, &["--forwarder rust"]);
    let output = command("--forwarder go --time 0.1").env("TMPDIR", "/no/such").output().unwrap();
    assert_said(&output, 3, &["/no/such: ", "set TMPDIR"]);
    // In a table the row is unavailable, and the other rows are run.
    let table = command("--row 10,15 --runs 1 --time 0.1").env("PATH", &folder).env("XDG_CACHE_HOME", &folder).output();
    let table = table.unwrap();
    assert!(
        stdout(&table).contains("unavailable") && stdout(&table).contains("--forwarder rust"),
        "{}",
        stdout(&table)
    );
    assert_eq!(table.status.code(), Some(0), "a row that is unavailable has not failed: {}", stderr(&table));
}

/// A long run with a forwarder that carries packets. `leftovers` interrupts and kills one.
struct Lasting {
    main: Child,
    forwarder: u32,
}

impl Lasting {
    fn start() -> Self {
        let mut main = command("--time 50").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < DEADLINE, "no forwarder starts");
            assert!(main.try_wait().unwrap().is_none(), "the run has ended");
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", main.id())).unwrap_or_default();
            let child = children.split_whitespace().next().and_then(|child| child.parse::<u32>().ok());
            // It uses CPU time once it carries packets.
            if let Some(forwarder) = child.filter(|child| cpu_ticks(*child) > 10) {
                return Self { main, forwarder };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// User and system time of a process so far, in hundredths of a second.
fn cpu_ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[test]
fn a_forwarder_that_dies_is_reported_at_once() {
    skip_if!(no_device());
    let run = Lasting::start();
    assert!(Command::new("kill").args(["-ABRT", &run.forwarder.to_string()]).status().unwrap().success());
    let output = run.main.wait_with_output().unwrap();
    assert_said(&output, 1, &["panicked", "SIGABRT"]);
}

#[test]
fn a_lost_device_ends_the_run_and_is_named() {
    skip_if!(no_root().or_else(|| missing_program(&["nsenter", "ip"])));
    let run = Lasting::start();
    let network = format!("--net=/proc/{}/ns/net", run.forwarder);
    let deleted = Command::new("nsenter").args([&network, "ip", "link", "del", "tun11"]).status().unwrap();
    assert!(deleted.success());
    let output = run.main.wait_with_output().unwrap();
    assert_said(&output, 1, &["device-lost", "tun11"]);
}

#[test]
fn a_table_is_stored_continued_and_reported() {
    skip_if!(no_device());
    let folder = folder("forward-table");
    let file = folder.join("samples.jsonl");
    let file = file.to_str().unwrap();
    let arguments = format!("--row 8,10,18 --time 0.2 --warmup 1MB --out {file}");
    let first = run(&format!("{arguments} --runs 1"));
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let again = run(&format!("{arguments} --runs 2"));
    assert!(stderr(&again).contains("6 runs, 3 of them from before"), "{}", stderr(&again));
    let rows: Vec<_> = stdout(&again).lines().filter(|line| line.starts_with('|')).map(ToOwned::to_owned).collect();
    assert_eq!(rows.len(), 5, "{rows:?}");
    for (format, begin) in
        [("svg", "<svg"), ("markdown", "### Overview"), ("csv", "series,"), ("html", "<!DOCTYPE html>")]
    {
        let report = Command::new(PROGRAM).args(["report", file, "--format", format]).output().unwrap();
        assert!(stdout(&report).trim_start().starts_with(begin), "{format}: {}", stderr(&report));
    }
    // Two runs are too few for a verdict, and the program says so.
    let compared = Command::new(PROGRAM).args(["compare", file, file]).output().unwrap();
    assert_eq!(compared.status.code(), Some(2), "{}", stderr(&compared));
    assert!(stdout(&compared).contains("offload whole"), "{}", stdout(&compared));
}
