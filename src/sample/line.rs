//! A line of a file: a JSON object with its `schema` and `kind`.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Cell, Environment, Facts, ForwardCell, Sample, StackCell, environment};

/// The version of the objects' shape. It grows when a field changes its meaning or goes; what only
/// comes new does not count.
pub const SCHEMA: u32 = 1;

/// The kind of a [`Sample`]'s line, where it is of a stack.
const THROUGHPUT: &str = "throughput";
/// The kind of a [`Sample`]'s line, where it is of a forwarder.
const FORWARD: &str = "forward";
/// The kind of a [`Head`]'s line.
const ENVIRONMENT: &str = "environment";
/// The kind of the lines that an earlier script wrote between samples; they are not samples.
const IPERF3: &str = "iperf3";

/// What in a [`Head`]'s line is not its environment.
const NO_ENVIRONMENT: [&str; 6] = ["schema", "kind", "id", "arguments", "seed", "plan"];

/// The first line of a file: where the samples after it come from, and what they are to become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`Environment::id`].
    pub id: String,
    /// The machine and the program.
    #[serde(flatten)]
    pub environment: Environment,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// Seed of the order of the cells.
    pub seed: u64,
    /// The arguments of a single run for each cell.
    pub plan: Vec<String>,
}

/// A line that was read.
pub(super) enum Line {
    Head(Box<Head>),
    /// A sample; what its `environment` names may be in a head line or here.
    Sample {
        cell: Box<Cell>,
        facts: Box<Facts>,
        id: String,
        environment: Option<Arc<Environment>>,
    },
    /// Something that is no sample.
    Other,
}

#[derive(Serialize)]
struct Tagged<T> {
    schema: u32,
    kind: &'static str,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize)]
struct Written<'a, E> {
    #[serde(flatten)]
    cell: &'a Cell,
    #[serde(flatten)]
    facts: &'a Facts,
    gbps: f64,
    bytes_per_packet: Option<f64>,
    warnings: Vec<String>,
    environment: E,
}

/// Names an environment, and describes it where that is not done elsewhere.
#[derive(Serialize)]
struct Reference<'a> {
    id: String,
    #[serde(flatten)]
    environment: Option<&'a Environment>,
}

/// The line of a sample whose file has a head with its environment. It ends without a line feed.
pub fn line(sample: &Sample) -> String {
    written(sample, None)
}

/// The line of a sample that also says where it comes from. It ends without a line feed.
pub fn line_of_its_own(sample: &Sample) -> String {
    written(sample, Some(&sample.environment))
}

fn written(sample: &Sample, environment: Option<&Environment>) -> String {
    let content = Written {
        cell: &sample.cell,
        facts: &sample.facts,
        gbps: round(sample.gbps()),
        bytes_per_packet: sample.bytes_per_packet().map(f64::round),
        warnings: sample.warnings().iter().map(ToString::to_string).collect(),
        environment: Reference { id: sample.environment.id(), environment },
    };
    let kind = match sample.cell {
        Cell::Stack(_) => THROUGHPUT,
        Cell::Forward(_) => FORWARD,
    };
    json(&Tagged { schema: SCHEMA, kind, content })
}

impl Head {
    /// What every such line begins with.
    pub(super) const BEGIN: &str = "{\"schema\":1,\"kind\":\"environment\",";

    /// Its line. It ends without a line feed.
    pub fn line(&self) -> String {
        json(&Tagged { schema: SCHEMA, kind: ENVIRONMENT, content: self })
    }
}

fn json(value: &impl Serialize) -> String {
    // Text, numbers and lists: there is nothing that JSON could not say.
    serde_json::to_string(value).unwrap_or_default()
}

/// As many digits as a figure has in its line.
fn round(gbps: f64) -> f64 {
    (gbps * 1e6).round() / 1e6
}

/// Reads a sample that says itself where it comes from, as [`line_of_its_own`] writes it.
///
/// # Errors
///
/// Why the line is none.
pub fn parse_line(text: &str) -> Result<Sample, String> {
    match parse(text)? {
        Line::Sample { cell, facts, environment: Some(environment), .. } => {
            Ok(Sample { cell: *cell, facts: *facts, environment })
        }
        Line::Sample { .. } => Err("does not say what environment it is of".to_owned()),
        Line::Head(_) | Line::Other => Err("is no sample".to_owned()),
    }
}

/// Reads a line, or says why it is none.
pub(super) fn parse(text: &str) -> Result<Line, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(object) = value else { return Err("not a JSON object".to_owned()) };
    let kind = object.get("kind").and_then(Value::as_str).ok_or("no \"kind\": this is none of this program's lines")?;
    if kind == IPERF3 {
        return Ok(Line::Other);
    }
    match object.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => {
            return Err(format!(
                "schema {schema}, and this program knows {SCHEMA}; use the program that wrote the file"
            ));
        }
        None => return Err("no \"schema\": this is none of this program's lines".to_owned()),
    }
    match kind {
        ENVIRONMENT => head(object),
        THROUGHPUT => sample::<StackCell>(object),
        FORWARD => sample::<ForwardCell>(object),
        kind => Err(format!("kind {kind:?}, which this program does not know; use the program that wrote the file")),
    }
}

fn head(object: Map<String, Value>) -> Result<Line, String> {
    // Of what the line says, and not of what this program knows of it: another one may know more or less.
    let mut fields = object.clone();
    fields.retain(|name, _| !NO_ENVIRONMENT.contains(&name.as_str()));
    let id = environment::id(&fields);
    let head: Head = serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string())?;
    if head.id != id {
        return Err(format!("the id is {}, but that of this environment is {id}: it was changed by hand", head.id));
    }
    Ok(Line::Head(Box::new(head)))
}

fn sample<C: DeserializeOwned + Into<Cell>>(mut object: Map<String, Value>) -> Result<Line, String> {
    let text = |error: serde_json::Error| error.to_string();
    let gbps = object.get("gbps").and_then(Value::as_f64).ok_or("no \"gbps\"")?;
    // Before there were such fields the size of a packet was all that was said of bytes on the link.
    restore_packet_bytes(&mut object)?;
    let reference = object.remove("environment").unwrap_or_default();
    let id = reference.get("id").and_then(Value::as_str).ok_or("no \"environment\" with an \"id\"")?.to_owned();
    let described = reference.get("system").is_some();
    let environment = described.then(|| serde_json::from_value(reference)).transpose().map_err(text)?.map(Arc::new);
    let object = Value::Object(object);
    let cell: Cell = C::deserialize(&object).map_err(text)?.into();
    let facts: Facts = serde_json::from_value(object).map_err(text)?;
    let figure = round(super::gbps(facts.bytes, facts.elapsed));
    if (gbps - figure).abs() > 1e-6 * figure.max(1.0) {
        return Err(format!(
            "gbps is {gbps}, but {} bytes in {} ns are {figure}: it was changed by hand",
            facts.bytes,
            facts.elapsed.as_nanos()
        ));
    }
    checked(&cell, &facts)?;
    Ok(Line::Sample { cell: Box::new(cell), facts: Box::new(facts), id, environment })
}

/// Refuses what each field may be and all together cannot.
fn checked(cell: &Cell, facts: &Facts) -> Result<(), String> {
    cell.check()?;
    let cpu = &facts.cpu;
    for (name, seconds) in [
        ("cpu.client_seconds", cpu.client_seconds),
        ("cpu.stack_seconds", cpu.stack_seconds),
        ("cpu.forwarder_seconds", cpu.forwarder_seconds),
    ] {
        is_time(name, seconds)?;
    }
    facts.intervals.iter().try_for_each(|interval| is_time("cpu_seconds of an interval", interval.cpu_seconds))?;
    if let Some(back) = facts.bytes_back.filter(|back| *back > facts.bytes) {
        return Err(format!("bytes_back is {back}, which is more than the {} bytes both ways", facts.bytes));
    }
    let sum = facts.intervals.iter().try_fold(0_u64, |sum, interval| sum.checked_add(interval.bytes));
    if !facts.intervals.is_empty() && sum != Some(facts.bytes) {
        return Err(format!("the intervals do not add up to the {} bytes: they were changed by hand", facts.bytes));
    }
    Ok(())
}

fn is_time(name: &str, seconds: Option<f64>) -> Result<(), String> {
    match seconds {
        // The cost is of a gigabyte, and so many times the seconds of a byte; the load is percent of
        // nanoseconds.
        Some(seconds) if !(seconds >= 0.0 && (seconds * 1e11).is_finite()) => {
            Err(format!("{name} is {seconds}, which is no time"))
        }
        _ => Ok(()),
    }
}

fn restore_packet_bytes(object: &mut Map<String, Value>) -> Result<(), String> {
    let size = object.get("bytes_per_packet").and_then(Value::as_f64);
    if let Some(size) = size.filter(|size| *size < 0.0) {
        return Err(format!("bytes_per_packet is {size}, which is no size"));
    }
    let Some(packets) = object.get_mut("packets").and_then(Value::as_object_mut) else { return Ok(()) };
    for (count, bytes) in [("rx", "rx_bytes"), ("tx", "tx_bytes")] {
        if let (Some(size), Some(count), false) =
            (size, packets.get(count).and_then(Value::as_u64), packets.contains_key(bytes))
        {
            packets.insert(bytes.to_owned(), ((size * count as f64) as u64).into());
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
