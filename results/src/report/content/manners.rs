//! Results of manners: programs and cases.

use conformance::Outcome;
use conformance::manners::Manner;

use super::charts;
use super::scorecard::{bar, benchmark, passed, success, with_known};
use crate::program::ProgramName;
use crate::report::format::{UNKNOWN, unique};
use crate::report::model::{Block, Column, Document, Group, Need, Panel, Section, Table};
use crate::sample::{CaseResult, MannerScore};

const KEY: &str = "Of the cases that apply to a program.";

pub(in crate::report) fn document(scores: &[&MannerScore]) -> Document {
    let section = |kind, title, blocks| Section { kind, title, of: None, blocks };
    let case = |name| {
        let score = scores.iter().find(|score| score.of_ipv4().0 == name)?;
        Some([name, score.level.as_str(), score.expects.as_str()])
    };
    let mut sections = vec![
        section("overview", "Manners", overview(scores)),
        section(
            "cells",
            "Cases",
            vec![Block::Table(meanings(&names(scores).into_iter().filter_map(case).collect::<Vec<_>>()))],
        ),
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
    let benchmark = |program: ProgramName| benchmark(format!("{program} manners"), count(scores, program, ""), []);
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

/// The results for a terminal: the table, a line for each new failure, or for each one if it is asked for, and why the program ends
/// as it does.
pub(in crate::report) fn outcome(all: &[MannerScore], is_verbose: bool) -> Vec<Block> {
    let scores: Vec<_> = all.iter().collect();
    let mut blocks = overview(&scores);
    let line = |score: &MannerScore| {
        let MannerScore { program, case, level, expects, .. } = score;
        let seen = Some(score.seen()).filter(|seen| !seen.is_empty()).map(|seen| format!(" Seen: {seen}"));
        let text = format!("{program} {case}: expected ({level}): {expects}{}", seen.unwrap_or_default());
        with_known(score, &text)
    };
    let of = |is: &dyn Fn(&MannerScore) -> bool| -> Vec<_> {
        scores.iter().filter(|score| is(score)).map(|score| line(score)).collect()
    };
    let failed = of(&|score| score.has_failed() && (is_verbose || score.known.is_none()));
    let passed = of(&|score| score.has_passed() && score.known.is_some());
    for (title, lines) in
        [(if is_verbose { "Failures:" } else { "New failures:" }, failed), ("Passed, although known to fail:", passed)]
    {
        if !lines.is_empty() {
            blocks.push(Block::List(title, lines));
        }
    }
    blocks.extend(success(all));
    blocks
}

pub(in crate::report) fn list(cases: &[Manner]) -> Table {
    meanings(&cases.iter().map(|case| [case.id, case.level, case.expects]).collect::<Vec<_>>())
}

fn meanings(cases: &[[&str; 3]]) -> Table {
    let mut table = Table::new("Cases");
    for (index, title) in ["case", "level", "expected"].into_iter().enumerate() {
        table.push(Column::new(title, false), cases.iter().map(|case| case[index].to_owned()));
    }
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
    let has =
        |name: &str, is: fn(&MannerScore) -> bool| scores.iter().any(|score| score.of_ipv4().0 == name && is(score));
    let (failed, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| has(name, CaseResult::has_failed));
    let (passed, neither): (Vec<_>, Vec<_>) = others.into_iter().partition(|name| has(name, CaseResult::has_passed));
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
    for (title, names) in
        [("Passed by every program to which it applies", passed), ("Neither passed nor failed", neither)]
    {
        if !names.is_empty() {
            blocks.push(Block::Text(format!("{title}: {}.", names.join(", "))));
        }
    }
    blocks
}

fn share(scores: &[&MannerScore], program: ProgramName, subject: &str) -> String {
    let (passed, applied) = count(scores, program, subject);
    format!("{passed} of {applied}")
}

/// Of a subject, or of all.
fn count(scores: &[&MannerScore], program: ProgramName, subject: &str) -> (usize, usize) {
    let is_of = |score: &&MannerScore| score.program == program && (subject.is_empty() || score.subject == subject);
    passed(scores.iter().copied().filter(is_of))
}

/// The result of a case over both versions of IP.
fn mark(scores: &[&MannerScore], program: ProgramName, name: &str) -> String {
    let of = |is_ipv6| scores.iter().find(|score| score.program == program && score.of_ipv4() == (name, is_ipv6));
    let versions = [of(false), of(true)];
    let failed = |score: Option<&&MannerScore>| score.is_some_and(|score| score.has_failed());
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

/// The failures of a program. One that is the same over both versions of IP has one row, with the name over IPv4.
fn failures(scores: &[&MannerScore], program: ProgramName) -> Table {
    let mut of: Vec<_> = scores.iter().filter(|score| score.program == program && score.has_failed()).collect();
    let other = |score: &MannerScore| {
        let (name, is_ipv6) = score.of_ipv4();
        scores.iter().find(|other| other.program == program && other.of_ipv4() == (name, !is_ipv6))
    };
    let is_same = |score: &MannerScore| {
        other(score).is_none_or(|other| (&other.outcome, &other.known) == (&score.outcome, &score.known))
    };
    of.retain(|score| !score.of_ipv4().1 || other(score).is_none() || !is_same(score));
    let mut table = Table::new("Failures");
    let mut push = |title, value: &dyn Fn(&MannerScore) -> String| {
        table.push(Column::new(title, false), of.iter().map(|score| value(score)));
    };
    push("case", &|score| match score.of_ipv4() {
        (name, _) if is_same(score) => name.to_owned(),
        (name, is_ipv6) => format!("{name} ({})", if is_ipv6 { "IPv6" } else { "IPv4" }),
    });
    push("harm", &|score| score.outcome.harm().map(|harm| harm.to_string()).unwrap_or_default());
    push("what came", &|score| score.seen().to_owned());
    push("why", &|score| {
        let Some(known) = &score.known else { return UNKNOWN.to_owned() };
        // The version that the reason is of, unless it is the one that was run.
        let ran = score.version.as_ref().map(|version| format!(" ({version})"));
        ran.and_then(|ran| known.strip_suffix(&ran)).unwrap_or(known).to_owned()
    });
    table
}

fn programs(scores: &[&MannerScore]) -> Vec<ProgramName> {
    unique(scores.iter().map(|score| score.program))
}

fn groups(scores: &[&MannerScore]) -> Vec<Group> {
    let bar = |subject: &str, program: ProgramName| {
        bar(program.to_string(), charts::mark_of_program(program.as_str()), count(scores, program, subject))
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
    push("outcome", &|score| score.outcome.name().to_owned());
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
            let rows = failures(&scores, scores[0].program).rows;
            let names: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
            let name = expected.replace("FAIL", "idle");
            assert_eq!(names, if name == expected { Vec::new() } else { vec![name.as_str()] }, "one row for both");
            let blocks = overview(&scores);
            assert_eq!(blocks.len(), 2, "the totals, and a row or a sentence");
            match &blocks[1] {
                Block::Table(_) => assert!(expected.starts_with("FAIL")),
                Block::Text(text) => assert_eq!(text.starts_with("Passed"), expected == "pass", "{text}"),
                _ => panic!("another block"),
            }
        }
    }
}
