//! Results of conformance: stacks and cases.

mod causes;

use std::collections::{BTreeSet, HashMap};

use conformance::known::Whose;
use conformance::{Case, Layer, Outcome, Strength};
use netstacks::{StackCongestion, StackKind, Workarounds};

use self::causes::{Met, causes, demands};
use super::charts;
use crate::plural;
use crate::report::format::{UNKNOWN, name_of, told_apart, unique};
use crate::report::model::{
    Bar, Benchmark, Block, Column, Document, Group, Mark, Measure, Need, Panel, Section, Table,
};
use crate::sample::{CaseResult, Head, SampleFile, Score};

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
        let tables = [demands(&scores), totals(&scores)].map(Block::Table);
        let blocks = tables.into_iter().chain([Block::Text(about)]).collect();
        sections.push(section("overview", "Overview", blocks));
        sections.push(section("cells", "Cases", listed(&scores)));
        for stack in kinds(&scores) {
            let table = failures(&scores, stack);
            if !table.rows.is_empty() {
                let of = of.iter().map(String::as_str).chain([stack.name()]).collect::<Vec<_>>().join(", ");
                let each = Block::Details("Each failure".to_owned(), vec![Block::Table(table)]);
                let blocks = vec![Block::Table(causes(&scores, stack)), each];
                sections.push(Section { of: Some(of), ..section("failures", "Failures", blocks) });
            }
        }
        all.push((of, scores));
    }
    let panel = Panel { axis: "cases passed, %", groups: groups(&all) };
    let picture = charts::of_panels(vec![panel], "Cases that each stack passes", KEY);
    Document {
        title: "Conformance of TCP/IP stacks",
        about: Vec::new(),
        picture,
        sections,
        records: records(&all),
        benchmarks: benchmarks(&all),
    }
}

/// The most lines of new failures, and of causes: with the rest they are a screen.
const LINES: usize = 18;

/// The results for a terminal: new failures, the causes of all, a line for each stack, and why the program ends as it does. If
/// they are asked for, each failure in full and the tables.
pub(in crate::report) fn outcome(all: &[Score], is_verbose: bool) -> Vec<Block> {
    let scores: Vec<_> = all.iter().collect();
    let failed = failed(&scores);
    let shown = failed.iter().filter(|score| is_verbose || score.known.is_none());
    // A play of `--explore` has a line for each move.
    let is_play = failed.iter().any(|score| failure(score).contains('\n'));
    let lines: Vec<_> = shown.flat_map(|score| failure(score).lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let passed = all.iter().filter(|score| score.has_passed() && score.known.is_some());
    let passed: Vec<_> = passed.map(|score| with_known(score, &label(score))).collect();
    let first = |lines| if is_verbose { lines } else { first_of(lines) };
    let mut lists = vec![
        (
            if is_verbose { "Failures, the worst first:" } else { "New failures:" },
            if is_play { lines } else { first(lines) },
        ),
        ("Causes:", first(kinds(&scores).into_iter().flat_map(|stack| causes_of(&scores, stack)).collect())),
        ("Passed, although known to fail:", passed),
        ("Cases:", stacks(&scores).into_iter().map(|stack| counts(&scores, stack)).collect()),
    ];
    lists.extend(is_verbose.then(|| ("Left out:", left_out(&scores))));
    let mut blocks: Vec<_> = lists
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .map(|(title, lines)| Block::List(title, lines))
        .collect();
    if is_verbose {
        blocks.extend([cases(&scores), totals(&scores), demands(&scores)].map(Block::Table));
    }
    blocks.extend(success(all));
    blocks
}

fn first_of(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES);
    lines.truncate(LINES);
    lines.extend((more > 0).then(|| format!("and {more} more; -v prints all")));
    lines
}

/// A line for each cause of a stack's failures.
fn causes_of(scores: &[&Score], stack: StackKind) -> Vec<String> {
    let table = causes(scores, stack);
    let line = |row: &Vec<String>| {
        let [whose, breaks, cause, cases, _] = row.as_slice() else { return String::new() };
        let count = plural(cases.split(", ").count(), "case");
        format!("{stack}, {whose}: {cause}, {count}: {}", breaks.split(';').next().unwrap_or_default())
    };
    table.rows.iter().map(line).collect()
}

/// `smoltcp: 105 of 120 pass; 14 fail by the stack, 1 by our adapter or build`.
fn counts(scores: &[&Score], stack: Key) -> String {
    let (passed, all) = count(scores, stack, |_| true);
    let by_stack =
        scores.iter().filter(|score| key(score) == stack && score.has_failed() && score.whose() == Whose::Stack);
    let (by_stack, name) = (by_stack.count(), name(stack));
    match all - passed {
        0 => format!("{name}: all {all} pass"),
        failed => {
            format!(
                "{name}: {passed} of {all} pass; {by_stack} fail by the stack, {} by our adapter or build",
                failed - by_stack
            )
        }
    }
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
    failed.sort_by_key(|score| (key(score), score.outcome.harm()));
    failed
}

fn failure(score: &Score) -> String {
    let Score { rfc, expects, .. } = score;
    with_known(score, &format!("{}: expected by {rfc}: {expects} Seen: {}", label(score), score.seen()))
}

/// The stack, the case, and the workarounds and the congestion control if they are not the usual ones.
fn label(score: &Score) -> String {
    let Score { netstack, case, workarounds, stack_congestion, .. } = score;
    let workarounds = Some(workarounds).filter(|workarounds| **workarounds != Workarounds::ALL);
    let workarounds = workarounds.map(|workarounds| format!(" with workarounds {workarounds}")).unwrap_or_default();
    format!("{netstack} {case}{}{workarounds}", control(*stack_congestion))
}

fn control(congestion: StackCongestion) -> String {
    Some(congestion)
        .filter(|congestion| *congestion != StackCongestion::None)
        .map(|congestion| format!(" with {}", congestion.name()))
        .unwrap_or_default()
}

/// The stacks, in the order in which tables list them.
fn kinds(scores: &[&Score]) -> BTreeSet<StackKind> {
    scores.iter().map(|score| score.netstack).collect()
}

/// A stack and the choices with which it ran: a column of tables.
type Key = (StackKind, Workarounds, StackCongestion);

const fn key(score: &Score) -> Key {
    (score.netstack, score.workarounds, score.stack_congestion)
}

fn name((stack, workarounds, congestion): Key) -> String {
    name_of((stack, workarounds)).replacen(stack.name(), &format!("{stack}{}", control(congestion)), 1)
}

fn stacks(scores: &[&Score]) -> BTreeSet<Key> {
    scores.iter().map(|score| key(score)).collect()
}

fn find<'a>(scores: &[&'a Score], stack: Key, case: &str) -> Option<&'a Score> {
    scores.iter().find(|score| key(score) == stack && score.case == case).copied()
}

/// The results of the kernel's TCP, by case: its passes show that a case is right.
fn of_kernel<'a>(scores: &[&'a Score]) -> HashMap<&'a str, &'a Score> {
    let of_kernel = scores.iter().filter(|score| score.netstack == StackKind::Kernel);
    of_kernel.map(|score| (score.case.as_str(), *score)).collect()
}

fn count(scores: &[&Score], stack: Key, is_counted: impl Fn(&Score) -> bool) -> (usize, usize) {
    passed(scores.iter().copied().filter(|score| key(score) == stack && is_counted(score)))
}

/// How many of these passed, and to how many their cases apply.
pub(super) fn passed<'a, S: CaseResult + 'a>(scores: impl Iterator<Item = &'a S>) -> (usize, usize) {
    scores.fold((0, 0), |(passed, applied), score| match score.outcome() {
        Outcome::Pass => (passed + 1, applied + 1),
        Outcome::Fail { .. } => (passed, applied + 1),
        Outcome::NotApplicable { .. } | Outcome::Unavailable { .. } => (passed, applied),
    })
}

/// The bar of what [`passed`] returns.
pub(super) fn bar(label: String, mark: Mark, (passed, applied): (usize, usize)) -> Bar {
    let percent = 100.0 * passed as f64 / applied.max(1) as f64;
    let (median, note) = (Some((percent, percent..percent)), format!("{passed} of {applied}"));
    Bar { label, mark, median, runs: Vec::new(), note }
}

/// The figures of what [`passed`] returns, and further ones.
pub(super) fn benchmark<const N: usize>(
    name: String,
    (passed, applied): (usize, usize),
    further: [(&'static str, usize); N],
) -> Benchmark {
    let counts = [("passed_cases", passed), ("failed_cases", applied - passed)].into_iter().chain(further);
    let measures = counts.map(|(name, count)| Measure { name, value: count as f64, interval: None });
    Benchmark { name, measures: measures.collect() }
}

/// Why the program ends with success, if it does.
pub(super) fn success<S: CaseResult>(scores: &[S]) -> Option<Block> {
    let failed = if scores.iter().any(S::has_failed) { "Every failure is a known one" } else { "No case failed" };
    scores.iter().all(S::is_as_known).then(|| Block::Text(format!("{failed}, so the exit code is 0.")))
}

/// A failure, or a pass of a case that is known to fail, as a line.
pub(super) fn with_known(score: &impl CaseResult, text: &str) -> String {
    score.known().map_or_else(|| format!("{text}; NEW"), |reason| format!("{text}; known: {reason}"))
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
        table.push(Column::new(name(stack), true), values.chain(has_judge.then(|| of(&is_judged))));
    }
    table
}

/// The cases that a stack does not pass, in a table, and the names of the others.
fn listed(scores: &[&Score]) -> Vec<Block> {
    let is_odd = |score: &Score| !matches!(score.outcome, Outcome::Pass | Outcome::NotApplicable { .. });
    let odd: BTreeSet<_> = scores.iter().filter(|score| is_odd(score)).map(|score| &score.case).collect();
    let (odd, passed): (Vec<&Score>, Vec<&Score>) = scores.iter().partition(|score| odd.contains(&score.case));
    let mut blocks = Vec::new();
    if !odd.is_empty() {
        blocks.push(Block::Table(cases(&odd)));
    }
    let of_level = |level: &str| {
        let names = passed.iter().filter(|score| score.level == level).map(|score| score.case.as_str());
        format!("{level}: {}", unique(names).join(", "))
    };
    let levels = unique(passed.iter().map(|score| score.level.as_str()));
    if !levels.is_empty() {
        let lines = levels.into_iter().map(of_level).collect();
        blocks.push(Block::List("Passed by every stack to which they apply, each with the demand:", lines));
    }
    blocks
}

/// The cases, each with a word for each stack. A stack that was run with all workarounds and with none has one column.
fn cases(scores: &[&Score]) -> Table {
    let mut table = Table::new("Stacks and cases");
    let (names, all) = (of_cases(scores, |score| score.case.clone()), stacks(scores));
    table.push(Column::new("case", false), names.clone());
    let is_beside = |(stack, workarounds, congestion): &Key| {
        *workarounds == Workarounds::NONE && all.contains(&(*stack, Workarounds::ALL, *congestion))
    };
    for stack in all.iter().copied().filter(|stack| !is_beside(stack)) {
        let as_it_is = Some((stack.0, Workarounds::NONE, stack.2)).filter(is_beside);
        let values = names.iter().map(|case| {
            let beside = as_it_is.and_then(|as_it_is| find(scores, as_it_is, case));
            find(scores, stack, case).map(|score| word(score, beside))
        });
        table.push(Column::new(name(stack), false), values);
    }
    let levels = names.iter().map(|case| Case::find(case).map(|case| case.level.to_owned()));
    table.push(Column::new("level", false).if_room(Need::Wanted), levels);
    let situations = of_cases(scores, |score| match score.continued() {
        Some(earlier) if !names.iter().any(|name| name == earlier.id) => format!("{}. {}", earlier.title, score.title),
        _ => score.title.clone(),
    });
    table.push(Column::new("situation", false).if_room(Need::Wanted), situations);
    table
}

fn of_cases(scores: &[&Score], field: impl Fn(&Score) -> String) -> Vec<String> {
    let names = unique(scores.iter().map(|score| score.case.as_str())).into_iter();
    let of_case = names.filter_map(|name| scores.iter().find(|score| score.case == name));
    of_case.map(|score| field(score)).collect()
}

fn word(score: &Score, as_it_is: Option<&Score>) -> String {
    let word = match &score.outcome {
        Outcome::Fail { .. } => match score.whose() {
            Whose::Stack => "FAIL",
            Whose::Adapter => "FAIL (adapter)",
            Whose::Build => "FAIL (build)",
        },
        Outcome::Pass if as_it_is.is_some_and(Score::has_failed) => "worked around",
        Outcome::Pass => "pass",
        Outcome::NotApplicable { .. } => UNKNOWN,
        Outcome::Unavailable { .. } => "unavailable",
    };
    word.to_owned()
}

/// The failures of a stack, each once: first as it is and without congestion control, the worst first, and then those that
/// it has by its workarounds or its congestion control alone.
fn failures(scores: &[&Score], stack: StackKind) -> Table {
    let mut failed: Vec<_> = failed(scores).into_iter().filter(|score| score.netstack == stack).collect();
    failed.sort_by_key(|score| (score.workarounds != Workarounds::NONE, score.stack_congestion));
    let mut seen = BTreeSet::new();
    failed.retain(|score| seen.insert(&score.case));
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
    push("cause", &|score| score.cause.as_ref().unwrap_or(&score.case).clone());
    let judge = of_kernel(scores);
    if !judge.is_empty() {
        push("kernel", &|score| {
            judge.get(score.case.as_str()).map_or_else(|| UNKNOWN.to_owned(), |judge| word(judge, None))
        });
    }
    table
}

type OfFile<'a> = (Option<String>, Vec<&'a Score>);

fn groups(files: &[OfFile]) -> Vec<Group> {
    let subjects = unique(files.iter().flat_map(|(_, scores)| scores).map(|score| score.subject.as_str())).into_iter();
    let group = |subject: &str| {
        let bars = files.iter().flat_map(|(file, scores)| {
            stacks(scores).into_iter().map(move |of| {
                let name = name(of);
                let label = file.as_ref().map_or_else(|| name.clone(), |file| format!("{name}, {file}"));
                let passed = count(scores, of, |score| score.subject == subject);
                bar(label, charts::mark_of((of.0, of.1)), passed)
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
        let of_stack = |stack: Key| {
            let must = Met::of(scores, stack, Strength::Must);
            let musts = [("must_causes", must.causes), ("musts_not_met", must.broken), ("musts", must.applied)];
            benchmark(format!("{prefix}{} conformance", name(stack)), count(scores, stack, |_| true), musts)
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
    push("outcome", &|score| score.outcome.name().to_owned());
    push("seen", &|score| score.seen().to_owned());
    push("known", &|score| score.known.clone().unwrap_or_default());
    push("workaround", &|score| score.workaround.map(|workaround| workaround.to_string()).unwrap_or_default());
    push("of_adapter", &|score| score.of_adapter.to_string());
    push("mtu", &|score| score.mtu.to_string());
    push("harm", &|score| score.outcome.harm().map(|harm| harm.to_string()).unwrap_or_default());
    push("shards", &|score| score.shards.to_string());
    push("level", &|score| score.level.clone());
    push("cause", &|score| score.cause.clone().unwrap_or_default());
    push("of_build", &|score| score.of_build.to_string());
    push("stack_congestion", &|score| score.stack_congestion.name().to_owned());
    let file = |(file, scores): &OfFile| vec![file.clone().unwrap_or_default(); scores.len()];
    table.push(Column::new("file", false), files.iter().flat_map(file));
    table
}

pub(in crate::report) fn list(cases: &[Case]) -> Table {
    let mut table = Table::new("Cases");
    let mut push = |title, value: fn(&Case) -> &'static str| {
        table.push(Column::new(title, false), cases.iter().map(|case| value(case).to_owned()));
    };
    push("case", |case| case.id);
    push("level", |case| case.level);
    push("situation", |case| case.title);
    push("RFC", |case| case.rfc);
    push("expected", |case| case.expects);
    table
}

#[cfg(test)]
mod tests;
