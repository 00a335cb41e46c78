//! What the user may type. Nothing here touches the system.

use std::net::IpAddr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Parser, ValueEnum};

/// Measures how fast, and at what cost, a userspace TCP/IP stack moves bytes through a TUN device.
///
/// The program opens a TUN device, runs the stack in its own process on one side of it, puts a plain
/// kernel socket on the other side, and pushes bytes through. Standard output gets one line, "client
/// io mode: reader, throughput: N Gbps", and standard error everything else.
///
/// Exit codes: 0 done; 1 the run failed; 2 the arguments are wrong; 3 something that the run needs
/// from the system is missing, a permission, a device or an algorithm; 130 interrupted.
#[derive(Clone, Debug, Parser)]
#[command(version, max_term_width = 100, verbatim_doc_comment)]
#[command(after_help = "A SIZE takes SI and binary suffixes: 64MB is 64,000,000 bytes, 4MiB are 4,194,304.")]
pub struct Cli {
    /// What the kernel client does: read from the stack, or write to it
    #[arg(short, long, value_enum)]
    pub mode: Mode,

    /// The stack in the process
    #[arg(short, long, value_enum)]
    pub netstack: Netstack,

    /// Run the stack on tokio's current-thread runtime; without it on the multi-thread one
    #[arg(long)]
    pub current_thread: bool,

    /// Workers of the multi-thread runtime [default: one for each processor]
    #[arg(long, value_name = "N", conflicts_with = "current_thread",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub worker_threads: Option<u16>,

    /// Segmentation, receive-coalescing and checksum offload of the device
    #[arg(long, value_enum, default_value_t = Offload::Auto)]
    pub offload: Offload,

    /// MTU of the device, in bytes, 576 to 65535
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,

    /// How much to deliver
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    pub bytes: u64,

    /// Deliver for so many seconds instead
    #[arg(long, value_name = "SECS", conflicts_with = "bytes", value_parser = seconds)]
    pub time: Option<Duration>,

    /// How much to deliver first, uncounted
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = size)]
    pub warmup: u64,

    /// Streams at once, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,

    /// Each stack's receive buffer and send buffer for a stream, 4KiB to 1GiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = size)]
    pub window: u64,

    /// Size of the client's and the server's reads and writes, to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "1MB", value_parser = size)]
    pub buffer: u64,

    /// The kernel client's congestion control [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Over IPv6; wants an MTU of at least 1280
    #[arg(long)]
    pub ipv6: bool,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count
    #[arg(long, value_enum, default_value_t = Verify::Sample)]
    pub verify: Verify,

    /// Linux: a network namespace of the run's own (no root needed), or the host's
    #[arg(long, value_enum, default_value_t = Netns::Auto)]
    pub netns: Netns,

    /// A run that takes longer fails
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,

    /// Name of the device
    #[arg(long, value_name = "NAME", default_value = "utun8")]
    pub tun_name: String,

    /// The kernel's address on the device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The kernel's address on the device [default: 10.10.10.9, with --ipv6 fd10:10:10::9]"
    )]
    pub tun_addr: Option<IpAddr>,

    /// The stack's address, on the other side of the device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "The stack's address, on the other side of the device \
        [default: 10.10.10.1, with --ipv6 fd10:10:10::1]"
    )]
    pub tun_dest: Option<IpAddr>,

    /// The device's netmask
    #[arg(
        long,
        value_name = "MASK",
        help = "The device's netmask [default: 255.255.255.0, with --ipv6 ffff:ffff:ffff:ffff::]"
    )]
    pub tun_mask: Option<IpAddr>,

    /// Take over an open TUN device, set up by its owner, in the host's network
    #[arg(long, value_name = "FD", conflicts_with_all = ["tun_name", "mtu", "netns"])]
    pub tun_fd: Option<i32>,

    /// Print one JSON object instead of the line
    #[arg(long)]
    pub json: bool,
}

/// What the kernel client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The client reads what the stack sends
    Reader,
    /// The client writes, and the stack receives
    Writer,
}

/// The stacks by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Netstack {
    /// lwIP, in C
    Lwip,
    /// The ipstack crate
    Ipstack,
    /// The smoltcp crate
    Smoltcp,
}

/// Whether the device's offloads are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    /// Where the device can: on Linux
    Auto,
    /// Or there is no run
    On,
    /// Never
    Off,
}

/// How much of the payload is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// Every byte of the warm-up, then the count
    Sample,
    /// Every byte
    Full,
    /// The count alone
    Off,
}

/// Where the device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Netns {
    /// In a namespace of the run's own, where the system has them
    Auto,
    /// On the host
    Host,
}

/// A size with an SI or binary suffix, in bytes.
fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| "not a size; write a number with an SI or binary suffix, such as 64MB or 4MiB".to_owned())
}

/// A duration in seconds, with a fraction or without.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a time that can be waited".to_owned())
}
