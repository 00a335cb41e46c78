//! The command `forward`.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forwarders::{Handoff, Io, Offload};

use super::values;
use crate::scenario::{DEFAULT_MTU, Generator, MAX_QUEUE, MIN_MTU, ROWS, Verify};

/// Names of the options that choose one forwarder.
const CHOICE: [&str; 6] = ["forwarder", "io", "offload", "hop", "workers", "thread"];

/// A forwarder, or a table of several, and its load.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
#[allow(clippy::doc_markdown, reason = "the words are help, with IPv6 addresses")]
pub struct Forward {
    /// The program that forwards: this one's own, or the one in Go
    #[arg(long, value_enum, default_value_t = ForwarderName::Rust)]
    pub forwarder: ForwarderName,

    /// How it forwards
    #[command(flatten)]
    pub options: ForwarderOptions,

    /// All rows of the table, in interleaved rounds
    #[arg(long, group = "table", conflicts_with_all = CHOICE)]
    pub all: bool,

    /// Only these rows of the table, by their numbers; see --list
    #[arg(long, value_name = "LIST", group = "table", conflicts_with_all = CHOICE, value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=ROWS.len() as i64))]
    pub row: Vec<u16>,

    /// Print the numbers and names of all rows of the table, and run none
    #[arg(long, exclusive = true)]
    pub list: bool,

    /// The forwarder in Go, already built; without it this program builds it, with go
    #[arg(long, value_name = "PATH")]
    pub go_forwarder: Option<PathBuf>,

    /// Rounds; each runs every row once [default: 3; with --against, as many as a verdict needs if that is more]
    #[arg(long, value_name = "N", requires = "table", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,

    /// Append each sample to this file as it comes; continue a file of an interrupted table
    #[arg(short, long, value_name = "FILE.jsonl", requires = "table")]
    pub out: Option<PathBuf>,

    /// Also run each row with another build of this program, in the same rounds, and compare
    #[arg(long, value_name = "PROGRAM", requires = "table")]
    pub against: Option<PathBuf>,

    /// Seed of the order of the rows in each round [default: the clock]
    #[arg(long, value_name = "N", requires = "table")]
    pub seed: Option<u64>,

    /// The program that makes the load
    #[arg(long, value_enum, default_value_t = Generator::Own)]
    pub generator: Generator,

    /// How long the load is timed
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = values::time)]
    pub time: Duration,

    /// How much to deliver first, not counted; not by iperf3
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = values::size)]
    pub warmup: u64,

    /// Streams at once, 1 to 128
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub parallel: u16,

    /// From the far network to the near one
    #[arg(long, conflicts_with = "bidir")]
    pub reverse: bool,

    /// Both ways at once, with --parallel streams each
    #[arg(long)]
    pub bidir: bool,

    /// Congestion control of the streams [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Size of the streams' reads and writes, to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = values::size)]
    pub buffer: u64,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count, as iperf3 does
    #[arg(long, value_enum, default_value_t = Verify::Sample)]
    pub verify: Verify,

    /// MTU of the devices, in bytes, 576 to 65535
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(i64::from(MIN_MTU)..))]
    pub mtu: u16,

    /// Packets that may wait in a device before the kernel drops
    #[arg(long, value_name = "PACKETS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_QUEUE)))]
    pub queue: u32,

    /// Use IPv6; needs an MTU of at least 1280
    #[arg(long)]
    pub ipv6: bool,

    /// Name of the near device
    #[arg(long, value_name = "NAME", default_value = "tun11")]
    pub near_name: String,

    /// Name of the far device
    #[arg(long, value_name = "NAME", default_value = "tun22")]
    pub far_name: String,

    /// Address of the near device, in a network of /24 or /64 [default: 10.0.1.1, with --ipv6 fd10:0:1::1]
    #[arg(long, value_name = "ADDRESS")]
    pub near_addr: Option<IpAddr>,

    /// Address of the far device, in another network [default: 10.0.2.1, with --ipv6 fd10:0:2::1]
    #[arg(long, value_name = "ADDRESS")]
    pub far_addr: Option<IpAddr>,

    /// Fail a run that takes longer [default: --time and 30 more]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub timeout: Option<Duration>,

    /// Print one JSON object instead of the line
    #[arg(long, conflicts_with_all = ["all", "row"])]
    pub json: bool,

    /// Draw a flame graph of the forwarder; the run is not scored
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["all", "row", "json"])]
    pub profile: Option<PathBuf>,
}

/// The options of a forwarder.
#[derive(Clone, Copy, Debug, Args)]
pub struct ForwarderOptions {
    /// How a device is read and written [default: sync]
    #[arg(long, value_enum)]
    pub io: Option<Io>,

    /// What becomes of super-packets
    #[arg(long, value_enum, default_value_t = Offload::On)]
    pub offload: Offload,

    /// How packets get from the reader to the writer
    #[arg(long, value_enum, default_value_t = Handoff::Direct)]
    pub hop: Handoff,

    /// Workers in each direction; more than one reorder packets [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroU16>,

    /// Threads of the runtime, for async and framed [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub thread: Option<NonZeroU16>,
}

/// The programs that forward packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForwarderName {
    /// This program's own, on tun-rs
    Rust,
    /// The one in Go, on wireguard-go's tun package
    Go,
}
