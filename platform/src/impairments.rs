//! What a link does to packets. netem's word.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{self, nanoseconds};

#[cfg(feature = "clap")]
const HEADING: &str =
    "Impairments of the link between device and stack, or between both networks of a program, each way";

/// What the link between device and stack does to packets beside carrying them, each way. A super-packet is one
/// packet. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default)]
pub struct Impairments {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "TIME", default_value = "0", value_parser = units::delay, hide_default_value = true))]
    #[serde(rename = "delay_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub delay: Duration,

    /// Up to this much more or less, evenly distributed
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "TIME", default_value = "0", value_parser = units::delay, hide_default_value = true,
        hide_short_help = true))]
    #[serde(rename = "jitter_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub jitter: Duration,

    /// Packets that are lost
    #[cfg_attr(feature = "clap", arg(help_heading = HEADING, long = "loss", value_name = "PERCENT", default_value = "0", value_parser = units::share, hide_default_value = true))]
    #[serde(skip_serializing_if = "is_zero")]
    pub loss_ppm: u32,

    /// Packets that the next three overtake
    #[cfg_attr(feature = "clap", arg(help_heading = HEADING, long = "reorder", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true))]
    #[serde(skip_serializing_if = "is_zero")]
    pub reorder_ppm: u32,

    /// Packets that come twice
    #[cfg_attr(feature = "clap", arg(help_heading = HEADING, long = "duplicate", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true))]
    #[serde(skip_serializing_if = "is_zero")]
    pub duplicate_ppm: u32,

    /// Packets of which a bit is changed; without offload
    #[cfg_attr(feature = "clap", arg(help_heading = HEADING, long = "corrupt", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true))]
    #[serde(skip_serializing_if = "is_zero")]
    pub corrupt_ppm: u32,

    /// Bits a second at most, such as 100M
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "BITRATE", value_parser = units::rate, hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<NonZeroU64>,

    /// The longest packet that the path carries, in bytes, 576 to 65534; IPv6 at least 1280. ICMP tells the sender of a
    /// longer one
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "N", hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<NonZeroU16>,

    /// Drop packets that are longer than --path-mtu silently: a black hole; all for both
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "SWITCH", num_args = 0..=1, default_value = "off", default_missing_value = "on",
        value_parser = units::switch(), hide_short_help = true, action = clap::ArgAction::Set))]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_icmp: bool,

    /// The path carries nothing: from when, after the beginning of the timed window, and for how long, such as 1s,500ms
    #[cfg_attr(feature = "clap", arg(long, help_heading = HEADING, value_name = "AT,FOR", hide_short_help = true))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(share: &u32) -> bool {
    *share == 0
}

impl Impairments {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it needs a link that changes packets: an outage alone does not.
    pub fn has_link(&self) -> bool {
        Self { outage: None, ..*self } != Self::default()
    }

    /// Whether packets are lost, and not only late.
    pub const fn loses(&self) -> bool {
        self.loss_ppm > 0 || self.corrupt_ppm > 0 || self.path_mtu.is_some() || self.outage.is_some()
    }

    /// Whether packets wait in the link.
    pub(crate) fn takes_time(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.rate_limit.is_some()
    }
}

/// A time in which the path carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Outage {
    /// When it begins, from the beginning of the timed window.
    #[serde(rename = "at_ns", with = "nanoseconds")]
    pub at: Duration,
    /// How long it lasts.
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
        let link = parse(
            "--delay 5ms --jitter 0.5ms --loss 1 --reorder 0.1 --duplicate 2 --corrupt 0.0001 --rate-limit 1M --path-mtu 1400 \
             --no-icmp --outage 1s,0.5s",
        )
        .unwrap();
        let json = serde_json::json!({
            "delay_ns": 5_000_000, "jitter_ns": 500_000, "loss_ppm": 10_000, "reorder_ppm": 1000, "duplicate_ppm": 20_000,
            "corrupt_ppm": 1, "rate_limit": 1_000_000, "path_mtu": 1400, "no_icmp": true,
            "outage": { "at_ns": 1_000_000_000, "lasts_ns": 500_000_000 },
        });
        assert_eq!(serde_json::to_value(link).unwrap(), json);
        assert_eq!(serde_json::from_value::<Impairments>(json).unwrap(), link);
        let none = Impairments::default();
        assert_eq!((parse("").unwrap(), serde_json::to_string(&none).unwrap()), (none, "{}".to_owned()));
        assert!(parse("--no-icmp").unwrap().no_icmp && !parse("--no-icmp off").unwrap().no_icmp);
        for wrong in ["--loss 101", "--delay 61s", "--outage 1s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
