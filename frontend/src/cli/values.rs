//! The values of options: times, sizes, rates and shares, as people type them.

use std::num::NonZeroU64;
use std::time::Duration;

use bytesize::ByteSize;
use netstacks::Workarounds as Repairs;

use super::list::{self, List};
use crate::program::ProgramName;
use crate::scenario::Outage;

/// A time: `5s`, `200ms`, `50us`, `2min`, or `5`, a number of seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "not a time; write seconds, or a number with a unit, such as 5, 0.5s, 200ms or 50us".to_owned();
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "us" | "µs" => number / 1e6,
        "min" => number * 60.0,
        _ => return Err(wrong()),
    };
    // Rounded to nanoseconds, the unit in files of samples.
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a time that can be waited".to_owned())
}

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

/// A time that a packet takes on a link.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if time > Duration::from_mins(1) { Err("more than a minute".to_owned()) } else { Ok(time) }
}

/// An outage: when it begins, and how long it lasts.
pub(super) fn outage(text: &str) -> Result<Outage, String> {
    let (at, lasts) =
        text.split_once(',').ok_or("not two times; write when it begins and how long it lasts: 2s,500ms")?;
    match (time(at)?, time(lasts)?) {
        (_, Duration::ZERO) => Err("it must last longer than 0 seconds".to_owned()),
        (at, lasts) => Ok(Outage { at, lasts }),
    }
}

/// A size in bytes, with an SI or binary suffix.
pub(super) fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_| {
        "not a size below 16 EiB; write a number with an SI or binary suffix, such as 64MB or 4MiB".to_owned()
    })
}

/// Bits a second with an SI suffix: `100M`, `1.5Gbit`.
pub(super) fn rate(text: &str) -> Result<NonZeroU64, String> {
    let number = ["bit/s", "bits/s", "bps", "bit"].iter().find_map(|unit| text.strip_suffix(unit));
    if number.is_none()
        && let Some(bytes) = text.strip_suffix('B')
    {
        return Err(format!("{text} is a number of bytes; write {bytes} or {bytes}bit for bits a second"));
    }
    let rate = number.unwrap_or(text).parse::<ByteSize>().ok().and_then(|rate| NonZeroU64::new(rate.as_u64()));
    rate.ok_or_else(|| {
        "not a bit rate above 0; write a number with an SI suffix, such as 100M, 100Mbit or 1G".to_owned()
    })
}

/// The values of `--repairs`: `all` and `none`, separated by commas, or one value of names.
pub(super) fn repairs(text: &str) -> Result<List<Repairs>, String> {
    let is_whole = |word: &str| matches!(word, "all" | "none");
    if text.split(',').all(is_whole) { list::of(str::parse)(text) } else { list::one(str::parse)(text) }
}

/// A percentage, with or without its sign.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    number.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| "must be from 0 to 100 percent".to_owned())
}

/// A percentage of packets, in parts per million.
pub(super) fn share(text: &str) -> Result<u32, String> {
    match percent(text)? {
        percent if percent > 0.0 && percent < 1e-4 => {
            Err("is less than a link can do: 0.0001 percent, one packet of a million".to_owned())
        }
        percent => Ok((percent * 1e4).round() as u32),
    }
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
    fn a_time_is_in_seconds_without_a_unit() {
        for (text, milliseconds) in [("5", 5000.0), ("0.25s", 250.0), ("5ms", 5.0), ("200us", 0.2), ("2min", 120e3)] {
            assert_eq!(time(text), Ok(Duration::from_secs_f64(milliseconds / 1e3)), "{text}");
        }
        assert_eq!((time("0"), time("7 ms")), (Ok(Duration::ZERO), Ok(Duration::from_millis(7))));
        for text in ["ms", "-1ms", "1h", "", "1e300", "NaN", "inf", "5 m s"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(delay("60s").is_ok() && delay("61").is_err());
    }

    #[test]
    fn names_of_repairs_are_one_value_and_all_and_none_are_two() {
        let values = |text| repairs(text).map(|list| list.values().to_vec());
        assert_eq!(values("all,none"), Ok(vec![Repairs::ALL, Repairs::NONE]));
        assert_eq!(values("-late-fin,-no-nagle"), "-late-fin,-no-nagle".parse().map(|one| vec![one]));
        assert!(["none,late-fin", "", "all,"].iter().all(|text| values(text).is_err()));
    }

    #[test]
    fn an_outage_is_two_times() {
        let (at, lasts) = (Duration::from_secs(2), Duration::from_millis(500));
        assert_eq!(outage("2s,500ms"), Ok(Outage { at, lasts }));
        assert_eq!(outage(&Outage { at, lasts }.to_string()), Ok(Outage { at, lasts }));
        assert!(["2s", "2s,0", "2s,1s,1s", ",1s", ""].iter().all(|text| outage(text).is_err()));
    }

    #[test]
    fn a_rate_is_in_bits_and_bytes_are_refused() {
        for text in ["100M", "100Mbit", "100Mbit/s", "100Mbps", "100000000", "0.1G"] {
            assert_eq!(rate(text).map(NonZeroU64::get), Ok(100_000_000), "{text}");
        }
        assert!(["0", "fast", "", "-1M"].iter().all(|text| rate(text).is_err()));
        let refused = rate("100MB").err().unwrap_or_default();
        assert!(refused.contains("100MB is a number of bytes") && refused.contains("100M or 100Mbit"), "{refused}");
        assert!(rate("100MiB").is_err());
    }

    #[test]
    fn a_share_is_a_percentage_that_a_link_can_do() {
        assert_eq!(
            [share("0.1"), share("1%"), share("1 %"), share("100"), share("0")],
            [Ok(1000), Ok(10_000), Ok(10_000), Ok(1_000_000), Ok(0)]
        );
        assert!(["101", "-1", "x", "NaN", "%", "0.00001"].iter().all(|text| share(text).is_err()));
        assert_eq!(share("0.0001%"), Ok(1));
    }

    #[test]
    fn a_floor_is_a_percentage_below_100() {
        assert_eq!([floor("0"), floor("0.5"), floor("2%"), floor("99.9")], [Ok(0.0), Ok(0.5), Ok(2.0), Ok(99.9)]);
        for text in ["-1", "100", "NaN", "inf", ""] {
            assert_eq!(floor(text), Err("must be at least 0 and below 100".to_owned()), "{text}");
        }
    }
}
