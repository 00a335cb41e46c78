//! The search for the highest rate of datagrams that loses next to nothing. Its trials are loads at a rate.

use std::time::Duration;

use super::arrivals::Arrived;
use crate::load::error::LoadError;
use crate::sample::MAX_LOST_SHARE;

/// How long a trial of a search lasts, and the one before the timed window.
pub(super) const TRIAL: Duration = Duration::from_millis(100);

const CONFIRMATION: Duration = Duration::from_millis(300);

/// Trials of a search at most, and confirmations.
const MAX_TRIALS: usize = 14;
const MAX_CONFIRMATIONS: usize = 16;

/// A search ends when a rate that is too high is less than so many times one that is not.
const PRECISION: f64 = 1.04;

/// How many times as high a rate that did not hold is as the one that is tried next.
const STEP: f64 = PRECISION * PRECISION;

/// How often the timed window is made, at lower and lower rates, until one holds. At most half of the time-out is for that.
const MAX_WINDOWS: f64 = 4.0;

pub(super) fn windows(time: Duration, timeout: Duration) -> u32 {
    (timeout / 2).div_duration_f64(time).clamp(1.0, MAX_WINDOWS) as u32
}

/// The rate to try after one that lost too many: a step below it, or what arrived if that is less.
pub(super) fn lower(rate: Option<f64>, made: &Outcome, time: Duration) -> f64 {
    let [sent, in_time] = [made.sent, made.in_time()].map(|count| count as f64 / time.as_secs_f64());
    (rate.map_or(sent, |rate| rate.min(sent)) / STEP).min(in_time).max(1.0)
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) sent: u64,
    /// How many of them had arrived in time, at the server and at the clients.
    pub(super) in_time: [u64; 2],
    pub(super) arrived: Arrived,
}

impl Outcome {
    pub(super) fn in_time(&self) -> u64 {
        self.in_time.iter().sum()
    }

    pub(super) fn passes(&self) -> bool {
        self.sent > 0 && self.sent.saturating_sub(self.in_time()) as f64 <= MAX_LOST_SHARE * self.sent as f64
    }
}

/// Searches for the highest rate that loses next to nothing, in datagrams a second (RFC 2544, 26.1, with a loss above
/// zero); `None` if all is delivered that the sender can send.
pub(super) fn search(
    mut trial: impl FnMut(Option<f64>, Duration) -> Result<Outcome, LoadError>,
) -> Result<Option<f64>, LoadError> {
    // The first of all is slower than the others.
    let _cold = trial(None, TRIAL)?;
    let mut free = trial(None, TRIAL)?;
    if free.arrived.count == 0 {
        // A busy machine may give the receiver no time in a moment.
        free = trial(None, TRIAL)?;
    }
    if free.passes() && trial(None, CONFIRMATION)?.passes() {
        return Ok(None);
    }
    if free.arrived.count == 0 {
        return Err(LoadError::Silent { sent: free.sent });
    }
    // The rate that was really sent, if it passes, for a sender may be too slow for the one that it was told.
    let mut attempt = |rate: f64, time: Duration| -> Result<Option<f64>, LoadError> {
        let made = trial(Some(rate), time)?;
        Ok(made.passes().then(|| rate.min(made.sent as f64 / time.as_secs_f64())))
    };
    let per_second = |count: u64| count as f64 / TRIAL.as_secs_f64();
    let (mut low, mut high, mut rate) = (0.0_f64, per_second(free.sent), per_second(free.in_time().max(1)));
    for _ in 0..MAX_TRIALS {
        // A second time, since a machine has other work, too.
        match attempt(rate, TRIAL)?.map_or_else(|| attempt(rate, TRIAL), |rate| Ok(Some(rate)))? {
            Some(sent) => low = low.max(sent),
            None => high = rate,
        }
        if low > 0.0 && high / low < PRECISION {
            break;
        }
        rate = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
    }
    // The rate has to hold for longer than one trial.
    let mut rate = if low > 0.0 { low } else { rate };
    for _ in 0..MAX_CONFIRMATIONS {
        if let Some(sent) = attempt(rate, CONFIRMATION)? {
            return Ok(Some(sent));
        }
        rate /= STEP;
    }
    Err(LoadError::Unsteady { per_second: rate as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that takes so many datagrams a second, from a sender that makes at most so many.
    fn path(takes: f64, makes: f64) -> impl FnMut(Option<f64>, Duration) -> Result<Outcome, LoadError> {
        move |rate, time| {
            let count = |rate: f64| (rate * time.as_secs_f64()) as u64;
            let sent = rate.unwrap_or(makes).min(makes);
            let arrived = Arrived { count: count(sent.min(takes)), ..Arrived::default() };
            Ok(Outcome { sent: count(sent), in_time: [arrived.count, 0], arrived })
        }
    }

    #[test]
    fn a_search_finds_the_highest_rate_that_loses_next_to_nothing() {
        for takes in [3_000.0, 50_000.0, 499_000.0] {
            let found = search(path(takes, 500_000.0)).unwrap().unwrap();
            assert!((takes / PRECISION..=takes * 1.002).contains(&found), "{found} of {takes}");
        }
        assert_eq!(search(path(600_000.0, 500_000.0)).unwrap(), None);
        assert!(search(path(0.0, 500_000.0)).is_err());
    }

    #[test]
    fn a_moment_of_loss_does_not_lower_the_rate_that_is_found() {
        let (mut takes, mut trials) = (path(50_000.0, 500_000.0), 0);
        let found = search(|rate, time| {
            trials += 1;
            let outcome = takes(rate, time)?;
            // Every third trial loses a tenth, whatever its rate.
            let lost = if trials % 3 == 0 { outcome.sent / 10 } else { 0 };
            let in_time = outcome.in_time.map(|count| count - lost.min(count));
            Ok(Outcome { in_time, ..outcome })
        });
        assert!((45_000.0..=50_050.0).contains(&found.unwrap().unwrap()));
    }

    #[test]
    fn a_rate_that_was_never_sent_is_not_found() {
        // It sends at once what it is asked for, and no more than a third of it evenly.
        let mut free = path(50_000.0, 500_000.0);
        let mut even = path(50_000.0, 20_000.0);
        let found = search(|rate, time| if rate.is_some() { even(rate, time) } else { free(rate, time) });
        assert!((19_000.0..=20_000.0).contains(&found.unwrap().unwrap()));
    }

    #[test]
    fn a_window_that_lost_too_many_has_a_lower_rate_after_it() {
        let made = |in_time| Outcome { sent: 2000, in_time: [in_time, 0], ..Outcome::default() };
        let lower = |rate, in_time| lower(rate, &made(in_time), Duration::from_secs(2)) as u64;
        // A step below what was asked for, or sent, or to what arrived.
        assert_eq!(lower(Some(500.0), 1990), (500.0 / STEP) as u64);
        assert_eq!(lower(None, 1990), (1000.0 / STEP) as u64);
        assert_eq!(lower(Some(1100.0), 1500), 750);
        assert_eq!(lower(None, 0), 1);
        let windows = |timeout, time| windows(Duration::from_secs(time), Duration::from_secs(timeout));
        assert_eq!([windows(60, 1), windows(15, 3), windows(15, 10)], [4, 2, 1]);
    }

    #[test]
    fn a_path_on_which_no_rate_holds_has_no_rate() {
        let found = search(|rate, time| {
            let outcome = path(f64::MAX, 500_000.0)(rate, time)?;
            Ok(Outcome { in_time: outcome.in_time.map(|count| count / 2), ..outcome })
        });
        assert!(matches!(found, Err(LoadError::Unsteady { .. })));
    }
}
