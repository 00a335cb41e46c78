//! The known failures of each stack, and the cases that pass only by a workaround.

use std::collections::BTreeMap;

use netstacks::StackKind;
use serde::{Deserialize, Serialize};

/// The committed list.
const LIST: &str = include_str!("../known.json");

/// The known results of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Cases that fail, each with the reason.
    pub failures: BTreeMap<String, String>,
    /// Cases that fail in some runs and pass in others, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_times: BTreeMap<String, String>,
    /// Cases that pass because the adapter works around the stack, each with the name of the workaround.
    pub workarounds: BTreeMap<String, String>,
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
