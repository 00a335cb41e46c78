//! The main figures of programs: of each role a table of each as its authors ship it, and one of all alike.

use std::collections::{BTreeMap, BTreeSet};

use super::questions::{self, MEMORY, NEW, Question, READ, REQUESTS, Row, THOUSAND, WRITE};
use crate::cell::Cell;
use crate::measure::{self, CellSummary, Summary};
use crate::program::{self, ProgramName, Role, SOCKS5, is_baseline};
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{Block, Chart, Column, Need};
use crate::report::series::{self, Series};
use crate::sample::{ProgramFacts, Sample};

/// Those of the preset `programs`: of each as it is shipped.
const SHIPPED: [Question; 9] = [
    READ,
    WRITE,
    REQUESTS,
    Question { title: "requests/s on 100 connections", words: "--mode rr --parallel 100", ..REQUESTS },
    THOUSAND,
    NEW,
    Question { title: "requests/s over UDP", words: "--mode rr --protocol udp", ..REQUESTS },
    MEMORY,
    Question { title: "KiB a UDP flow at rest", words: "--mode idle --parallel 1000 --protocol udp", ..MEMORY },
];

/// The columns of the first table: all programs, each as it is shipped.
const MAIN: [Question; 4] = [READ, WRITE, THOUSAND, MEMORY];

/// Of all alike. A limit of flows is raised where a program has an option for it.
const ALIKE: [Question; 6] = [
    Question { title: "download Gbps at MTU 1500", words: "--mode reader --mtu 1500 --max-flows 20000", ..READ },
    Question { title: "upload Gbps at MTU 1500", words: "--mode writer --mtu 1500 --max-flows 20000", ..READ },
    Question { title: "download Gbps at MTU 65520", words: "--mode reader --mtu 65520 --max-flows 20000", ..READ },
    Question { title: "upload Gbps at MTU 65520", words: "--mode writer --mtu 65520 --max-flows 20000", ..READ },
    Question {
        title: "requests/s on 1,000 connections, MTU 1500",
        words: "--mode rr --parallel 1000 --mtu 1500 --max-flows 20000",
        ..THOUSAND
    },
    Question {
        title: "new connections/s, MTU 1500",
        words: "--mode crr --parallel 50 --mtu 1500 --max-flows 20000",
        ..NEW
    },
];

/// A table: the role, whether each program is as it is shipped, and the title.
const TABLES: [(Role, bool, &str); 6] = [
    (Role::Proxy, true, "Proxies"),
    (Role::Proxy, false, "Proxies, all alike"),
    (Role::Tunnel, true, "Tunnels"),
    (Role::Tunnel, false, "Tunnels, all alike"),
    (Role::Attach, true, "Container networks"),
    (Role::Attach, false, "Container networks, all alike"),
];

/// What a run has set is in the row.
const SETTINGS: &str = "settings";

const ABOUT_LIMIT: &str = " †: at the limit of the upstream, no more than a tenth below the row socks5, so the program may be \
    faster; such a figure is not bold.";

/// The programs of one matrix, each table with the baselines, and what failed.
pub(super) fn sections(all: &[Series]) -> Vec<(&'static str, Vec<Block>)> {
    let alike = series::together(all);
    let mut programs: Vec<_> =
        programs(&alike).into_iter().map(|(name, samples)| Program::new(name, samples)).collect();
    programs.sort_by_key(|program| is_baseline(program.name));
    let of = |(role, is_shipped, title)| (title, blocks(&alike, &programs, role, is_shipped, title));
    TABLES.into_iter().map(of).filter(|(_, blocks)| !blocks.is_empty()).collect()
}

/// The table and its chart: a row for each program, and for the kernel, if they have a download, an upload and requests.
pub(super) fn main(all: &[Series]) -> Option<(Vec<Block>, Chart)> {
    let all = &series::together(all);
    let programs: Vec<_> = programs(all).into_iter().map(|(name, samples)| Program::new(name, samples)).collect();
    let mut shown: Vec<_> = programs.iter().filter(|program| program.name.as_str() != SOCKS5).collect();
    shown.sort_by_key(|program| (is_baseline(program.name), program.role, program.name));
    let rows: Vec<_> = shown.iter().copied().map(row).collect();
    let cells: Vec<&CellSummary> = all.iter().flat_map(|one| &one.summary.cells).collect();
    let is_asked = |question: &Question| cells.iter().any(|one| question.asks(&one.cell));
    if rows.is_empty() || ![READ, WRITE, THOUSAND].iter().all(is_asked) {
        return None;
    }
    let mut table = questions::table("Programs", "program", &rows, &MAIN, &cells);
    let kind = |program: &&Program| match program.role {
        Role::Proxy => "proxy".to_owned(),
        Role::Tunnel => "tunnel".to_owned(),
        Role::Attach => "container network".to_owned(),
        Role::Route => UNKNOWN.to_owned(),
    };
    table.insert(1, Column::property("kind", false), shown.iter().map(kind));
    let chart = questions::chart("Download, upload, requests and memory of each program", None, &MAIN, &rows, &cells);
    let cells: Vec<_> = rows.iter().flat_map(|row| row.shown(&MAIN, &cells)).collect();
    let note = format!(
        "Medians on {}. Each as its authors ship it; one stream, or the number of connections in the head; at rest: after 5 s. {} {}{}",
        series::machine_and_days(all),
        questions::about_bold("program"),
        questions::widths(&cells),
        if cells.iter().any(|(_, row)| row.is_at_upstream_limit()) { ABOUT_LIMIT } else { "" },
    );
    let blocks = [Block::Table(table), Block::Text(note)].into_iter().chain(questions::failures(&cells));
    Some((blocks.collect(), chart))
}

fn row(program: &Program) -> Row<'static> {
    let name = program.name;
    let has = Box::new(move |_: &Question, cell: &Cell| cell.program() == Some(name));
    Row { name: name.to_string(), has, published: None, is_rival: !is_baseline(name) }
}

struct Program<'a> {
    name: ProgramName,
    role: Role,
    samples: Vec<&'a Sample>,
}

impl<'a> Program<'a> {
    fn new(name: ProgramName, samples: Vec<&'a Sample>) -> Self {
        let roles = samples.iter().filter_map(|sample| sample.measured.program.as_ref()).map(|facts| facts.role);
        Self { name, role: program::role(name, roles).unwrap_or(Role::Proxy), samples }
    }

    /// Its runs as it is shipped, or those alike.
    fn runs(&self, is_shipped: bool) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().copied().filter(move |sample| sample.cell.is_shipped() == is_shipped)
    }
}

fn programs<'a>(all: &[&'a Series]) -> BTreeMap<ProgramName, Vec<&'a Sample>> {
    let mut programs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for sample in all.iter().flat_map(|one| &one.samples) {
        let Some(program) = sample.cell.program() else { continue };
        programs.entry(program).or_default().push(sample);
    }
    programs
}

fn blocks(all: &[&Series], programs: &[Program], wanted: Role, is_shipped: bool, title: &'static str) -> Vec<Block> {
    // The client alone through the SOCKS5 server is only compared with proxies.
    let is_compared = |name: ProgramName| name.as_str() == "kernel" || (wanted == Role::Proxy && is_baseline(name));
    let is_shown = |program: &&Program| program.role == wanted || is_compared(program.name);
    let shown: Vec<_> = programs.iter().filter(is_shown).collect();
    if shown.iter().all(|program| is_baseline(program.name)) {
        return Vec::new();
    }
    let rows: Vec<_> = shown.iter().copied().map(row).collect();
    let cells: Vec<&CellSummary> = all.iter().flat_map(|one| &one.summary.cells).collect();
    let asked: &[Question] = if is_shipped { &SHIPPED } else { &ALIKE };
    let mut table = questions::table(title, "program", &rows, asked, &cells);
    if table.columns.len() == 1 {
        return Vec::new();
    }
    table.push(Column::new(SETTINGS, false), shown.iter().map(|program| settings(program.runs(is_shipped))));
    let facts: Vec<_> = shown.iter().map(|program| facts(program.runs(is_shipped))).collect();
    if is_shipped {
        let start = facts.iter().map(|facts| median(facts, |facts| Some(facts.start_seconds * 1e3), 0));
        table.push(Column::new("ready after ms", true), start);
        let at_rest = |facts: &ProgramFacts| Some(facts.at_rest.pss_bytes? as f64 / 1e6);
        table.push(Column::new("MB at rest", true), facts.iter().map(|facts| median(facts, at_rest, 1)));
    }
    table.push(Column::new("version", false).if_room(Need::Extra), facts.iter().map(|facts| version(facts)));
    let has_row = |row: &&CellSummary| {
        row.cell.is_shipped() == is_shipped && shown.iter().any(|program| row.cell.program() == Some(program.name))
    };
    let is_limited = cells.iter().any(|row| row.is_at_upstream_limit() && has_row(row));
    let figures: Vec<_> = rows.iter().flat_map(|row| row.shown(asked, &cells)).collect();
    let note = format!(
        "Medians on {}, with one stream or as many connections as the column says. {} {} {} Memory is of the near end of a tunnel.{}",
        series::machine_and_days(all),
        if is_shipped { AS_SHIPPED } else { ALL_ALIKE },
        questions::about_bold("program"),
        questions::widths(&figures),
        if is_limited { ABOUT_LIMIT } else { "" }
    );
    let failed = Summary { cells: cells.into_iter().filter(has_row).cloned().collect(), warnings: Vec::new() };
    let failures = format::details(&failed);
    let mut blocks = vec![Block::Table(table), Block::Text(note)];
    blocks.extend((!failures.is_empty()).then_some(Block::List("Failures:", failures)));
    blocks
}

const AS_SHIPPED: &str = "Each is as its authors ship it; what a run has set nevertheless is called set.";

const ALL_ALIKE: &str =
    "All have the MTU of the column, and the limit of flows in the row if they have an option for one.";

/// The MTU that the device had, and what the run has set.
fn settings<'a>(runs: impl Iterator<Item = &'a Sample>) -> String {
    let (mut mtus, mut others) = (BTreeMap::new(), BTreeSet::new());
    for run in runs {
        let made = run.measured.program.as_ref().and_then(|facts| Some(facts.device?.mtu as usize));
        if let Some(device) = &run.measured.device {
            let is_set = run.cell.mtu.is_some() || made.is_some_and(|made| made != device.mtu);
            *mtus.entry(device.mtu).or_insert(false) |= is_set;
        }
        others.extend(run.cell.max_flows.map(|flows| format!("{flows} flows set")));
        others.extend(run.cell.queue.map(|queue| format!("queue {queue} set")));
        others.extend(run.cell.qdisc.as_ref().map(|qdisc| format!("qdisc {qdisc} set")));
        others.extend(run.cell.gso.map(|gso| format!("GSO {gso} set")));
    }
    let mtus = mtus.into_iter().map(|(mtu, is_set)| format!("MTU {mtu}{}", if is_set { " set" } else { "" }));
    let words: Vec<_> = mtus.chain(others).collect();
    if words.is_empty() { UNKNOWN.to_owned() } else { words.join(", ") }
}

fn facts<'a>(runs: impl Iterator<Item = &'a Sample>) -> Vec<&'a ProgramFacts> {
    runs.filter_map(|run| run.measured.program.as_deref()).collect()
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
    use std::num::NonZeroU16;

    use super::*;
    use crate::measure::fixture::{self, failed, program as run};
    use crate::sample::{AdoptedFacts, DeviceFacts, RequestFacts, Status};

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

    /// The same run with these settings.
    fn with(run: Sample, mtu: Option<u16>, max_flows: Option<NonZeroU16>) -> Sample {
        Sample { cell: Cell { mtu, max_flows, ..run.cell.clone() }, ..run }
    }

    /// The same run over a device that the program made with the first MTU, and that had the second.
    fn over(mut run: Sample, made: u32, had: usize) -> Sample {
        let device = AdoptedFacts { mtu: made, is_up: true, address: None, vnet_header: None, queues: None };
        run.measured.program.as_mut().unwrap().device = Some(device);
        let (name, tx_queue_len, qdisc) = ("x".to_owned(), None, None);
        run.measured.device = Some(DeviceFacts { name, mtu: had, offload: true, tx_queue_len, qdisc });
        run
    }

    /// A run as shipped is in one table, a run with an MTU in the other, and the row says what was set.
    #[test]
    fn a_program_as_it_is_shipped_is_in_another_table_than_all_alike() {
        let proxy = |gbps| run("mine", Some(Role::Proxy), gbps);
        let alike =
            |gbps, mtu: u16, flows| over(with(proxy(gbps), Some(mtu), NonZeroU16::new(flows)), 1500, mtu.into());
        let tunnel = over(run("tunnel", Some(Role::Tunnel), 1.0), 1500, 1420);
        let runs = [over(proxy(9.0), 65_535, 65_535), alike(2.0, 1500, 0), alike(8.0, 65_520, 20_000), tunnel];
        let written = sections(&Series::split("programs", &runs, &[])).into_iter().map(|(title, blocks)| {
            let Block::Table(table) = &blocks[0] else { unreachable!() };
            let columns = table.columns.iter().zip(table.rows[0].iter());
            let shown = columns.filter(|(column, _)| column.title.contains("Gbps") || column.title == SETTINGS);
            format!("{title}: {}", shown.map(|(_, text)| text.clone()).collect::<Vec<_>>().join(" | "))
        });
        assert_eq!(
            written.collect::<Vec<_>>(),
            [
                "Proxies: 9.0 | MTU 65535",
                "Proxies, all alike: 2.0 | 8.0 | MTU 1500 set, MTU 65520 set, 20000 flows set",
                "Tunnels: 1.0 | MTU 1420 set"
            ]
        );
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
                [] => {}
                [Block::List(..)] => assert_eq!(title, "Tunnels", "a list of failures"),
                others => panic!("{title}: {} blocks", others.len()),
            }
        }
        insta::assert_snapshot!(lines.join("\n"));
        let others = runs.map(|run| with(run, Some(9000), None));
        assert!(sections(&Series::split("programs", &others, &[])).is_empty(), "no column has an answer");
    }
}
