//! What the user may type. Nothing here touches the system.

pub mod forward;
mod list;
mod settings;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use netstacks::StackKind;

pub use self::forward::{Forward, Forwarder};
pub use self::list::{LAST_ROW, List};
pub use self::settings::Settings;

/// MTU of the device where the user names none: an Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;

/// Measures how fast, and at what cost, a userspace TCP/IP stack moves bytes through a TUN device.
///
/// The program opens a TUN device, runs the stack in its own process on one side of it, puts a plain
/// kernel socket on the other side, and pushes bytes through. Standard output gets one line, "client
/// io mode: reader, throughput: N Gbps", and standard error everything else. The commands make tables of
/// many such runs.
///
/// Exit codes: 0 done; 1 a run failed, or, of compare, something got slower; 2 the arguments or a file are
/// wrong, or two files have too few runs to be compared; 3 something that the run needs from the system is
/// missing, a permission, a device or an algorithm; 130 interrupted.
#[derive(Clone, Debug, Parser)]
#[command(version, max_term_width = 100)]
#[command(
    override_usage = "rust-tun-perf --mode <MODE> --netstack <NETSTACK> [OPTIONS]\n       rust-tun-perf <COMMAND> [OPTIONS]"
)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(after_help = "A SIZE takes SI and binary suffixes: 64MB is 64,000,000 bytes, 4MiB are 4,194,304.")]
pub struct Cli {
    /// What to do instead of one run
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The one run
    #[command(flatten)]
    pub run: Run,
}

/// What the program does beside one run.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run every combination of the lists, in interleaved rounds, and make a table of it
    Matrix(Box<Matrix>),
    /// Say for each cell of two files whether it got faster or slower; exits 1 where something got slower
    Compare(Compare),
    /// Make a page, a table or a picture of files of samples
    Report(Report),
    /// Carry packets between two TUN devices, in one way or in all rows of a table
    Forward(Box<Forward>),
    /// Say what this machine can run and what it lacks
    Doctor,
    /// Carry packets between two TUN devices, for the process that has started this one
    #[command(hide = true)]
    Forwarder(Forwarder),
}

/// One run.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// What the kernel client does: read from the stack, or write to it
    #[arg(short, long, value_enum, required_unless_present = "layer",
        required_if_eq_any([("layer", "path"), ("layer", "loopback"), ("layer", "stack")]))]
    pub mode: Option<Mode>,

    /// The stack in the process
    #[arg(short, long, value_enum, required_unless_present = "layer",
        required_if_eq_any([("layer", "path"), ("layer", "stack")]))]
    pub netstack: Option<Netstack>,

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
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,

    /// Streams at once, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,

    /// Over IPv6; wants an MTU of at least 1280
    #[arg(long)]
    pub ipv6: bool,

    /// What carries the bytes: the whole path, or one layer of it alone
    #[arg(long, value_enum, default_value_t = Layer::Path)]
    pub layer: Layer,

    /// What every run of a matrix has alike
    #[command(flatten)]
    pub settings: Settings,

    /// Take over an open TUN device, set up by its owner, in the host's network
    #[arg(long, value_name = "FD", conflicts_with_all = ["tun_name", "mtu", "netns"])]
    pub tun_fd: Option<i32>,

    /// Print one JSON object instead of the line
    #[arg(long)]
    pub json: bool,

    /// Make a flame graph of the process, in a run that is not scored
    #[arg(long, value_name = "FILE.svg", conflicts_with = "json")]
    pub profile: Option<PathBuf>,
}

/// Many runs. A LIST is comma-separated, or "all".
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// The stacks: lwip, ipstack, smoltcp
    #[arg(short, long, value_name = "LIST", default_value = "all", value_parser = list::stacks)]
    pub netstack: List<Netstack>,

    /// What the kernel client does: reader, writer
    #[arg(short, long, value_name = "LIST", default_value = "all", value_parser = list::names::<Mode>)]
    pub mode: List<Mode>,

    /// What the stacks run on: current-thread, multi-thread
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = list::names::<Runtime>)]
    pub runtime: List<Runtime>,

    /// Workers of the multi-thread runtime [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub worker_threads: Option<u16>,

    /// Offload of the device: on, off; all is both where the system has any
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = list::offloads)]
    pub offload: List<Switch>,

    /// MTUs of the device, in bytes
    #[arg(long, value_name = "LIST", default_value = "1500", value_parser = list::mtus)]
    pub mtu: List<u16>,

    /// Streams at once
    #[arg(long, value_name = "LIST", default_value = "1", value_parser = list::streams)]
    pub parallel: List<u16>,

    /// IPv6 instead of IPv4: on, off, or all for both
    #[arg(long, value_name = "LIST", default_value = "off", value_parser = list::names::<Switch>)]
    pub ipv6: List<Switch>,

    /// The layers alone, too: the kernel's loopback, each stack over memory, the TUN device
    #[arg(long)]
    pub baseline: bool,

    /// Rounds; each runs every cell once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,

    /// Append each sample to this file as it comes; where it was broken off, go on
    #[arg(short, long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,

    /// Seed of the order of the cells in each round [default: of the clock]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// What every run has alike
    #[command(flatten)]
    pub settings: Settings,
}

/// Two files of samples.
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// The samples from before
    #[arg(value_name = "OLD.jsonl")]
    pub old: PathBuf,

    /// The samples from after
    #[arg(value_name = "NEW.jsonl")]
    pub new: PathBuf,

    /// Changes below so many percent are nobody's concern
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = list::percent)]
    pub floor: f64,

    /// Divide each figure by how fast loopback was in its round; wants files of matrix --baseline
    #[arg(long)]
    pub relative: bool,
}

/// Files of samples, and what is to become of them.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Files of samples; several are shown side by side
    #[arg(value_name = "FILE.jsonl", required = true)]
    pub files: Vec<PathBuf>,

    /// What to make
    #[arg(short, long, value_enum)]
    pub format: Format,

    /// Write it to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// What a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for a document
    Markdown,
    /// One page, with pictures, that needs nothing else
    Html,
    /// The bars alone
    Svg,
    /// A line for each cell
    Csv,
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

impl From<Netstack> for StackKind {
    fn from(name: Netstack) -> Self {
        match name {
            Netstack::Lwip => Self::Lwip,
            Netstack::Ipstack => Self::Ipstack,
            Netstack::Smoltcp => Self::Smoltcp,
        }
    }
}

/// What the stack runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    /// Tokio's current-thread runtime
    CurrentThread,
    /// Tokio's multi-thread runtime
    MultiThread,
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

impl From<Offload> for platform::Offload {
    fn from(typed: Offload) -> Self {
        match typed {
            Offload::Auto => Self::Auto,
            Offload::On => Self::On,
            Offload::Off => Self::Off,
        }
    }
}

/// Something that is used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is
    On,
    /// It is not
    Off,
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layer {
    /// All of it: a kernel client, the TUN device, the stack
    Path,
    /// The kernel's TCP on both sides, over its loopback
    Loopback,
    /// The stack alone, over a link in memory, with a scripted client
    Stack,
    /// The TUN device alone: packets that the kernel sends back, without any TCP
    Device,
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
