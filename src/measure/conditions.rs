//! What else is not alike in two files of samples.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;

use super::statistics;
use crate::sample::{self, Cell, Sample};

/// What two files should have alike for their comparison to be one of programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Of the machines: `kernel`, `cpu` and so on.
    pub machine: Vec<Difference>,
    /// Of the programs: `commit`, `smoltcp` and so on. It may be what is compared.
    pub program: Vec<Difference>,
    /// Of how the runs of the common cells were made: `congestion`, `verified`, `warmup_bytes`, and
    /// `elapsed_seconds`, the median of their lengths to a tenth, where they were made by time.
    pub settings: Vec<Difference>,
}

/// A field, and the values that it has in each file; several, where the file itself is of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name in the file.
    pub name: String,
    /// Its values in the old file, in the order of the alphabet.
    pub old: Vec<String>,
    /// Its values in the new file.
    pub new: Vec<String>,
}

/// The values of each field.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// What is not alike. Of the machine and the program it is also told where it is so within a file.
pub fn differences(old: &[Sample], new: &[Sample]) -> Differences {
    let [old_cells, new_cells] = [old, new].map(|samples| cells(samples.iter().map(|sample| &sample.cell)));
    let good =
        |sample: &&Sample| sample.is_ok() && old_cells.contains(&sample.cell) && new_cells.contains(&sample.cell);
    let machine = |sample: &Sample| fields(&sample.environment.machine);
    let program = |sample: &Sample| fields(&sample.environment.program);
    let settings = |sample: &Sample| {
        let facts = &sample.facts;
        fields(&json!({
            "congestion": facts.congestion, "verified": facts.verified, "warmup_bytes": facts.warmup_bytes,
        }))
    };
    let mut differences = Differences {
        machine: between(&gather(old.iter(), machine), &gather(new.iter(), machine)),
        program: between(&gather(old.iter(), program), &gather(new.iter(), program)),
        settings: between(&gather(old.iter().filter(good), settings), &gather(new.iter().filter(good), settings)),
    };
    // Different cells of a matrix may well be made in different ways, in both files alike.
    differences.settings.retain(|field| field.old != field.new);
    differences
        .settings
        .extend(length(&old.iter().filter(good).collect::<Vec<_>>(), &new.iter().filter(good).collect::<Vec<_>>()));
    differences
}

/// How long the runs were, where that differs. Of runs by bytes it is a result, and none of their settings.
fn length(old: &[&Sample], new: &[&Sample]) -> Option<Difference> {
    let transfers = |samples: &[&Sample]| -> BTreeSet<(Cell, u64)> {
        samples.iter().map(|sample| (sample.cell.clone(), sample.facts.bytes)).collect()
    };
    if transfers(old) == transfers(new) {
        return None;
    }
    let median = |samples: &[&Sample]| {
        let seconds: Vec<_> = samples.iter().map(|sample| sample.facts.elapsed.as_secs_f64()).collect();
        statistics::median(&seconds).map(|seconds| format!("{seconds:.1}"))
    };
    let [old, new] = [vec![median(old)?], vec![median(new)?]];
    (old != new).then(|| Difference { name: "elapsed_seconds".to_owned(), old, new })
}

fn cells<'a>(cells: impl Iterator<Item = &'a Cell>) -> BTreeSet<&'a Cell> {
    cells.collect()
}

fn gather<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    fields: impl Fn(&Sample) -> BTreeMap<String, String>,
) -> Fields {
    let mut values = Fields::new();
    for (name, value) in samples.flat_map(fields) {
        values.entry(name).or_default().insert(value);
    }
    values
}

fn between(old: &Fields, new: &Fields) -> Vec<Difference> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let values = |fields: &Fields, name: &String| fields.get(name).cloned().unwrap_or_default();
    let differing = names.into_iter().filter(|name| (&values(old, name) | &values(new, name)).len() > 1);
    let list = |fields, name| values(fields, name).into_iter().collect();
    differing.map(|name| Difference { name: name.clone(), old: list(old, name), new: list(new, name) }).collect()
}

/// The fields of a structure by their names in the file, and their values as text.
fn fields(structure: &impl Serialize) -> BTreeMap<String, String> {
    let fields = sample::fields(structure).into_iter();
    fields.map(|(name, value)| (name, sample::field_text(Some(&value)))).collect()
}

/// The two cells that have most in common, and what they have not.
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

    use netstacks::StackKind;

    use super::super::fixture::{cell, sample};
    use super::*;
    use crate::plan::Mode;

    /// Runs of these bytes in these milliseconds.
    fn runs(runs: &[(u64, u64)]) -> Vec<Sample> {
        let run = |(bytes, elapsed_ms): &(u64, u64)| {
            let mut sample = sample(&cell(StackKind::Smoltcp, Mode::Reader), 1.0);
            sample.facts.bytes = *bytes;
            sample.facts.elapsed = Duration::from_millis(*elapsed_ms);
            sample
        };
        runs.iter().map(run).collect()
    }

    #[test]
    fn runs_of_another_length_are_told_where_it_was_asked_for() {
        let by_time = [runs(&[(5, 1010), (6, 1001), (7, 1020)]), runs(&[(11, 2001), (12, 2002), (9, 5000)])];
        let expected =
            Difference { name: "elapsed_seconds".to_owned(), old: vec!["1.0".to_owned()], new: vec!["2.0".to_owned()] };
        assert_eq!(differences(&by_time[0], &by_time[1]).settings, [expected]);
        assert_eq!(differences(&by_time[0], &runs(&[(8, 1030), (9, 960)])).settings, []);
        // The same bytes in another time are faster, and not another setting.
        assert_eq!(differences(&runs(&[(9, 1000), (9, 1100)]), &runs(&[(9, 2000)])).settings, []);
        assert_eq!(differences(&by_time[0], &[]).settings, []);
    }
}
