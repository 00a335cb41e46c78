//! What a link does to packets. netem's word.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{self, nanoseconds};

#[cfg(feature = "clap")]
const HEADING: &str =
    "Conditions of the link between device and stack, or between both networks of a program, each way";

/// What a link does to packets beside carrying them, each way. A super-packet is one packet. A share is in parts per
/// million. The default is nothing.
///
/// With the feature `clap`, the fields are options, and their documentation is the help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = HEADING))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Impairments {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[cfg_attr(feature = "clap", arg(long, value_name = "TIME", value_parser = units::delay, default_value = "0",
        hide_default_value = true))]
    #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
    #[serde(rename = "delay_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub delay: Duration,

    /// Up to this much more or less, evenly distributed
    #[cfg_attr(feature = "clap", arg(long, value_name = "TIME", value_parser = units::delay, default_value = "0",
        hide_default_value = true, hide_short_help = true))]
    #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
    #[serde(rename = "jitter_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub jitter: Duration,

    /// Packets that are lost
    #[cfg_attr(feature = "clap", arg(long, value_name = "PERCENT", value_parser = units::share, default_value = "0",
        hide_default_value = true))]
    #[serde(rename = "loss_ppm", skip_serializing_if = "is_zero")]
    pub loss: u32,

    /// Packets that the next three overtake
    #[cfg_attr(feature = "clap", arg(long, value_name = "PERCENT", value_parser = units::share, default_value = "0",
        hide_default_value = true, hide_short_help = true))]
    #[serde(rename = "reorder_ppm", skip_serializing_if = "is_zero")]
    pub reorder: u32,

    /// Packets that come twice
    #[cfg_attr(feature = "clap", arg(long, value_name = "PERCENT", value_parser = units::share, default_value = "0",
        hide_default_value = true, hide_short_help = true))]
    #[serde(rename = "duplicate_ppm", skip_serializing_if = "is_zero")]
    pub duplicate: u32,

    /// Packets of which a bit is changed; without offload
    #[cfg_attr(feature = "clap", arg(long, value_name = "PERCENT", value_parser = units::share, default_value = "0",
        hide_default_value = true, hide_short_help = true))]
    #[serde(rename = "corrupt_ppm", skip_serializing_if = "is_zero")]
    pub corrupt: u32,

    /// Bits a second at most, such as 100M
    #[cfg_attr(feature = "clap", arg(long, value_name = "BITRATE", value_parser = units::rate, hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<NonZeroU64>,

    /// The longest packet that the path carries, in bytes, 576 to 65534; IPv6 at least 1280. ICMP tells the sender of a
    /// longer one
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = path_mtu, hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<NonZeroU16>,

    /// Drop packets that are longer than --path-mtu silently: a black hole; all for both
    #[cfg_attr(feature = "clap", arg(long, value_name = "SWITCH", value_parser = switch(), num_args = 0..=1,
        default_missing_value = "on", default_value = "off", action = clap::ArgAction::Set, hide_default_value = true,
        hide_short_help = true))]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_icmp: bool,

    /// The path carries nothing: from when, after the beginning of the timed window, and for how long, such as 1s,500ms
    #[cfg_attr(feature = "clap", arg(long, value_name = "AT,FOR", hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(share: &u32) -> bool {
    *share == 0
}

#[cfg(feature = "clap")]
fn path_mtu(text: &str) -> Result<NonZeroU16, String> {
    let len = text.parse().ok().filter(|len: &NonZeroU16| (576..u16::MAX).contains(&len.get()));
    len.ok_or_else(|| "must be 576 to 65534".to_owned())
}

#[cfg(feature = "clap")]
fn switch() -> impl clap::builder::TypedValueParser<Value = bool> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

impl Impairments {
    /// Whether packets are changed or late: an outage alone changes none.
    pub fn has_link(&self) -> bool {
        Self { outage: None, ..*self } != Self::default()
    }

    /// Whether packets are lost, and not only late.
    pub const fn loses(&self) -> bool {
        self.loss > 0 || self.corrupt > 0 || self.path_mtu.is_some() || self.outage.is_some()
    }

    /// Whether packets wait in the link.
    pub(crate) fn takes_time(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.rate_limit.is_some()
    }

    /// Those that differ from the default: the option of each, and its value as the command line takes it.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        let time = |time: Duration| (!time.is_zero()).then(|| format!("{}ms", time.as_nanos() as f64 / 1e6));
        let share = |ppm: u32| (ppm > 0).then(|| (f64::from(ppm) / 1e4).to_string());
        let options = [
            ("--delay", time(self.delay)),
            ("--jitter", time(self.jitter)),
            ("--loss", share(self.loss)),
            ("--reorder", share(self.reorder)),
            ("--duplicate", share(self.duplicate)),
            ("--corrupt", share(self.corrupt)),
            ("--rate-limit", self.rate_limit.map(|rate| rate.to_string())),
            ("--path-mtu", self.path_mtu.map(|bytes| bytes.to_string())),
            ("--no-icmp", self.no_icmp.then(|| "on".to_owned())),
            ("--outage", self.outage.map(|outage| outage.to_string())),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// For people: `delay 5 ms, loss 1 %, path MTU 1400, no ICMP`.
impl fmt::Display for Impairments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.options().map(|(name, value)| match name.trim_start_matches("--") {
            name @ ("delay" | "jitter") => format!("{name} {} ms", value.trim_end_matches("ms")),
            "rate-limit" => format!("rate limit {value} bit/s"),
            "path-mtu" => format!("path MTU {value}"),
            "no-icmp" => "no ICMP".to_owned(),
            "outage" => format!("outage {}", value.replace(',', " for ")),
            name => format!("{name} {value} %"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

/// A time in which the path carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Outage {
    /// When it begins, from the beginning of the timed window.
    #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
    #[serde(rename = "at_ns", with = "nanoseconds")]
    pub at: Duration,
    /// How long it lasts.
    #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
    #[serde(rename = "lasts_ns", with = "nanoseconds")]
    pub lasts: Duration,
}

/// As the command line takes it: `1s,0.5s`.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s,{}s", self.at.as_secs_f64(), self.lasts.as_secs_f64())
    }
}

impl FromStr for Outage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (at, lasts) =
            text.split_once(',').ok_or("not two times; write when it begins and how long it lasts: 2s,500ms")?;
        match (units::time(at)?, units::time(lasts)?) {
            (_, Duration::ZERO) => Err("it must last longer than 0 seconds".to_owned()),
            (at, lasts) => Ok(Self { at, lasts }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn an_outage_is_two_times() {
        let (at, lasts) = (Duration::from_secs(2), Duration::from_millis(500));
        assert_eq!("2s,500ms".parse(), Ok(Outage { at, lasts }));
        assert_eq!(Outage { at, lasts }.to_string().parse(), Ok(Outage { at, lasts }));
        assert!(["2s", "2s,0", "2s,1s,1s", ",1s", ""].iter().all(|text| text.parse::<Outage>().is_err()));
    }

    #[cfg(feature = "clap")]
    #[test]
    fn each_field_is_an_option_a_word_and_a_name_in_json() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            link: Impairments,
        }
        let parse = |words: &str| {
            let words = words.split_whitespace();
            <Cli as clap::Parser>::try_parse_from([""].into_iter().chain(words)).map(|cli| cli.link)
        };
        let all = "--delay 5ms --jitter 0.5ms --loss 1 --reorder 0.1 --duplicate 2 --corrupt 0.0001 --rate-limit 1000000 \
                   --path-mtu 1400 --no-icmp on --outage 1s,0.5s";
        let link = parse(all).unwrap();
        let words = link.options().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(" ");
        assert_eq!(words, all);
        assert_eq!(
            link.to_string(),
            "delay 5 ms, jitter 0.5 ms, loss 1 %, reorder 0.1 %, duplicate 2 %, corrupt 0.0001 %, rate limit 1000000 \
             bit/s, path MTU 1400, no ICMP, outage 1s for 0.5s"
        );
        let json = serde_json::json!({
            "delay_ns": 5_000_000, "jitter_ns": 500_000, "loss_ppm": 10_000, "reorder_ppm": 1000, "duplicate_ppm": 20_000,
            "corrupt_ppm": 1, "rate_limit": 1_000_000, "path_mtu": 1400, "no_icmp": true,
            "outage": { "at_ns": 1_000_000_000, "lasts_ns": 500_000_000 },
        });
        assert_eq!(serde_json::to_value(link).unwrap(), json);
        assert_eq!(serde_json::from_value::<Impairments>(json).unwrap(), link);
        let none = Impairments::default();
        assert_eq!(
            (parse("").unwrap(), none.to_string(), serde_json::to_string(&none).unwrap()),
            (none, String::new(), "{}".to_owned())
        );
        assert!(parse("--no-icmp").unwrap().no_icmp && !parse("--no-icmp off").unwrap().no_icmp);
        for wrong in ["--path-mtu 575", "--path-mtu 65535", "--loss 101", "--delay 61s", "--outage 1s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
