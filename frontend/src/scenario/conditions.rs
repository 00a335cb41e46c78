//! What the link does to packets.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{is_default, nanoseconds};

/// What the link between device and stack does to packets beside carrying them, each way. A super-packet is one
/// packet. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(default)]
pub struct Conditions {
    /// How long every packet takes: half of what it adds to a round trip.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "delay_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub delay: Duration,
    /// A packet takes up to this much more or less, evenly distributed; jitter makes no packet overtake another.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "jitter_ns", with = "nanoseconds", skip_serializing_if = "Duration::is_zero")]
    pub jitter: Duration,
    /// Packets that are lost, of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub loss_ppm: u32,
    /// Packets that the next three overtake, of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub reorder_ppm: u32,
    /// Packets that come twice, of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub duplicate_ppm: u32,
    /// Packets of which a bit is changed, of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub corrupt_ppm: u32,
    /// Bits a second at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<NonZeroU64>,
    /// The longest packet that the path carries, in bytes. A super-packet is as long as a segment of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<NonZeroU16>,
    /// Whether the sender of a longer packet is not told so by ICMP.
    #[serde(skip_serializing_if = "is_default")]
    pub no_icmp: bool,
    /// A time in which the path carries nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

/// A time in which the path carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Outage {
    /// When it begins, from the beginning of the timed window.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "at_ns", with = "nanoseconds")]
    pub at: Duration,
    /// How long it lasts.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "lasts_ns", with = "nanoseconds")]
    pub lasts: Duration,
}

/// As the command line takes it: `1s,0.5s`.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s,{}s", self.at.as_secs_f64(), self.lasts.as_secs_f64())
    }
}

impl Conditions {
    /// Whether it needs a link that changes packets: an outage alone does not.
    pub fn has_link(&self) -> bool {
        Self { outage: None, ..*self } != Self::default()
    }

    /// Whether packets are lost, and not only late.
    pub const fn loses(&self) -> bool {
        self.loss_ppm > 0 || self.corrupt_ppm > 0 || self.path_mtu.is_some() || self.outage.is_some()
    }

    /// The conditions that differ from the default: the option of each, and its value as the command line takes it.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        let time = |time: Duration| (!time.is_zero()).then(|| format!("{}ms", time.as_nanos() as f64 / 1e6));
        let share = |ppm: u32| (ppm > 0).then(|| (f64::from(ppm) / 1e4).to_string());
        let options = [
            ("--delay", time(self.delay)),
            ("--jitter", time(self.jitter)),
            ("--loss", share(self.loss_ppm)),
            ("--reorder", share(self.reorder_ppm)),
            ("--duplicate", share(self.duplicate_ppm)),
            ("--corrupt", share(self.corrupt_ppm)),
            ("--rate-limit", self.rate_limit.map(|rate| rate.to_string())),
            ("--path-mtu", self.path_mtu.map(|bytes| bytes.to_string())),
            ("--no-icmp", self.no_icmp.then(|| "on".to_owned())),
            ("--outage", self.outage.map(|outage| outage.to_string())),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// For people: `delay 5 ms, loss 1 %, path MTU 1400, no ICMP`.
impl fmt::Display for Conditions {
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
