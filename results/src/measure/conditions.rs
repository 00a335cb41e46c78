//! Differences between two sets of samples, other than the figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;

use super::statistics;
use crate::cell::Cell;
use crate::sample::{self, Sample};

/// Differences that may explain a change, apart from the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Of the machines: `kernel`, `cpu` and so on.
    pub machine: Vec<Difference>,
    /// Of the programs: `commit`, `smoltcp` and so on. They may be the reason for the comparison.
    pub program: Vec<Difference>,
    /// Of the settings of the common cells, and the median length of runs of a fixed time.
    pub settings: Vec<Difference>,
}

/// A field and its values on each side. A side may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name in the file.
    pub name: String,
    /// The old values, in alphabetical order.
    pub old: Vec<String>,
    /// The new values.
    pub new: Vec<String>,
}

/// Compares the environments and the settings. Machine and program are also reported if they differ within a side.
pub fn differences(old: &[Sample], new: &[Sample]) -> Differences {
    let sides = [old, new].map(|samples| samples.iter().collect::<Vec<_>>());
    let cells = [old, new].map(|samples| samples.iter().map(|sample| &sample.cell).collect::<BTreeSet<_>>());
    let is_common = |sample: &Sample| cells.iter().all(|cells| cells.contains(&sample.cell));
    let good = [old, new]
        .map(|samples| samples.iter().filter(|sample| sample.is_ok() && is_common(sample)).collect::<Vec<_>>());
    let mut settings = between(&good, |sample| {
        let facts = &sample.measured;
        let mut fields = fields(&json!({
            "congestion": facts.congestion, "verified": facts.verified, "warmup_bytes": facts.warmup_bytes,
        }));
        fields.extend(facts.sysctls.clone());
        fields
    });
    // The cells of a matrix may have different settings, and older files do not have all.
    settings.retain(|field| field.old != field.new && !field.old.is_empty() && !field.new.is_empty());
    settings.extend(length(&good));
    Differences {
        machine: between(&sides, |sample| fields(&sample.environment.machine)),
        program: between(&sides, |sample| {
            let mut fields = fields(&sample.environment.program);
            let facts = sample.measured.program.as_deref();
            let version = facts.and_then(|facts| Some(("program_version".to_owned(), facts.version.clone()?)));
            let sha256 = facts.and_then(|facts| Some(("program_sha256".to_owned(), facts.sha256.clone()?)));
            fields.extend(version.into_iter().chain(sha256));
            fields
        }),
        settings,
    }
}

/// The lengths of the runs, if they differ. With a fixed number of bytes the length is a result, not a setting.
fn length(sides: &[Vec<&Sample>; 2]) -> Option<Difference> {
    let transfers = |samples: &Vec<&Sample>| -> BTreeSet<(Cell, u64)> {
        samples.iter().map(|sample| (sample.cell.clone(), sample.measured.bytes)).collect()
    };
    let [old, new] = sides;
    if transfers(old) == transfers(new) {
        return None;
    }
    let median = |samples: &Vec<&Sample>| {
        let seconds: Vec<_> = samples.iter().map(|sample| sample.measured.elapsed.as_secs_f64()).collect();
        statistics::median(&seconds).map(|seconds| format!("{seconds:.1}"))
    };
    let [old, new] = [vec![median(old)?], vec![median(new)?]];
    (old != new).then(|| Difference { name: "elapsed_seconds".to_owned(), old, new })
}

/// The fields with several values.
fn between(sides: &[Vec<&Sample>; 2], fields: impl Fn(&Sample) -> BTreeMap<String, String>) -> Vec<Difference> {
    let mut values: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
    for (side, samples) in sides.iter().enumerate() {
        for (name, value) in samples.iter().flat_map(|sample| fields(sample)) {
            values.entry(name).or_default()[side].insert(value);
        }
    }
    let differing = values.into_iter().filter(|(_, [old, new])| old.union(new).count() > 1);
    let difference = |(name, sides): (_, [BTreeSet<String>; 2])| {
        let [old, new] = sides.map(|values| values.into_iter().collect());
        Difference { name, old, new }
    };
    differing.map(difference).collect()
}

fn fields(structure: &impl Serialize) -> BTreeMap<String, String> {
    let fields = sample::fields(structure).into_iter();
    fields.map(|(name, value)| (name, sample::field_text(Some(&value)))).collect()
}

/// Names the old and the new cell that have most in common, and their differences.
pub(super) fn nearest<'a>(old: impl Iterator<Item = &'a Cell>, new: impl Iterator<Item = &'a Cell>) -> String {
    let new: Vec<_> = new.map(fields).collect();
    let unknown = &sample::field_text(None);
    let pairs = old.flat_map(|cell| {
        let fields = fields(cell);
        new.iter().map(move |new| {
            let values = fields.iter().map(|(name, old)| (name, old, new.get(name).unwrap_or(unknown)));
            let differing = values.filter(|(_, old, new)| old != new);
            let differing =
                differing.map(|(name, old, new)| format!("{name} is {old} in the old file and {new} in the new one"));
            (cell, differing.collect::<Vec<_>>())
        })
    });
    let nearest = pairs.min_by_key(|(_, differing)| differing.len());
    nearest.map_or_else(String::new, |(cell, differing)| format!("of \"{cell}\" {}", differing.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fixture;
    use super::*;

    /// Runs of these bytes in these milliseconds.
    fn runs(runs: &[(u64, u64)]) -> Vec<Sample> {
        let run = |(bytes, elapsed_ms): &(u64, u64)| {
            let mut sample = fixture::run("-n smoltcp -m reader", 1.0);
            sample.measured.bytes = *bytes;
            sample.measured.elapsed = Duration::from_millis(*elapsed_ms);
            sample
        };
        runs.iter().map(run).collect()
    }

    #[test]
    fn a_different_length_is_a_setting_only_of_runs_by_time() {
        let by_time = [runs(&[(5, 1010), (6, 1001), (7, 1020)]), runs(&[(11, 2001), (12, 2002), (9, 5000)])];
        let expected =
            Difference { name: "elapsed_seconds".to_owned(), old: vec!["1.0".to_owned()], new: vec!["2.0".to_owned()] };
        assert_eq!(differences(&by_time[0], &by_time[1]).settings, [expected]);
        assert_eq!(differences(&by_time[0], &runs(&[(8, 1030), (9, 960)])).settings, []);
        // The same bytes in another time are a result.
        assert_eq!(differences(&runs(&[(9, 1000), (9, 1100)]), &runs(&[(9, 2000)])).settings, []);
        assert_eq!(differences(&by_time[0], &[]).settings, []);
    }
}
