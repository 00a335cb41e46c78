//! How much a standard asks for what a case checks.

use std::fmt;

/// The highest numbers of appendix B of RFC 9293.
const NUMBERS: [(&str, u8); 3] = [("MUST-", 69), ("SHLD-", 31), ("MAY-", 18)];

/// The strength of a demand, the strongest first.
///
/// A demand is a text. `MUST-36` and `SHLD-3` are those of appendix B of RFC 9293. `MUST RFC 8200, 4.1: all headers are processed`
/// is of another place: words behind a colon tell one sentence from others of its section. `ours` is of no standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// A standard demands it.
    Must,
    /// A standard recommends it.
    Should,
    /// A standard allows it.
    May,
    /// No standard asks for it: it is a promise of our interface, or robustness.
    Ours,
}

impl Strength {
    /// All, the strongest first.
    pub const ALL: [Self; 4] = [Self::Must, Self::Should, Self::May, Self::Ours];

    /// Reads the strength of a demand.
    pub fn of(demand: &str) -> Option<Self> {
        let is_number = |(prefix, last): &(&str, u8)| {
            let number = demand.strip_prefix(prefix).and_then(|number| number.parse().ok());
            number.is_some_and(|number| (1..=*last).contains(&number))
        };
        if let Some(place) = NUMBERS.iter().position(is_number) {
            return Some(Self::ALL[place]);
        }
        let is_it = |strength: &Self| match strength {
            Self::Ours => demand == "ours",
            _ => demand
                .strip_prefix(&format!("{strength} RFC "))
                .is_some_and(|place| place.starts_with(char::is_numeric)),
        };
        Self::ALL.into_iter().find(is_it)
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::May => "MAY",
            Self::Ours => "ours",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Case, invariants, known};

    #[test]
    fn every_case_has_a_demand_that_a_reader_finds() {
        for text in ["", "MUST", "MUST-0", "MUST-70", "SHLD-32", "MAY-19", "SHOULD-3", "MUST RFC", "SHALL RFC 791, 3"] {
            assert_eq!(Strength::of(text), None, "{text}");
        }
        let mut places = BTreeMap::new();
        let breaks = known::all().values().flat_map(|known| &known.causes);
        let breaks = breaks.filter_map(|(name, cause)| Some((name.as_str(), cause.breaks.as_deref()?, None)));
        let cases = Case::all().chain(invariants()).map(|case| (case.id, case.level, Some(case.rfc)));
        for (name, level, rfc) in cases.chain(breaks) {
            let Some(strength) = Strength::of(level) else { panic!("{name}: there is no {level:?}") };
            let place = level.trim_start_matches(&format!("{strength} "));
            assert_eq!(
                places.insert(place, strength).unwrap_or(strength),
                strength,
                "{name}: {place} has two strengths"
            );
            let standard =
                place.split([',', ':']).next().filter(|place| place.starts_with("RFC ")).unwrap_or("RFC 9293");
            let is_named = rfc.is_none_or(|rfc| rfc.contains(standard));
            assert!(strength == Strength::Ours || is_named, "{name}: {rfc:?} lacks {standard}");
        }
    }
}
