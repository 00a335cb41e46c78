//! How long a matrix takes, before its first run.

use std::collections::HashSet;
use std::time::Duration;

use super::MatrixPlan;
use crate::measure::FEWEST_ROUNDS;
use crate::plan::scenario::{Amount, Scenario};
use crate::plural;

/// About how long a run takes beyond its timed window: for its process, its network, its warm-up and its end.
const OVERHEAD: Duration = Duration::from_millis(350);

/// About how long a program takes to start and to end.
const PROGRAM: Duration = Duration::from_millis(500);

/// The same for a run over a link with delay or loss: its warm-up and its end are as slow as the window, and some runs stall.
const LINK: Duration = Duration::from_millis(2500);

/// The same for a run that searches for the highest rate.
const SEARCH: Duration = Duration::from_millis(2500);

impl MatrixPlan {
    /// About how long the matrix takes, if it makes all rounds; `None` if the length of a run is a number of bytes.
    pub fn time(&self) -> Option<Duration> {
        Some(self.round()? * self.runs + self.checks()?)
    }

    /// About how long its rounds take, for the user; `None` if that is not known.
    pub fn announced(&self) -> Option<String> {
        let runs = self.scenarios.len() * self.programs() as usize;
        let limit = self.at_most.map(about);
        if let (Some(within), Some(limit)) = (self.until, &limit) {
            let (runs, percent, fewest) = (plural(runs, "run"), within * 100.0, self.runs.min(FEWEST_ROUNDS as u32));
            let round = self.round().map(|time| format!(" take about {}", about(time))).unwrap_or_default();
            return Some(format!(
                "rounds of {runs}{round}; {fewest} or more, until each interval is within ±{percent} %, for at most {limit}"
            ));
        }
        let (runs, rounds) = (plural(runs * self.runs as usize, "run"), plural(self.runs, "round"));
        let limit = limit.map(|limit| format!(", and end after {limit}")).unwrap_or_default();
        Some(format!("{runs} in {rounds} take about {}{limit}", about(self.time()?)))
    }

    fn round(&self) -> Option<Duration> {
        Some(self.scenarios.iter().map(length).sum::<Option<Duration>>()? * self.programs())
    }

    /// The short run of each cell before its first.
    fn checks(&self) -> Option<Duration> {
        let mut cells = HashSet::new();
        let checks = self.scenarios.iter().map(Scenario::path_check).filter(|check| cells.insert(check.planned()));
        let of_bytes = |check: &Scenario| length(check).or(Some(OVERHEAD));
        Some(checks.map(|check| of_bytes(&check)).sum::<Option<Duration>>()? * self.programs())
    }

    /// This build, and the other one if there is one.
    fn programs(&self) -> u32 {
        1 + u32::from(self.against.is_some())
    }
}

fn length(scenario: &Scenario) -> Option<Duration> {
    let is_program = scenario.cell.program.is_some();
    let rest = if is_program || scenario.cell.workload().is_held() { 2 * scenario.cell.rest } else { Duration::ZERO };
    let program = rest + if is_program { PROGRAM } else { Duration::ZERO };
    match scenario.amount {
        Amount::Time { time, .. } if scenario.cell.workload().is_held() => {
            Some(time + scenario.release + 2 * OVERHEAD + program)
        }
        Amount::Time { time, .. } if scenario.cell.searches() => Some(time + SEARCH + program),
        Amount::Time { time, .. } if scenario.cell.impairments.has_link() => Some(time + LINK + program),
        Amount::Time { time, .. } => Some(time + OVERHEAD + program),
        Amount::Bytes(_) => None,
    }
}

/// A time in seconds, or in minutes if it is long.
pub fn about(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 100.0 => plural(seconds.ceil(), "second"),
        seconds => plural((seconds / 60.0).round(), "minute"),
    }
}
