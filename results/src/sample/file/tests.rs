use std::env;
use std::process::Command;
use std::slice;

use conformance::{Case, Outcome};
use netstacks::{StackKind, Workarounds};
use tempfile::TempDir;

use super::super::line::tests::{environment, head, sample, words};
use super::super::{Measurements, Program, line_of_its_own};
use super::*;
use crate::cell::properties::PROPERTIES;
use crate::measure::fixture;
use crate::sample::{CaseResult, Origin};

/// A folder that is removed after the test, and the path of a file in it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.jsonl");
    (folder, path)
}

/// A sample of a round.
fn of_round(round: u32) -> Sample {
    let mut sample = sample();
    sample.measured.round = Some(round);
    sample
}

/// Appends samples of these rounds to a file.
fn write(path: &Path, rounds: impl IntoIterator<Item = u32>) {
    let (mut appender, _) = Appender::open(path, &[head()]).unwrap();
    for round in rounds {
        appender.append(&line::line(&of_round(round))).unwrap();
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The reason for which a file is refused. The file must stay unchanged.
fn refusal(path: &Path, head: &Head) -> String {
    let before = fs::read(path).unwrap();
    let error = Appender::open(path, slice::from_ref(head)).unwrap_err();
    assert!(error.is_input(), "{error}");
    assert_eq!(fs::read(path).unwrap(), before);
    let text = error.to_string();
    text.strip_prefix(path.to_str().unwrap()).unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// The error of a file with this text.
fn wrong(text: &str) -> String {
    let error = SampleFile::parse(Path::new("f"), text).unwrap_err();
    assert!(error.is_input());
    error.to_string()
}

#[test]
fn samples_keep_their_order() {
    let (_folder, path) = place();
    write(&path, [2, 1, 3]);
    let file = SampleFile::read(&path).unwrap();
    assert_eq!((file.heads, file.samples), (vec![head()], vec![of_round(2), of_round(1), of_round(3)]));
}

#[test]
fn samples_belong_to_the_head_of_their_id_whatever_else_it_says() {
    let (_folder, path) = place();
    // As a later version writes it, with a field that this version does not know.
    let mut fields = serde_json::to_value(environment()).unwrap();
    fields["page_size"] = 4096.into();
    let id = super::super::environment::id(fields.as_object().unwrap());
    let of_later = |text: &str| text.replace(&environment().id(), &id);
    let head_line = of_later(&head().line()).replace("\"cpus\":2", "\"cpus\":2,\"page_size\":4096");
    let lines = [1, 2].map(|round| of_later(&line::line(&of_round(round))));
    fs::write(&path, format!("{head_line}\n{}\n{}\n", lines[0], lines[1])).unwrap();
    let file = SampleFile::read(&path).unwrap();
    assert_eq!(file.samples, [of_round(1), of_round(2)]);
    assert!(wrong(&format!("{head_line}\n{}\n{}\n", lines[0], lines[0])).contains("a second sample of round 1"));
    // Samples of this version would have another id.
    let refusal = refusal(&path, &head());
    assert!(refusal.contains("by another version of this program"), "{refusal}");
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let path = Path::new("f");
    let refused = |from: &mut dyn Read, max_len| read(path, from, max_len).unwrap_err().to_string();
    assert_eq!(read(path, &b"one\ntwo"[..], 7).unwrap(), b"one\ntwo");
    assert_eq!(refused(&mut &b"one\ntwo"[..], 6), "read f: longer than 1024 MiB; give files of one matrix each");
    // No line, and no end either.
    let error = refused(&mut io::repeat(0), u64::MAX);
    assert_eq!(error, "f, line 1: longer than 16 MiB: this is no file of samples");
}

#[test]
fn a_missing_or_empty_file_is_refused() {
    let (_folder, path) = place();
    let error = SampleFile::read(&path).unwrap_err();
    assert!(matches!(error, FileError::Read { .. }) && error.is_input(), "{error}");
    fs::write(&path, "").unwrap();
    assert!(matches!(SampleFile::read(&path), Err(FileError::Empty { .. })));
    fs::write(&path, head().line() + "\n").unwrap();
    assert!(matches!(SampleFile::read(&path), Err(FileError::Empty { .. })));
}

#[test]
fn a_wrong_line_is_named_by_its_number() {
    let (head, line) = (head().line(), line::line(&of_round(1)));
    let orphan = format!("f, line 1: no line before it describes the environment {}", environment().id());
    assert_eq!(wrong(&format!("{line}\n")), orphan);
    assert_eq!(
        wrong(&format!("{head}\n{line}\n{line}\n")),
        format!("f, line 3: a second sample of round 1 of {}", sample().cell)
    );
    assert!(wrong(&format!("{head}\n\nnonsense\n{line}\n")).starts_with("f, line 3: not JSON"));
    let torn = wrong(&format!("{head}\n{line}\n{}", &line[..100]));
    let advice = "f, line 3: ends in the middle; the command that made it goes on with the file";
    assert!(torn.starts_with(advice), "{torn}");
}

#[test]
fn appending_keeps_the_head_of_the_file() {
    let (_folder, path) = place();
    write(&path, [1]);
    // The arguments and the seed do not change a figure, so they may differ.
    let now = Head { arguments: vec!["again".to_owned()], seed: 7, ..head() };
    let (mut appender, earlier) = Appender::open(&path, &[now]).unwrap();
    assert_eq!((earlier.heads, earlier.samples), (vec![head()], vec![of_round(1)]));
    appender.append(&line::line(&of_round(2))).unwrap();
    assert_eq!(SampleFile::read(&path).unwrap().samples, [of_round(1), of_round(2)]);
}

#[test]
fn a_head_without_samples_is_replaced() {
    let (_folder, path) = place();
    write(&path, []);
    let now = Head { plan: vec![words("--mode=reader")], ..head() };
    let (_, earlier) = Appender::open(&path, slice::from_ref(&now)).unwrap();
    assert_eq!((earlier.heads, earlier.samples), (vec![now.clone()], vec![]));
    assert_eq!(text(&path), now.line() + "\n");
}

#[test]
fn a_torn_last_line_is_cut_off_wherever_it_is_torn() {
    let (_folder, path) = place();
    write(&path, [1, 2]);
    let whole = fs::read(&path).unwrap();
    let head_len = head().line().len() + 1;
    let first_len = head_len + line::line(&of_round(1)).len() + 1;
    // At each end of a line and a byte beside it, within characters of several bytes, and in between.
    let telling = |at: usize| whole[at..whole.len().min(at + 2)].contains(&b'\n') || !whole[at].is_ascii();
    let lengths: Vec<_> = (0..whole.len()).filter(|at| at % 61 == 0 || telling(*at)).collect();
    assert!(lengths.iter().any(|len| str::from_utf8(&whole[..*len]).is_err()));
    for len in lengths {
        fs::write(&path, &whole[..len]).unwrap();
        let (mut appender, SampleFile { samples, .. }) =
            Appender::open(&path, &[head()]).unwrap_or_else(|error| panic!("{len} bytes: {error}"));
        assert_eq!(samples.len(), usize::from(len >= first_len), "{len} bytes");
        for round in 1 + samples.len() as u32..=2 {
            appender.append(&line::line(&of_round(round))).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), whole, "{len} bytes");
    }
}

#[test]
fn zeros_that_a_power_cut_leaves_are_cut_off() {
    let (_folder, path) = place();
    write(&path, [1]);
    let whole = text(&path);
    fs::write(&path, format!("{whole}\0\0\0\0")).unwrap();
    write(&path, []);
    assert_eq!(text(&path), whole);
}

#[test]
fn a_file_of_another_program_is_left_alone() {
    let (_folder, path) = place();
    for (content, reason) in [
        (&b"a shopping list"[..], "is no file of this program"),
        (b"{\"kind\":\"throughput\"}", "is no file of this program"),
        (b"\0\0\0", "is no file of this program"),
        (b"\xff\xfe\n", "bytes that are no text"),
        (b"milk\nbread\n", "line 1: not JSON"),
        (b"{}\n", "line 1: no \"kind\""),
    ] {
        fs::write(&path, content).unwrap();
        let refusal = refusal(&path, &head());
        assert!(refusal.contains(reason), "{refusal}");
    }
    let (head_line, line) = (head().line(), line_of_its_own(&sample()));
    for content in [line.clone(), format!("{head_line}\n{head_line}\n{line}")] {
        fs::write(&path, content + "\n").unwrap();
        assert_eq!(refusal(&path, &head()), ": was not written by one command; choose another file");
    }
}

#[test]
fn a_file_has_one_kind_of_results() {
    let (_folder, path) = place();
    write(&path, [1]);
    let conformance = Head { plan: Vec::new(), ..head() };
    assert_eq!(refusal(&path, &conformance), ": has samples, and no results of conform; choose another file");
    let case = Case::all().next().unwrap();
    let score = fixture::score(StackKind::Smoltcp, Workarounds::ALL, case.id, Outcome::Pass);
    fs::write(&path, format!("{}\n{}\n", conformance.line(), line::score_line(&score))).unwrap();
    assert_eq!(refusal(&path, &head()), ": has results of conform, and no samples; choose another file");
    let other = Head { arguments: vec!["conform".to_owned()], ..conformance.clone() };
    assert_eq!(refusal(&path, &other), ": was made by another command, \"matrix\"; choose another file");
    assert_eq!(Appender::open(&path, &[conformance]).unwrap().1.scores, [score]);
}

#[test]
fn another_environment_is_refused_by_the_field_that_differs() {
    let (_folder, path) = place();
    write(&path, [1]);
    let mut environment = environment();
    environment.machine.cpus = Some(64);
    environment.program = Program { commit: Some("abc".to_owned()), ..environment.program };
    let other = Head { id: environment.id(), environment, ..head() };
    assert_eq!(
        refusal(&path, &other),
        ": was made in another environment: commit was unknown and is abc, cpus was 2 and is 64; choose another file"
    );
}

#[test]
fn another_plan_is_refused_by_the_option_that_differs() {
    let (_folder, path) = place();
    write(&path, [1]);
    let [writer, reader] = ["--layer=loopback --mode=writer", "--layer=loopback --mode=reader"];
    let of_timeout =
        "is of other cells: --timeout was the default, and is 70 or the default; give the same options, or";
    for (plan, reason) in [
        (&[writer, reader, "--layer=loopback --mode=reader --timeout=70"][..], of_timeout),
        (&[reader, writer], "has other combinations of the same options, or another order;"),
    ] {
        let head = Head { plan: plan.iter().map(|line| words(line)).collect(), ..head() };
        assert_eq!(refusal(&path, &head), format!(": {reason} choose another file"));
    }
}

#[test]
fn samples_are_told_apart_by_environment_round_and_program() {
    let without_round = || Sample { measured: Measurements { round: None, ..sample().measured }, ..sample() };
    let (mut elsewhere, mut other) = (of_round(1), of_round(1));
    Arc::make_mut(&mut elsewhere.environment).machine.cpus = Some(64);
    other.measured.against = true;
    let failed = Measurements::failed(Status::Unavailable, "no device");
    let unavailable = Sample { measured: Measurements { round: Some(1), ..failed }, ..sample() };
    let own = line_of_its_own;
    for (lines, samples) in [
        (vec![own(&of_round(1)), String::new()], vec![of_round(1)]),
        // An environment that was described once is known.
        (vec![own(&of_round(1)), line::line(&of_round(2))], vec![of_round(1), of_round(2)]),
        (vec![own(&without_round()), own(&without_round())], vec![without_round(), without_round()]),
        (vec![own(&of_round(1)), own(&elsewhere)], vec![of_round(1), elsewhere]),
        (vec![own(&of_round(1)), own(&other)], vec![of_round(1), other]),
        // A run that was unavailable is replaced by the next try.
        ([&unavailable, &unavailable, &of_round(2), &of_round(1)].map(own).to_vec(), vec![of_round(1), of_round(2)]),
    ] {
        let file = SampleFile::parse(Path::new("f"), &(lines.join("\n") + "\n")).unwrap();
        assert_eq!((file.heads, file.samples), (vec![], samples));
    }
    let lines = [&of_round(1), &unavailable].map(own).join("\n") + "\n";
    assert!(wrong(&lines).contains("a second sample of round 1"), "a run that took place is not repeated");
}

#[test]
fn a_second_writer_is_refused_while_the_first_is_there() {
    let (_folder, path) = place();
    let (first, _) = Appender::open(&path, &[head()]).unwrap();
    let error = Appender::open(&path, &[head()]).unwrap_err();
    assert!(matches!(&error, FileError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("another process is writing to it"), "{error}");
    drop(first);
    write(&path, [1]);
}

#[test]
fn a_lock_that_is_released_soon_is_waited_for() {
    let (_folder, path) = place();
    let (first, _) = Appender::open(&path, &[head()]).unwrap();
    let goes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(first);
    });
    write(&path, [1]);
    goes.join().unwrap();
}

#[test]
fn a_folder_is_no_file_of_samples() {
    let (folder, _) = place();
    for path in [folder.path().to_owned(), folder.path().join("missing/samples.jsonl")] {
        let error = Appender::open(&path, &[head()]).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("choose another"), "{error}");
    }
}

#[test]
#[cfg(unix)]
fn a_device_is_no_file_of_samples() {
    // The first is endless, the second accepts no bytes.
    for path in ["/dev/zero", "/dev/full"] {
        let error = Appender::open(Path::new(path), &[head()]).unwrap_err();
        assert!(matches!(error, FileError::Foreign { .. } | FileError::Open { .. }), "{error}");
    }
}

/// Fills the disk that the variable names. For the test below, in a mount namespace.
#[test]
#[ignore = "wants a small disk of its own"]
fn fill() {
    let path = PathBuf::from(env::var("SMALL_DISK").unwrap()).join("samples.jsonl");
    let (mut appender, _) = Appender::open(&path, &[head()]).unwrap();
    let mut lines = vec![head().line()];
    let error = loop {
        let line = line::line(&of_round(lines.len() as u32));
        match appender.append(&line) {
            Ok(()) => lines.push(line),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FileError::Write { .. }) && !error.is_input(), "{error}");
    assert!(error.to_string().contains("what was measured before is intact"), "{error}");
    assert!(lines.len() > 10, "only {} lines", lines.len());
    assert_eq!(text(&path), lines.join("\n") + "\n");
    drop(appender);
    // Once there is room again, it goes on.
    let (_, earlier) = Appender::open(&path, &[head()]).unwrap();
    assert_eq!(earlier.samples.len(), lines.len() - 1);
}

#[test]
fn a_full_disk_leaves_whole_lines() {
    let (folder, _) = place();
    let script = "mount -t tmpfs -o size=64k none \"$SMALL_DISK\" || exit 77
                  exec \"$TEST\" --exact sample::file::tests::fill --ignored";
    let mut unshare = Command::new("unshare");
    let unshare = unshare.args(["-m", "sh", "-c", script]).env("SMALL_DISK", folder.path());
    match unshare.env("TEST", env::current_exe().unwrap()).output() {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
        }
        Ok(output) if output.status.code() == Some(101) => panic!("{}", String::from_utf8_lossy(&output.stdout)),
        Ok(output) => skip(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => skip(&format!("unshare: {error}")),
    }
}

/// Says why a test cannot run, past the test harness, which would swallow it.
fn skip(reason: &str) {
    let _closed = writeln!(io::stderr(), "SKIP {}: {reason}", module_path!());
}

/// Earlier builds wrote them. Those of scripts/aa.py and scripts/questions.py have lines of their own.
#[test]
fn every_published_file_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/data");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_scripts = ["aa.jsonl", "questions.jsonl"];
    let is_read = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "jsonl") && !of_scripts.iter().any(|name| path.ends_with(name))
    };
    let files: Vec<_> = files.filter(is_read).collect();
    assert!(files.len() >= 10, "{files:?}");
    for path in files {
        let published = SampleFile::read(&path).unwrap();
        // Each program was run by a command of its own.
        let heads = published.manners.iter().map(|score| score.program).collect::<BTreeSet<_>>().len().max(1);
        assert_eq!(published.heads.len(), heads, "{}", path.display());
        let planned: BTreeSet<_> = published.heads[0].plan.iter().flat_map(|line| cells_of_plan(line)).collect();
        let stray = published.samples.iter().find(|sample| !planned.contains(&sample.cell));
        assert!(stray.is_none(), "{}: {stray:?}", path.display());
        let is_unexplained = |score: &&Score| score.level.is_empty() || (score.has_failed() && score.cause.is_none());
        assert_eq!(published.scores.iter().find(is_unexplained), None, "this program knows the levels and the causes");
        let has_samples = published.scores.is_empty() && published.manners.is_empty();
        assert_eq!(published.into_samples(None, "").is_ok(), has_samples, "{}", path.display());
    }
}

/// The cells that a line of a plan may become: a device may decide on the offload. The words that are no property are settings.
fn cells_of_plan(line: &[String]) -> [Cell; 3] {
    let is_property =
        |word: &&String| PROPERTIES.iter().any(|property| word.starts_with(&format!("--{}=", property.long())));
    let words: Vec<_> = line.iter().filter(is_property).cloned().collect();
    let cell = Cell::of_words(&words).unwrap().checked().unwrap();
    [cell.with_offload(true), cell.with_offload(false), cell]
}

/// A line of another build is read, or the versions of both are in the reason.
#[test]
fn a_line_of_another_version_is_refused_by_both_versions() {
    Origin { commit: Some("0123456789ab"), tokio: None }.declare();
    let this = env!("CARGO_PKG_VERSION");
    let versions = format!(" (the line is of version 1.2.3; this program is version {this}, commit 0123456789ab)");
    let (head, own, short) = (head().line(), line_of_its_own(&sample()), line::line(&sample()));
    let renamed = |text: &str, field: &str| text.replace(field, &format!("former_{field}"));
    for (text, reason) in [
        (renamed(&head, "seed"), "line 1: missing field `seed`"),
        (head.replace("\"schema\":3", "\"schema\":2"), "line 1: schema 2, and this program knows 3"),
        (renamed(&own, "warmup_bytes"), "line 1: missing field `warmup_bytes`"),
        (format!("{head}\n{}", renamed(&short, "warmup_bytes")), "line 2: missing field `warmup_bytes`"),
    ] {
        let refusal = wrong(&format!("{text}\n"));
        assert!(refusal.contains(reason) && refusal.ends_with(&versions), "{refusal}");
    }
}
