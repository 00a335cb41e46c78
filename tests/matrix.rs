//! A matrix over a real TUN device, interrupted and continued. A test that cannot run prints SKIP with the reason.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rust_tun_perf::cell::Cell;
use rust_tun_perf::sample::SampleFile;

use crate::machine::no_device;
use crate::processes::{PROGRAM, folder, stderr, stdout};

/// Two cells.
const MATRIX: &str = "matrix --netstack smoltcp --mode reader --offload off --bytes 4MB --warmup 1MB";

/// Ends a test that would wait for ever.
const DEADLINE: Duration = Duration::from_mins(1);

fn matrix(out: &Path, runs: u32) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(MATRIX.split(' ')).arg("--runs").arg(runs.to_string()).arg("--out").arg(out);
    command
}

/// Starts a matrix of more rounds than it will finish, and waits until its file has this many samples.
fn start(out: &Path, samples: usize, stderr: Stdio) -> Child {
    let child = matrix(out, 1000).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let begun = Instant::now();
    while fs::read_to_string(out).unwrap_or_default().lines().count() < 1 + samples {
        assert!(begun.elapsed() < DEADLINE, "no samples come");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Checks that the file has each cell once in each of three rounds, and that each sample has a figure.
fn assert_complete(out: &Path) {
    let file = SampleFile::read(out).unwrap();
    assert_eq!(file.heads.len(), 1);
    assert!(file.samples.iter().all(|sample| sample.is_ok() && sample.gbps() > 0.0));
    let mut rounds: HashMap<&Cell, Vec<u32>> = HashMap::new();
    for sample in &file.samples {
        rounds.entry(&sample.cell).or_default().push(sample.measured.round.unwrap());
    }
    // A matrix that was interrupted may have finished more rounds.
    for rounds in rounds.values_mut() {
        rounds.retain(|round| *round <= 3);
    }
    assert_eq!(rounds.len(), 2);
    assert!(rounds.values().all(|rounds| *rounds == [1, 2, 3]), "{rounds:?}");
}

fn assert_finished(output: &Output, out: &Path) {
    let stdout = stdout(output);
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", stderr(output));
    // On a busy machine, warnings name cells too.
    let is_row = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.ends_with("-thread"));
    assert_eq!(stdout.lines().filter(is_row).count(), 2, "a row for each cell\n{stdout}");
    assert_complete(out);
}

#[test]
fn an_interrupted_matrix_says_so_and_can_be_continued() {
    skip_if!(no_device());
    let out = folder("matrix-interrupted").join("samples.jsonl");
    let child = start(&out, 2, Stdio::piped());
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("samples.jsonl") && stderr.contains("same command"), "{stderr}");

    let before = fs::read_to_string(&out).unwrap();
    assert_finished(&matrix(&out, 3).output().unwrap(), &out);
    let after = fs::read_to_string(&out).unwrap();
    assert!(after.starts_with(&before), "earlier samples are unchanged");

    // A complete file gives a table without another run.
    let again = matrix(&out, 3).output().unwrap();
    assert_finished(&again, &out);
    assert_eq!(fs::read_to_string(&out).unwrap(), after);
}

#[test]
fn rounds_can_be_added_but_cells_cannot() {
    skip_if!(no_device());
    let out = folder("matrix-more").join("samples.jsonl");
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
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let second = run("--offload off --runs 2");
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    assert!(stderr(&second).contains("seed is 7"), "{}", stderr(&second));
    assert_eq!(SampleFile::read(&out).unwrap().samples.len(), 2);
    // Samples of later rounds are kept, and not counted.
    let fewer = run("--offload off --runs 1");
    assert!(stderr(&fewer).starts_with("1 run, 1 of them from before;"), "{}", stderr(&fewer));
    assert_eq!(SampleFile::read(&out).unwrap().samples.len(), 2);
    for (arguments, reason) in [
        ("--offload off --runs 2 --mtu 9000", "--mtu was the default, and is 9000"),
        ("--offload off,on --runs 2", "--offload was off, and is off or"),
        ("--offload off --runs 2 --seed 8", "seed 7"),
    ] {
        let before = fs::read_to_string(&out).unwrap();
        let refused = run(arguments);
        let stderr = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!(fs::read_to_string(&out).unwrap(), before);
    }
}
