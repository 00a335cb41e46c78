//! Settings of a run that are no property of its cell.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use super::{Netns, values};

/// Settings that all runs of a matrix share.
#[derive(Clone, Debug, PartialEq, Args)]
#[allow(clippy::doc_markdown, reason = "the words are help, with IPv6 addresses")]
pub struct Settings {
    /// Also record the bytes that arrived in each interval of this length
    #[arg(long, value_name = "TIME", value_parser = values::time, hide_short_help = true)]
    pub interval: Option<Duration>,

    /// Linux: a network namespace of the run's own (no root needed), or the host's network
    #[arg(long, value_enum, default_value_t = Netns::Auto, hide_short_help = true)]
    pub netns: Netns,

    /// Fail a run that takes longer
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = values::time, hide_short_help = true)]
    pub timeout: Duration,

    /// Name of the device
    #[arg(long, value_name = "NAME", default_value = "utun8", hide_short_help = true)]
    pub tun_name: String,

    /// The kernel's address on the device [default: 10.10.10.9, with --ipv6 fd10:10:10::9]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub tun_addr: Option<IpAddr>,

    /// The stack's address, on the other side of the device [default: 10.10.10.1, with --ipv6 fd10:10:10::1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub tun_dest: Option<IpAddr>,

    /// The device's netmask [default: 255.255.255.0, with --ipv6 ffff:ffff:ffff:ffff::]
    #[arg(long, value_name = "MASK", hide_short_help = true)]
    pub tun_mask: Option<IpAddr>,
}
