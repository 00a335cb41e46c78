//! Settings of a run that are no property of its cell: amounts, names and addresses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cell::Verify;
use crate::program::Upstream;
use crate::units;

/// The settings that all runs of a matrix share.
#[derive(Clone, Debug, PartialEq, Args)]
#[allow(clippy::doc_markdown, reason = "the words are help, with IPv6 addresses")]
pub struct Settings {
    /// Only programs that send their connections to the SOCKS5 server, open them themselves, or have a server of their own
    #[arg(long, value_name = "UPSTREAM", hide_short_help = true)]
    pub upstream: Option<Upstream>,

    /// How much to deliver [default: what arrives in a second, and up to ten seconds until it is 1GB; matrix: --time 1]
    #[arg(long, value_name = "SIZE", value_parser = units::amount)]
    pub bytes: Option<u64>,

    /// Deliver for this time instead [default of forward: 10]
    #[arg(short = 't', long, value_name = "TIME", conflicts_with = "bytes", value_parser = units::time)]
    pub time: Option<Duration>,

    /// How much to deliver first, not counted [default: 64MB, or less where the payload or the rate is less]
    #[arg(long, value_name = "SIZE", value_parser = units::amount, hide_short_help = true)]
    pub warmup: Option<u64>,

    /// Read the memory of idle connections again this long after they were closed. A UDP flow has no end: it lives until
    /// the subject's own time-out [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = units::time, hide_short_help = true)]
    pub release: Option<Duration>,

    /// The congestion control of the kernel's sockets [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub congestion: Option<String>,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count
    #[arg(long, value_name = "VERIFY", default_value_t = Verify::Sample, hide_short_help = true)]
    pub verify: Verify,

    /// The program that is the stack of --netstack external, and its arguments; see docs/external-stack.md
    #[arg(long, value_name = "COMMAND", value_parser = units::command, hide_short_help = true)]
    pub command: Option<String>,

    /// Seed of all chance on the link, in the first round; the next round has the next seed
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true)]
    pub link_seed: u64,

    /// Also record the bytes that arrived in each interval of this length
    #[arg(long, value_name = "TIME", value_parser = units::time, hide_short_help = true)]
    pub interval: Option<Duration>,

    /// Linux: a network namespace of the run's own (no root needed), or the host's network
    #[arg(long, value_enum, default_value_t = Netns::Auto, hide_short_help = true)]
    pub netns: Netns,

    /// Fail a run that takes longer [default: 60; forward: --time and 30 more]
    #[arg(long, value_name = "TIME", value_parser = units::time, hide_short_help = true)]
    pub timeout: Option<Duration>,

    /// Name of the device [default: utun8, on macOS the next free unit]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub tun_name: Option<String>,

    /// The kernel's address on the device [default: 10.10.10.9, with --ipv6 fd10:10:10::9]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub tun_addr: Option<IpAddr>,

    /// The stack's address, on the other side of the device [default: 10.10.10.1, with --ipv6 fd10:10:10::1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub tun_dest: Option<IpAddr>,

    /// The device's netmask [default: 255.255.255.0, with --ipv6 ffff:ffff:ffff:ffff::]
    #[arg(long, value_name = "MASK", hide_short_help = true)]
    pub tun_mask: Option<IpAddr>,

    /// Take over an open TUN device, set up by its owner, in the host's network
    #[arg(long, value_name = "FD", conflicts_with_all = ["tun_name", "mtu", "netns"], hide_short_help = true)]
    pub tun_fd: Option<i32>,

    /// Also write the beginnings of the device's packets, up to 64 MiB of them, which slows the run down. Only on Linux
    #[arg(long, value_name = "FILE.pcap", hide_short_help = true)]
    pub pcap: Option<PathBuf>,

    /// With --device: an address of this host, on another interface, that the program behind the device can reach
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub dest: Option<IpAddr>,

    /// The forwarder in Go, already built; without it this program builds it, with go
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub go_forwarder: Option<PathBuf>,

    /// Name of a forwarder's near device
    #[arg(long, value_name = "NAME", default_value = "tun11", hide_short_help = true)]
    pub near_name: String,

    /// Name of a forwarder's far device
    #[arg(long, value_name = "NAME", default_value = "tun22", hide_short_help = true)]
    pub far_name: String,

    /// Address of the near device, in a network of /24 or /64 [default: 10.0.1.1, with --ipv6 fd10:0:1::1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub near_addr: Option<IpAddr>,

    /// Address of the far device, in another network [default: 10.0.2.1, with --ipv6 fd10:0:2::1]
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub far_addr: Option<IpAddr>,
}

/// The network in which the device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Netns {
    /// A network namespace of the run's own, where the system has them
    Auto,
    /// The host's network
    Host,
}
