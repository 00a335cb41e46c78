//! The known results of each stack, with all workarounds and with none.

mod expected;

use std::collections::BTreeMap;

use netstacks::{StackKind, Workarounds};
use serde::{Deserialize, Serialize};

pub use self::expected::{Expected, PAUSE};

/// The committed list.
const LIST: &str = include_str!("../known.json");

/// What the text of each way says in which plays break an invariant.
pub(crate) const PLAYS_BREAK_IT: &str = "plays break it: ";

/// The known results of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Cases that fail, each with the reason.
    pub failures: BTreeMap<String, String>,
    /// Cases that fail with offload alone, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures_with_offload: BTreeMap<String, String>,
    /// Cases that fail in some runs and pass in others, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_times: BTreeMap<String, String>,
    /// Cases whose result depends on how fast and how busy the machine is, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when_busy: BTreeMap<String, String>,
    /// The same with offload alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when_busy_with_offload: BTreeMap<String, String>,
    /// Invariants of random play that some plays break, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_plays: BTreeMap<String, String>,
    /// The cases above that fail by a fault of the adapter, and not of the stack: each with the workarounds that are its cause,
    /// or "none" if another part of the adapter is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub of_adapter: BTreeMap<String, Workarounds>,
    /// Other cases, which fail without workarounds, each with the workarounds that mend it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub worked_around: BTreeMap<String, Workarounds>,
    /// The same for cases that pass in some runs without workarounds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub worked_around_at_times: BTreeMap<String, Workarounds>,
    /// The text that a known failure contains. A `#` stands for any number. A ` | ` is between texts of which one is enough.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, String>,
}

/// A failure that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: String,
    /// In which runs it comes.
    pub when: When,
    /// The workarounds that mend it, if there are some.
    pub workaround: Option<Workarounds>,
    /// Whether it is a fault of the adapter, and not of the stack.
    pub of_adapter: bool,
}

/// In which runs a failure comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In all.
    Always,
    /// In some, and not in at least one of four.
    AtTimes,
    /// As the machine is fast or busy, as the workarounds are on that were named, or as plays were drawn.
    Depends,
}

impl Known {
    /// Returns the known failure of a case over this kind of link. Results are known with all workarounds and with none. If some
    /// are named, each case of the list may pass or fail.
    pub fn failure(&self, id: &str, offload: bool, workarounds: Workarounds) -> Option<Failure> {
        let is_named = workarounds.named().next().is_some();
        let failure = |reason, when, workaround, of_adapter| {
            let when = if is_named { When::Depends } else { when };
            Failure { reason, when, workaround, of_adapter }
        };
        let cause = self.of_adapter.get(id);
        let is_off = |cause: &Workarounds| {
            *cause != Workarounds::NONE && !cause.named().any(|workaround| workarounds.has(workaround))
        };
        if let Some((reason, when)) = self.listed(id, offload)
            && (is_named || !cause.is_some_and(is_off))
        {
            return Some(failure(reason.clone(), when, None, cause.is_some()));
        }
        let always = self.worked_around.get(id).map(|workaround| (*workaround, When::Always));
        let mended = always.or_else(|| Some((*self.worked_around_at_times.get(id)?, When::AtTimes)));
        let (workaround, when) = mended.filter(|_| workarounds != Workarounds::ALL)?;
        let effects: Vec<_> =
            workaround.named().map(|workaround| format!("{}: {}", workaround.name(), workaround.does())).collect();
        Some(failure(format!("It passes with workarounds. {}", effects.join(" ")), when, Some(workaround), false))
    }

    /// Whether a failure is none but known ones. Plays break an invariant in several ways, and each has a line.
    pub fn covers(&self, id: &str, seen: &str) -> bool {
        let Some(texts) = self.seen.get(id).filter(|_| self.in_plays.contains_key(id)) else { return true };
        let mut ways = seen.lines().filter(|line| line.contains(PLAYS_BREAK_IT)).map(without_numbers);
        ways.all(|way| texts.split(" | ").any(|text| way.contains(text)))
    }

    /// Returns the reason why a case fails with all workarounds.
    fn listed(&self, id: &str, offload: bool) -> Option<(&String, When)> {
        let lists = [
            (&self.failures, When::Always, true),
            (&self.failures_with_offload, When::Always, offload),
            (&self.when_busy, When::Depends, true),
            (&self.when_busy_with_offload, When::Depends, offload),
            (&self.at_times, When::AtTimes, true),
            (&self.in_plays, When::Depends, true),
        ];
        let mut counted = lists.into_iter().filter(|(_, _, is_counted)| *is_counted);
        counted.find_map(|(list, when, _)| Some((list.get(id)?, when)))
    }
}

/// Replaces each number by a `#`, so that texts with other ports, times and sequence numbers are alike.
pub fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            _ => out.push(character),
        }
    }
    out
}

/// Returns the committed list, by the names of the stacks.
pub fn all() -> BTreeMap<String, Known> {
    // A test parses the list, so it is never empty.
    serde_json::from_str(LIST).unwrap_or_default()
}

/// Returns the known results of a stack.
pub fn of(stack: StackKind) -> Known {
    all().remove(stack.name()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_failure_is_known_with_all_workarounds_and_with_none() {
        let known: Known = serde_json::from_str(
            r#"{
                "failures": { "stack": "It fails.", "fragments": "We fail.", "limit": "We fail." },
                "of_adapter": { "fragments": "none", "limit": "partial-ack" },
                "worked_around": { "two-lost": "partial-ack" }
            }"#,
        )
        .unwrap();
        let when =
            |id: &str, workarounds: &str| known.failure(id, false, workarounds.parse().unwrap()).map(|one| one.when);
        for (id, all, none) in [
            ("handshake", None, None),
            ("stack", Some(When::Always), Some(When::Always)),
            ("fragments", Some(When::Always), Some(When::Always)),
            ("limit", Some(When::Always), None),
            ("two-lost", None, Some(When::Always)),
        ] {
            assert_eq!([when(id, "all"), when(id, "none")], [all, none], "{id}");
            let is_listed = all.or(none).map(|_| When::Depends);
            assert_eq!(when(id, "task-turns"), is_listed, "{id}: nothing is known of some workarounds");
        }
        let failure = known.failure("two-lost", false, Workarounds::NONE).unwrap();
        assert!(!failure.of_adapter && failure.reason.contains("partial-ack: Several losses"), "{failure:?}");
        assert_eq!(failure.workaround, "partial-ack".parse().ok());
        assert!(known.failure("fragments", false, Workarounds::NONE).unwrap().of_adapter);
    }

    #[test]
    fn each_way_to_break_an_invariant_has_to_be_known() {
        let known: Known = serde_json::from_str(
            r#"{
                "failures": { "half-close": "It fails." }, "in_plays": { "play-end": "It fails.", "play-acks": "It fails." },
                "seen": { "half-close": "no ACK", "play-end": "in # s | no RST" }
            }"#,
        )
        .unwrap();
        let [late, silent, other] = ["the end came in 8 s", "no RST came", "a panic"]
            .map(|seen| format!("3 of 9 {PLAYS_BREAK_IT}{seen};\nIPv4"));
        for (id, seen, expected) in [
            ("play-end", late, true),
            ("play-end", format!("{silent};\n{other}"), false),
            ("play-end", silent, true),
            ("play-acks", other.clone(), true),
            ("half-close", other, true),
        ] {
            assert_eq!(known.covers(id, &seen), expected, "{id} {seen}");
        }
        assert_eq!(known.failure("play-end", false, Workarounds::ALL).unwrap().when, When::Depends);
    }
}
