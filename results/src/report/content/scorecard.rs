//! Results of conformance: stacks and cases.

use std::collections::{BTreeSet, HashMap};

use conformance::{Harm, Layer, Outcome};
use netstacks::{StackKind, Workarounds};

use super::charts;
use crate::plural;
use crate::report::format::{Stack, UNKNOWN, name_of, told_apart, unique};
use crate::report::model::{Bar, Benchmark, Block, Column, Document, Group, Measure, Need, Panel, Section, Table};
use crate::sample::{Head, SampleFile, Score};

const KEY: &str = "Of the cases that apply to a stack.";

pub(in crate::report) fn document(files: &[SampleFile]) -> Document {
    let stem = |file: &SampleFile| file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let names = told_apart(&files.iter().map(stem).collect::<Vec<_>>());
    let (mut sections, mut all) = (Vec::new(), Vec::new());
    for (file, name) in files.iter().zip(names) {
        let of = (files.len() > 1).then_some(name);
        let section = |kind, title, blocks| Section { kind, title, of: of.clone(), blocks };
        let scores: Vec<_> = file.scores.iter().collect();
        let about = about(&scores, file.heads.first());
        let blocks = vec![Block::Table(totals(&scores)), Block::Table(harms(&scores)), Block::Text(about)];
        sections.push(section("overview", "Overview", blocks));
        let mut cases = cases(&scores);
        cases.push(Column::new("expected", false), of_cases(&scores, |score| &score.expects));
        sections.push(section("cells", "Cases", vec![Block::Table(cases)]));
        for stack in kinds(&scores) {
            let table = failures(&scores, stack);
            if !table.rows.is_empty() {
                let of = of.iter().map(String::as_str).chain([stack.name()]).collect::<Vec<_>>().join(", ");
                let blocks = vec![Block::Table(table)];
                sections.push(Section { of: Some(of), ..section("failures", "Failures", blocks) });
            }
        }
        all.push((of, scores));
    }
    let panel = Panel { axis: "cases passed, %", groups: groups(&all) };
    let picture = charts::of_panels(vec![panel], "Cases that each stack passes", KEY);
    Document {
        title: "Conformance of TCP/IP stacks",
        picture,
        sections,
        records: records(&all),
        benchmarks: benchmarks(&all),
    }
}

/// The results for a terminal: the tables, a line for each failure, and why the program ends as it does.
pub(in crate::report) fn outcome(scores: &[Score]) -> Vec<Block> {
    let scores: Vec<_> = scores.iter().collect();
    let mut blocks = vec![Block::Table(cases(&scores)), Block::Table(totals(&scores))];
    let failures: Vec<_> = failed(&scores).into_iter().map(failure).collect();
    let count = failures.len();
    if count > 0 {
        // A play of `--explore` has a line for each move.
        let lines = failures.iter().flat_map(|text| text.lines()).map(str::to_owned);
        blocks.push(Block::List("Failures, the worst first:", lines.collect()));
    }
    let left_out = left_out(&scores);
    if !left_out.is_empty() {
        blocks.push(Block::List("Left out:", left_out));
    }
    let passed = scores.iter().filter(|score| score.outcome == Outcome::Pass && score.known.is_some());
    let passed: Vec<_> = passed.map(|score| with_known(score, &label(score))).collect();
    if !passed.is_empty() {
        blocks.push(Block::List("Passed, although known to fail:", passed));
    }
    if scores.iter().all(|score| score.is_as_known()) {
        let failed = if count == 0 { "No case failed" } else { "Every failure is a known one" };
        blocks.push(Block::Text(format!("{failed}, so the exit code is 0.")));
    }
    blocks
}

/// Why cases do not apply or were not run: each reason once, with the stacks and the cases.
fn left_out(scores: &[&Score]) -> Vec<String> {
    let is_left_out = |score: &&&Score| !(score.has_failed() || score.outcome == Outcome::Pass);
    let reasons = unique(scores.iter().filter(is_left_out).map(|score| score.seen())).into_iter();
    let text = |reason: &str| {
        let of_it: Vec<_> = scores.iter().filter(is_left_out).copied().filter(|score| score.seen() == reason).collect();
        let names = kinds(&of_it).into_iter().map(StackKind::name).collect::<Vec<_>>().join(", ");
        let cases = unique(of_it.iter().map(|score| score.case.as_str())).len();
        format!("{names}, {}: {reason}", plural(cases, "case"))
    };
    reasons.map(text).collect()
}

fn failed<'a>(scores: &[&'a Score]) -> Vec<&'a Score> {
    let mut failed: Vec<_> = scores.iter().copied().filter(|score| score.has_failed()).collect();
    // Stable: the cases keep their order.
    failed.sort_by_key(|score| (score.netstack, score.workarounds, score.outcome.harm()));
    failed
}

fn failure(score: &Score) -> String {
    let Score { rfc, expects, .. } = score;
    with_known(score, &format!("{}: expected by {rfc}: {expects} Seen: {}", label(score), score.seen()))
}

/// The stack, the case, and the workarounds if they are not the usual ones.
fn label(score: &Score) -> String {
    let Score { netstack, case, workarounds, .. } = score;
    match *workarounds {
        Workarounds::ALL => format!("{netstack} {case}"),
        workarounds => format!("{netstack} {case} with workarounds {workarounds}"),
    }
}

fn with_known(score: &Score, text: &str) -> String {
    score.known.as_ref().map_or_else(|| format!("{text}; NEW"), |reason| format!("{text}; known: {reason}"))
}

/// The stacks, in the order in which tables list them.
fn kinds(scores: &[&Score]) -> BTreeSet<StackKind> {
    scores.iter().map(|score| score.netstack).collect()
}

fn stacks(scores: &[&Score]) -> BTreeSet<Stack> {
    scores.iter().map(|score| (score.netstack, score.workarounds)).collect()
}

fn find<'a>(scores: &[&'a Score], stack: Stack, case: &str) -> Option<&'a Score> {
    let is_it = |score: &&&Score| (score.netstack, score.workarounds) == stack && score.case == case;
    scores.iter().find(is_it).copied()
}

/// The results of the kernel's TCP, by case: its passes show that a case is right.
fn of_kernel<'a>(scores: &[&'a Score]) -> HashMap<&'a str, &'a Score> {
    let of_kernel = scores.iter().filter(|score| score.netstack == StackKind::Kernel);
    of_kernel.map(|score| (score.case.as_str(), *score)).collect()
}

fn count(scores: &[&Score], stack: Stack, is_counted: impl Fn(&Score) -> bool) -> (usize, usize) {
    let is_its = |score: &&&Score| (score.netstack, score.workarounds) == stack && is_counted(score);
    let of = |wanted: fn(&Outcome) -> bool| scores.iter().filter(is_its).filter(|score| wanted(&score.outcome)).count();
    let passed = of(|outcome| *outcome == Outcome::Pass);
    (passed, passed + of(|outcome| outcome.harm().is_some()))
}

fn about(scores: &[&Score], head: Option<&Head>) -> String {
    let mut words = Vec::new();
    for (layer, place) in [(Layer::Stack, "over a link in memory"), (Layer::Path, "behind a TUN device")] {
        let here: Vec<_> = scores.iter().copied().filter(|score| score.layer == layer).collect();
        if here.len() == scores.len() {
            words.push(place.to_owned());
        } else if !here.is_empty() {
            let names: Vec<_> = kinds(&here).into_iter().map(StackKind::name).collect();
            words.push(format!("{} {place}", names.join(", ")));
        }
    }
    if let Some(head) = head {
        let program = &head.environment.program;
        let version = |stack: StackKind| program.version_of(stack).map(|version| format!("{stack} {version}"));
        words.extend(StackKind::ALL.into_iter().filter_map(version));
        let release = head.environment.machine.kernel.as_ref().filter(|_| !of_kernel(scores).is_empty());
        words.extend(release.map(|release| format!("{} {release}", StackKind::Kernel)));
    }
    format!("All cases: {}.", words.join("; "))
}

fn totals(scores: &[&Score]) -> Table {
    let subjects = unique(scores.iter().map(|score| score.subject.as_str()));
    let judge = of_kernel(scores);
    let is_judged = |score: &Score| judge.get(score.case.as_str()).is_some_and(|judge| judge.outcome == Outcome::Pass);
    let has_judge = !judge.is_empty();
    let mut table = Table::new("Cases passed of each subject");
    let totals = ["all"].into_iter().chain(has_judge.then_some("passed by the kernel"));
    table.push(Column::new("subject", false), subjects.iter().copied().chain(totals).map(ToOwned::to_owned));
    for stack in stacks(scores) {
        let of = |is_counted: &dyn Fn(&Score) -> bool| {
            let (passed, applied) = count(scores, stack, is_counted);
            format!("{passed} of {applied}")
        };
        let values = subjects.iter().map(|subject| of(&|score| score.subject == *subject)).chain([of(&|_| true)]);
        table.push(Column::new(name_of(stack), true), values.chain(has_judge.then(|| of(&is_judged))));
    }
    table
}

/// The cases, each with a word for each stack. A stack that was run with all workarounds and with none has one column.
fn cases(scores: &[&Score]) -> Table {
    let mut table = Table::new("Stacks and cases");
    table.push(Column::new("case", false), of_cases(scores, |score| &score.case));
    let (names, all) = (of_cases(scores, |score| &score.case), stacks(scores));
    let is_beside =
        |(stack, workarounds): &Stack| *workarounds == Workarounds::NONE && all.contains(&(*stack, Workarounds::ALL));
    for stack in all.iter().copied().filter(|stack| !is_beside(stack)) {
        let as_it_is = Some((stack.0, Workarounds::NONE)).filter(is_beside);
        let values = names.iter().map(|case| {
            let beside = as_it_is.and_then(|as_it_is| find(scores, as_it_is, case));
            find(scores, stack, case).map(|score| word(score, beside))
        });
        table.push(Column::new(name_of(stack), false), values);
    }
    table.push(Column::new("situation", false).if_room(Need::Wanted), of_cases(scores, |score| &score.title));
    table.push(Column::new("RFC", false).if_room(Need::Extra), of_cases(scores, |score| &score.rfc));
    table
}

fn of_cases(scores: &[&Score], field: fn(&Score) -> &String) -> Vec<String> {
    let names = unique(scores.iter().map(|score| score.case.as_str())).into_iter();
    let of_case = names.filter_map(|name| scores.iter().find(|score| score.case == name));
    of_case.map(|score| field(score).clone()).collect()
}

fn word(score: &Score, as_it_is: Option<&Score>) -> String {
    let word = match &score.outcome {
        Outcome::Fail { .. } if score.of_adapter => "FAIL (adapter)",
        Outcome::Fail { .. } => "FAIL",
        Outcome::Pass if as_it_is.is_some_and(Score::has_failed) => "worked around",
        Outcome::Pass => "pass",
        Outcome::NotApplicable { .. } => UNKNOWN,
        Outcome::Unavailable { .. } => "unavailable",
    };
    word.to_owned()
}

fn harms(scores: &[&Score]) -> Table {
    let mut table = Table::new("Failures");
    table.push(Column::new("failures", false), Harm::ALL.map(|harm| harm.to_string()));
    for stack in stacks(scores) {
        let is_of =
            |score: &&&Score, harm| (score.netstack, score.workarounds) == stack && score.outcome.harm() == Some(harm);
        let count = |harm| scores.iter().filter(|score| is_of(score, harm)).count();
        table.push(Column::new(name_of(stack), true), Harm::ALL.map(|harm| count(harm).to_string()));
    }
    table
}

/// The failures of a stack as it is, the worst first, and then those that it has by its workarounds alone.
fn failures(scores: &[&Score], stack: StackKind) -> Table {
    let is_shown = |score: &&Score| {
        let as_it_is = find(scores, (stack, Workarounds::NONE), &score.case);
        score.workarounds == Workarounds::NONE || !as_it_is.is_some_and(Score::has_failed)
    };
    let mut failed: Vec<_> = failed(scores).into_iter().filter(|score| score.netstack == stack).collect();
    failed.retain(is_shown);
    failed.sort_by_key(|score| score.workarounds != Workarounds::NONE);
    let mut table = Table::new("Failures");
    let mut push = |title, value: &dyn Fn(&Score) -> String| {
        table.push(Column::new(title, false), failed.iter().map(|score| value(score)));
    };
    push("harm", &|score| score.outcome.harm().map(|harm| harm.to_string()).unwrap_or_default());
    push("subject", &|score| score.subject.clone());
    push("case", &|score| score.case.clone());
    push("what came", &|score| score.seen().to_owned());
    push("mended by", &|score| {
        score.workaround.map_or_else(|| UNKNOWN.to_owned(), |workaround| workaround.to_string())
    });
    push("why", &|score| {
        let why = score.known.as_deref().unwrap_or("not known");
        if score.of_adapter { format!("Our adapter's fault. {why}") } else { why.to_owned() }
    });
    let judge = of_kernel(scores);
    if !judge.is_empty() {
        push("kernel", &|score| {
            judge.get(score.case.as_str()).map_or_else(|| UNKNOWN.to_owned(), |judge| word(judge, None))
        });
    }
    table
}

const fn outcome_of(score: &Score) -> &'static str {
    match score.outcome {
        Outcome::Pass => "pass",
        Outcome::Fail { .. } => "fail",
        Outcome::NotApplicable { .. } => "not-applicable",
        Outcome::Unavailable { .. } => "unavailable",
    }
}

type OfFile<'a> = (Option<String>, Vec<&'a Score>);

fn groups(files: &[OfFile]) -> Vec<Group> {
    let subjects = unique(files.iter().flat_map(|(_, scores)| scores).map(|score| score.subject.as_str())).into_iter();
    let group = |subject: &str| {
        let bars = files.iter().flat_map(|(file, scores)| {
            stacks(scores).into_iter().map(move |of| {
                let (passed, applied) = count(scores, of, |score| score.subject == subject);
                let percent = 100.0 * passed as f64 / applied.max(1) as f64;
                let name = name_of(of);
                Bar {
                    label: file.as_ref().map_or_else(|| name.clone(), |file| format!("{name}, {file}")),
                    mark: charts::mark_of(of),
                    median: Some((percent, percent..percent)),
                    runs: Vec::new(),
                    note: format!("{passed} of {applied}"),
                }
            })
        });
        Group { title: subject.to_owned(), bars: bars.collect(), references: Vec::new() }
    };
    subjects.map(group).collect()
}

/// How many cases each stack passes and fails. With several files, the file's name is before the stack's.
fn benchmarks(files: &[OfFile]) -> Vec<Benchmark> {
    let of_file = |(file, scores): &OfFile| {
        let prefix = file.as_ref().map_or_else(String::new, |file| format!("{file}: "));
        let of_stack = |stack: Stack| {
            let (passed, applied) = count(scores, stack, |_| true);
            let counts = [("passed_cases", passed), ("failed_cases", applied - passed)];
            let measures = counts.map(|(name, count)| Measure { name, value: count as f64, interval: None });
            Benchmark { name: format!("{prefix}{} conformance", name_of(stack)), measures: measures.into() }
        };
        stacks(scores).into_iter().map(of_stack).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

fn records(files: &[OfFile]) -> Table {
    let mut table = Table::new("Records");
    let mut push = |title, value: &dyn Fn(&Score) -> String| {
        let scores = files.iter().flat_map(|(_, scores)| scores);
        table.push(Column::new(title, false), scores.map(|score| value(score)));
    };
    push("netstack", &|score| score.netstack.to_string());
    push("layer", &|score| score.layer.name().to_owned());
    push("offload", &|score| score.offload.to_string());
    push("workarounds", &|score| score.workarounds.to_string());
    push("subject", &|score| score.subject.clone());
    push("case", &|score| score.case.clone());
    push("title", &|score| score.title.clone());
    push("rfc", &|score| score.rfc.clone());
    push("expects", &|score| score.expects.clone());
    push("outcome", &|score| outcome_of(score).to_owned());
    push("seen", &|score| score.seen().to_owned());
    push("known", &|score| score.known.clone().unwrap_or_default());
    push("workaround", &|score| score.workaround.map(|workaround| workaround.to_string()).unwrap_or_default());
    push("of_adapter", &|score| score.of_adapter.to_string());
    push("mtu", &|score| score.mtu.to_string());
    push("harm", &|score| score.outcome.harm().map(|harm| harm.to_string()).unwrap_or_default());
    push("shards", &|score| score.shards.to_string());
    let file = |(file, scores): &OfFile| vec![file.clone().unwrap_or_default(); scores.len()];
    table.push(Column::new("file", false), files.iter().flat_map(file));
    table
}

pub(in crate::report) fn list(cases: &[conformance::Case]) -> Table {
    let mut table = Table::new("Cases");
    let mut push = |title, value: fn(&conformance::Case) -> &'static str| {
        table.push(Column::new(title, false), cases.iter().map(|case| value(case).to_owned()));
    };
    push("case", |case| case.id);
    push("situation", |case| case.title);
    push("RFC", |case| case.rfc);
    push("expected", |case| case.expects);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture;
    use crate::report::terminal::terminal;

    fn score(stack: StackKind, case: &str, outcome: Outcome) -> Score {
        with_workarounds((stack, Workarounds::ALL), case, outcome)
    }

    fn with_workarounds((stack, workarounds): Stack, case: &str, outcome: Outcome) -> Score {
        fixture::score(stack, workarounds, case, outcome)
    }

    fn fail(seen: &str, harm: Harm) -> Outcome {
        Outcome::Fail { seen: seen.to_owned(), harm }
    }

    fn printed(scores: &[Score]) -> String {
        let mut out = Vec::new();
        terminal(outcome(scores), None, &mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The score of a case of ipstack. The list of known failures has `half-close` and not `handshake`.
    fn of_ipstack(case: &str, outcome: Outcome) -> Score {
        score(StackKind::Ipstack, case, outcome)
    }

    #[test]
    fn each_failure_has_a_line_and_the_last_one_explains_the_exit_code() {
        let text = printed(&[
            of_ipstack("handshake", fail("the MSS is 1", Harm::Manners)),
            of_ipstack("half-close", fail("a read waited 2s in vain", Harm::Hang)),
        ]);
        let (_, failures) = text.split_once("Failures, the worst first:\n").unwrap_or_default();
        let lines: Vec<_> = failures.lines().collect();
        assert!(lines[0].starts_with("  ipstack half-close: expected by RFC 9293, 3.6, case 2: The server"), "{text}");
        assert!(lines[0].contains(" Seen: a read waited 2s in vain; known: ipstack answers"), "{text}");
        assert!(lines[1].ends_with(" Seen: the MSS is 1; NEW"), "{text}");
        assert!(!text.contains("exit code"), "standard error has the reason: {text}");
        let known = printed(&[
            of_ipstack("handshake", Outcome::Pass),
            of_ipstack("half-close", fail("a read waited 2s in vain", Harm::Hang)),
        ]);
        assert!(known.ends_with("\nEvery failure is a known one, so the exit code is 0.\n"), "{known}");
        let passed = printed(&[of_ipstack("half-close", Outcome::Pass)]);
        assert!(passed.contains("known to fail:\n  ipstack half-close; known: ipstack answers"), "{passed}");
        let all_passed = printed(&[of_ipstack("handshake", Outcome::Pass)]);
        assert!(all_passed.ends_with("No case failed, so the exit code is 0.\n"), "{all_passed}");
    }

    #[test]
    fn what_was_left_out_has_its_reason_once() {
        let refuses = || Outcome::Unavailable { seen: "it ended with exit code 1".to_owned() };
        let text = printed(&[
            of_ipstack("handshake", refuses()),
            of_ipstack("half-close", refuses()),
            of_ipstack("blind-rst", Outcome::NotApplicable { seen: "it has no RST".to_owned() }),
        ]);
        let (_, lines) = text.split_once("Left out:\n").unwrap_or_default();
        let expected = "  ipstack, 2 cases: it ended with exit code 1\n  ipstack, 1 case: it has no RST\n";
        assert_eq!(lines, expected, "{text}");
        assert_eq!(text.matches("unavailable").count(), 2, "a word in the table for each: {text}");
    }

    #[test]
    fn a_stack_is_shown_with_workarounds_and_as_it_is() {
        let of = |workarounds, case, outcome| with_workarounds((StackKind::Smoltcp, workarounds), case, outcome);
        let scores = [
            of(Workarounds::ALL, "super-packets-sent", Outcome::Pass),
            of(Workarounds::NONE, "super-packets-sent", fail("silence", Harm::Manners)),
            of(Workarounds::ALL, "ipv4-fragments", fail("silence", Harm::Manners)),
            of(Workarounds::NONE, "ipv4-fragments", fail("silence", Harm::Manners)),
        ];
        assert!(scores.iter().all(Score::is_as_known));
        let scores: Vec<_> = scores.iter().collect();
        assert_eq!(
            totals(&scores).rows.last().map(|row| &row[..]),
            Some(&["all", "1 of 2", "0 of 2"].map(Into::into)[..])
        );
        assert_eq!(totals(&scores).columns[2].title, "smoltcp, as it is");
        assert_eq!(cases(&scores).columns[1].title, "smoltcp");
        let words: Vec<_> = cases(&scores).rows.into_iter().map(|row| row[1].clone()).collect();
        assert_eq!(words, ["worked around", "FAIL (adapter)"]);
        let mended: Vec<_> = failures(&scores, StackKind::Smoltcp).rows.into_iter().map(|row| row[4].clone()).collect();
        assert_eq!(mended, ["mss-rewrite", UNKNOWN]);
    }

    #[test]
    fn the_kernel_is_the_last_column_and_judges_the_cases() {
        let scores = [
            score(StackKind::Kernel, "half-close", Outcome::Pass),
            score(StackKind::Kernel, "fin-lost", fail("silence", Harm::Manners)),
            score(StackKind::Gvisor, "half-close", fail("silence", Harm::Manners)),
            score(StackKind::Gvisor, "fin-lost", Outcome::Pass),
        ];
        let scores: Vec<_> = scores.iter().collect();
        let titles: Vec<_> = totals(&scores).columns.into_iter().map(|column| column.title).collect();
        assert_eq!(titles, ["subject", "gvisor", "kernel"]);
        assert_eq!(totals(&scores).rows[2], ["passed by the kernel", "0 of 1", "1 of 1"]);
        assert_eq!(cases(&scores).rows[0][..3], ["half-close", "FAIL", "pass"]);
        for (stack, case, judgement) in
            [(StackKind::Kernel, "fin-lost", "FAIL"), (StackKind::Gvisor, "half-close", "pass")]
        {
            let rows = failures(&scores, stack).rows;
            assert_eq!((rows.len(), rows[0][2].as_str()), (1, case));
            assert_eq!(rows[0].last().map(String::as_str), Some(judgement));
        }
        assert_eq!(totals(&scores[2..]).rows.len(), 2, "without the kernel there is no judge");
    }

    #[test]
    fn files_stand_side_by_side() {
        let file = |folder: &str, outcome| SampleFile {
            path: format!("{folder}/scores.jsonl").into(),
            heads: Vec::new(),
            samples: Vec::new(),
            scores: vec![of_ipstack("handshake", outcome)],
        };
        let document = document(&[file("a", Outcome::Pass), file("b", fail("silence", Harm::Manners))]);
        let names: Vec<_> = document.benchmarks.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["scores (1): ipstack conformance", "scores (2): ipstack conformance"]);
        let all = [file("a", Outcome::Pass), file("b", fail("silence", Harm::Manners))];
        let of_files: Vec<_> = all.iter().map(|file| (None, file.scores.iter().collect())).collect();
        let notes: Vec<_> = groups(&of_files)[0].bars.iter().map(|bar| bar.note.clone()).collect();
        assert_eq!(notes, ["1 of 1", "0 of 1"]);
    }
}
