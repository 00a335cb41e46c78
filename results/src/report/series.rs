//! The samples that a report shows side by side.

use std::collections::BTreeSet;
use std::sync::Arc;

use time::OffsetDateTime;

use super::axis::{self, Shared};
use super::format;
use crate::cell::{Cell, Layer, Workload};
use crate::measure::metric::{GBPS, Metric, speed_of};
use crate::measure::{CellSummary, Summary, grouped};
use crate::plural;
use crate::sample::{Environment, Head, Sample, SampleFile};

/// The samples of one environment and one program in one file, of stacks or of forwarders, and their summary.
#[derive(Clone, Debug)]
pub struct Series {
    /// The file's name without its extension, with the kind of its samples and a number where these tell it apart.
    pub label: String,
    /// The machine and the program.
    pub environment: Arc<Environment>,
    /// How the file was made, if it says so.
    pub head: Option<Head>,
    /// A row for each cell.
    pub summary: Summary,
    /// The samples, in the order of the file.
    pub samples: Vec<Sample>,
}

impl Series {
    /// The series of some files: one for each environment, program and kind in a file.
    pub fn of(files: &[SampleFile]) -> Vec<Self> {
        let of_file = |file: &SampleFile| {
            let stem = file.path.file_stem().map_or_else(|| "samples".into(), |stem| stem.to_string_lossy());
            Self::split(&format::one_line(&stem), &file.samples, &file.heads)
        };
        let mut all: Vec<Self> = files.iter().flat_map(of_file).collect();
        let labels = format::told_apart(&all.iter().map(|series| series.label.clone()).collect::<Vec<_>>());
        for (series, label) in all.iter_mut().zip(labels) {
            series.label = label;
        }
        all
    }

    /// The series of some samples, each with its kind in its name if there are several kinds.
    pub(super) fn split(stem: &str, samples: &[Sample], heads: &[Head]) -> Vec<Self> {
        let groups = grouped(samples.iter().cloned(), |first, sample| {
            first.environment == sample.environment
                && first.measured.against == sample.measured.against
                && Kind::of(&first.cell) == Kind::of(&sample.cell)
        });
        let is_mixed = samples.iter().any(|sample| Kind::of(&sample.cell) != Kind::of(&samples[0].cell));
        let has_both = samples.iter().any(|sample| sample.measured.against);
        let series = groups.into_iter().map(|samples| {
            let first = &samples[0];
            let mut words = vec![stem];
            words.extend(Some(Kind::of(&first.cell).name()).filter(|_| is_mixed));
            words.extend(has_both.then_some(if first.measured.against { "old build" } else { "new build" }));
            let is_its = |head: &&Head| head.environment == *first.environment && makes(head, &first.cell);
            Self {
                label: words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", "),
                environment: Arc::clone(&first.environment),
                // Not for the other build: the command line of the head makes the runs of both.
                head: heads.iter().find(is_its).filter(|_| !first.measured.against).cloned(),
                summary: Summary::of(&samples),
                samples,
            }
        });
        series.collect()
    }

    pub(super) fn kind(&self) -> Kind {
        self.samples.first().map_or(Kind::Streams, |sample| Kind::of(&sample.cell))
    }

    /// Whether its samples are of forwarders.
    pub(super) fn is_forward(&self) -> bool {
        self.kind() == Kind::Forwarders
    }

    pub(super) fn is_of_programs(&self) -> bool {
        self.samples.iter().all(|sample| sample.cell.program().is_some())
    }

    pub(super) fn speed(&self) -> &'static Metric {
        self.samples.first().map_or(&GBPS, |sample| speed_of(&sample.cell))
    }

    pub(super) fn unit(&self) -> String {
        let Metric { title, unit, .. } = self.speed();
        format!("{title} {unit}").trim_start().replace(" /", "/")
    }

    /// The machine in a line.
    pub(super) fn machine(&self) -> String {
        let machine = &self.environment.machine;
        let mut words = Vec::new();
        words.extend(machine.cpu.clone());
        words.extend(machine.cpus.map(|cpus| plural(cpus, "processor")));
        let kernel = machine.kernel.as_deref().unwrap_or_default();
        words.push(format!("{} {kernel} {}", machine.system, machine.architecture).replace("  ", " "));
        if machine.virtual_machine == Some(true) {
            words.push("virtual machine".to_owned());
        }
        format::one_line(&words.join(", "))
    }

    pub(super) fn shared(&self) -> Shared {
        let mut shared = Shared::of(&axis::cells(&self.summary.cells));
        let succeeded = || self.samples.iter().filter(|sample| sample.is_ok());
        let controls = || succeeded().map(|sample| sample.measured.congestion.as_deref());
        let mut names: Vec<_> = controls().flatten().collect();
        names.sort_unstable();
        names.dedup();
        if !names.is_empty() {
            let words = format::one_line(&format!("congestion control {}", names.join(" or ")));
            shared.extend(controls().all(|control| control.is_some()), [words]);
        }
        let times = || succeeded().map(|sample| sample.measured.elapsed);
        if let (Some(shortest), Some(longest)) = (times().min(), times().max()) {
            let [shortest, longest] = [shortest, longest].map(|time| format!("{:.1}", time.as_secs_f64()));
            let words = if shortest == longest {
                format!("{shortest} s timed")
            } else {
                format!("{shortest} to {longest} s timed")
            };
            shared.extend(true, [words]);
        }
        shared.extend(true, days(&self.samples).map(|days| format!("measured {days}")));
        shared
    }

    /// The rows of whole subjects, without their single layers. All rows, if there is no whole subject.
    pub(super) fn main_rows(&self) -> Vec<&CellSummary> {
        let rows = || self.summary.cells.iter();
        let is_whole = |row: &&CellSummary| row.cell.layer == Layer::Path;
        let whole: Vec<_> = rows().filter(is_whole).collect();
        if whole.is_empty() { rows().collect() } else { whole }
    }
}

/// Those of the same machine, program and matrix as the first one. Only these have runs of the same rounds.
pub(super) fn together(all: &[Series]) -> Vec<&Series> {
    let matrix = |one: &Series| one.head.as_ref().map(|head| head.seed);
    let is_alike = |one: &&Series| one.environment == all[0].environment && matrix(one) == matrix(&all[0]);
    all.iter().filter(is_alike).collect()
}

/// The machine of some series, and the days of their runs.
pub(super) fn machine_and_days(all: &[&Series]) -> String {
    let days = days(all.iter().flat_map(|one| &one.samples)).map(|days| format!(", {days}"));
    format!("{}{}", all[0].machine(), days.unwrap_or_default())
}

/// The day on which runs were made, or the first and the last one, by the clock of UTC; `None` if they do not say when.
pub(super) fn days<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<String> {
    let days = samples.into_iter().filter_map(|sample| {
        let seconds = i64::try_from(sample.measured.started_unix_ms? / 1000).ok()?;
        Some(OffsetDateTime::from_unix_timestamp(seconds).ok()?.date())
    });
    let days: BTreeSet<_> = days.collect();
    let (first, last) = (days.first()?, days.last()?);
    Some(if first == last { format!("on {first}") } else { format!("from {first} to {last}") })
}

/// Whether the runs of a head are of forwarders, as a cell is, or of others. A head without a plan may be of both.
fn makes(head: &Head, cell: &Cell) -> bool {
    let is_forward = |words: &Vec<String>| words.iter().any(|word| word.starts_with("--forwarder"));
    head.plan.is_empty() || head.plan.iter().any(|words| is_forward(words) == cell.forwarder.is_some())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Stacks and layers with bulk bytes.
    Streams,
    /// The same with datagrams.
    Datagrams,
    /// The same with requests, as many as are answered.
    Requests,
    /// The same with requests at a rate, or with pauses between them.
    Rated,
    /// The same with connections or flows that are held open.
    Connections,
    /// Forwarders.
    Forwarders,
}

impl Kind {
    fn of(cell: &Cell) -> Self {
        match (cell.workload(), cell.workload().requests()) {
            _ if cell.forwarder().is_some() => Self::Forwarders,
            (_, Some(requests)) if requests.is_paced() => Self::Rated,
            (_, Some(_)) => Self::Requests,
            (Workload::Datagrams(_), None) => Self::Datagrams,
            (workload, None) if workload.is_held() => Self::Connections,
            (_, None) => Self::Streams,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Streams => "",
            Self::Datagrams => "datagrams",
            Self::Requests => "requests",
            Self::Rated => "requests at a rate",
            Self::Connections => "connections",
            Self::Forwarders => "forwarders",
        }
    }
}
