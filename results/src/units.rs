//! The values of options, as people type them.

use std::time::Duration;

pub use platform::units::*;

/// A time that ends something.
pub fn limit(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time.is_zero() { Err("must be more than 0 seconds".to_owned()) } else { Ok(time) })
}

/// A time in which something is watched at rest.
pub fn rest(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_hours(1);
    time(text).and_then(|time| {
        range.contains(&time).then_some(time).ok_or_else(|| "must be 0.001 seconds to an hour".to_owned())
    })
}

/// A time after which a proxy gives up. With less than a millisecond nothing would work, and more than a century is for ever.
pub fn patience(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..Duration::from_secs(4_000_000_000);
    time(text).and_then(|time| {
        range.contains(&time).then_some(time).ok_or_else(|| "must be 0.001 seconds to a century".to_owned())
    })
}

/// A command that can be split into words.
pub fn command(text: &str) -> Result<String, String> {
    let words = shlex::split(text).ok_or("a quotation mark is not closed")?;
    if words.is_empty() { Err("no program is named".to_owned()) } else { Ok(text.to_owned()) }
}

/// A change that is ignored, in percent.
pub fn floor(text: &str) -> Result<f64, String> {
    percent(text).ok().filter(|floor| *floor < 100.0).ok_or_else(|| "must be at least 0 and below 100".to_owned())
}

/// How far an interval may reach from its median, in percent.
pub fn width(text: &str) -> Result<f64, String> {
    percent(text).ok().filter(|width| *width > 0.0).ok_or_else(|| "must be above 0 and at most 100".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_a_percentage_below_100() {
        assert_eq!([floor("0"), floor("0.5"), floor("2%"), floor("99.9")], [Ok(0.0), Ok(0.5), Ok(2.0), Ok(99.9)]);
        for text in ["-1", "100", "NaN", "inf", ""] {
            assert_eq!(floor(text), Err("must be at least 0 and below 100".to_owned()), "{text}");
        }
    }
}
