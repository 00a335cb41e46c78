//! Values as people type them: times, sizes, rates and shares. The parsers are those of a command line.

use std::num::NonZeroU64;
use std::time::Duration;

use bytesize::ByteSize;

/// A time: `5s`, `200ms`, `50us`, `2min`, or `5`, a number of seconds.
pub fn time(text: &str) -> Result<Duration, String> {
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

/// A time that a packet takes on a link, of at most a minute.
pub fn delay(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if time >= Duration::from_secs(1) && !text.ends_with(char::is_alphabetic) {
        return Err(format!("{text} is {text} seconds; write {text}ms, or {text}s"));
    }
    if time > Duration::from_mins(1) { Err("more than a minute".to_owned()) } else { Ok(time) }
}

/// A size in bytes, with an SI or binary suffix.
pub fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_| {
        "not a size below 16 EiB; write a number with an SI or binary suffix, such as 64MB or 4MiB".to_owned()
    })
}

/// A size of a payload. A small number without a suffix is another unit, forgotten.
pub fn amount(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if (1..1000).contains(&bytes) && !text.ends_with(char::is_alphabetic) => {
            Err(format!("{text} is {text} bytes; write {text}MB, or {text}B"))
        }
        bytes => Ok(bytes),
    }
}

/// Bits a second with an SI suffix: `100M`, `1.5Gbit`.
pub fn rate(text: &str) -> Result<NonZeroU64, String> {
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

/// A percentage, with or without its sign.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    number.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| "must be from 0 to 100 percent".to_owned())
}

/// A percentage of packets, in parts per million.
pub fn share(text: &str) -> Result<u32, String> {
    match percent(text)? {
        percent if percent > 0.0 && percent < 1e-4 => {
            Err("is less than a link can do: 0.0001 percent, one packet of a million".to_owned())
        }
        percent => Ok((percent * 1e4).round() as u32),
    }
}

/// A switch: `on` or `off`.
#[cfg(feature = "clap")]
pub fn switch() -> impl clap::builder::TypedValueParser<Value = bool> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(["on", "off"]).map(|text| text == "on")
}

/// A time as a number of nanoseconds, for `#[serde(with)]`.
pub mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the number.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Reads the number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
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
        assert!(delay("60s").is_ok() && delay("61s").is_err());
    }

    #[test]
    fn a_number_that_nobody_means_is_refused_with_the_one_that_was_meant() {
        assert_eq!(delay("5"), Err("5 is 5 seconds; write 5ms, or 5s".to_owned()));
        assert_eq!(amount("3"), Err("3 is 3 bytes; write 3MB, or 3B".to_owned()));
        assert_eq!([delay("0"), delay("5s")], [Ok(Duration::ZERO), Ok(Duration::from_secs(5))]);
        assert_eq!([amount("0"), amount("3B"), amount("3MB"), amount("4096")], [Ok(0), Ok(3), Ok(3_000_000), Ok(4096)]);
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
}
