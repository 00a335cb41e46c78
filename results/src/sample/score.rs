//! The result of a case of conformance.

use conformance::known::{self, Failure, How, When, Whose};
use conformance::{Case, Layer, MTU, Outcome, Ran, Run};
use netstacks::{StackCongestion, StackKind, Workarounds};
use serde::{Deserialize, Serialize};

use super::{SampleFile, line};
use crate::is_default;

const fn usual<const USUAL: u16>() -> u16 {
    USUAL
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_usual<const USUAL: u16>(number: &u16) -> bool {
    *number == USUAL
}

/// The result of a case, on a stack or on a program.
pub trait CaseResult: Sized {
    /// The name of the stack or program.
    fn of(&self) -> &str;

    /// What came of it.
    fn outcome(&self) -> &Outcome;

    /// Why it is known to fail.
    fn known(&self) -> Option<&str>;

    /// Its line in a file. It ends without a line feed.
    fn line(&self) -> String;

    /// Those of a file.
    fn of_file(file: SampleFile) -> Vec<Self>;

    /// What was seen, or why the case does not apply or was not run; empty if it passed.
    fn seen(&self) -> &str {
        match self.outcome() {
            Outcome::Pass => "",
            Outcome::Fail { seen, .. } | Outcome::NotApplicable { seen } | Outcome::Unavailable { seen } => seen,
        }
    }

    /// Whether the case passed.
    fn has_passed(&self) -> bool {
        *self.outcome() == Outcome::Pass
    }

    /// Whether the case failed, known or not.
    fn has_failed(&self) -> bool {
        self.outcome().harm().is_some()
    }

    /// Whether the result is the known one: a known failure failed, and every other case did not.
    fn is_as_known(&self) -> bool {
        match self.outcome() {
            Outcome::Pass => self.known().is_none(),
            Outcome::Fail { .. } => self.known().is_some(),
            Outcome::NotApplicable { .. } => true,
            Outcome::Unavailable { .. } => false,
        }
    }

    /// Whether the case was not run, because the stack's or the program's process does not start.
    fn is_unavailable(&self) -> bool {
        matches!(self.outcome(), Outcome::Unavailable { .. })
    }
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub stack_congestion: StackCongestion,
    pub case: String,
    #[serde(default)]
    pub subject: String,
    #[serde(default)]
    pub title: String,
    /// The demand that it is about; see [`conformance::Strength`]. Empty in files of older versions with other cases.
    #[serde(default)]
    pub level: String,
    #[serde(default)]
    pub rfc: String,
    #[serde(default)]
    pub expects: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The name of the known cause of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The workarounds that mend a known failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workaround: Option<Workarounds>,
    /// Whether the known failure is a fault of the adapter, and not of the stack.
    #[serde(default, skip_serializing_if = "is_default")]
    pub of_adapter: bool,
    /// Whether it is one of how this program builds the stack.
    #[serde(default, skip_serializing_if = "is_default")]
    pub of_build: bool,
}

impl Score {
    /// The score of a case that was run.
    pub fn new(case: &Case, run: &Run, ran: &Ran) -> Self {
        let Run { stack: netstack, layer, shards, offload, mtu, workarounds, congestion, .. } = *run;
        let known = known::of(netstack);
        let failure = known.failure(case.id, How { offload, workarounds, congestion });
        let failure = failure.filter(|failure| match &ran.outcome {
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
            stack_congestion: congestion,
            case: case.id.to_owned(),
            subject: case.subject.to_owned(),
            title: case.title.to_owned(),
            level: case.level.to_owned(),
            rfc: case.rfc.to_owned(),
            expects: case.expects.to_owned(),
            outcome: ran.outcome.clone(),
            known: None,
            cause: None,
            workaround: None,
            of_adapter: false,
            of_build: false,
        }
        .because(failure)
    }

    /// Explains it again by the levels and causes that this program knows, which files of older versions lack. The files of
    /// docs/data also lack the texts of the case.
    pub(super) fn explained(mut self) -> Self {
        let Self { offload, workarounds, stack_congestion: congestion, .. } = self;
        if let Some(case) = Case::find(&self.case) {
            case.level.clone_into(&mut self.level);
            for (text, known) in [
                (&mut self.subject, case.subject),
                (&mut self.title, case.title),
                (&mut self.rfc, case.rfc),
                (&mut self.expects, case.expects),
            ] {
                if text.is_empty() {
                    known.clone_into(text);
                }
            }
        }
        let failure = known::of(self.netstack).failure(&self.case, How { offload, workarounds, congestion });
        match failure.filter(|_| self.known.is_some()) {
            None => self,
            failure => self.because(failure),
        }
    }

    fn because(mut self, failure: Option<Failure>) -> Self {
        let Some(Failure { name, cause, workaround, .. }) = failure else { return self };
        if self.has_failed() {
            self.level = cause.breaks.unwrap_or(self.level);
        }
        (self.known, self.cause, self.workaround) = (Some(cause.text), Some(name), workaround);
        (self.of_adapter, self.of_build) = (cause.whose == Whose::Adapter, cause.whose == Whose::Build);
        self
    }

    /// The case that its own continues, if its title begins with "The same".
    pub(crate) fn continued(&self) -> Option<Case> {
        let continues = |title: &str| title.starts_with("The same");
        let earlier =
            || Case::all().take_while(|case| case.id != self.case).filter(|case| !continues(case.title)).last();
        continues(&self.title).then(earlier)?
    }

    /// Whose fault a known failure is.
    pub const fn whose(&self) -> Whose {
        match (self.of_adapter, self.of_build) {
            (true, _) => Whose::Adapter,
            (_, true) => Whose::Build,
            _ => Whose::Stack,
        }
    }
}

impl CaseResult for Score {
    fn of(&self) -> &str {
        self.netstack.name()
    }

    fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn known(&self) -> Option<&str> {
        self.known.as_deref()
    }

    fn line(&self) -> String {
        line::score_line(self)
    }

    fn of_file(file: SampleFile) -> Vec<Self> {
        file.scores
    }
}
