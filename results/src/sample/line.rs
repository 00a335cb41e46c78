//! A line of a file: a JSON object with its `schema` and `kind`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Environment, MannerScore, Measurements, Sample, Score, environment};
use crate::cell::Cell;
use crate::program::Profile;

/// The version of the objects' shape. It grows when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 3;

const SAMPLE: &str = "sample";
const ENVIRONMENT: &str = "environment";
const SCORE: &str = "score";
const MANNER: &str = "manner";

/// The fields of a [`Head`]'s line that are not its environment.
const NO_ENVIRONMENT: [&str; 7] = ["schema", "kind", "id", "arguments", "seed", "plan", "profiles"];

/// The first line of a file: the machine, the program and the plan. A second one, without a plan, is of the other build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`Environment::id`].
    pub id: String,
    #[serde(flatten)]
    pub environment: Environment,
    pub arguments: Vec<String>,
    /// Seed of the order of the cells.
    pub seed: u64,
    /// The words of a run of each cell.
    pub plan: Vec<Vec<String>>,
    /// The profiles and commands of the plan that users wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Profile>,
}

pub(super) enum Line {
    Head(Box<Head>),
    Score(Box<Score>),
    Manner(Box<MannerScore>),
    /// A sample. Its environment is described in a head line or here.
    Sample {
        cell: Box<Cell>,
        measured: Box<Measurements>,
        id: String,
        environment: Option<Arc<Environment>>,
    },
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
    cell: Map<String, Value>,
    #[serde(flatten)]
    measured: &'a Measurements,
    gbps: f64,
    bytes_per_packet: Option<f64>,
    warnings: Vec<String>,
    environment: E,
}

/// Names an environment, and describes it if no head line does.
#[derive(Serialize)]
struct Reference<'a> {
    id: String,
    #[serde(flatten)]
    environment: Option<&'a Environment>,
}

/// The line of a sample, for a file that has its environment in a head line. It ends without a line feed.
pub fn line(sample: &Sample) -> String {
    written(sample, None)
}

/// The line of a sample that also describes its environment. It ends without a line feed.
pub fn line_of_its_own(sample: &Sample) -> String {
    written(sample, Some(&sample.environment))
}

/// The line of the result of a case. It ends without a line feed.
pub fn score_line(score: &Score) -> String {
    json(&Tagged { schema: SCHEMA, kind: SCORE, content: score })
}

/// The line of the result of a case of manners. It ends without a line feed.
pub fn manner_line(score: &MannerScore) -> String {
    json(&Tagged { schema: SCHEMA, kind: MANNER, content: score })
}

fn written(sample: &Sample, environment: Option<&Environment>) -> String {
    let content = Written {
        cell: sample.cell.fields(),
        measured: &sample.measured,
        gbps: round(sample.gbps()),
        bytes_per_packet: sample.bytes_per_packet().map(f64::round),
        warnings: sample.warnings().iter().map(ToString::to_string).collect(),
        environment: Reference { id: sample.environment.id(), environment },
    };
    json(&Tagged { schema: SCHEMA, kind: SAMPLE, content })
}

impl Head {
    /// The beginning of every head line.
    pub(super) const BEGIN: &str = "{\"schema\":3,\"kind\":\"environment\",";

    /// The head of a file. Without a plan, it is of results of conformance, or of another build.
    pub fn new(environment: Environment, arguments: Vec<String>, seed: u64, plan: Vec<Vec<String>>) -> Self {
        Self { id: environment.id(), environment, arguments, seed, plan, profiles: Vec::new() }
    }

    /// Its line. It ends without a line feed.
    pub fn line(&self) -> String {
        json(&Tagged { schema: SCHEMA, kind: ENVIRONMENT, content: self })
    }
}

fn json(value: &impl Serialize) -> String {
    // It has only text, numbers and lists, which JSON always takes.
    serde_json::to_string(value).unwrap_or_default()
}

fn round(gbps: f64) -> f64 {
    (gbps * 1e6).round() / 1e6
}

/// Reads a sample with its environment, as [`line_of_its_own`] writes it.
pub fn parse_line(text: &str) -> Result<Sample, String> {
    match parse(text)? {
        Line::Sample { cell, measured, environment: Some(environment), .. } => {
            Ok(Sample { cell: *cell, measured: *measured, environment })
        }
        Line::Sample { .. } => Err("does not say what environment it is of".to_owned()),
        Line::Head(_) | Line::Score(_) | Line::Manner(_) => Err("is no sample".to_owned()),
    }
}

pub(super) fn parse(text: &str) -> Result<Line, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(object) = value else { return Err("not a JSON object".to_owned()) };
    let kind = object.get("kind").and_then(Value::as_str).ok_or("no \"kind\": this is none of this program's lines")?;
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
        SAMPLE => sample(object),
        SCORE => {
            let score: Score = serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string())?;
            Ok(Line::Score(Box::new(score.explained())))
        }
        MANNER => {
            let score: MannerScore =
                serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string())?;
            Ok(Line::Manner(Box::new(score.explained())))
        }
        kind => Err(format!("kind {kind:?}, which this program does not know; use the program that wrote the file")),
    }
}

fn head(object: Map<String, Value>) -> Result<Line, String> {
    // The id is made of all fields in the line: another version of the program may know more or fewer.
    let mut fields = object.clone();
    fields.retain(|name, _| !NO_ENVIRONMENT.contains(&name.as_str()));
    let id = environment::id(&fields);
    let head: Head = serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string())?;
    if head.id != id {
        return Err(format!("the id is {}, but that of this environment is {id}: it was changed by hand", head.id));
    }
    Ok(Line::Head(Box::new(head)))
}

fn sample(mut object: Map<String, Value>) -> Result<Line, String> {
    let text = |error: serde_json::Error| error.to_string();
    let gbps = object.get("gbps").and_then(Value::as_f64).ok_or("no \"gbps\"")?;
    let reference = object.remove("environment").unwrap_or_default();
    let id = reference.get("id").and_then(Value::as_str).ok_or("no \"environment\" with an \"id\"")?.to_owned();
    let described = reference.get("system").is_some();
    let environment = described.then(|| serde_json::from_value(reference)).transpose().map_err(text)?.map(Arc::new);
    let cell = Cell::of_fields(&object)?;
    let measured: Measurements = serde_json::from_value(Value::Object(object)).map_err(text)?;
    let figure = round(super::gbps(measured.bytes, measured.elapsed));
    if (gbps - figure).abs() > 1e-6 * figure.max(1.0) {
        return Err(format!(
            "gbps is {gbps}, but {} bytes in {} ns are {figure}: it was changed by hand",
            measured.bytes,
            measured.elapsed.as_nanos()
        ));
    }
    check(&measured)?;
    Ok(Line::Sample { measured: Box::new(measured.judged(&cell)), cell: Box::new(cell), id, environment })
}

/// Refuses impossible times, and values that contradict each other.
fn check(measured: &Measurements) -> Result<(), String> {
    let cpu = &measured.cpu;
    for (name, seconds) in [
        ("cpu.client_seconds", cpu.client_seconds),
        ("cpu.subject_seconds", cpu.subject_seconds),
        ("stolen_share", measured.stolen_share),
        ("stopped_seconds", measured.stopped_seconds),
        ("recovery_seconds", measured.recovery_seconds),
    ] {
        is_time(name, seconds)?;
    }
    if let Some(facts) = &measured.program {
        is_time("start_seconds", Some(facts.start_seconds))?;
        is_time("far_seconds", facts.far_seconds)?;
        is_time("rest_cpu_share", facts.rest_cpu_share)?;
        is_time("far_rest_cpu_share", facts.far_rest_cpu_share)?;
    }
    let bytes = measured.bytes;
    measured.intervals.iter().try_for_each(|interval| is_time("cpu_seconds of an interval", interval.cpu_seconds))?;
    if let Some(back) = measured.bytes_back.filter(|back| *back > bytes) {
        return Err(format!("bytes_back is {back}, which is more than the {bytes} bytes both ways"));
    }
    let sum = measured.intervals.iter().try_fold(0_u64, |sum, interval| sum.checked_add(interval.bytes));
    if !measured.intervals.is_empty() && sum != Some(bytes) {
        return Err(format!("the intervals do not add up to the {bytes} bytes: they were changed by hand"));
    }
    Ok(())
}

fn is_time(name: &str, seconds: Option<f64>) -> Result<(), String> {
    match seconds {
        // Times are multiplied by up to 1e11, for a load in percent of nanoseconds. The product must be finite.
        Some(seconds) if !(seconds >= 0.0 && (seconds * 1e11).is_finite()) => {
            Err(format!("{name} is {seconds}, which is no time"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests;
