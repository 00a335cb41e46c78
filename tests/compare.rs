//! `compare` through the program: the tables it prints, and the files it refuses.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rust_tun_perf::cell::{Cell, Layer};
use rust_tun_perf::measure::{Comparison, differences};
use rust_tun_perf::program::ProgramName;
use rust_tun_perf::report::{self, Format, Series};
use rust_tun_perf::sample::{
    Environment, Latency, Measurements, Program, ProgramFacts, RequestFacts, Sample, SampleFile, Status,
    line_of_its_own,
};

use crate::fixture;
use crate::processes::PROGRAM;

/// Files of a test, in a directory of its own.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn write(&self, name: &str, samples: &[Sample]) {
        let lines: String = samples.iter().map(|sample| line_of_its_own(sample) + "\n").collect();
        self.write_text(name, &lines);
    }

    fn write_text(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Runs the program, and returns its exit code, standard output and standard error.
    fn compare(&self, arguments: &str) -> String {
        let output = Command::new(PROGRAM)
            .arg("compare")
            .args(arguments.split(' '))
            .current_dir(&self.0)
            .env_remove("CLICOLOR_FORCE")
            .output()
            .unwrap();
        let mut text = format!("$ compare {arguments}\nexit {}\n", output.status.code().unwrap());
        for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
            if !bytes.is_empty() {
                write!(text, "--- {name}\n{}", String::from_utf8(bytes).unwrap()).unwrap();
            }
        }
        text
    }
}

fn cell(words: &str) -> Cell {
    fixture::cell(&format!("{words} --runtime current-thread --offload off"))
}

/// A reader and a writer of this stack.
fn both(stack: &str) -> [Cell; 2] {
    ["reader", "writer"].map(|mode| cell(&format!("-n {stack} -m {mode}")))
}

fn sample(cell: &Cell, gbps: f64) -> Sample {
    let measured = Measurements {
        detail: None,
        congestion: Some("cubic".to_owned()),
        bytes: (gbps * 1e9 / 8.0) as u64,
        elapsed: Duration::from_secs(1),
        ..Measurements::failed(Status::Ok, "")
    };
    let environment = Environment { machine: fixture::machine(), program: Program::default() };
    Sample { cell: cell.clone(), measured, environment: Arc::new(environment) }
}

/// Ten runs of about that rate, with two percent between the slowest and the fastest.
fn ten(cell: &Cell, gbps: f64) -> Vec<Sample> {
    let noise = [3, -7, 9, 1, -4, 10, -10, 6, -2, -6];
    noise.into_iter().map(|noise| sample(cell, gbps * (1.0 + f64::from(noise) / 1000.0))).collect()
}

/// The same, but the first ones fail.
fn failing(cell: &Cell, gbps: f64, failures: usize, status: Status) -> Vec<Sample> {
    let mut samples = ten(cell, gbps);
    for sample in &mut samples[..failures] {
        sample.measured = Measurements::failed(status, "it did not go on");
    }
    samples
}

/// The table of a comparison.
pub(crate) fn table(comparison: &Comparison, old: &[Sample], new: &[Sample]) -> String {
    let mut table = Vec::new();
    report::comparison(comparison, &differences(old, new), &mut table).unwrap();
    String::from_utf8(table).unwrap()
}

fn machine(samples: &mut [Sample], change: fn(&mut Environment)) {
    for sample in samples {
        change(Arc::make_mut(&mut sample.environment));
    }
}

/// The runs, and those of a reference on a machine that does not change.
fn beside_loopback(runs: &[Sample]) -> Vec<Sample> {
    [runs, &vec![sample(&fixture::cell("--layer loopback --runtime current-thread -m reader"), 20.0); 10]].concat()
}

/// What the program says of two files.
fn compared(test: &str, old: &[Sample], new: &[Sample]) -> String {
    let files = Files::new(test);
    files.write("old.jsonl", &beside_loopback(old));
    files.write("new.jsonl", &beside_loopback(new));
    files.compare("old.jsonl new.jsonl")
}

#[test]
fn every_verdict() {
    let files = Files::new("every_verdict");
    let [slower, faster] = both("lwip");
    let [same, broken] = both("smoltcp");
    let [recovered, failing_still] = both("ipstack");
    let small = cell("-n lwip -m reader --parallel 4");
    let [flaky, missing] = [1280, 9000].map(|mtu| Cell { mtu: Some(mtu), ..same.clone() });
    let [only_old, only_new] = [1280, 9000].map(|mtu| Cell { mtu: Some(mtu), ..slower.clone() });
    let all = |status| failing(&failing_still, 1.0, 10, status);
    let old = [
        ten(&slower, 10.0),
        ten(&faster, 20.0),
        ten(&same, 5.0),
        ten(&broken, 30.0),
        failing(&recovered, 1.0, 10, Status::Panicked),
        all(Status::Stalled),
        ten(&small, 8.0)[..3].to_vec(),
        ten(&flaky, 4.0),
        ten(&missing, 9.0),
        ten(&only_old, 7.0),
    ];
    let new = [
        ten(&slower, 9.5),
        ten(&faster, 23.0),
        ten(&same, 5.01),
        failing(&broken, 30.0, 6, Status::Reset),
        ten(&recovered, 1.0),
        all(Status::Timeout),
        ten(&small, 4.0)[..3].to_vec(),
        failing(&flaky, 4.0, 1, Status::Corrupt),
        failing(&missing, 9.0, 10, Status::Unavailable),
        ten(&only_new, 12.0),
    ];
    files.write("old.jsonl", &beside_loopback(&old.concat()));
    files.write("new.jsonl", &beside_loopback(&new.concat()));
    insta::assert_snapshot!(files.compare("old.jsonl new.jsonl"));
    // The other way round, with a floor between both changes.
    insta::assert_snapshot!("every_verdict_the_other_way_round", files.compare("new.jsonl old.jsonl --floor 6.5"));
}

/// A rate of 0 is a result of some loads, and has no ratio to another.
#[test]
fn nothing_is_a_multiple_of_zero() {
    let files = Files::new("multiple_of_zero");
    let stack = |cell: &Cell| Cell { layer: Layer::Stack, ..cell.clone() };
    let [lwip, writer] = both("lwip");
    let [kernel, _] = both("kernel");
    let zero = |cell: &Cell| vec![sample(cell, 0.0); 10];
    let mixed = [zero(&kernel)[..5].to_vec(), ten(&kernel, 3.0)[..5].to_vec()].concat();
    let old = [zero(&lwip), ten(&writer, 5.0), zero(&stack(&writer)), mixed];
    let new = [ten(&lwip, 5.0), zero(&writer), zero(&stack(&writer)), ten(&kernel, 3.0)];
    let rounds = |runs: [Vec<Sample>; 4]| {
        let numbered = |mut runs: Vec<Sample>| {
            runs.iter_mut().zip(1..).for_each(|(run, round)| run.measured.round = Some(round));
            runs
        };
        runs.map(numbered).concat()
    };
    let mut said = Vec::new();
    for (name, runs) in [("old.jsonl", rounds(old)), ("new.jsonl", rounds(new))] {
        files.write(name, &runs);
        let read = [SampleFile::read(&files.0.join(name)).unwrap()];
        for format in [Format::Markdown, Format::Html, Format::Svg, Format::Csv, Format::Bmf] {
            report::report(&Series::of(&read), format, &mut said).unwrap();
        }
        report::outcome(&runs, None, &mut said).unwrap();
    }
    let compared = files.compare("old.jsonl new.jsonl");
    insta::assert_snapshot!(compared);
    said.extend((compared + &files.compare("new.jsonl old.jsonl")).into_bytes());
    let said = String::from_utf8(said).unwrap().to_lowercase();
    let words = said.split(|letter: char| !letter.is_alphanumeric());
    let wrong: Vec<_> = words.filter(|word| ["nan", "inf", "infinity"].contains(word)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_comparison_without_a_possible_verdict_is_no_success() {
    let files = Files::new("nothing_to_find");
    let cells = both("smoltcp");
    files.write("few.jsonl", &cells.each_ref().map(|cell| ten(cell, 10.0)[..2].to_vec()).concat());
    files.write("none.jsonl", &failing(&cells[0], 10.0, 10, Status::Unavailable));
    files.write("failing.jsonl", &cells.each_ref().map(|cell| failing(cell, 10.0, 10, Status::Stalled)).concat());
    // Nothing shows what the machine did.
    files.write("alone.jsonl", &ten(&cells[0], 10.0));
    let answers =
        ["few.jsonl few.jsonl", "few.jsonl none.jsonl", "failing.jsonl failing.jsonl", "alone.jsonl alone.jsonl"]
            .map(|arguments| files.compare(arguments));
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn files_of_two_machines() {
    let cell = cell("-n smoltcp -m reader");
    let (old, mut new) = (ten(&cell, 10.0), ten(&cell, 10.0));
    machine(&mut new, |environment| {
        environment.machine.kernel = Some("6.9.0".to_owned());
        environment.machine.governor = Some("powersave".to_owned());
        environment.program.commit = Some("0123abc-dirty".to_owned());
    });
    // One file has runs of two machines.
    machine(&mut new[..5], |environment| environment.machine.cpus = Some(8));
    for sample in &mut new {
        sample.measured.congestion = Some("bbr".to_owned());
    }
    insta::assert_snapshot!(compared("two_machines", &old, &new));
}

#[test]
fn cells_that_differ_in_what_a_name_leaves_out() {
    let large = cell("-n smoltcp -m reader");
    let small = Cell { window: Some(65_536), ..large.clone() };
    let runs = [ten(&large, 10.0), ten(&small, 3.0)].concat();
    insta::assert_snapshot!(compared("names", &runs, &runs));
}

/// Both programs are in one file, and so may be others.
#[test]
fn two_programs_of_one_file() {
    let files = Files::new("two_programs_of_one_file");
    let of = |name: &str, factor: f64| {
        let program = Some(name.parse::<ProgramName>().unwrap().into());
        let cell = Cell { program, ..fixture::cell("--program kernel -m writer") };
        let version = Some(format!("{name} 1.{factor}"));
        let facts = Box::new(ProgramFacts { version, ..ProgramFacts::default() });
        let runs = ten(&cell, factor).into_iter().zip(1..).map(move |(mut run, round)| {
            // The rounds differ by more than the programs.
            run.measured.bytes *= u64::from(round);
            (run.measured.round, run.measured.program) = (Some(round), Some(facts.clone()));
            run
        });
        runs.collect::<Vec<_>>()
    };
    files.write("programs.jsonl", &[of("old", 4.0), of("kernel", 9.0), of("new", 3.6)].concat());
    let answers = [
        "--programs old,new programs.jsonl",
        "--programs new,old programs.jsonl",
        "--programs old,newer programs.jsonl",
        "--programs old programs.jsonl",
        "--programs old,new programs.jsonl other.jsonl",
    ]
    .map(|arguments| files.compare(arguments));
    insta::assert_snapshot!(answers.join("\n"));
}

/// The cell without a rate is compared by its answers per second.
#[test]
fn requests_at_a_rate_are_compared_by_their_p99() {
    // The fixture's bytes are the microseconds that each request takes.
    let runs = |cell: &Cell, usual_us: f64| -> Vec<Sample> {
        let runs = ten(cell, usual_us * 8e-9).into_iter().map(|mut run| {
            let mut latency = Latency::default();
            (0..1000).for_each(|_| latency.record(Duration::from_micros(run.measured.bytes)));
            run.measured.requests = Some(RequestFacts { answered: 1000, latency, ..RequestFacts::default() });
            run
        });
        runs.collect()
    };
    let cells = ["--rate 1000", "--rate 2000", ""].map(|rate| cell(&format!("-n smoltcp -m rr {rate}")));
    let [old, new] = [[10_000.0, 10_000.0, 10_000.0], [15_000.0, 6_000.0, 15_000.0]].map(|usual_us| {
        beside_loopback(
            &cells.iter().zip(usual_us).flat_map(|(cell, usual_us)| runs(cell, usual_us)).collect::<Vec<_>>(),
        )
    });
    insta::assert_snapshot!(table(&Comparison::of(&old, &new, 0.02).unwrap(), &old, &new));
}

/// A file of `matrix --against` has two builds. Their runs are never pooled.
#[test]
fn a_file_of_two_builds_is_compared_one_build_at_a_time() {
    let files = Files::new("two_builds");
    let cell = cell("-n smoltcp -m reader");
    let [this, mut against] = [10.0, 5.0].map(|gbps| beside_loopback(&ten(&cell, gbps)));
    machine(&mut against, |environment| environment.program.commit = Some("0123abc".to_owned()));
    for sample in &mut against {
        sample.measured.against = true;
    }
    files.write("one.jsonl", &this);
    files.write("other.jsonl", &against);
    files.write("two.jsonl", &[this, against].concat());
    let refused = files.compare("one.jsonl two.jsonl");
    let reason = "two.jsonl: has runs of two builds: this (unknown), and against (0123abc); choose one with --new-build \
                  this or --new-build against";
    assert!(refused.contains("\nexit 2\n") && refused.contains(reason), "{refused}");
    assert!(files.compare("two.jsonl one.jsonl").contains("--old-build this"));
    let lacking = files.compare("one.jsonl one.jsonl --old-build against");
    assert!(lacking.contains("one.jsonl: contains no samples"), "{lacking}");
    for (arguments, verdict) in [
        ("two.jsonl one.jsonl --old-build this", "2 inconclusive"),
        ("two.jsonl two.jsonl --old-build against --new-build this", "1 faster"),
        ("one.jsonl other.jsonl", "1 slower"),
    ] {
        let answer = files.compare(arguments);
        assert!(answer.contains(verdict), "{answer}");
    }
}

#[test]
fn every_kind_of_wrong_file_is_refused_with_its_line() {
    let files = Files::new("wrong");
    let cell = cell("-n smoltcp -m reader");
    let samples = ten(&cell, 10.0);
    files.write("good.jsonl", &samples);
    let text: String = samples.iter().map(|sample| line_of_its_own(sample) + "\n").collect();
    let other = Cell { window: Some(1 << 20), ..cell };
    files.write("other-window.jsonl", &ten(&other, 10.0));
    let second = |from: &str, to: &str| {
        let changed = text.lines().nth(1).unwrap().replace(from, to);
        assert_ne!(changed, text.lines().nth(1).unwrap());
        format!("{}\n{changed}\n", text.lines().next().unwrap())
    };
    let wrong = [
        ("empty.jsonl", String::new()),
        ("torn.jsonl", text[..text.len() - 100].to_owned()),
        ("foreign.jsonl", "{\"end\":{\"sum_sent\":{\"bits_per_second\":1e10}}}\n".to_owned()),
        ("changed.jsonl", second("\"gbps\":9.93", "\"gbps\":12.93")),
        ("stack.jsonl", second("\"netstack\":\"smoltcp\"", "\"netstack\":\"fastnet\"")),
    ];
    for (name, text) in &wrong {
        files.write_text(name, text);
    }
    fs::create_dir_all(files.0.join("directory")).unwrap();
    let names = wrong.iter().map(|(name, _)| *name).chain(["missing.jsonl", "directory", "other-window.jsonl"]);
    let mut answers: Vec<_> = names.map(|name| files.compare(&format!("good.jsonl {name}"))).collect();
    // The old file and the options are checked, too.
    answers.push(files.compare("torn.jsonl good.jsonl"));
    answers.push(files.compare("good.jsonl good.jsonl --floor 100"));
    answers.push(files.compare("good.jsonl good.jsonl --floor few"));
    answers.push(files.compare("good.jsonl"));
    for answer in &answers {
        assert!(answer.contains("\nexit 2\n") && !answer.contains("--- stdout"), "{answer}");
    }
    insta::assert_snapshot!(answers.join("\n"));
}
