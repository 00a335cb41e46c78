//! The result of a case of manners.

use conformance::Outcome;
use conformance::manners::{KnownManners, Manner};
use serde::{Deserialize, Serialize};

use super::{CaseResult, SampleFile, line};
use crate::is_default;
use crate::program::ProgramName;

/// The result of a case on a program, with what was expected of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MannerScore {
    pub program: ProgramName,
    /// As the program prints it; none if it prints none or did not start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub version: Option<String>,
    pub case: String,
    // The files of docs/data lack these, and [`Self::explained`] adds them.
    #[serde(default)]
    pub subject: String,
    #[serde(default)]
    pub level: String,
    #[serde(default)]
    pub expects: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Why it is known to fail.
    #[serde(default, skip_serializing_if = "is_default")]
    pub known: Option<String>,
    /// Whether it is known to pass in other runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub at_times: bool,
}

impl MannerScore {
    /// The score of a case that was run.
    pub fn new(case: &Manner, program: ProgramName, version: Option<String>, outcome: Outcome) -> Self {
        let known = KnownManners::of(program.as_str());
        let has_failed = outcome.harm().is_some();
        let reason = known.reason(case.id).filter(|(_, always)| has_failed || *always && outcome == Outcome::Pass);
        Self {
            program,
            version,
            case: case.id.to_owned(),
            subject: case.subject().to_owned(),
            level: case.level.to_owned(),
            expects: case.expects.to_owned(),
            outcome,
            known: reason.map(|(reason, _)| format!("{reason} ({})", known.version)),
            at_times: reason.is_some_and(|(_, always)| !always),
        }
    }

    /// Explains it again by the cases and the reasons that this program knows.
    pub(super) fn explained(self) -> Self {
        match Manner::all().find(|case| case.id == self.case) {
            Some(case) => Self::new(&case, self.program, self.version, self.outcome),
            None => self,
        }
    }

    /// The name of its case over IPv4, and whether it was over IPv6.
    pub fn of_ipv4(&self) -> (&str, bool) {
        self.case.strip_suffix("-ipv6").map_or((&self.case, false), |case| (case, true))
    }
}

impl CaseResult for MannerScore {
    fn of(&self) -> &str {
        self.program.as_str()
    }

    fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn known(&self) -> Option<&str> {
        self.known.as_deref()
    }

    fn line(&self) -> String {
        line::manner_line(self)
    }

    fn of_file(file: SampleFile) -> Vec<Self> {
        file.manners
    }
}

#[cfg(test)]
mod tests {
    use conformance::Harm;

    use super::*;

    #[test]
    fn a_known_failure_is_no_news_until_it_passes() {
        let score = |id: &str, program: &str, outcome| {
            let case = Manner::all().find(|case| case.id == id).unwrap();
            MannerScore::new(&case, program.parse().unwrap(), None, outcome)
        };
        let fail = || Outcome::Fail { seen: "silence".to_owned(), harm: Harm::Hang };
        for (id, program, outcome, is_as_known) in [
            ("empty-datagram", "tun2proxy", fail(), true),
            ("empty-datagram-ipv6", "tun2proxy", fail(), true),
            ("empty-datagram", "tun2proxy", Outcome::Pass, false),
            ("empty-datagram", "kernel", fail(), false),
            ("empty-datagram", "kernel", Outcome::Pass, true),
            ("empty-datagram", "kernel", Outcome::NotApplicable { seen: String::new() }, true),
            ("empty-datagram", "kernel", Outcome::Unavailable { seen: String::new() }, false),
        ] {
            let score = score(id, program, outcome);
            assert_eq!(score.is_as_known(), is_as_known, "{score:?}");
            assert_eq!(score.of_ipv4().0, "empty-datagram");
        }
        let known = score("empty-datagram", "tun2proxy", fail()).known.unwrap();
        assert!(known.ends_with(&format!("({})", KnownManners::of("tun2proxy").version)), "{known}");
    }
}
