//! Forwarders between two TUN devices, in namespaces of their own.
//!
//! They need what the program needs: `/dev/net/tun`, and root or user namespaces; some also go or iperf3. A test
//! that cannot run says SKIP and why.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#![cfg(target_os = "linux")]

mod processes;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::processes::{living, write_script};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rust-tun-perf");

/// The rows of the table as the options that mean them.
const ROWS: [&str; 18] = [
    "--io async --offload off",
    "--io async --offload off --hop channel",
    "--io framed --offload off --hop channel",
    "--io async",
    "--io async --hop channel",
    "--io async --hop pool",
    "--io framed --hop channel",
    "--offload off",
    "--offload off --hop channel",
    "",
    "--hop channel",
    "--workers 2",
    "--forwarder go --offload off",
    "--forwarder go --offload off --hop channel",
    "--forwarder go",
    "--forwarder go --hop channel",
    "--forwarder go --hop pool",
    "--offload whole",
];

/// A program that waits for ever gets no further than this.
const DEADLINE: Duration = Duration::from_mins(1);

/// Says that a test is left out, and why, where a run with these arguments lacks something. The line goes past the
/// test harness, which would swallow it.
fn skip(test: &str, arguments: &str) -> bool {
    let brief = if arguments.contains("--time") { "" } else { "--time 0.05 --warmup 0" };
    let probe = run(&format!("{arguments} {brief}"));
    let lacks = probe.status.code() == Some(3);
    if lacks {
        let _closed = writeln!(std::io::stderr(), "SKIP {test}: {}", stderr(&probe));
    }
    lacks
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("forward").args(arguments.split_whitespace());
    // However many processors there are, memory does not grow by an allocator's arena for each.
    command.env("MALLOC_ARENA_MAX", "1");
    command
}

fn run(arguments: &str) -> Output {
    command(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The sample of a run that succeeds.
fn sample(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert_eq!(output.status.code(), Some(0), "{arguments}: {}", stderr(&output));
    let sample: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sample["kind"], &sample["status"]), (&"forward".into(), &"ok".into()), "{arguments}");
    sample
}

/// An empty folder that is this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program of that name in a folder, in the shell's language.
fn program(folder: &Path, name: &str, script: &str) {
    write_script(&folder.join(name), script);
}

#[test]
fn every_row_carries_every_byte_both_ways() {
    if skip("every row both ways", "") {
        return;
    }
    let without_go = skip("the rows in Go", "--forwarder go");
    for arguments in ROWS.into_iter().filter(|row| !(without_go && row.contains("go"))) {
        for version in ["", "--ipv6"] {
            let sample = sample(&format!("{arguments} {version} --bidir --time 1 --warmup 4MB --verify full"));
            let number = |name: &str| sample[name].as_u64().unwrap();
            let (all, back) = (number("bytes"), number("bytes_back"));
            assert!(back > 0 && all > back, "{arguments} {version}: {all} bytes, {back} of them back");
            assert_eq!(sample["verified"], "full");
            assert!(sample["cpu"]["forwarder_seconds"].as_f64().unwrap() > 0.0, "{arguments}");
            let memory = number("peak_rss_bytes");
            // What Go occupies is its collector's affair, which on a busy machine comes late.
            let most = if arguments.contains("go") { 64_000_000 } else { 32_000_000 };
            assert!((1 << 20..most).contains(&memory), "{arguments}: {memory} bytes");
            let packets = &sample["packets"];
            assert!(packets["rx_bytes"].as_u64().unwrap() > all && packets["tx_bytes"].as_u64().unwrap() > all);
            let counts = arguments.contains("go") == sample["reordered"].is_null();
            assert!(counts, "{arguments}: {}", sample["reordered"]);
        }
    }
}

#[test]
fn every_other_way_carries_or_is_refused_by_its_option() {
    if skip("every other way", "") {
        return;
    }
    let mut refused = Vec::new();
    for io in ["sync", "async", "framed"] {
        for offload in ["off", "on", "whole"] {
            for hop in ["direct", "channel", "pool"] {
                for more in ["", "--workers 2", "--thread 1"] {
                    let arguments = format!("--io {io} --offload {offload} --hop {hop} {more}");
                    let output = run(&format!("{arguments} --time 0.1 --warmup 1MB --verify full"));
                    match output.status.code() {
                        Some(0) => {}
                        Some(2) => refused.push(arguments),
                        _ => panic!("{arguments}: {}", stderr(&output)),
                    }
                }
            }
        }
    }
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn payload_goes_the_way_that_it_is_told() {
    if skip("directions", "") {
        return;
    }
    for (arguments, direction, back) in
        [("", "forward", false), ("--reverse", "reverse", false), ("--bidir", "bidir", true)]
    {
        for streams in [1, 4] {
            let sample = sample(&format!("{arguments} --parallel {streams} --time 0.3 --warmup 1MB"));
            assert_eq!(sample["direction"], direction);
            assert_eq!(sample["bytes_back"].is_u64(), back, "{direction}");
            assert_eq!(sample["parallel"], streams);
            assert_eq!(sample["congestion"], "cubic");
            assert!(sample["retransmits"].is_u64(), "{direction}: who sends is asked");
            let intervals = sample["intervals"].as_array().unwrap();
            assert!(intervals.iter().all(|part| part["rss_bytes"].is_u64() && part["cpu_seconds"].is_f64()));
        }
    }
}

#[test]
fn whole_super_packets_cross_where_they_are_to() {
    if skip("sizes of packets", "") {
        return;
    }
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
fn iperf3_makes_the_load_as_it_is_told() {
    if skip("iperf3", "--generator iperf3 --time 1") {
        return;
    }
    for arguments in ["", "--reverse", "--bidir --parallel 2", "--offload whole --ipv6 --congestion reno"] {
        let sample = sample(&format!("--generator iperf3 {arguments} --time 2"));
        assert_eq!(sample["generator"], "iperf3");
        assert_eq!(sample["congestion"], if arguments.contains("reno") { "reno" } else { "cubic" });
        assert!(sample["bytes"].as_u64().unwrap() > 1_000_000, "{arguments}");
        let seconds = sample["elapsed_ns"].as_u64().unwrap() as f64 / 1e9;
        // The default is ten; what iperf3 measures begins and ends when its server comes to it.
        assert!((1.0..8.0).contains(&seconds), "{arguments}: {seconds} s");
        assert!(sample["retransmits"].is_u64(), "{arguments}");
        assert_eq!(sample["bytes_back"].is_u64(), arguments.contains("bidir"), "{arguments}");
        assert!(!sample["intervals"].as_array().unwrap().is_empty());
    }
}

#[test]
fn an_iperf3_that_is_missing_or_fails_is_told_in_its_words() {
    if skip("a false iperf3", "") {
        return;
    }
    let folder = folder("forward-iperf3");
    let with = |script: Option<&str>| {
        if let Some(script) = script {
            program(&folder, "iperf3", script);
        }
        command("--generator iperf3 --time 1").env("PATH", &folder).output().unwrap()
    };
    let missing = with(None);
    assert_eq!(missing.status.code(), Some(3), "{}", stderr(&missing));
    assert!(
        stderr(&missing).contains("start iperf3") && stderr(&missing).contains("install it"),
        "{}",
        stderr(&missing)
    );
    let silent = with(Some("echo 'no such interface' >&2; exit 1"));
    assert_eq!(silent.status.code(), Some(1));
    assert!(stderr(&silent).contains("no such interface"), "{}", stderr(&silent));
    let server = "case $1 in --server) echo listening; exec /bin/sleep 60;; esac";
    let refused = with(Some(&format!("{server}; echo '{{\"error\": \"the server is busy\"}}'; exit 1")));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("iperf3: the server is busy"), "{}", stderr(&refused));
    let crashed = with(Some(&format!("{server}; kill -SEGV $$")));
    assert!(stderr(&crashed).contains("iperf3 ended with signal"), "{}", stderr(&crashed));
}

#[test]
fn a_go_that_is_missing_is_said_with_the_remedy() {
    if skip("no go", "") {
        return;
    }
    let folder = folder("forward-no-go");
    let output =
        command("--forwarder go --time 0.1").env("PATH", &folder).env("XDG_CACHE_HOME", &folder).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("--forwarder rust"), "{}", stderr(&output));
    // In a table the row says it, and the others are run.
    let table = command("--row 10,15 --runs 1 --time 0.1").env("PATH", &folder).env("XDG_CACHE_HOME", &folder).output();
    let table = table.unwrap();
    assert!(
        stdout(&table).contains("unavailable") && stdout(&table).contains("--forwarder rust"),
        "{}",
        stdout(&table)
    );
    assert_eq!(table.status.code(), Some(0), "what was never there has not failed: {}", stderr(&table));
}

/// A run that lasts, once its forwarder carries packets.
struct Lasting {
    main: Child,
    forwarder: u32,
    /// The networks of both, by their inodes.
    networks: [PathBuf; 2],
}

impl Lasting {
    fn start() -> Self {
        let mut main = command("--time 50").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let forwarder = loop {
            assert!(begun.elapsed() < DEADLINE, "no forwarder comes");
            assert!(main.try_wait().unwrap().is_none(), "the run has ended");
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", main.id())).unwrap_or_default();
            let child = children.split_whitespace().next().and_then(|child| child.parse::<u32>().ok());
            // It is busy once it carries.
            if let Some(child) = child.filter(|child| cpu_ticks(*child) > 10) {
                break child;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let tasks = fs::read_dir(format!("/proc/{}/task", main.id())).unwrap();
        let mut networks: Vec<_> =
            tasks.filter_map(|task| fs::read_link(task.unwrap().path().join("ns/net")).ok()).collect();
        networks.sort();
        networks.dedup();
        let networks = networks.try_into().unwrap();
        Self { main, forwarder, networks }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.main.id().to_string()]).status().unwrap().success());
    }

    /// Waits for the end, and sees that nothing is left.
    fn end(self) -> Output {
        let output = self.main.wait_with_output().unwrap();
        let begun = Instant::now();
        while let Some(left) = processes_in(&self.networks) {
            assert!(begun.elapsed() < DEADLINE, "process {left} is still in one of the run's networks");
            std::thread::sleep(Duration::from_millis(10));
        }
        // It leaves its networks before it is dead, for it closes its devices in between.
        while let Some(state) = living(self.forwarder) {
            assert!(begun.elapsed() < DEADLINE, "the forwarder lives: {state}");
            std::thread::sleep(Duration::from_millis(10));
        }
        output
    }
}

/// User and system time of a process so far, in hundredths of a second.
fn cpu_ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// A process with a thread in one of the networks. Where there is none, and no descriptor of them, they are gone with
/// their devices.
fn processes_in(networks: &[PathBuf]) -> Option<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path().join("task")));
    let tasks = processes.filter_map(|tasks| fs::read_dir(tasks).ok()).flatten();
    let mut tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
    let inside = |task: &PathBuf| fs::read_link(task.join("ns/net")).is_ok_and(|network| networks.contains(&network));
    tasks.find(inside).map(|task| task.display().to_string())
}

#[test]
fn an_interrupt_takes_everything_along() {
    if skip("an interrupt", "") {
        return;
    }
    let run = Lasting::start();
    run.signal("-INT");
    let output = run.end();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
}

#[test]
fn a_crash_takes_everything_along() {
    if skip("a crash", "") {
        return;
    }
    let run = Lasting::start();
    run.signal("-KILL");
    assert_eq!(run.end().status.code(), None);
}

#[test]
fn a_forwarder_that_dies_is_told_at_once() {
    if skip("a dead forwarder", "") {
        return;
    }
    let run = Lasting::start();
    assert!(Command::new("kill").args(["-ABRT", &run.forwarder.to_string()]).status().unwrap().success());
    let output = run.end();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("panicked") && stderr(&output).contains("SIGABRT"), "{}", stderr(&output));
}

#[test]
fn a_device_that_is_lost_ends_the_run_with_its_name() {
    if skip("a lost device", "") {
        return;
    }
    let run = Lasting::start();
    let network = format!("--net=/proc/{}/ns/net", run.forwarder);
    let deleted = Command::new("nsenter").args([&network, "ip", "link", "del", "tun11"]).output();
    match deleted {
        Ok(output) if output.status.success() => {}
        other => {
            let _closed = writeln!(std::io::stderr(), "SKIP a lost device: nsenter: {other:?}");
            run.signal("-INT");
            run.end();
            return;
        }
    }
    let output = run.end();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("device-lost") && stderr(&output).contains("tun11"), "{}", stderr(&output));
}

#[test]
fn a_table_is_kept_and_continued_and_reported() {
    if skip("a table", "") {
        return;
    }
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
    // Two runs are too few for a verdict, which is said.
    let compared = Command::new(PROGRAM).args(["compare", file, file]).output().unwrap();
    assert_eq!(compared.status.code(), Some(2), "{}", stderr(&compared));
    assert!(stdout(&compared).contains("offload whole"), "{}", stdout(&compared));
}

#[test]
fn an_ordinary_user_with_a_device_node_needs_no_root() {
    if skip("an ordinary user", "") {
        return;
    }
    let root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !root {
        let _closed = writeln!(std::io::stderr(), "SKIP an ordinary user: all of these tests are run by one");
        return;
    }
    let script = "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200; cd /; \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups \
                  \"$PROGRAM\" forward --bidir --time 0.3 --warmup 1MB --verify full";
    let output =
        Command::new("unshare").args(["-m", "sh", "-eu", "-c", script]).env("PROGRAM", PROGRAM).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().filter(|line| line.contains("Gbps")).count(), 1, "{}", stdout(&output));
}
