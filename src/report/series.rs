//! What a report shows side by side: the samples of one environment in one file, of stacks or of forwarders.

use std::sync::Arc;

use serde_json::Value;

use super::axis::{self, cells};
use super::format;
use crate::measure::{CellSummary, Summary};
use crate::plan::Layer;
use crate::sample::{self, Cell, Environment, Head, Sample, SampleFile};

/// The samples of one environment in one file, of stacks or of forwarders, and what they come to.
#[derive(Clone, Debug)]
pub struct Series {
    /// The file's name without its ending, with what they are of where it has both, and a number where that is
    /// not unique.
    pub label: String,
    /// The machine and the program.
    pub environment: Arc<Environment>,
    /// How the file was made, where it says so.
    pub head: Option<Head>,
    /// A row for each cell.
    pub summary: Summary,
    /// The samples, in the order of the file.
    pub samples: Vec<Sample>,
}

impl Series {
    /// The series of some files, in their order. A file with samples of several environments, or of stacks and
    /// of forwarders, makes several.
    pub fn of(files: &[SampleFile]) -> Vec<Self> {
        let mut all: Vec<Self> = files.iter().flat_map(Self::of_file).collect();
        let stems: Vec<_> = all.iter().map(|series| series.label.clone()).collect();
        for (index, series) in all.iter_mut().enumerate() {
            if stems.iter().filter(|stem| **stem == series.label).count() > 1 {
                let earlier = stems[..index].iter().filter(|stem| **stem == stems[index]).count();
                series.label = format!("{} ({})", series.label, earlier + 1);
            }
        }
        all
    }

    fn of_file(file: &SampleFile) -> Vec<Self> {
        let mut groups: Vec<Vec<Sample>> = Vec::new();
        for sample in &file.samples {
            let is_alike = |group: &&mut Vec<Sample>| {
                group[0].environment == sample.environment && is_forward(&group[0].cell) == is_forward(&sample.cell)
            };
            match groups.iter_mut().find(is_alike) {
                Some(samples) => samples.push(sample.clone()),
                None => groups.push(vec![sample.clone()]),
            }
        }
        let stem = file.path.file_stem().map_or_else(|| "samples".into(), |stem| stem.to_string_lossy());
        let stem = format::one_line(&stem);
        let is_mixed = groups.iter().any(|group| is_forward(&group[0].cell) != is_forward(&groups[0][0].cell));
        let series = groups.into_iter().map(|samples| {
            let forward = is_forward(&samples[0].cell);
            let label = if is_mixed && forward { format!("{stem}, forwarders") } else { stem.clone() };
            let is_its = |head: &&Head| head.environment == *samples[0].environment && makes_forward(head) == forward;
            Self { head: file.heads.iter().find(is_its).cloned(), ..Self::of_samples(label, samples) }
        });
        series.collect()
    }

    /// The series of at least one sample, all of one environment and kind.
    pub(super) fn of_samples(label: String, samples: Vec<Sample>) -> Self {
        let environment = Arc::clone(&samples[0].environment);
        Self { label, environment, head: None, summary: Summary::of(&samples), samples }
    }

    /// Whether it is of forwarders, and not of stacks.
    pub(super) fn is_forward(&self) -> bool {
        self.summary.cells.iter().any(|row| is_forward(&row.cell))
    }

    /// The machine in a line.
    pub(super) fn machine(&self) -> String {
        let machine = &self.environment.machine;
        let mut words = Vec::new();
        words.extend(machine.cpu.clone());
        words.extend(machine.cpus.map(|cpus| format!("{cpus} processor{}", if cpus == 1 { "" } else { "s" })));
        let kernel = machine.kernel.as_deref().unwrap_or_default();
        words.push(format!("{} {kernel} {}", machine.system, machine.architecture).replace("  ", " "));
        if machine.virtual_machine == Some(true) {
            words.push("virtual machine".to_owned());
        }
        format::one_line(&words.join(", "))
    }

    /// What all runs had alike: the cells' axes, the client's congestion control and how long a run was.
    pub(super) fn shared(&self) -> Vec<String> {
        let mut words = axis::shared(&cells(&self.summary));
        let mut controls: Vec<_> =
            self.samples.iter().filter_map(|sample| sample.facts.congestion.as_deref()).collect();
        controls.sort_unstable();
        controls.dedup();
        if !controls.is_empty() {
            words.push(format::one_line(&format!("congestion control {}", controls.join(" or "))));
        }
        let times = || self.samples.iter().filter(|sample| sample.is_ok()).map(|sample| sample.facts.elapsed);
        if let (Some(shortest), Some(longest)) = (times().min(), times().max()) {
            let [shortest, longest] = [shortest, longest].map(|time| format!("{:.1}", time.as_secs_f64()));
            words.push(if shortest == longest {
                format!("{shortest} s timed")
            } else {
                format!("{shortest} to {longest} s timed")
            });
        }
        words
    }

    /// The rows of the whole path, which are what is asked for; or all where there is none.
    pub(super) fn main_rows(&self) -> Vec<&CellSummary> {
        let rows = || self.summary.cells.iter();
        let is_path = |row: &&CellSummary| row.cell.stack().is_some_and(|cell| cell.layer == Layer::Path);
        let paths: Vec<_> = rows().filter(is_path).collect();
        if paths.is_empty() { rows().collect() } else { paths }
    }
}

fn is_forward(cell: &Cell) -> bool {
    cell.forward().is_some()
}

/// Whether the command that wrote a head makes samples of forwarders.
fn makes_forward(head: &Head) -> bool {
    head.arguments.iter().find(|word| !word.starts_with('-')).is_some_and(|command| command == "forward")
}

/// Fields of the environment in the order in which a reader looks for them; others come after.
const FIELDS: [&str; 14] = [
    "cpu",
    "cpus",
    "system",
    "kernel",
    "architecture",
    "governor",
    "virtual_machine",
    "version",
    "commit",
    "build",
    "tokio",
    "lwip",
    "ipstack",
    "smoltcp",
];

/// The environments of the series: the name of a field, and its value in each.
pub(super) fn environments(series: &[Series]) -> Vec<(String, Vec<String>)> {
    let fields: Vec<_> = series.iter().map(|series| sample::fields(&*series.environment)).collect();
    let mut names: Vec<String> = fields.iter().flat_map(|fields| fields.keys().cloned()).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| FIELDS.iter().position(|field| field == name).unwrap_or(FIELDS.len()));
    let rows = names.into_iter().map(|name| {
        let values = fields.iter().map(|fields| value(fields.get(&name))).collect();
        (name.replace('_', " "), values)
    });
    rows.collect()
}

fn value(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => super::UNKNOWN.to_owned(),
        Some(Value::String(text)) => format::one_line(text),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(value) => value.to_string(),
    }
}
