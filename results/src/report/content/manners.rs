//! Results of manners: programs and cases.

use conformance::Outcome;
use conformance::manners::Manner;

use super::charts;
use crate::plural;
use crate::program::ProgramName;
use crate::report::format::{UNKNOWN, unique};
use crate::report::model::{Bar, Benchmark, Block, Column, Document, Group, Measure, Need, Panel, Section, Table};
use crate::sample::MannerScore;

const KEY: &str = "Of the cases that apply to a program.";

pub(in crate::report) fn document(scores: &[&MannerScore]) -> Document {
    let section = |kind, title, blocks| Section { kind, title, of: None, blocks };
    let mut sections = vec![
        section("overview", "Manners", overview(scores)),
        section("cells", "Cases", vec![Block::Table(meanings(scores))]),
    ];
    for program in programs(scores) {
        let table = failures(scores, program);
        if !table.rows.is_empty() {
            let of = Some(program.to_string());
            sections.push(Section { of, ..section("failures", "Failures", vec![Block::Table(table)]) });
        }
    }
    let panel = Panel { axis: "cases passed, %", groups: groups(scores) };
    let picture = charts::of_panels(vec![panel], "Cases of manners that each program passes", KEY);
    let measures = |program| {
        let (passed, applied) = count(scores, program, |_| true);
        [("passed_cases", passed), ("failed_cases", applied - passed)].map(|(name, count)| Measure {
            name,
            value: count as f64,
            interval: None,
        })
    };
    let benchmark = |program| Benchmark { name: format!("{program} manners"), measures: measures(program).into() };
    let benchmarks = programs(scores).into_iter().map(benchmark).collect();
    Document {
        title: "Manners of programs",
        about: Vec::new(),
        picture,
        sections,
        records: records(scores),
        benchmarks,
    }
}

/// The results for a terminal: the table, a line for each failure, and why the program ends as it does.
pub(in crate::report) fn outcome(scores: &[MannerScore]) -> Vec<Block> {
    let scores: Vec<_> = scores.iter().collect();
    let mut blocks = overview(&scores);
    let line = |score: &MannerScore| {
        let MannerScore { program, case, level, expects, .. } = score;
        let seen = Some(score.seen()).filter(|seen| !seen.is_empty()).map(|seen| format!(" Seen: {seen}"));
        let known = score.known.as_ref().map_or_else(|| "NEW".to_owned(), |reason| format!("known: {reason}"));
        format!("{program} {case}: expected ({level}): {expects}{}; {known}", seen.unwrap_or_default())
    };
    let of = |is: &dyn Fn(&MannerScore) -> bool| -> Vec<_> {
        scores.iter().filter(|score| is(score)).map(|score| line(score)).collect()
    };
    let failed = of(&MannerScore::has_failed);
    let passed = of(&|score| score.outcome == Outcome::Pass && score.known.is_some());
    let count = failed.len();
    for (title, lines) in [("Failures:", failed), ("Passed, although known to fail:", passed)] {
        if !lines.is_empty() {
            blocks.push(Block::List(title, lines));
        }
    }
    if scores.iter().all(|score| score.is_as_known()) {
        let failed = if count == 0 { "No case failed" } else { "Every failure is a known one" };
        blocks.push(Block::Text(format!("{failed}, so the exit code is 0.")));
    }
    blocks
}

pub(in crate::report) fn list(cases: &[Manner]) -> Table {
    let mut table = Table::new("Cases");
    let mut push = |title, value: fn(&Manner) -> &'static str| {
        table.push(Column::new(title, false), cases.iter().map(|case| value(case).to_owned()));
    };
    push("case", |case| case.id);
    push("level", |case| case.level);
    push("expected", |case| case.expects);
    table
}

/// How many cases each program passes, the cases that some fail, and what all others do.
fn overview(scores: &[&MannerScore]) -> Vec<Block> {
    let mut totals = Table::new("Cases passed of each subject");
    let programs = programs(scores);
    totals.push(Column::new("program", false), programs.iter().map(ToString::to_string));
    let version = |program: &ProgramName| {
        scores.iter().filter(|score| score.program == *program).find_map(|score| score.version.clone())
    };
    totals.push(Column::new("version", false).if_room(Need::Extra), programs.iter().map(version));
    for subject in unique(scores.iter().map(|score| score.subject.as_str())) {
        totals.push(Column::new(subject, true), programs.iter().map(|program| share(scores, *program, subject)));
    }
    totals.push(Column::new("all", true), programs.iter().map(|program| share(scores, *program, "")));
    let names = names(scores);
    let has_failed = |name: &&str| scores.iter().any(|score| score.of_ipv4().0 == *name && score.has_failed());
    let (failed, passed): (Vec<_>, Vec<_>) = names.into_iter().partition(has_failed);
    let mut table = Table::new("Cases that some fail");
    table.push(Column::new("case", false), failed.iter().map(|name| (*name).to_owned()));
    for program in programs {
        let value = |name: &&str| mark(scores, program, name);
        table.push(Column::new(program.to_string(), false), failed.iter().map(value));
    }
    let mut blocks = vec![Block::Table(totals)];
    if !failed.is_empty() {
        blocks.push(Block::Table(table));
    }
    if !passed.is_empty() {
        let names = passed.join(", ");
        blocks.push(Block::Text(format!("Passed by every program to which it applies: {names}.")));
    }
    blocks
}

fn share(scores: &[&MannerScore], program: ProgramName, subject: &str) -> String {
    let (passed, applied) = count(scores, program, |score| subject.is_empty() || score.subject == subject);
    format!("{passed} of {applied}")
}

/// The result of a case over both versions of IP.
fn mark(scores: &[&MannerScore], program: ProgramName, name: &str) -> String {
    let of = |is_ipv6| scores.iter().find(|score| score.program == program && score.of_ipv4() == (name, is_ipv6));
    let failed = |score: Option<&&MannerScore>| score.is_some_and(|score| score.has_failed());
    let versions = [of(false), of(true)];
    match versions.map(failed) {
        [true, true] => "FAIL".to_owned(),
        [true, false] => if versions[1].is_some() { "FAIL (IPv4)" } else { "FAIL" }.to_owned(),
        [false, true] => if versions[0].is_some() { "FAIL (IPv6)" } else { "FAIL" }.to_owned(),
        [false, false] => {
            let has_passed = versions.iter().flatten().any(|score| score.outcome == Outcome::Pass);
            if has_passed { "pass" } else { UNKNOWN }.to_owned()
        }
    }
}

/// The names of the cases over IPv4, in the order of the list. A file has those first that do not apply.
fn names<'a>(scores: &[&'a MannerScore]) -> Vec<&'a str> {
    let mut names = unique(scores.iter().map(|score| score.of_ipv4().0));
    names.sort_by_key(|name| Manner::all().position(|case| case.id == *name).unwrap_or(usize::MAX));
    names
}

fn meanings(scores: &[&MannerScore]) -> Table {
    let mut table = Table::new("Cases");
    let names = names(scores);
    let cases: Vec<_> =
        names.iter().filter_map(|name| scores.iter().find(|score| score.of_ipv4().0 == *name)).collect();
    let mut push = |title, value: fn(&MannerScore) -> &str| {
        table.push(Column::new(title, false), cases.iter().map(|score| value(score).to_owned()));
    };
    push("case", |score| score.of_ipv4().0);
    push("level", |score| &score.level);
    push("expected", |score| &score.expects);
    table
}

fn failures(scores: &[&MannerScore], program: ProgramName) -> Table {
    let of: Vec<_> = scores.iter().filter(|score| score.program == program && score.has_failed()).collect();
    let mut table = Table::new("Failures");
    let mut push = |title, value: &dyn Fn(&MannerScore) -> String| {
        table.push(Column::new(title, false), of.iter().map(|score| value(score)));
    };
    push("case", &|score| score.case.clone());
    push("harm", &|score| score.outcome.harm().map(|harm| harm.to_string()).unwrap_or_default());
    push("what came", &|score| score.seen().to_owned());
    push("why", &|score| score.known.clone().unwrap_or_else(|| UNKNOWN.to_owned()));
    table
}

fn programs(scores: &[&MannerScore]) -> Vec<ProgramName> {
    unique(scores.iter().map(|score| score.program))
}

fn count(scores: &[&MannerScore], program: ProgramName, is_counted: impl Fn(&MannerScore) -> bool) -> (usize, usize) {
    let of = scores.iter().filter(|score| score.program == program && is_counted(score));
    let (passed, failed) =
        (of.clone().filter(|score| score.outcome == Outcome::Pass), of.filter(|score| score.has_failed()));
    let (passed, failed) = (passed.count(), failed.count());
    (passed, passed + failed)
}

fn groups(scores: &[&MannerScore]) -> Vec<Group> {
    let bar = |subject: &str, program| {
        let (passed, applied) = count(scores, program, |score| score.subject == subject);
        let percent = 100.0 * passed as f64 / applied.max(1) as f64;
        let (median, note) = (Some((percent, percent..percent)), format!("{passed} of {}", plural(applied, "case")));
        Bar {
            label: program.to_string(),
            mark: charts::mark_of_program(program.as_str()),
            median,
            runs: Vec::new(),
            note,
        }
    };
    let group = |subject: &str| {
        let bars = programs(scores).into_iter().map(|program| bar(subject, program)).collect();
        Group { title: subject.to_owned(), bars, references: Vec::new() }
    };
    unique(scores.iter().map(|score| score.subject.as_str())).into_iter().map(group).collect()
}

fn records(scores: &[&MannerScore]) -> Table {
    let mut table = Table::new("Records");
    let mut push = |title, value: &dyn Fn(&MannerScore) -> String| {
        table.push(Column::new(title, false), scores.iter().map(|score| value(score)));
    };
    push("program", &|score| score.program.to_string());
    push("version", &|score| score.version.clone().unwrap_or_default());
    push("subject", &|score| score.subject.clone());
    push("case", &|score| score.case.clone());
    push("level", &|score| score.level.clone());
    push("expects", &|score| score.expects.clone());
    push("outcome", &|score| {
        match score.outcome {
            Outcome::Pass => "pass",
            Outcome::Fail { .. } => "fail",
            Outcome::NotApplicable { .. } => "not-applicable",
            Outcome::Unavailable { .. } => "unavailable",
        }
        .to_owned()
    });
    push("seen", &|score| score.seen().to_owned());
    push("known", &|score| score.known.clone().unwrap_or_default());
    table
}

#[cfg(test)]
mod tests {
    use conformance::Harm;

    use super::*;

    #[test]
    fn a_mark_joins_both_versions_and_a_case_that_none_fails_has_no_row() {
        let fail = || Outcome::Fail { seen: "silence".to_owned(), harm: Harm::Hang };
        let absent = || Outcome::NotApplicable { seen: String::new() };
        let score = |id: &str, outcome| {
            let case = Manner::all().find(|case| case.id == id).unwrap();
            MannerScore::new(&case, "kernel".parse().unwrap(), None, outcome)
        };
        for (outcomes, expected) in [
            (vec![fail(), fail()], "FAIL"),
            (vec![fail(), Outcome::Pass], "FAIL (IPv4)"),
            (vec![Outcome::Pass, fail()], "FAIL (IPv6)"),
            (vec![fail()], "FAIL"),
            (vec![Outcome::Pass, absent()], "pass"),
            (vec![absent(), absent()], UNKNOWN),
        ] {
            let scores: Vec<_> =
                ["idle", "idle-ipv6"].into_iter().zip(outcomes).map(|(id, one)| score(id, one)).collect();
            let scores: Vec<_> = scores.iter().collect();
            assert_eq!(mark(&scores, scores[0].program, "idle"), expected);
            let blocks = overview(&scores);
            assert_eq!(blocks.len(), 2, "the totals, and a row or a sentence");
            assert_eq!(matches!(blocks[1], Block::Table(_)), expected.starts_with("FAIL"));
        }
    }
}
