//! Results of conformance: stacks and cases.

use std::collections::{BTreeSet, HashMap};

use conformance::{Layer, Outcome};
use netstacks::StackKind;

use super::charts;
use crate::report::format::{UNKNOWN, unique};
use crate::report::model::{Bar, Benchmark, Block, Column, Document, Group, Measure, Section, Table};
use crate::sample::{Head, SampleFile, Score};

/// Under the picture.
const KEY: &str = "Of the cases that apply to a stack.";

/// The page of the results of some files.
pub(in crate::report) fn document(files: &[SampleFile]) -> Document {
    let (mut sections, mut all) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let of = (files.len() > 1).then_some(name);
        let section = |kind, title, headline, blocks| Section { kind, title, of: of.clone(), headline, blocks };
        let scores: Vec<_> = file.scores.iter().collect();
        let blocks = vec![Block::Table(totals(&scores)), Block::Text(about(&scores, file.heads.first()))];
        sections.push(section("overview", "Overview", Some(headline(&scores)), blocks));
        sections.push(section("cells", "Cases", None, vec![Block::Table(cases(&scores))]));
        sections.push(section("failures", "Failures", None, vec![Block::Table(failures(&scores))]));
        all.extend(scores);
    }
    let picture = charts::of_groups("cases passed, %", groups(&all), "Cases that each stack passes", KEY);
    Document {
        title: "Conformance of TCP/IP stacks",
        picture,
        sections,
        records: records(&all),
        benchmarks: benchmarks(files),
    }
}

/// The results for a terminal: the tables, and the results that are not the known ones.
pub(in crate::report) fn outcome(scores: &[Score]) -> Vec<Block> {
    let scores: Vec<_> = scores.iter().collect();
    let mut blocks = vec![Block::Table(cases(&scores)), Block::Table(totals(&scores)), Block::Text(headline(&scores))];
    let changes: Vec<_> = scores.iter().copied().filter(|score| !score.is_as_known()).map(change).collect();
    if !changes.is_empty() {
        blocks.push(Block::List("Not as known:", changes));
    }
    blocks
}

fn change(score: &Score) -> String {
    let Score { netstack, case, expects, rfc, .. } = score;
    match &score.outcome {
        Outcome::Fail(seen) => format!("{netstack} {case}: {seen} (expected by {rfc}: {expects})"),
        _ => format!("{netstack} {case} passes, and is known to fail: {}", score.known.as_deref().unwrap_or(UNKNOWN)),
    }
}

/// The stacks, in the order in which tables list them.
fn stacks(scores: &[&Score]) -> BTreeSet<StackKind> {
    scores.iter().map(|score| score.netstack).collect()
}

/// The results of the kernel's TCP, by case: its passes show that a case is right.
fn of_kernel<'a>(scores: &[&'a Score]) -> HashMap<&'a str, &'a Score> {
    let of_kernel = scores.iter().filter(|score| score.netstack == StackKind::Kernel);
    of_kernel.map(|score| (score.case.as_str(), *score)).collect()
}

/// How many of the cases that are counted the stack passes, and how many of them apply to it.
fn count(scores: &[&Score], stack: StackKind, is_counted: impl Fn(&Score) -> bool) -> (usize, usize) {
    let is_its = |score: &&&Score| score.netstack == stack && is_counted(score);
    let of = |wanted: fn(&Outcome) -> bool| scores.iter().filter(is_its).filter(|score| wanted(&score.outcome)).count();
    let passed = of(|outcome| *outcome == Outcome::Pass);
    (passed, passed + of(|outcome| matches!(outcome, Outcome::Fail(_))))
}

fn headline(scores: &[&Score]) -> String {
    let words = stacks(scores).into_iter().map(|stack| {
        let (passed, applied) = count(scores, stack, |_| true);
        format!("{stack} passes {passed} of {applied}")
    });
    format!("{}.", words.collect::<Vec<_>>().join(", "))
}

/// How the cases were run.
fn about(scores: &[&Score], head: Option<&Head>) -> String {
    let mut words = Vec::new();
    for (layer, place) in [(Layer::Stack, "over a link in memory"), (Layer::Path, "behind a TUN device")] {
        let here: Vec<_> = scores.iter().copied().filter(|score| score.layer == layer).collect();
        if here.len() == scores.len() {
            words.push(place.to_owned());
        } else if !here.is_empty() {
            let names: Vec<_> = stacks(&here).into_iter().map(StackKind::name).collect();
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
        table.push(Column::new(stack.name(), true), values.chain(has_judge.then(|| of(&is_judged))));
    }
    table
}

fn cases(scores: &[&Score]) -> Table {
    let names = unique(scores.iter().map(|score| score.case.as_str()));
    let text = |field: fn(&Score) -> &String| {
        let of_case = names.iter().filter_map(|name| scores.iter().find(|score| score.case == *name));
        of_case.map(|score| field(score).clone()).collect::<Vec<_>>()
    };
    let mut table = Table::new("Stacks and cases");
    table.push(Column::new("case", false), text(|score| &score.case));
    for stack in stacks(scores) {
        let values = names.iter().map(|name| {
            let score = scores.iter().find(|score| score.netstack == stack && score.case == *name);
            score.map(|score| word(score))
        });
        table.push(Column::new(stack.name(), false), values);
    }
    table.push(Column { may_go: true, ..Column::new("situation", false) }, text(|score| &score.title));
    table.push(Column { may_go: true, ..Column::new("RFC", false) }, text(|score| &score.rfc));
    table
}

fn word(score: &Score) -> String {
    match (&score.outcome, &score.workaround) {
        (Outcome::Pass, None) => "pass".to_owned(),
        (Outcome::Pass, Some(workaround)) => format!("pass by {workaround}"),
        (Outcome::Fail(_), _) => "FAIL".to_owned(),
        (Outcome::NotApplicable(_), _) => UNKNOWN.to_owned(),
    }
}

fn failures(scores: &[&Score]) -> Table {
    let failed: Vec<_> = scores.iter().filter(|score| matches!(score.outcome, Outcome::Fail(_))).collect();
    let mut table = Table::new("Failures");
    let mut push = |title, value: &dyn Fn(&Score) -> String| {
        table.push(Column::new(title, false), failed.iter().map(|score| value(score)));
    };
    push("stack", &|score| score.netstack.to_string());
    push("case", &|score| score.case.clone());
    push("the RFC asks", &|score| format!("{} ({})", score.expects, score.rfc));
    push("what came", &|score| outcome_of(score).1.to_owned());
    push("why", &|score| score.known.clone().unwrap_or_else(|| "not known".to_owned()));
    let judge = of_kernel(scores);
    if !judge.is_empty() {
        push("kernel", &|score| judge.get(score.case.as_str()).map_or_else(|| UNKNOWN.to_owned(), |judge| word(judge)));
    }
    table
}

/// The result in a word, and what was seen or why the case does not apply.
fn outcome_of(score: &Score) -> (&'static str, &str) {
    match &score.outcome {
        Outcome::Pass => ("pass", ""),
        Outcome::Fail(seen) => ("fail", seen),
        Outcome::NotApplicable(why) => ("not-applicable", why),
    }
}

/// A group of bars for each subject.
fn groups(scores: &[&Score]) -> Vec<Group> {
    let subjects = unique(scores.iter().map(|score| score.subject.as_str())).into_iter();
    let group = |subject: &str| {
        let bars = stacks(scores).into_iter().map(|stack| {
            let (passed, applied) = count(scores, stack, |score| score.subject == subject);
            let percent = 100.0 * passed as f64 / applied.max(1) as f64;
            Bar {
                label: stack.to_string(),
                mark: charts::mark_of(stack),
                median: Some((percent, percent..percent)),
                runs: Vec::new(),
                note: format!("{passed} of {applied}"),
            }
        });
        Group { title: subject.to_owned(), bars: bars.collect() }
    };
    subjects.map(group).collect()
}

/// How many cases each stack passes and fails. With several files, the file's name is before the stack's.
fn benchmarks(files: &[SampleFile]) -> Vec<Benchmark> {
    let of_file = |file: &SampleFile| {
        let stem = file.path.file_stem().map_or_else(String::new, |stem| format!("{}: ", stem.to_string_lossy()));
        let prefix = if files.len() > 1 { stem } else { String::new() };
        let scores: Vec<_> = file.scores.iter().collect();
        let of_stack = |stack: StackKind| {
            let (passed, applied) = count(&scores, stack, |_| true);
            let measure = |name, more_is_better, count: usize| Measure {
                name,
                unit: "cases",
                value: count as f64,
                interval: None,
                more_is_better: Some(more_is_better),
            };
            let measures =
                vec![measure("passed_cases", true, passed), measure("failed_cases", false, applied - passed)];
            Benchmark { name: format!("{prefix}{stack} conformance"), measures }
        };
        stacks(&scores).into_iter().map(of_stack).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

fn records(scores: &[&Score]) -> Table {
    let mut table = Table::new("Records");
    let mut push = |title, value: &dyn Fn(&Score) -> String| {
        table.push(Column::new(title, false), scores.iter().map(|score| value(score)));
    };
    push("netstack", &|score| score.netstack.to_string());
    push("layer", &|score| score.layer.name().to_owned());
    push("offload", &|score| score.offload.to_string());
    push("subject", &|score| score.subject.clone());
    push("case", &|score| score.case.clone());
    push("title", &|score| score.title.clone());
    push("rfc", &|score| score.rfc.clone());
    push("expects", &|score| score.expects.clone());
    push("outcome", &|score| outcome_of(score).0.to_owned());
    push("seen", &|score| outcome_of(score).1.to_owned());
    push("known", &|score| score.known.clone().unwrap_or_default());
    push("workaround", &|score| score.workaround.clone().unwrap_or_default());
    table
}

/// The cases, without results.
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

    fn score(netstack: StackKind, case: &str, outcome: Outcome) -> Score {
        let text = String::new;
        Score {
            netstack,
            layer: Layer::Path,
            offload: false,
            mtu: 1500,
            case: case.to_owned(),
            subject: "ends".to_owned(),
            title: text(),
            rfc: text(),
            expects: text(),
            outcome,
            known: None,
            workaround: None,
        }
    }

    #[test]
    fn the_kernel_is_the_last_column_and_judges_the_cases() {
        let fail = || Outcome::Fail("silence".to_owned());
        let scores = [
            score(StackKind::Kernel, "a", Outcome::Pass),
            score(StackKind::Kernel, "b", fail()),
            score(StackKind::Gvisor, "a", fail()),
            score(StackKind::Gvisor, "b", Outcome::Pass),
        ];
        let scores: Vec<_> = scores.iter().collect();
        let titles: Vec<_> = totals(&scores).columns.into_iter().map(|column| column.title).collect();
        assert_eq!(titles, ["subject", "gvisor", "kernel"]);
        assert_eq!(totals(&scores).rows[2], ["passed by the kernel", "0 of 1", "1 of 1"]);
        assert_eq!(cases(&scores).rows[0][..3], ["a", "FAIL", "pass"]);
        let judged: Vec<_> = failures(&scores).rows.into_iter().map(|mut row| (row.remove(0), row.pop())).collect();
        let word = |word: &str| Some(word.to_owned());
        assert_eq!(judged, [("kernel".to_owned(), word("FAIL")), ("gvisor".to_owned(), word("pass"))]);
        assert_eq!(totals(&scores[2..]).rows.len(), 2, "without the kernel there is no judge");
    }
}
