//! The manners of a program that carries packets: what a client and a server see with the program between them. Both are kernel
//! sockets, and each has a network of its own.

mod device;
mod ends;
mod lab;
mod names;
mod streams;
mod udp;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

pub use self::lab::{Lab, Subject};
use crate::{Outcome, Step, Stop};

/// The committed list of known failures.
const LIST: &str = include_str!("../manners.json");

/// A test of one behaviour of a program.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Its name, which ends in `-ipv6` over IPv6.
    pub id: &'static str,
    /// The demand that it checks; see [`Strength`](crate::Strength).
    pub level: &'static str,
    /// What the client and the server expect, in a sentence.
    pub expects: &'static str,
    /// The programs to which it applies.
    pub of: Of,
    /// Whether the program may be broken or without its device afterwards: the next case gets a new one.
    pub breaks: bool,
    /// Whether it is over IPv6.
    pub ipv6: bool,
    run: fn(&mut Lab<'_>) -> Step,
}

/// The programs to which a case applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All.
    All,
    /// Those with a device: not the kernel's routing.
    Device,
    /// Those that carry UDP.
    Udp,
    /// Those that end connections and open others, and carry UDP as a NAT does.
    Sockets,
    /// The same, but for those that have a SOCKS5 server do that.
    Direct,
    /// Those that need no SOCKS5 server, which passes on no ICMP and no long datagram.
    Packets,
    /// Those that send from an address of the near network.
    Roaming,
}

impl Manner {
    const fn new(id: &'static str, level: &'static str, of: Of, run: fn(&mut Lab<'_>) -> Step) -> Self {
        Self { id, level, expects: "", of, breaks: false, ipv6: false, run }
    }

    const fn expects(self, expects: &'static str) -> Self {
        Self { expects, ..self }
    }

    const fn breaks(self) -> Self {
        Self { breaks: true, ..self }
    }

    /// All cases, in the order of tables: those over IPv4 first, and then the same over IPv6.
    pub fn all() -> impl Iterator<Item = Self> {
        static TWINS: LazyLock<Vec<Manner>> = LazyLock::new(|| {
            let twin = |case: &Manner| Manner { id: format!("{}-ipv6", case.id).leak(), ipv6: true, ..*case };
            cases().map(twin).collect()
        });
        cases().copied().chain(TWINS.iter().copied())
    }

    /// The subject under which tables list it.
    pub fn subject(&self) -> &'static str {
        let of = SUBJECTS.iter().find(|(_, cases)| cases.iter().any(|case| self.of_ipv4() == case.id));
        of.map_or("", |(subject, _)| subject)
    }

    /// Its name over IPv4.
    pub fn of_ipv4(&self) -> &'static str {
        self.id.strip_suffix("-ipv6").unwrap_or(self.id)
    }

    /// Runs it in a lab that is ready.
    pub fn run(&self, lab: &mut Lab<'_>) -> Outcome {
        match (self.run)(lab) {
            Ok(()) => Outcome::Pass,
            Err(Stop::Fail { seen, harm }) => Outcome::Fail { seen, harm },
            Err(Stop::NotApplicable(seen)) => Outcome::NotApplicable { seen },
            Err(Stop::Unavailable(seen)) => Outcome::Unavailable { seen },
        }
    }
}

/// The cases of each subject.
const SUBJECTS: [(&str, &[Manner]); 5] = [
    ("ends of connections", ends::CASES),
    ("connections", streams::CASES),
    ("UDP", udp::CASES),
    ("ICMP and names", names::CASES),
    ("devices and limits", device::CASES),
];

fn cases() -> impl Iterator<Item = &'static Manner> {
    SUBJECTS.iter().flat_map(|(_, cases)| *cases)
}

/// What is known of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct KnownManners {
    /// The version that was tried.
    pub version: String,
    /// Cases that fail, each with its reason. The case over IPv6 fails alike, unless `ipv4` or `ipv6` is before the reason.
    #[serde(default)]
    pub failures: BTreeMap<String, String>,
    /// Cases that fail in some runs and pass in others.
    #[serde(default)]
    pub at_times: BTreeMap<String, String>,
}

impl KnownManners {
    /// The known failures of a program, by its name.
    pub fn of(program: &str) -> &'static Self {
        static NOTHING: LazyLock<KnownManners> = LazyLock::new(KnownManners::default);
        // A test parses the list.
        static ALL: LazyLock<BTreeMap<String, KnownManners>> =
            LazyLock::new(|| serde_json::from_str(LIST).unwrap_or_default());
        ALL.get(program).unwrap_or(&NOTHING)
    }

    /// The reason for which a case fails, and whether it always does.
    pub fn reason(&self, case: &str) -> Option<(&str, bool)> {
        let find = |list: &'static str, always| {
            let reasons = if list == "failures" { &self.failures } else { &self.at_times };
            let reason = reasons.get(case).or_else(|| reasons.get(case.strip_suffix("-ipv6")?))?;
            let is_ipv6 = case.ends_with("-ipv6");
            match (reason.strip_prefix("ipv4: "), is_ipv6) {
                (Some(_), true) => None,
                (Some(reason), false) => Some((reason, always)),
                (None, _) => Some((reason.as_str(), always)),
            }
        };
        find("failures", true).or_else(|| find("at_times", false))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::collections::BTreeSet;

    use super::*;
    use crate::Strength;

    #[test]
    fn cases_have_names_of_their_own_and_demands_that_a_reader_finds() {
        let ids: BTreeSet<_> = Manner::all().map(|case| case.id).collect();
        assert_eq!(ids.len(), Manner::all().count());
        assert!(cases().count() >= 40, "{}", cases().count());
        for case in Manner::all() {
            assert!(Strength::of(case.level).is_some(), "{}: {}", case.id, case.level);
            assert!(case.expects.ends_with('.') && !case.subject().is_empty(), "{}", case.id);
        }
    }

    #[test]
    fn known_failures_are_of_cases_that_there_are() {
        let all: BTreeMap<String, KnownManners> = serde_json::from_str(LIST).unwrap();
        for (program, known) in &all {
            assert!(!known.version.is_empty(), "{program}");
            for (case, reason) in known.failures.iter().chain(&known.at_times) {
                assert!(Manner::all().any(|one| one.id == case), "{program}: {case}");
                assert!(!reason.is_empty(), "{program}: {case}");
            }
        }
    }

    #[test]
    fn a_failure_over_both_versions_is_listed_once() {
        let known: KnownManners = serde_json::from_str(
            r#"{ "version": "1", "failures": { "a": "both", "b": "ipv4: one", "c-ipv6": "other" }, "at_times": { "d": "x" } }"#,
        )
        .unwrap();
        let reason = |case| known.reason(case);
        assert_eq!([reason("a"), reason("a-ipv6")], [Some(("both", true)); 2]);
        assert_eq!([reason("b"), reason("b-ipv6")], [Some(("one", true)), None]);
        assert_eq!([reason("c"), reason("c-ipv6")], [None, Some(("other", true))]);
        assert_eq!(reason("d"), Some(("x", false)));
    }
}
