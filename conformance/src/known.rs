//! The known results of each stack, with all workarounds and with none.

mod expected;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use netstacks::{StackCongestion, StackKind, Workarounds};
use serde::{Deserialize, Serialize};

pub use self::expected::{Expected, PAUSE};

/// The committed list.
const LIST: &str = include_str!("../known.json");

/// What the text of each way says in which plays break an invariant.
pub(crate) const PLAYS_BREAK_IT: &str = "plays break it: ";

/// The known results of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Cases that fail, each with the name of its cause.
    pub failures: BTreeMap<String, String>,
    /// The same with offload alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures_with_offload: BTreeMap<String, String>,
    /// The same with congestion control alone, of a stack that has a choice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures_with_congestion: BTreeMap<String, String>,
    /// Cases that fail in some runs and pass in others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_times: BTreeMap<String, String>,
    /// Cases whose result depends on how fast and how busy the machine is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when_busy: BTreeMap<String, String>,
    /// The same with offload alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when_busy_with_offload: BTreeMap<String, String>,
    /// Invariants of random play that some plays break.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_plays: BTreeMap<String, String>,
    /// The causes of all of these, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub causes: BTreeMap<String, Cause>,
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

/// Why cases fail: one fault, however many cases find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The reason.
    pub text: String,
    /// Whose fault it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub whose: Whose,
    /// The workarounds of which one has to be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workarounds: Option<Workarounds>,
    /// The congestion control that has to be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<StackCongestion>,
    /// The demand that it breaks, if it is another than those of its cases; see [`Strength`](crate::Strength).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaks: Option<String>,
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// The stack's own.
    #[default]
    Stack,
    /// Our adapter's.
    Adapter,
    /// The options with which this program builds the stack.
    Build,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stack => "stack",
            Self::Adapter => "adapter",
            Self::Build => "build",
        })
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The choices with which a case runs that decide what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Whether with offload.
    pub offload: bool,
    /// What the adapter does for the stack.
    pub workarounds: Workarounds,
    /// Congestion control of smoltcp.
    pub congestion: StackCongestion,
}

/// A failure that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of its cause: that of the workarounds which mend it, if there are some.
    pub name: String,
    /// Its cause.
    pub cause: Cause,
    /// In which runs it comes.
    pub when: When,
    /// The workarounds that mend it, if there are some.
    pub workaround: Option<Workarounds>,
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
    /// Returns the known failure of a case. Results are known with all workarounds and with none. If some are named, each case of
    /// the list may pass or fail.
    pub fn failure(&self, id: &str, how: How) -> Option<Failure> {
        let is_named = how.workarounds.named().next().is_some();
        let failure = |name, cause, when, workaround| {
            let when = if is_named { When::Depends } else { when };
            Failure { name, cause, when, workaround }
        };
        if let Some((name, when)) = self.listed(id, how) {
            let cause = self.causes.get(name).cloned();
            // A new failure has its observation in place of a cause.
            let cause = cause.unwrap_or_else(|| Cause { text: name.clone(), ..Cause::default() });
            return Some(failure(name.clone(), cause, when, None));
        }
        let always = self.worked_around.get(id).map(|workaround| (*workaround, When::Always));
        let mended = always.or_else(|| Some((*self.worked_around_at_times.get(id)?, When::AtTimes)));
        let (workaround, when) = mended.filter(|_| how.workarounds != Workarounds::ALL)?;
        let effects: Vec<_> =
            workaround.named().map(|workaround| format!("{}: {}", workaround.name(), workaround.does())).collect();
        let text = format!("It passes with workarounds. {}", effects.join(" "));
        Some(failure(workaround.to_string(), Cause { text, ..Cause::default() }, when, Some(workaround)))
    }

    /// Whether a failure is none but known ones. Plays break an invariant in several ways, and each has a line.
    pub fn covers(&self, id: &str, seen: &str) -> bool {
        let Some(texts) = self.seen.get(id).filter(|_| self.in_plays.contains_key(id)) else { return true };
        let mut ways = seen.lines().filter(|line| line.contains(PLAYS_BREAK_IT)).map(without_numbers);
        ways.all(|way| texts.split(" | ").any(|text| way.contains(text)))
    }

    /// Returns the cause for which a case fails, by its name.
    fn listed(&self, id: &str, how: How) -> Option<(&String, When)> {
        let is_controlled = how.congestion != StackCongestion::None;
        let lists = [
            (&self.failures, When::Always, true),
            (&self.failures_with_offload, When::Always, how.offload),
            (&self.failures_with_congestion, When::Always, is_controlled),
            (&self.when_busy, When::Depends, true),
            (&self.when_busy_with_offload, When::Depends, how.offload),
            (&self.at_times, When::AtTimes, true),
            (&self.in_plays, When::Depends, true),
        ];
        let is_there = |name: &&String| self.causes.get(*name).is_none_or(|cause| cause.is_there(how));
        let mut counted = lists.into_iter().filter(|(_, _, is_counted)| *is_counted);
        counted.find_map(|(list, when, _)| Some((list.get(id).filter(is_there)?, when)))
    }
}

impl Cause {
    /// Whether a stack has it with these choices. Of some workarounds nothing is known.
    fn is_there(&self, how: How) -> bool {
        let is_chosen = self.congestion.is_none_or(|only| only == how.congestion);
        let is_named = how.workarounds.named().next().is_some();
        let is_on = |its: Workarounds| its.named().any(|workaround| how.workarounds.has(workaround));
        is_chosen && (is_named || self.workarounds.is_none_or(is_on))
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
pub fn all() -> &'static BTreeMap<String, Known> {
    // A test parses the list, so it is never empty.
    static ALL: LazyLock<BTreeMap<String, Known>> = LazyLock::new(|| serde_json::from_str(LIST).unwrap_or_default());
    &ALL
}

/// Returns the known results of a stack.
pub fn of(stack: StackKind) -> &'static Known {
    static NOTHING: LazyLock<Known> = LazyLock::new(Known::default);
    all().get(stack.name()).unwrap_or(&NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_known_with_the_choices_that_cause_it() {
        let known: Known = serde_json::from_str(
            r#"{
                "failures": { "stack": "It fails.", "fragments": "fragments", "limit": "limit", "burst": "burst" },
                "failures_with_congestion": { "burst": "It fails." },
                "causes": {
                    "fragments": { "text": "We fail.", "whose": "adapter" },
                    "limit": { "text": "We fail.", "whose": "adapter", "workarounds": "partial-ack" },
                    "burst": { "text": "It is off.", "congestion": "none", "breaks": "SHLD-3" }
                },
                "worked_around": { "two-lost": "partial-ack" }
            }"#,
        )
        .unwrap();
        let how = |workarounds: &str| How { workarounds: workarounds.parse().unwrap(), ..How::default() };
        let when = |id: &str, workarounds: &str| known.failure(id, how(workarounds)).map(|one| one.when);
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
        let Failure { name, cause, workaround, .. } = known.failure("two-lost", how("none")).unwrap();
        assert!(cause.whose == Whose::Stack && cause.text.contains("partial-ack: Several losses"), "{cause:?}");
        assert_eq!((name.as_str(), workaround), ("partial-ack", "partial-ack".parse().ok()));
        assert_eq!(known.failure("fragments", how("none")).unwrap().cause.whose, Whose::Adapter);
        for (congestion, reason) in [(StackCongestion::None, "It is off."), (StackCongestion::Cubic, "It fails.")] {
            let failure = known.failure("burst", How { congestion, ..how("all") }).unwrap();
            assert_eq!(failure.cause.text, reason);
        }
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
        assert_eq!(known.failure("play-end", How::default()).unwrap().when, When::Depends);
    }
}
