//! What the link does to packets.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::units::{self, nanoseconds};

/// The heading of the options.
const LINK: &str = "Impairments of the link between device and stack, or between both networks of a program, each way";

/// What the link between device and stack does to packets beside carrying them, each way. A super-packet is one
/// packet. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Args)]
#[serde(default)]
pub struct Impairments {
    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, help_heading = LINK, value_name = "TIME", default_value = "0", value_parser = units::delay, hide_default_value = true)]
    #[serde(rename = "delay_ns", with = "nanoseconds")]
    pub delay: Duration,

    /// Up to this much more or less, evenly distributed
    #[arg(long, help_heading = LINK, value_name = "TIME", default_value = "0", value_parser = units::delay, hide_default_value = true,
        hide_short_help = true)]
    #[serde(rename = "jitter_ns", with = "nanoseconds")]
    pub jitter: Duration,

    /// Packets that are lost
    #[arg(help_heading = LINK, long = "loss", value_name = "PERCENT", default_value = "0", value_parser = units::share, hide_default_value = true)]
    pub loss_ppm: u32,

    /// Packets that the next three overtake
    #[arg(help_heading = LINK, long = "reorder", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true)]
    pub reorder_ppm: u32,

    /// Packets that come twice
    #[arg(help_heading = LINK, long = "duplicate", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true)]
    pub duplicate_ppm: u32,

    /// Packets of which a bit is changed; without offload
    #[arg(help_heading = LINK, long = "corrupt", value_name = "PERCENT", default_value = "0", value_parser = units::share,
        hide_default_value = true, hide_short_help = true)]
    pub corrupt_ppm: u32,

    /// Bits a second at most, such as 100M
    #[arg(long, help_heading = LINK, value_name = "BITRATE", value_parser = units::rate, hide_short_help = true)]
    pub rate_limit: Option<NonZeroU64>,

    /// The longest packet that the path carries, in bytes, 576 to 65534; IPv6 at least 1280. ICMP tells the sender of a
    /// longer one
    #[arg(long, help_heading = LINK, value_name = "N", hide_short_help = true)]
    pub path_mtu: Option<NonZeroU16>,

    /// Drop packets that are longer than --path-mtu silently: a black hole; all for both
    #[arg(long, help_heading = LINK, value_name = "SWITCH", num_args = 0..=1, default_value = "off", default_missing_value = "on",
        value_parser = units::switch(), hide_short_help = true, action = clap::ArgAction::Set)]
    pub no_icmp: bool,

    /// The path carries nothing: from when, after the beginning of the timed window, and for how long, such as 1s,500ms
    #[arg(long, help_heading = LINK, value_name = "AT,FOR", value_parser = units::outage, hide_short_help = true)]
    pub outage: Option<Outage>,
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
}
