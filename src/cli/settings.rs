//! Settings of a single run, or of all runs of a matrix.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use super::{Netns, values};
use crate::scenario::Verify;

/// Checks that a command can be split into words.
pub(super) fn words(command: &str) -> Result<String, &'static str> {
    let words = shlex::split(command).ok_or("a quotation mark is not closed")?;
    if words.is_empty() { Err("no program is named") } else { Ok(command.to_owned()) }
}

/// Settings of a run.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Settings {
    /// The program that is the stack of --netstack external, and its arguments; see docs/external-stack.md
    #[arg(long, value_name = "COMMAND", value_parser = words, hide_short_help = true)]
    pub command: Option<String>,

    /// How much to deliver [default: what arrives in a second, and up to ten seconds until it is 1GB; matrix: --time 1]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub bytes: Option<u64>,

    /// Deliver for this time instead
    #[arg(long, value_name = "TIME", conflicts_with = "bytes", value_parser = values::time)]
    pub time: Option<Duration>,

    /// How much to deliver first, not counted [default: 64MB, or --bytes where that is less]
    #[arg(long, value_name = "SIZE", value_parser = values::size, hide_short_help = true)]
    pub warmup: Option<u64>,

    /// Also record the bytes that arrived in each interval of this length
    #[arg(long, value_name = "TIME", value_parser = values::time, hide_short_help = true)]
    pub interval: Option<Duration>,

    /// Each stack's receive buffer and send buffer for a stream, 4KiB to less than 1GiB [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = values::size, hide_short_help = true)]
    pub window: Option<u64>,

    /// Size of the client's and the server's reads and writes, to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "1MB", value_parser = values::size, hide_short_help = true)]
    pub buffer: u64,

    /// The kernel client's congestion control [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub congestion: Option<String>,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count
    #[arg(long, value_enum, default_value_t = Verify::Sample, hide_short_help = true)]
    pub verify: Verify,

    /// Linux: a network namespace of the run's own (no root needed), or the host's network
    #[arg(long, value_enum, default_value_t = Netns::Auto, hide_short_help = true)]
    pub netns: Netns,

    /// Fail a run that takes longer
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = values::time, hide_short_help = true)]
    pub timeout: Duration,

    /// Name of the device
    #[arg(long, value_name = "NAME", default_value = "utun8", hide_short_help = true)]
    pub tun_name: String,

    /// The kernel's address on the device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The kernel's address on the device [default: 10.10.10.9, with --ipv6 fd10:10:10::9]",
        hide_short_help = true
    )]
    pub tun_addr: Option<IpAddr>,

    /// The stack's address, on the other side of the device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The stack's address, on the other side of the device \
        [default: 10.10.10.1, with --ipv6 fd10:10:10::1]",
        hide_short_help = true
    )]
    pub tun_dest: Option<IpAddr>,

    /// The device's netmask
    #[arg(
        long,
        value_name = "MASK",
        help = "The device's netmask [default: 255.255.255.0, with --ipv6 ffff:ffff:ffff:ffff::]",
        hide_short_help = true
    )]
    pub tun_mask: Option<IpAddr>,
}
