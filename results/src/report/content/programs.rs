//! The main figures of programs as they are: a table for each role.

use std::collections::BTreeMap;

use super::questions::{self, Figures, MEMORY, NEW, Question, READ, REQUESTS, Row, THOUSAND, WRITE};
use crate::cell::Cell;
use crate::measure::{self, CellSummary, Summary};
use crate::program::{self, ProgramName, Role, is_baseline};
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{Block, Column, Need};
use crate::report::series::{self, Series};
use crate::sample::ProgramFacts;

/// Those of the preset `programs`.
const QUESTIONS: [Question; 9] = [
    READ,
    WRITE,
    REQUESTS,
    Question { title: "on 100 connections", words: "--mode rr --parallel 100", ..REQUESTS },
    THOUSAND,
    NEW,
    Question { title: "requests/s over UDP", words: "--mode rr --protocol udp", ..REQUESTS },
    MEMORY,
    Question { title: "KiB a UDP flow, 5 s", words: "--mode idle --parallel 1000 --protocol udp", ..MEMORY },
];

pub(super) const ROLES: [(Role, &str); 3] =
    [(Role::Proxy, "Proxies"), (Role::Tunnel, "Tunnels"), (Role::Attach, "Container networks")];

const WHY_SEVERAL: &str = "Each role has a table of its own, because the roles do different work: a proxy ends connections and opens \
    others, a tunnel encloses packets and takes them out again, and a container's network opens its connections in another network.";

const ABOUT_LIMIT: &str = " †: at the limit of the upstream, no more than a tenth below the row socks5, so the program may be \
    faster; such a figure is not bold.";

/// The programs of one machine and build by role, each table with the baselines, and what failed.
pub(super) fn sections(all: &[Series]) -> Vec<(&'static str, Vec<Block>)> {
    let alike: Vec<_> = all.iter().filter(|one| one.environment == all[0].environment).collect();
    let mut programs: Vec<_> = programs(&alike).into_iter().map(|(name, facts)| Program::new(name, facts)).collect();
    programs.sort_by_key(|program| is_baseline(program.name));
    let of = |(role, title)| (title, blocks(&alike, &programs, role, title));
    let mut sections: Vec<_> = ROLES.into_iter().map(of).filter(|(_, blocks)| !blocks.is_empty()).collect();
    if let [(_, first), _, ..] = sections.as_mut_slice() {
        first.push(Block::Text(WHY_SEVERAL.to_owned()));
    }
    sections
}

struct Program<'a> {
    name: ProgramName,
    role: Role,
    facts: Vec<&'a ProgramFacts>,
}

impl<'a> Program<'a> {
    fn new(name: ProgramName, facts: Vec<&'a ProgramFacts>) -> Self {
        let role = program::role(name, facts.iter().map(|facts| facts.role)).unwrap_or(Role::Proxy);
        Self { name, role, facts }
    }
}

fn programs<'a>(all: &[&'a Series]) -> BTreeMap<ProgramName, Vec<&'a ProgramFacts>> {
    let mut programs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for sample in all.iter().flat_map(|one| &one.samples) {
        let Some(program) = sample.cell.program() else { continue };
        programs.entry(program).or_default().extend(sample.measured.program.as_deref());
    }
    programs
}

fn blocks(all: &[&Series], programs: &[Program], wanted: Role, title: &'static str) -> Vec<Block> {
    // The client alone through the SOCKS5 server is only compared with proxies.
    let is_compared = |name: ProgramName| name.as_str() == "kernel" || (wanted == Role::Proxy && is_baseline(name));
    let is_shown = |program: &&Program| program.role == wanted || is_compared(program.name);
    let shown: Vec<_> = programs.iter().filter(is_shown).collect();
    if shown.iter().all(|program| is_baseline(program.name)) {
        return Vec::new();
    }
    let row = |program: &&Program| {
        let name = program.name;
        let has = Box::new(move |_: &Question, cell: &Cell| cell.program() == Some(name));
        Row { name: name.to_string(), has, is_rival: !is_baseline(name) }
    };
    let rows: Vec<_> = shown.iter().map(row).collect();
    let cells: Vec<&CellSummary> = all.iter().flat_map(|one| &one.summary.cells).collect();
    let has_row = |row: &&CellSummary| shown.iter().any(|program| row.cell.program() == Some(program.name));
    let mut table = questions::table(title, "program", &rows, &QUESTIONS, &cells, Figures::Intervals);
    if table.columns.len() == 1 {
        return Vec::new();
    }
    let facts = || shown.iter().map(|program| program.facts.as_slice());
    table.push(
        Column::new("ready after ms", true),
        facts().map(|facts| median(facts, |facts| Some(facts.start_seconds * 1e3), 0)),
    );
    let at_rest = |facts: &ProgramFacts| Some(facts.at_rest.pss_bytes? as f64 / 1e6);
    table.push(Column::new("MB at rest", true), facts().map(|facts| median(facts, at_rest, 1)));
    table.push(Column::new("version", false).if_room(Need::Extra), facts().map(version));
    let is_limited = cells.iter().any(|row| row.is_at_upstream_limit() && has_row(row));
    let note = format!(
        "Medians of the runs that succeeded, with their intervals, on {}, with one stream or as many connections as the column \
         says. {} Memory is of the near end of a tunnel.{}",
        series::machine_and_days(all),
        questions::about_bold("program"),
        if is_limited { ABOUT_LIMIT } else { "" }
    );
    let failed = Summary { cells: cells.into_iter().filter(has_row).cloned().collect(), warnings: Vec::new() };
    let failures = format::details(&failed);
    let mut blocks = vec![Block::Table(table), Block::Text(note)];
    blocks.extend((!failures.is_empty()).then_some(Block::List("Failures:", failures)));
    blocks
}

fn median(facts: &[&ProgramFacts], of: impl Fn(&ProgramFacts) -> Option<f64>, decimals: usize) -> String {
    let values: Vec<f64> = facts.iter().filter_map(|facts| of(facts)).collect();
    let median = measure::median(&values).filter(|value| *value > 0.0);
    median.map_or(UNKNOWN.to_owned(), |value| format!("{value:.decimals$}"))
}

/// Its version, or the beginning of the hash of its file.
fn version(facts: &[&ProgramFacts]) -> String {
    let version = facts.iter().find_map(|facts| facts.version.as_deref()).map(format::one_line);
    let hash = || Some(format!("sha256 {}", facts.iter().find_map(|facts| facts.sha256.as_deref()?.get(..12))?));
    version.or_else(hash).unwrap_or(UNKNOWN.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{self, failed, program as run};
    use crate::sample::{RequestFacts, Sample, Status};

    #[test]
    fn a_report_of_programs_alone_does_not_speak_of_stacks() {
        let runs = [run("mine", Some(Role::Proxy), 4.0), run("kernel", Some(Role::Route), 9.0)];
        let stack = fixture::run("-n lwip -m reader", 1.0);
        let head_and_title = |runs: &[Sample]| {
            let document = super::super::document(&Series::split("runs", runs, &[]));
            let overview = document.sections.into_iter().find(|section| section.kind == "overview").unwrap();
            let table = overview.blocks.into_iter().find_map(|block| match block {
                Block::Table(table) => Some(table),
                _ => None,
            });
            let head = |column: &Column| matches!(&*column.title, "program" | "stack").then(|| column.title.clone());
            (table.unwrap().columns.iter().find_map(head).unwrap(), document.title)
        };
        assert_eq!(head_and_title(&runs), ("program".to_owned(), "Programs with a TUN device, as they are"));
        let (head, title) = head_and_title(&[&runs[..], &[stack]].concat());
        assert_eq!((&*head, title), ("stack", "Userspace TCP/IP stacks over a TUN device"));
    }

    #[test]
    fn programs_are_beside_those_of_their_role_and_the_kernel() {
        let mine = run("mine", Some(Role::Tunnel), 4.0);
        let stalled = failed(&mine.cell, Status::Stalled);
        let mut requests = run("tun2proxy", Some(Role::Proxy), 5.0);
        requests.cell = fixture::cell("--program tun2proxy -m rr");
        requests.measured.requests = Some(RequestFacts { answered: 7000, ..RequestFacts::default() });
        // An older file does not say the role; the profile does. Requests are a series of their own.
        let runs = [
            requests,
            run("kernel", Some(Role::Route), 9.0),
            run("socks5", Some(Role::Route), 8.0),
            run("sing-box-gvisor", None, 7.9),
            run("gotatun", None, 2.0),
            run("boringtun", None, 1.0),
            mine,
            stalled,
            run("tun2proxy", Some(Role::Proxy), 3.0),
        ];
        let series = Series::split("programs", &runs, &[]);
        let mut lines = Vec::new();
        for (title, blocks) in sections(&series) {
            let Block::Table(table) = &blocks[0] else { unreachable!() };
            let bold = |text: &str, is_bold: bool| if is_bold { format!("*{text}*") } else { text.to_owned() };
            lines.push(title.to_owned());
            lines.extend(table.lines(comfy_table::presets::NOTHING, bold));
            let Block::Text(note) = &blocks[1] else { unreachable!() };
            assert_eq!(note.ends_with(ABOUT_LIMIT), title == "Proxies", "{note}");
            match &blocks[2..] {
                [Block::Text(text)] => assert_eq!((title, text.as_str()), ("Proxies", WHY_SEVERAL)),
                [Block::List(..)] => assert_eq!(title, "Tunnels", "a list of failures"),
                others => panic!("{title}: {} blocks", others.len()),
            }
        }
        insta::assert_snapshot!(lines.join("\n"));
        let others = runs.map(|run| Sample { cell: Cell { mtu: 9000, ..run.cell.clone() }, ..run });
        assert!(sections(&Series::split("programs", &others, &[])).is_empty(), "no column has an answer");
    }
}
