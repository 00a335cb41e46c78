//! The content of a report, before it has a format.

pub(super) mod cells;
mod charts;
mod cores;
mod impairments;
mod layers;
pub(super) mod manners;
mod marks;
mod overview;
mod programs;
pub(super) mod published;
mod questions;
pub(super) mod repeat;
mod requests;
pub(super) mod scorecard;
mod stacks;

use serde_json::Value;

use self::repeat::repeat;
use super::format::{self, UNKNOWN};
use super::model::{Block, Column, Document, Section, Table};
use super::series::{self, Series};
use crate::sample;

pub(super) fn document(all: &[Series]) -> Document {
    let mut cells = charts::bars(all);
    cells.captions.extend(overview::shared(all));
    let mut about = Vec::new();
    let machines = format::unique(all.iter().map(Series::machine));
    if machines.len() > 1 {
        about.extend(all.iter().map(|one| format!("{}: {}", one.label, one.machine())));
    } else {
        about.extend(machines);
    }
    let days = series::days(all.iter().flat_map(|one| &one.samples));
    about.extend(days.map(|days| format!("Measured {days}.")));
    let mut sections = Vec::new();
    let stacks = stacks::main(all).map(|main| ("Stacks", main));
    let picture = match stacks.or_else(|| Some(("Programs", programs::main(all)?))) {
        Some((title, (blocks, chart))) => {
            sections.extend(section("main", title, None, blocks));
            sections.extend(section("bars", "The runs of each cell", None, vec![Block::Chart(cells)]));
            chart
        }
        None => cells,
    };
    for (title, blocks) in programs::sections(all) {
        sections.extend(section("programs", title, None, blocks));
    }
    sections.extend(section("side", "Side by side", None, overview::side_by_side(all)));
    for one in all {
        let of = label(one, all);
        let mut push = |kind, title, blocks| sections.extend(section(kind, title, of.clone(), blocks));
        push("overview", "Overview", overview::blocks(one));
        push("cells", "Cells", cells::blocks(one));
        push("ladder", "Layers", layers::blocks(one));
        push("impairments", "Goodput under loss and delay", impairments::blocks(one));
        push("cost", "CPU cost against throughput", charts::cost(one).into_iter().map(Block::Chart).collect());
        push("latency", "Latency", requests::latencies(one));
        push("connections", "Against connections", requests::by_connections(one));
        push("cores", "Against shards", cores::blocks(one));
    }
    sections.extend(section("environment", "Environment", None, vec![Block::Table(environment(all))]));
    let samples = all.iter().flat_map(|one| repeat(one, label(one, all), cells::samples(one)));
    sections.extend(section("repeat", "Samples, and how to repeat them", None, samples.collect()));
    Document {
        title: title(all),
        about,
        picture,
        sections,
        records: cells::records(all),
        benchmarks: cells::benchmarks(all),
    }
}

/// The table of stacks and the one of programs, if there are any.
pub(super) fn main(all: &[Series]) -> Vec<Block> {
    stacks::main(all).into_iter().chain(programs::main(all)).flat_map(|(blocks, _)| blocks).collect()
}

pub(super) fn published(one: &Series) -> Vec<Block> {
    overview::blocks(one).into_iter().chain(cells::notes(one)).collect()
}

fn label(one: &Series, all: &[Series]) -> Option<String> {
    (all.len() > 1).then(|| one.label.clone())
}

fn section(kind: &'static str, title: &'static str, of: Option<String>, blocks: Vec<Block>) -> Option<Section> {
    (!blocks.is_empty()).then_some(Section { kind, title, of, blocks })
}

fn title(all: &[Series]) -> &'static str {
    if !all.is_empty() && all.iter().all(Series::is_of_programs) {
        return "Programs with a TUN device, as they are";
    }
    match (all.iter().all(Series::is_forward), all.iter().any(Series::is_forward)) {
        (true, _) => "Forwarders between two TUN devices",
        (false, true) => "Userspace TCP/IP stacks over a TUN device, and forwarders between two",
        (false, false) => "Userspace TCP/IP stacks over a TUN device",
    }
}

const FIELDS: [&str; 4] = ["cpu", "cpus", "system", "kernel"];

fn environment(all: &[Series]) -> Table {
    let fields: Vec<_> = all.iter().map(|one| sample::fields(&*one.environment)).collect();
    let mut names: Vec<&String> = fields.iter().flat_map(|fields| fields.keys()).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| FIELDS.iter().position(|field| field == name).unwrap_or(FIELDS.len()));
    let mut table = Table::new("Environment");
    table.push(Column::new("", false), names.iter().map(|name| name.replace('_', " ")));
    for (one, fields) in all.iter().zip(&fields) {
        let values = names.iter().map(|name| value(fields.get(*name)));
        table.push(Column::new(one.label.clone(), false), values);
    }
    table
}

fn value(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => UNKNOWN.to_owned(),
        Some(Value::String(text)) => format::one_line(text),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(value) => value.to_string(),
    }
}
