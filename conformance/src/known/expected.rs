//! Whether the results of a case are the known ones.

use std::time::Duration;

use super::{How, Known, When, without_numbers};
use crate::Outcome;

/// How often a case is run if its first result is not the known one.
const TRIES: usize = 5;

/// How many of these runs must have the known result. Short times fail in every third run of a busy machine.
const GOOD: usize = 2;

/// How often a case that fails at times is run until it passes. One that never passes fails always. A case that passes less
/// often than once in four runs is on the list of failures, so this finds a changed case and no other.
const TRIES_AT_TIMES: usize = 16;

/// A pause before a case is run once more. The machine may be less busy then.
pub const PAUSE: Duration = Duration::from_secs(1);

/// What is known of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'a> {
    /// It passes, or cannot be tried.
    Pass,
    /// It fails, with this text.
    Fail(Option<&'a str>),
    /// It fails in some runs, with this text, and passes in at least one of four.
    AtTimes(Option<&'a str>),
    /// It fails or passes as the machine is fast or busy, or by the workarounds. If it fails, it has this text.
    Depends(Option<&'a str>),
}

impl<'a> Expected<'a> {
    /// Looks a case up in the list.
    pub fn of(known: &'a Known, id: &str, how: How) -> Self {
        let Some(failure) = known.failure(id, how) else { return Self::Pass };
        let seen = known.seen.get(id).map(String::as_str);
        match failure.when {
            When::Always => Self::Fail(seen),
            When::AtTimes => Self::AtTimes(seen),
            When::Depends => Self::Depends(seen),
        }
    }

    /// Whether this is a known result. A known failure that can no longer be tried is none.
    fn has(self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (_, Outcome::Pass) => !matches!(self, Self::Fail(_)),
            (_, Outcome::NotApplicable { .. }) => self == Self::Pass,
            (_, Outcome::Unavailable { .. }) | (Self::Pass, Outcome::Fail { .. }) => false,
            (Self::Fail(text) | Self::AtTimes(text) | Self::Depends(text), Outcome::Fail { seen, .. }) => {
                let seen = without_numbers(seen);
                text.is_none_or(|text| text.split(" | ").any(|text| seen.contains(text)))
            }
        }
    }

    /// Judges a case by its first result and, if that is not enough, by further ones. Returns the result that is not the
    /// known one, or a known failure without a text.
    pub fn judge(self, first: Outcome, again: impl FnMut() -> Outcome) -> Option<Outcome> {
        match self {
            Self::AtTimes(_) => self.judge_at_times(first, again),
            _ if self.has(&first) => Some(first).filter(|first| self == Self::Fail(None) && *first != Outcome::Pass),
            _ => self.judge_by_most(first, again),
        }
    }

    fn judge_at_times(self, first: Outcome, mut again: impl FnMut() -> Outcome) -> Option<Outcome> {
        let (mut outcome, mut strange) = (first, 0);
        for _ in 1..TRIES_AT_TIMES {
            strange += usize::from(!self.has(&outcome));
            if outcome == Outcome::Pass || strange > TRIES - GOOD {
                break;
            }
            outcome = again();
        }
        (outcome != Outcome::Pass).then_some(outcome)
    }

    fn judge_by_most(self, first: Outcome, mut again: impl FnMut() -> Outcome) -> Option<Outcome> {
        let (mut good, mut bad) = (0, vec![first]);
        while good < GOOD && bad.len() <= TRIES - GOOD {
            let outcome = again();
            if self.has(&outcome) {
                good += 1;
            } else {
                bad.push(outcome);
            }
        }
        bad.pop().filter(|_| good < GOOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Harm;

    #[test]
    fn a_result_that_is_not_the_known_one_is_found() {
        let fail = |text: &str| Outcome::Fail { seen: text.to_owned(), harm: Harm::default() };
        let changed = |expected: Expected<'_>, outcomes: &[Outcome]| {
            let mut later = outcomes[1..].iter().cycle().cloned();
            expected.judge(outcomes[0].clone(), || later.next().unwrap()).is_some()
        };
        let absent = Outcome::NotApplicable { seen: String::new() };
        let known = Expected::Fail(Some("# bytes came"));
        assert!(!changed(known, &[fail("12 bytes came")]));
        assert!(changed(known, &[fail("the stack panicked"), fail("the stack panicked")]), "another failure");
        assert!(changed(known, &[absent.clone(), absent.clone()]), "a failure that cannot be tried");
        assert!(changed(known, &[Outcome::Pass, Outcome::Pass]));
        assert!(!changed(Expected::Fail(Some("RST | bytes")), &[fail("12 bytes came")]));
        assert!(changed(Expected::Fail(None), &[fail("12 bytes came")]), "a failure without a text");
        assert!(!changed(Expected::Pass, &[absent]));
        assert!(!changed(Expected::Pass, &[fail("busy"), Outcome::Pass]));
        assert!(!changed(Expected::Pass, &[fail("busy"), fail("busy"), Outcome::Pass]));
        let broken = || fail("broken");
        assert!(changed(Expected::Pass, &[broken(), broken(), broken(), Outcome::Pass]), "one good run of several");
        let at_times = Expected::AtTimes(Some("late"));
        assert!(!changed(at_times, &[fail("late"), fail("late"), Outcome::Pass]));
        assert!(changed(at_times, &[fail("late"), fail("late")]), "it fails always");
        assert!(!changed(at_times, &[fail("busy"), Outcome::Pass]));
        let panicked = fail("the stack panicked");
        assert!(changed(at_times, &[vec![panicked.clone(); 4], vec![Outcome::Pass]].concat()), "another failure");
        let depends = Expected::Depends(Some("late"));
        assert!(!changed(depends, &[fail("late"), fail("late")]));
        assert!(changed(depends, &[panicked.clone(), panicked]), "another failure");
    }
}
