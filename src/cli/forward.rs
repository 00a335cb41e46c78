//! The forwarders between two TUN devices.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::settings::{seconds, size};
use super::{DEFAULT_MTU, List, Verify, list};

/// Names of the options that choose one forwarder.
const CHOICE: [&str; 6] = ["forwarder", "io", "offload", "hop", "workers", "thread"];

/// A forwarder, or a table of several; and the load that it carries.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub struct Forward {
    /// The program that carries the packets: this one's own, or the one in Go that is built when it is needed
    #[arg(long, value_enum, default_value_t = ForwarderName::Rust)]
    pub forwarder: ForwarderName,

    /// How they are carried
    #[command(flatten)]
    pub way: Way,

    /// All rows of the table, in interleaved rounds
    #[arg(long, group = "table", conflicts_with_all = CHOICE)]
    pub all: bool,

    /// These rows of the table alone, by their numbers
    #[arg(long, value_name = "LIST", group = "table", conflicts_with_all = CHOICE, value_parser = list::rows)]
    pub row: Option<List<u16>>,

    /// Rounds; each runs every row once
    #[arg(long, value_name = "N", default_value_t = 3, requires = "table",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,

    /// Append each sample to this file as it comes; where it was broken off, go on
    #[arg(short, long, value_name = "FILE.jsonl", requires = "table")]
    pub out: Option<PathBuf>,

    /// Seed of the order of the rows in each round [default: of the clock]
    #[arg(long, value_name = "N", requires = "table")]
    pub seed: Option<u64>,

    /// Who makes the load
    #[arg(long, value_enum, default_value_t = Generator::Own)]
    pub generator: Generator,

    /// For how long the load is timed
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub time: Duration,

    /// How much to deliver first, uncounted; not by iperf3
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = size)]
    pub warmup: u64,

    /// Streams at once, 1 to 128
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub parallel: u16,

    /// From the far network to the near one
    #[arg(long, conflicts_with = "bidir")]
    pub reverse: bool,

    /// Both ways at once, by as many streams each
    #[arg(long)]
    pub bidir: bool,

    /// Congestion control of the streams [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Size of the streams' reads and writes, to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = size)]
    pub buffer: u64,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count, as iperf3 does
    #[arg(long, value_enum, default_value_t = Verify::Sample)]
    pub verify: Verify,

    /// MTU of the devices, in bytes, 576 to 65535
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,

    /// How many packets may wait in a device before the kernel drops
    #[arg(long, value_name = "PACKETS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub queue: u32,

    /// Over IPv6; wants an MTU of at least 1280
    #[arg(long)]
    pub ipv6: bool,

    /// Name of the near device
    #[arg(long, value_name = "NAME", default_value = "tun11")]
    pub near_name: String,

    /// Name of the far device
    #[arg(long, value_name = "NAME", default_value = "tun22")]
    pub far_name: String,

    /// Address of the near device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Address of the near device, in a network of /24 or /64 [default: 10.0.1.1, with --ipv6 fd10:0:1::1]"
    )]
    pub near_addr: Option<IpAddr>,

    /// Address of the far device
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Address of the far device, in another network [default: 10.0.2.1, with --ipv6 fd10:0:2::1]"
    )]
    pub far_addr: Option<IpAddr>,

    /// A run that takes longer fails [default: 30 more than --time]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub timeout: Option<Duration>,

    /// Print one JSON object instead of the line
    #[arg(long, conflicts_with_all = ["all", "row"])]
    pub json: bool,

    /// Make a flame graph of the forwarder, in a run that is not scored
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["all", "row", "json"])]
    pub profile: Option<PathBuf>,
}

/// A way to carry packets.
#[derive(Clone, Copy, Debug, Args)]
pub struct Way {
    /// How a device is read and written: in threads, in tasks, or by a stream and a sink in tasks [default: sync]
    #[arg(long, value_enum)]
    pub io: Option<Io>,

    /// Super-packets: there are none, they are cut and joined again, or they are passed on as they are
    #[arg(long, value_enum, default_value_t = Offload::On)]
    pub offload: Offload,

    /// How packets come from the reader to the writer: they are one, by a channel, or in buffers that come back
    #[arg(long, value_enum, default_value_t = Hop::Direct)]
    pub hop: Hop,

    /// How many carry packets in each direction, side by side; more than one reorder them [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroU16>,

    /// Threads of the runtime, for async and framed [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub thread: Option<NonZeroU16>,
}

/// Carries packets between two TUN devices that it makes. It is started by the program itself.
#[derive(Clone, Debug, Args)]
pub struct Forwarder {
    /// The device in this process' network namespace
    #[arg(long, value_name = "NAME")]
    pub near: String,

    /// The device in the other one
    #[arg(long, value_name = "NAME")]
    pub far: String,

    /// The other network namespace
    #[arg(long, value_name = "FILE")]
    pub far_namespace: PathBuf,

    /// How
    #[command(flatten)]
    pub way: Way,

    /// Make a flame graph
    #[arg(long, value_name = "FILE.svg")]
    pub profile: Option<PathBuf>,
}

/// The programs that carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForwarderName {
    /// This program's own, on tun-rs
    Rust,
    /// The one in Go, on wireguard-go's tun package
    Go,
}

/// How a device is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// In threads
    Sync,
    /// In tasks of tokio's
    Async,
    /// In tasks, by the stream and the sink of tun-rs (`DeviceFramed`)
    Framed,
}

/// What becomes of super-packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    /// There are none
    Off,
    /// They are cut when they are read and joined when they are written
    On,
    /// They are passed on as they are
    Whole,
}

/// How packets come from the reader to the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hop {
    /// They are one
    Direct,
    /// By a channel
    Channel,
    /// By a channel, in buffers that come back
    Pool,
}

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Generator {
    /// This program
    Own,
    /// iperf3
    Iperf3,
}
