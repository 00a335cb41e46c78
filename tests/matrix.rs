//! A matrix over a real TUN device: broken off and continued. Needs what the program needs; a test that
//! cannot run says SKIP and why.

#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![cfg(all(target_os = "linux", feature = "smoltcp"))]

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rust_tun_perf::sample::{Cell, SampleFile};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rust-tun-perf");

/// Two cells.
const MATRIX: &str = "matrix --netstack smoltcp --mode reader --offload off --bytes 20MB --warmup 1MB";

/// A program that waits for ever gets no further than this.
const DEADLINE: Duration = Duration::from_mins(1);

/// Why no run is possible here; the line goes past the test harness, which would swallow it.
fn skip(test: &str) -> bool {
    let run = "--mode reader --netstack smoltcp --bytes 1MB --warmup 0";
    let probe = Command::new(PROGRAM).args(run.split(' ')).output().unwrap();
    if probe.status.code() == Some(3) {
        let reason = String::from_utf8_lossy(&probe.stderr).into_owned();
        let _closed = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
        return true;
    }
    false
}

/// An empty folder that is this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn matrix(out: &Path, runs: u32) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(MATRIX.split(' ')).arg("--runs").arg(runs.to_string()).arg("--out").arg(out);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a matrix of more rounds than it will come to, and waits until its file has so many samples.
fn start(out: &Path, samples: usize, stderr: Stdio) -> Child {
    let child = matrix(out, 1000).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let begun = Instant::now();
    while fs::read_to_string(out).unwrap_or_default().lines().count() < 1 + samples {
        assert!(begun.elapsed() < DEADLINE, "no samples come");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// The file has each cell once in each of three rounds, and each sample has a figure.
fn assert_complete(out: &Path) {
    let file = SampleFile::read(out).unwrap();
    assert_eq!(file.heads.len(), 1);
    assert!(file.samples.iter().all(|sample| sample.is_ok() && sample.gbps() > 0.0));
    let mut rounds: HashMap<&Cell, Vec<u32>> = HashMap::new();
    for sample in &file.samples {
        rounds.entry(&sample.cell).or_default().push(sample.facts.round.unwrap());
    }
    // One that was broken off may have come further.
    for rounds in rounds.values_mut() {
        rounds.retain(|round| *round <= 3);
    }
    assert_eq!(rounds.len(), 2);
    assert!(rounds.values().all(|rounds| *rounds == [1, 2, 3]), "{rounds:?}");
}

fn assert_finished(output: &Output, out: &Path) {
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", text(&output.stderr));
    // Not the warnings, which name cells too where the machine is busy.
    let is_row = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.ends_with("-thread"));
    assert_eq!(stdout.lines().filter(is_row).count(), 2, "a row for each cell\n{stdout}");
    assert_complete(out);
}

#[test]
fn a_matrix_that_was_interrupted_says_so_and_goes_on() {
    if skip("a_matrix_that_was_interrupted_says_so_and_goes_on") {
        return;
    }
    let out = folder("interrupted").join("samples.jsonl");
    let child = start(&out, 2, Stdio::piped());
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("samples.jsonl") && stderr.contains("same command"), "{stderr}");

    let before = fs::read_to_string(&out).unwrap();
    assert_finished(&matrix(&out, 3).output().unwrap(), &out);
    let after = fs::read_to_string(&out).unwrap();
    assert!(after.starts_with(&before), "what was measured before is untouched");

    // A file that is complete has its table, and no run.
    let again = matrix(&out, 3).output().unwrap();
    assert_finished(&again, &out);
    assert_eq!(fs::read_to_string(&out).unwrap(), after);
}

#[test]
fn a_matrix_that_was_killed_goes_on_behind_the_last_whole_line() {
    if skip("a_matrix_that_was_killed_goes_on_behind_the_last_whole_line") {
        return;
    }
    let out = folder("killed").join("samples.jsonl");
    let mut child = start(&out, 1, Stdio::null());
    child.kill().unwrap();
    child.wait().unwrap();
    // What a power cut leaves, and a kill between two pages of what is written.
    let mut whole = fs::read_to_string(&out).unwrap();
    whole.truncate(whole.rfind('\n').unwrap() + 1);
    OpenOptions::new().append(true).open(&out).unwrap().write_all(b"{\"schema\":1,\"kind\":\"thro").unwrap();
    assert_finished(&matrix(&out, 3).output().unwrap(), &out);
    assert!(fs::read_to_string(&out).unwrap().starts_with(&whole));
}

#[test]
fn more_rounds_can_be_added_and_other_cells_cannot() {
    if skip("more_rounds_can_be_added_and_other_cells_cannot") {
        return;
    }
    let out = folder("more").join("samples.jsonl");
    let run = |arguments: &str| {
        let shared = "matrix -n smoltcp -m reader --runtime current-thread --bytes 1MB --warmup 0";
        Command::new(PROGRAM)
            .args(shared.split(' '))
            .args(arguments.split(' '))
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap()
    };
    let first = run("--offload off --runs 1 --seed 7");
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let second = run("--offload off --runs 2");
    assert_eq!(second.status.code(), Some(0), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("seed is 7"), "{}", text(&second.stderr));
    assert_eq!(SampleFile::read(&out).unwrap().samples.len(), 2);
    // Those of rounds that are not asked for are kept, and not counted.
    let fewer = run("--offload off --runs 1");
    assert!(text(&fewer.stderr).starts_with("1 runs, 1 of them from before;"), "{}", text(&fewer.stderr));
    assert_eq!(SampleFile::read(&out).unwrap().samples.len(), 2);
    for (arguments, reason) in [
        ("--offload off --runs 2 --mtu 9000", "--mtu=9000"),
        ("--offload off,on --runs 2", "fewer cells"),
        ("--offload off --runs 2 --seed 8", "seed 7"),
    ] {
        let before = fs::read_to_string(&out).unwrap();
        let refused = run(arguments);
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!(fs::read_to_string(&out).unwrap(), before);
    }
}

#[test]
fn a_full_disk_leaves_what_was_measured() {
    if skip("a_full_disk_leaves_what_was_measured") {
        return;
    }
    let folder = folder("full");
    // A disk of 8 KiB in a mount namespace of its own; the file is copied out before it goes.
    let script = "mount -t tmpfs -o size=8k none \"$DIR\" || exit 77
        cd \"$DIR\"
        code=0
        \"$PROGRAM\" matrix -n smoltcp -m reader --runtime current-thread --offload off --runs 40 \
            --bytes 1MB --warmup 0 --out samples.jsonl >&2 || code=$?
        cat samples.jsonl
        exit $code";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .env("DIR", &folder)
        .env("PROGRAM", PROGRAM)
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    if output.status.code() == Some(77) || stderr.contains("unshare") {
        let _closed = writeln!(std::io::stderr(), "SKIP a_full_disk_leaves_what_was_measured: {stderr}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("write samples.jsonl") && stderr.contains("intact"), "{stderr}");
    let copy = folder.join("copy.jsonl");
    fs::write(&copy, &output.stdout).unwrap();
    assert!(!SampleFile::read(&copy).unwrap().samples.is_empty());
}
