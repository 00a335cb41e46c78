//! The samples of each cell, as one row of a table.

use std::collections::BTreeMap;

use super::metric::{METRICS, Taken, speed, speed_of};
use super::rank::{RankTest, SIGNIFICANCE};
use super::{statistics, warnings};
use crate::cell::Cell;
use crate::program::{self, Role, SOCKS5, Upstream};
use crate::sample::{FEWEST_RUNS, Latency, Sample, Status, Warning};

/// A median with an interval that should hold the true value in 95 of 100 cases, or with a range: see `docs/method.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
    /// Whether these are the least and the greatest value instead: of fewer than six runs, and of runs with two modes.
    pub is_range: bool,
}

impl Estimate {
    /// How far its interval reaches from the median on the longer side, as a share of the median: 0.1 is ±10 %.
    pub fn half_width(&self) -> f64 {
        let reach = (self.high - self.median).max(self.median - self.low);
        if reach > 0.0 { reach / self.median } else { 0.0 }
    }

    pub(crate) const fn name(&self) -> &'static str {
        if self.is_range { "range" } else { "interval" }
    }
}

/// A cell and its figures, over the runs that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSummary {
    /// The cell.
    pub cell: Cell,
    /// The role of its program. `None` for other subjects, and where nothing says it.
    pub role: Option<Role>,
    /// Where its program sends its connections, if that is known.
    pub upstream: Option<Upstream>,
    /// How many runs there are, with the failed ones.
    pub runs: usize,
    /// The speed of each run that did not fail (`speed`) and has one, in the order of the file.
    pub speeds: Vec<f64>,
    rounds: Vec<Option<u32>>,
    /// Their median and its interval; `None` if there are none.
    pub estimate: Option<Estimate>,
    /// The indices of outliers in `speeds`. They are marked, but every figure includes them.
    pub outliers: Vec<usize>,
    figures: BTreeMap<&'static str, f64>,
    /// The number of failed runs, by status.
    pub failures: BTreeMap<Status, usize>,
    /// The reason why the first of them failed.
    pub detail: Option<String>,
    /// The warnings about this cell.
    pub warnings: Vec<Warning>,
}

/// A table of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Its rows, in the order of the cells. Forwarders are last, in the order of the published table.
    pub cells: Vec<CellSummary>,
    /// The warnings about the machine and its settings, for all cells.
    pub warnings: Vec<Warning>,
}

impl CellSummary {
    /// Its median if no run failed. The figure of those that survived is not compared with others.
    pub(crate) fn ranked(&self) -> Option<f64> {
        self.estimate.filter(|_| self.failures.is_empty()).map(|estimate| estimate.median)
    }

    /// The change from another figure to its own between the runs of one round; `None` if runs are missing.
    fn within_rounds(&self, other: &Self) -> Option<RankTest> {
        let has_all = |row: &Self| row.speeds.len() == row.runs;
        let by_round = |row: &Self| -> BTreeMap<u32, f64> {
            row.rounds.iter().zip(&row.speeds).filter_map(|(round, speed)| Some(((*round)?, *speed))).collect()
        };
        let (own, others) = (by_round(self), by_round(other));
        let pairs: Vec<_> = others.iter().filter_map(|(round, other)| Some((*other, *own.get(round)?))).collect();
        RankTest::within(&pairs).filter(|_| has_all(self) && has_all(other))
    }

    /// Whether the runs of the same rounds, or else all, are below those of the best by more than chance. `others` are compared
    /// with the best in all, and the test is at 5 % for all of them together.
    pub(super) fn is_below(&self, best: &Self, others: usize) -> bool {
        let test = self.within_rounds(best).or_else(|| RankTest::between(&best.speeds, &self.speeds));
        test.is_some_and(|test| test.p_value_of_decrease() * others.max(1) as f64 <= SIGNIFICANCE)
    }
}

/// How far behind the best a figure may be that is not told apart from it, or behind its upstream's to be at its limit.
const NEAR: f64 = 0.9;

/// Which rows of a column, where more is better, are the best: Hsu's multiple comparisons with the best (Annals of Statistics 12,
/// 1984), by rank tests. That one, and each that is not told apart from it and within a tenth. `None` is no rival. With one
/// row, or fewer than six runs of any, none is; a row that failed is behind all others. A figure at the limit of its upstream is
/// never called the best, because it is not the program's.
pub(crate) fn best(rows: &[Option<&CellSummary>]) -> Vec<bool> {
    let ranked: Vec<_> = rows.iter().map(|row| Some(((*row)?, (*row)?.ranked()?))).collect();
    let rivals = || ranked.iter().flatten();
    let is_open = rows.iter().flatten().count() < 2 || rivals().any(|(row, _)| row.speeds.len() < FEWEST_RUNS);
    let best = rivals().copied().max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| !is_open);
    let is_best = |row: &Option<(&CellSummary, f64)>| {
        row.zip(best).is_some_and(|((row, figure), (best, most))| {
            figure >= NEAR * most && !row.is_below(best, rivals().count() - 1) && !row.is_at_upstream_limit()
        })
    };
    ranked.iter().map(is_best).collect()
}

impl Summary {
    /// The table of some samples.
    pub fn of(samples: &[Sample]) -> Self {
        let mut groups: BTreeMap<_, Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            groups.entry(sample.cell.place()).or_default().push(sample);
        }
        let mut cells: Vec<_> =
            groups.into_iter().map(|((_, cell), samples)| CellSummary::of(cell, &samples)).collect();
        let of_upstreams = cells.iter().filter(|row| row.cell.program().is_some_and(|name| name.as_str() == SOCKS5));
        let of_upstreams: Vec<_> = of_upstreams.cloned().collect();
        for row in &mut cells {
            row.warnings.extend(
                row.share_of_upstream(&of_upstreams).filter(|share| *share >= NEAR).map(Warning::AtUpstreamLimit),
            );
        }
        let median = |row: &CellSummary| Some((row.cell.clone(), row.role, row.ranked()?));
        let medians: Vec<_> = cells.iter().filter_map(median).collect();
        for row in &mut cells {
            let Some(median) = row.ranked() else { continue };
            for metric in METRICS.iter().filter(|metric| (metric.exists)(&row.cell)) {
                let Taken::Relative(is_rival) = metric.taken else { continue };
                // A tunnel's packets come out again, and a proxy ends connections: they do not do the same work.
                let rivals = medians.iter().filter(|(cell, role, _)| *role == row.role && is_rival(&row.cell, cell));
                let times = rivals.map(|(.., other)| speed_of(&row.cell).times_as_good(median, *other));
                row.figures
                    .extend(times.reduce(f64::min).filter(|least| least.is_finite()).map(|least| (metric.name, least)));
            }
        }
        Self { cells, warnings: warnings::of_environment(samples.iter()) }
    }
}

impl CellSummary {
    fn of(cell: &Cell, samples: &[&Sample]) -> Self {
        let good: Vec<_> = samples.iter().copied().filter(|sample| sample.is_ok()).collect();
        let of_runs = good.iter().filter_map(|sample| Some((sample.measured.round, speed(sample)?)));
        let (rounds, speeds): (Vec<_>, Vec<f64>) = of_runs.unzip();
        let mut failures = BTreeMap::new();
        for sample in samples.iter().filter(|sample| !sample.is_ok()) {
            *failures.entry(sample.measured.status).or_default() += 1;
        }
        let estimate = statistics::estimate(&speeds);
        let outliers = statistics::outliers(&speeds);
        let facts = || samples.iter().filter_map(|sample| sample.measured.program.as_ref());
        Self {
            cell: cell.clone(),
            role: cell.program().and_then(|name| program::role(name, facts().map(|facts| facts.role))),
            upstream: cell.program().and_then(|name| program::upstream(name, facts().map(|facts| facts.upstream))),
            runs: samples.len(),
            warnings: warnings::of_cell(samples, estimate, speeds.len(), outliers.len()),
            estimate,
            outliers,
            figures: figures(cell, &good),
            detail: samples.iter().find_map(|sample| sample.measured.detail.clone()),
            failures,
            rounds,
            speeds,
        }
    }

    /// How good the figure of a program is by that of its upstream, which these rows have; `None` if nothing passes it. Memory
    /// does not.
    fn share_of_upstream(&self, of_upstreams: &[Self]) -> Option<f64> {
        let is_behind = self.upstream == Some(Upstream::Socks5) && self.cell.is_contender() && !self.cell.is_idle();
        let alone = of_upstreams.iter().find(|row| is_behind && row.cell.same_work(&self.cell))?;
        Some(speed_of(&self.cell).times_as_good(self.estimate?.median, alone.estimate?.median))
    }

    /// Whether its figure says more of the upstream than of the program.
    pub(crate) fn is_at_upstream_limit(&self) -> bool {
        self.warnings.iter().any(|warning| matches!(warning, Warning::AtUpstreamLimit(_)))
    }

    /// The figure of a metric by its name; `None` if it is not known.
    pub fn figure(&self, metric: &str) -> Option<f64> {
        self.figures.get(metric).copied()
    }
}

/// The latencies of all requests of some runs.
pub fn latency<'a>(runs: impl IntoIterator<Item = &'a Sample>) -> Latency {
    let mut all = Latency::default();
    runs.into_iter().filter_map(|sample| sample.measured.requests.as_ref()).for_each(|made| all.add(&made.latency));
    all
}

fn figures(cell: &Cell, runs: &[&Sample]) -> BTreeMap<&'static str, f64> {
    let latency = latency(runs.iter().copied());
    let known = METRICS.iter().filter(|metric| (metric.exists)(cell)).filter_map(|metric| {
        let values: Vec<_> = runs.iter().filter_map(|sample| metric.of_run(sample)).collect();
        let figure = match metric.taken {
            Taken::Median(_) => statistics::median(&values),
            Taken::Maximum(_) => values.into_iter().reduce(f64::max),
            Taken::Quantile(share) => latency.quantile_us(share),
            Taken::Relative(_) => None,
        };
        Some((metric.name, figure?))
    });
    known.collect()
}

#[cfg(test)]
mod tests;
