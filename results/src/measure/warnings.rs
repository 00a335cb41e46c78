//! The warnings of many samples, each once.

use crate::sample::{FEWEST_RUNS, Sample, WIDEST_REACH, Warning};

use super::Estimate;

pub(super) fn of_environment<'a>(samples: impl ExactSizeIterator<Item = &'a Sample>) -> Vec<Warning> {
    merged(samples, Warning::is_of_environment)
}

/// The other warnings about the samples of one cell: first about single runs, then about all together.
pub(super) fn of_cell(samples: &[&Sample], estimate: Option<Estimate>, runs: usize, outliers: usize) -> Vec<Warning> {
    let mut warnings = merged(samples.iter().copied(), |warning| !warning.is_of_environment());
    if (1..FEWEST_RUNS).contains(&runs) {
        warnings.push(Warning::FewRuns(runs));
    }
    let reach = estimate.map(|estimate| (estimate.half_width(), estimate.name()));
    let wide = reach.filter(|(reach, _)| *reach > WIDEST_REACH && reach.is_finite());
    warnings.extend(wide.map(|(reach, name)| Warning::HighSpread(reach, name)));
    if outliers > 0 {
        warnings.push(Warning::Outliers(outliers));
    }
    warnings
}

/// The warnings of the samples, each kind once, in the order in which they come.
fn merged<'a>(samples: impl ExactSizeIterator<Item = &'a Sample>, wanted: fn(&Warning) -> bool) -> Vec<Warning> {
    let of = samples.len();
    let groups = grouped(samples.flat_map(Sample::warnings).filter(wanted), Warning::is_like);
    groups.into_iter().map(|group| in_runs(group, of)).collect()
}

/// The values in groups, in their order. A value joins the group with a first value like it.
pub(crate) fn grouped<T>(values: impl IntoIterator<Item = T>, is_like: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for value in values {
        match groups.iter_mut().find(|group| is_like(&group[0], &value)) {
            Some(group) => group.push(value),
            None => groups.push(vec![value]),
        }
    }
    groups
}

/// The warnings of several runs as one. The warning of a single run, or of all runs in the same words, stays as it is.
fn in_runs(mut warnings: Vec<Warning>, of: usize) -> Warning {
    warnings.sort_by(|left, right| left.amount().unwrap_or(0.0).total_cmp(&right.amount().unwrap_or(0.0)));
    let runs = warnings.len();
    let middle = warnings.swap_remove(runs / 2);
    if of == 1 || runs == of && middle.amount().is_none() {
        middle
    } else {
        Warning::InRuns(Box::new(middle), runs, of)
    }
}
