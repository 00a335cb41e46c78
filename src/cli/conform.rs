//! The options of `conform`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use netstacks::{StackCongestion, StackKind, Workarounds};

use super::{List, Switch, values};
use crate::units;

/// Cases that say whether a stack does what the RFCs ask. A LIST is comma-separated, or "all".
#[derive(Clone, Debug, Args)]
pub struct Conform {
    /// The stacks [default: all that this build has; gvisor, external and kernel only if named]
    #[arg(short, long, value_name = "LIST", value_parser = stacks)]
    pub netstack: Option<List<StackKind>>,

    /// Run the cases of manners on programs in place of stacks: profiles, by name or path, or a command with {tun}; all stands for
    /// those that are installed
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = OF_STACKS)]
    pub program: Vec<String>,

    /// The cases, by name; --list has them
    #[arg(long, value_name = "LIST", default_value = "all", value_delimiter = ',')]
    pub case: Vec<String>,

    /// In place of the cases, run this many plays of a random client and server, and shrink those that break an invariant
    #[arg(long, value_name = "PLAYS", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["case", "issue"])]
    pub explore: Option<u32>,

    /// Seed of the first play; each further one has the next seed
    #[arg(long, value_name = "S", default_value_t = 1, requires = "explore")]
    pub seed: u64,

    /// Where the cases are run [default: stack; path for gvisor, external and kernel]
    #[arg(long, value_enum)]
    pub layer: Option<conformance::Layer>,

    /// The program of the stack "external", and its arguments
    #[arg(long, value_name = "COMMAND", value_parser = units::command)]
    pub command: Option<String>,

    /// Instances of each stack side by side, to 256; not for lwip, gvisor, external and kernel
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: u16,

    /// Whether the link takes super-packets and partial checksums [default: off, or what a case needs]
    #[arg(long, value_enum)]
    pub offload: Option<Switch>,

    /// MTU of the link, in bytes, 576 to 65535; 1280 at least for cases over IPv6
    #[arg(long, value_name = "N", default_value_t = conformance::MTU,
        value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,

    /// What our adapters do in the stacks' place: all, none, names of workarounds, or -NAME for all but these; all,none are
    /// two values, names are one. Repeat the option for more [default: all; none with --issue]
    #[arg(long, alias = "repairs", value_name = "WORKAROUNDS", value_parser = workarounds, allow_hyphen_values = true)]
    pub workarounds: Vec<List<Workarounds>>,

    /// The congestion control of the stack smoltcp; several values run its cases with each
    #[arg(long, value_name = "NAMES", default_value = "none", value_delimiter = ',')]
    pub stack_congestion: Vec<StackCongestion>,

    /// Print one JSON object for each result, as in a file, instead of the table
    #[arg(long)]
    pub json: bool,

    /// Append each result to this file as it comes; continue a file of the same command
    #[arg(short, long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,

    /// Write the packets of one case of one stack to this file
    #[arg(long, value_name = "FILE.pcap", conflicts_with_all = ["out", "program"])]
    pub pcap: Option<PathBuf>,

    /// Write a report of each case that fails, for the maintainers of its stack or program, to this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "pcap"])]
    pub issue: Option<PathBuf>,

    /// Also print the cases that pass, and each failure in full
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,

    /// Print the cases and what is expected in each, and run none
    #[arg(long, conflicts_with_all = ["json", "out", "issue", "pcap"])]
    pub list: bool,
}

/// The options of `conform` that say how a stack runs, which a program does as its authors ship it.
const OF_STACKS: [&str; 10] =
    ["netstack", "explore", "seed", "layer", "command", "shards", "offload", "mtu", "workarounds", "stack_congestion"];

/// A list of stacks.
fn stacks(text: &str) -> Result<List<StackKind>, String> {
    let names = || StackKind::ALL.map(StackKind::name).join(", ");
    let stack = |name: &String| StackKind::from_str(name, false).map_err(|_| format!("{name} is none of {}", names()));
    values("netstack", text).iter().map(stack).collect::<Result<_, _>>().map(List)
}

/// The values of `--workarounds`: `all` and `none`, separated by commas, or one value of names.
fn workarounds(text: &str) -> Result<List<Workarounds>, String> {
    values("workarounds", text).iter().map(|text| text.parse()).collect::<Result<_, _>>().map(List)
}
