//! The known failures of each stack, and the cases that pass only by a workaround.

mod expected;

use std::collections::BTreeMap;

use netstacks::StackKind;
use serde::{Deserialize, Serialize};

pub use self::expected::{Expected, PAUSE};

/// The committed list.
const LIST: &str = include_str!("../known.json");

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
    /// The text that a known failure contains. A `#` stands for any number. A ` | ` is between texts of which one is enough.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, String>,
    /// Cases that pass because the adapter works around the stack, each with the name of the workaround.
    pub workarounds: BTreeMap<String, String>,
}

impl Known {
    /// Returns the reason why a case fails over this kind of link.
    pub fn fails(&self, id: &str, offload: bool) -> Option<&String> {
        self.failures.get(id).or_else(|| self.failures_with_offload.get(id).filter(|_| offload))
    }

    /// Returns the reason why a case fails in some runs over this kind of link.
    pub fn fails_at_times(&self, id: &str, offload: bool) -> Option<&String> {
        self.at_times.get(id).or_else(|| self.fails_when_busy(id, offload))
    }

    /// Returns the reason why a case fails over this kind of link on some machines.
    pub fn fails_when_busy(&self, id: &str, offload: bool) -> Option<&String> {
        self.when_busy.get(id).or_else(|| self.when_busy_with_offload.get(id).filter(|_| offload))
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
