//! The values of options, as people type them.

use std::time::Duration;

use netstacks::Repairs;
use platform::units::percent;
pub(super) use platform::units::{delay, rate, share, size, time};

use super::list::{self, List};
use crate::program::ProgramName;

/// A time that ends something.
pub(super) fn limit(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time.is_zero() { Err("must be more than 0 seconds".to_owned()) } else { Ok(time) })
}

/// A time after which a proxy gives up. With less than a millisecond nothing would work, and more than a century is for ever.
pub(super) fn patience(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..Duration::from_secs(4_000_000_000);
    time(text).and_then(|time| {
        range.contains(&time).then_some(time).ok_or_else(|| "must be 0.001 seconds to a century".to_owned())
    })
}

/// The values of `--repairs`: `all` and `none`, separated by commas, or one value of names.
pub(super) fn repairs(text: &str) -> Result<List<Repairs>, String> {
    let is_whole = |word: &str| matches!(word, "all" | "none");
    if text.split(',').all(is_whole) { list::of(str::parse)(text) } else { list::one(str::parse)(text) }
}

/// A command that can be split into words.
pub(super) fn command(text: &str) -> Result<String, String> {
    let words = shlex::split(text).ok_or("a quotation mark is not closed")?;
    if words.is_empty() { Err("no program is named".to_owned()) } else { Ok(text.to_owned()) }
}

/// The names of two programs.
pub(super) fn two_programs(text: &str) -> Result<[ProgramName; 2], String> {
    let (old, new) = text.split_once(',').ok_or("must be two names with a comma between them")?;
    Ok([old.parse()?, new.parse()?])
}

/// A change that is ignored, in percent.
pub(super) fn floor(text: &str) -> Result<f64, String> {
    percent(text).ok().filter(|floor| *floor < 100.0).ok_or_else(|| "must be at least 0 and below 100".to_owned())
}

/// How far an interval may reach from its median, in percent.
pub(super) fn width(text: &str) -> Result<f64, String> {
    percent(text).ok().filter(|width| *width > 0.0).ok_or_else(|| "must be above 0 and at most 100".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repairs_are_one_value_and_all_and_none_are_two() {
        let values = |text| repairs(text).map(|list| list.values().to_vec());
        assert_eq!(values("all,none"), Ok(vec![Repairs::ALL, Repairs::NONE]));
        assert_eq!(values("-late-fin,-no-nagle"), "-late-fin,-no-nagle".parse().map(|one| vec![one]));
        assert!(["none,late-fin", "", "all,"].iter().all(|text| values(text).is_err()));
    }

    #[test]
    fn a_floor_is_a_percentage_below_100() {
        assert_eq!([floor("0"), floor("0.5"), floor("2%"), floor("99.9")], [Ok(0.0), Ok(0.5), Ok(2.0), Ok(99.9)]);
        for text in ["-1", "100", "NaN", "inf", ""] {
            assert_eq!(floor(text), Err("must be at least 0 and below 100".to_owned()), "{text}");
        }
    }
}
