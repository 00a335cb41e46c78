//! The result of a case of conformance.

use conformance::known::{Known, When};
use conformance::{Case, Layer, MTU, Outcome, Ran, Run};
use netstacks::{StackKind, Workarounds};
use serde::{Deserialize, Serialize};

use crate::is_default;

const fn usual<const USUAL: u16>() -> u16 {
    USUAL
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_usual<const USUAL: u16>(number: &u16) -> bool {
    *number == USUAL
}

/// The result of a case on a stack, with what was expected of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    pub netstack: StackKind,
    pub layer: Layer,
    #[serde(default = "usual::<1>", skip_serializing_if = "is_usual::<1>")]
    pub shards: u16,
    /// Whether the link took super-packets and partial checksums.
    pub offload: bool,
    #[serde(default = "usual::<MTU>", skip_serializing_if = "is_usual::<MTU>")]
    pub mtu: u16,
    #[serde(default, skip_serializing_if = "is_default")]
    pub workarounds: Workarounds,
    pub case: String,
    pub subject: String,
    pub title: String,
    pub rfc: String,
    pub expects: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The workarounds that mend a known failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workaround: Option<Workarounds>,
    /// Whether the known failure is a fault of the adapter, and not of the stack.
    #[serde(default, skip_serializing_if = "is_default")]
    pub of_adapter: bool,
}

impl Score {
    /// The score of a case that was run.
    pub fn new(case: &Case, run: &Run, ran: &Ran, known: &Known) -> Self {
        let Run { stack: netstack, layer, shards, offload, mtu, workarounds, .. } = *run;
        let failure = known.failure(case.id, offload, workarounds).filter(|failure| match &ran.outcome {
            Outcome::Fail { seen, .. } => known.covers(case.id, seen),
            _ => failure.when == When::Always,
        });
        Self {
            netstack,
            layer,
            shards,
            offload,
            mtu,
            workarounds,
            case: case.id.to_owned(),
            subject: case.subject.to_owned(),
            title: case.title.to_owned(),
            rfc: case.rfc.to_owned(),
            expects: case.expects.to_owned(),
            outcome: ran.outcome.clone(),
            workaround: failure.as_ref().and_then(|failure| failure.workaround),
            of_adapter: failure.as_ref().is_some_and(|failure| failure.of_adapter),
            known: failure.map(|failure| failure.reason),
        }
    }

    /// What was seen, or why the case does not apply or was not run; empty if it passed.
    pub fn seen(&self) -> &str {
        match &self.outcome {
            Outcome::Pass => "",
            Outcome::Fail { seen, .. } | Outcome::NotApplicable { seen } | Outcome::Unavailable { seen } => seen,
        }
    }

    /// Whether the case failed, known or not.
    pub const fn has_failed(&self) -> bool {
        self.outcome.harm().is_some()
    }

    /// Whether the result is the known one: a known failure failed, and every other case did not.
    pub fn is_as_known(&self) -> bool {
        match self.outcome {
            Outcome::Pass => self.known.is_none(),
            Outcome::Fail { .. } => self.known.is_some(),
            Outcome::NotApplicable { .. } => true,
            Outcome::Unavailable { .. } => false,
        }
    }

    /// Whether the case was not run, because the stack's program does not start.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self.outcome, Outcome::Unavailable { .. })
    }
}
