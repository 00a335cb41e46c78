//! The command line. Nothing here touches the system.

mod advice;
mod conform;
mod proxy;
mod settings;
mod words;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use netstacks::StackKind;

pub(crate) use self::advice::advice;
pub use self::advice::parse;
pub use self::conform::Conform;
pub use self::proxy::{Nat, Proxy};
pub use self::settings::{Netns, Settings};
pub(crate) use self::words::values;
pub use self::words::{Word, Words, compiled_in};
use crate::cell::properties::PROPERTIES;
use crate::cell::{Cell, ForwarderName, Mode, ROWS};
use crate::program::{ProgramName, THIS};
use crate::report::Format;
use crate::sample::Build;
use crate::units;

/// Changes up to this percentage are ignored by default.
pub const DEFAULT_FLOOR: f64 = 2.0;

/// The end of the short help.
const EXAMPLES: &str = "Examples:
  rust-tun-perf --mode download --netstack smoltcp     how fast a download through a stack is
  rust-tun-perf --mode rr --program './mytun {tun}'    how soon answers come through a program
  rust-tun-perf matrix --preset requests               how soon each stack answers, as a table

--help-all has the other options: sizes, rates, buffers, addresses, and impairments of the link.";

/// The end of the long help.
const UNITS: &str = "A SIZE takes SI and binary suffixes: 64MB is 64,000,000 bytes, 4MiB are 4,194,304. A TIME is in seconds, or has a \
unit: 5, 0.5s, 200ms, 50us. A BITRATE is in bits: 100M. A PERCENT may have its sign.";

/// Measures how fast, and at what cost, a userspace TCP/IP stack moves bytes through a TUN device.
///
/// The program opens a TUN device, runs the stack in its own process on one side, puts a plain kernel
/// socket on the other side, and pushes bytes through. Standard output gets one line, "client io mode:
/// reader, throughput: N Gbps", and standard error everything else. The commands make tables of many runs.
///
/// Exit codes: 0 done; 1 a run failed, or compare found something slower; 2 the arguments or a file are
/// wrong, or two files cannot be compared; 3 the system lacks something that the run needs, such as a
/// permission, a device or an algorithm; 130 interrupted; 141 the reader of the output has gone away.
#[derive(Clone, Debug, Parser)]
#[command(name = THIS, version, max_term_width = 100)]
#[command(
    override_usage = "rust-tun-perf --mode <MODE> (--netstack <STACK> | --program <PROGRAM>) [OPTIONS]\n       rust-tun-perf <COMMAND> [OPTIONS]"
)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(disable_help_flag = true, after_help = EXAMPLES, after_long_help = UNITS)]
pub struct Cli {
    /// Print the main options
    #[arg(short, long, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,

    /// Print all options, in more words
    #[arg(long, global = true, action = ArgAction::HelpLong)]
    help_all: Option<bool>,

    /// A command instead of one run
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The one run
    #[command(flatten)]
    pub run: Run,
}

/// What the program does besides one run.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run every combination of the lists, in interleaved rounds, and print a table
    #[command(after_help = "--help-all has the other options.")]
    Matrix(Box<Matrix>),
    /// Say for each cell of two files whether it got faster or slower; exits 1 where something got slower
    Compare(Compare),
    /// Make a page, a table or a picture from files of samples
    Report(Report),
    /// Check what the RFCs ask of each stack, case by case; exits 1 where a result is not the known one
    Conform(Conform),
    /// Measure a forwarder between two TUN devices, or all rows of a table
    Forward(Box<Forward>),
    /// Serve as a transparent TUN proxy on a userspace stack, until it is interrupted
    Proxy(Box<Proxy>),
    /// List the programs that have a profile, or show or check a profile
    #[command(subcommand)]
    Programs(Programs),
    /// Say what this machine can run and what it lacks
    Doctor,
    /// Print the file that lets a shell complete this program's options and values
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, for man
    Man,

    /// Do what the process that has started this one asks for on standard input
    #[command(hide = true)]
    Child,
}

/// What to do with profiles of programs.
#[derive(Clone, Debug, Subcommand)]
pub enum Programs {
    /// Print the name of each profile, and whether this machine has its program
    List,
    /// Print a profile
    Show {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Check a profile, and print what each placeholder stands for
    Check {
        /// Its name or its path, or a command
        #[arg(value_name = "PROFILE")]
        profile: String,
    },
}

/// One run.
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// The properties of its cell
    #[command(flatten)]
    pub cell: Cell,

    /// Run the stack on tokio's current-thread runtime: --runtime current-thread
    #[arg(long, conflicts_with = "runtime")]
    pub current_thread: bool,

    /// Amounts, names and addresses
    #[command(flatten)]
    pub settings: Settings,

    /// Print one JSON object instead of the line
    #[arg(short = 'J', long)]
    pub json: bool,

    /// Print all lines below the figure, and not only four
    #[arg(short, long)]
    pub verbose: bool,

    /// Draw a flame graph of the process; the run is not scored
    #[arg(long, value_name = "FILE.svg", conflicts_with = "json", hide_short_help = true)]
    pub profile: Option<PathBuf>,

    /// Make the short run that checks the path of this one
    #[arg(long, hide = true)]
    pub check_path: bool,
}

/// Many runs: every option of a property takes several values, separated by commas; a list of names may be "all".
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// A matrix for a question, in place of lists
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,

    /// The words of the runs
    #[command(flatten)]
    pub words: Words,

    /// Also run the layers alone: the kernel's loopback, each stack over memory, the TUN device; and the kernel's TCP behind
    /// the device, for comparison
    #[arg(long, conflicts_with = "preset")]
    pub baseline: bool,

    /// Do not try a cell again if its first two runs time out or stall
    #[arg(long, hide_short_help = true)]
    pub give_up: bool,

    /// Rounds; each runs every cell once [default: 10; with --against, as many as a verdict needs if that is more; with --until,
    /// as many as the time allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,

    /// Make rounds, 10 or more, until the interval of each median is within this percentage of it
    #[arg(long, value_name = "PERCENT", value_parser = units::width, requires = "at_most", conflicts_with = "against")]
    pub until: Option<f64>,

    /// Begin no round that would end later than this time after the first began
    #[arg(long, value_name = "TIME", value_parser = units::limit)]
    pub at_most: Option<Duration>,

    /// The file of the samples, the other build, and the order
    #[command(flatten)]
    pub rounds: Rounds,
}

/// The rounds of a matrix or of a table of forwarders.
#[derive(Clone, Debug, Args)]
pub struct Rounds {
    /// Append each sample to this file as it comes; continue a file of an interrupted matrix
    #[arg(short, long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,

    /// Also run each cell with another build of this program, in the same rounds, and compare
    #[arg(long, value_name = "PROGRAM")]
    pub against: Option<PathBuf>,

    /// Seed of the order of the cells in each round [default: the clock]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub seed: Option<u64>,
}

/// A forwarder, or a table of several, and its load.
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
#[derive(Clone, Debug, Args)]
pub struct Forward {
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

    /// The words of the run
    #[command(flatten)]
    pub words: Words,

    /// From the far network to the near one: --mode reader
    #[arg(short = 'R', long, conflicts_with_all = ["bidir", "mode"])]
    pub reverse: bool,

    /// Both ways at once, with --parallel streams each: --mode both
    #[arg(long, conflicts_with = "mode")]
    pub bidir: bool,

    /// Print one JSON object instead of the line
    #[arg(short = 'J', long, conflicts_with = "table")]
    pub json: bool,

    /// Print all lines below the figure, and not only four
    #[arg(short, long, conflicts_with = "table")]
    pub verbose: bool,

    /// Draw a flame graph of the forwarder; the run is not scored
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["table", "json"])]
    pub profile: Option<PathBuf>,

    /// Rounds; each runs every row once [default: 3; with --against, as many as a verdict needs if that is more]
    #[arg(long, value_name = "N", requires = "table", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,

    /// The file of the samples, the other build, and the order
    #[command(flatten)]
    pub rounds: Rounds,
}

/// The options that choose one forwarder.
const CHOICE: [&str; 6] = ["forwarder", "io", "offload", "hop", "workers", "thread"];

/// A matrix for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Bulk bytes: reader and writer on both runtimes, with offload and without
    Streams,
    /// Requests: 1, 100 and 1000 connections, new connections, and requests beside a stream, beside the kernel's
    /// TCP behind the same device
    Requests,
    /// The memory of 1000 connections, beside the kernel's TCP behind the same device
    Connections,
    /// Datagrams: the highest rate that loses next to none, and requests, beside the kernel behind the same device
    Datagrams,
    /// Bulk bytes without offload: over a perfect link, and at a round trip of 20 ms, with loss and without
    Networks,
    /// The main figures of each stack, with the workarounds of its adapter and without, beside the kernel's behind the same
    /// device: streams, requests, connections, and loss at a round trip of 20 ms
    Stacks,
    /// All of these
    All,
    /// Streams, requests and datagrams on 1, 2, 4, … shards up to the processors, each with a worker, over a device
    Cores,
    /// Unmodified programs, as they are shipped and all alike: streams, requests, connections and start; the kernel, and the
    /// programs that are installed
    Programs,
}

/// Two files of samples, or two programs in one file.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "rust-tun-perf compare [OPTIONS] <OLD.jsonl> <NEW.jsonl>\n       \
                            rust-tun-perf compare [OPTIONS] --programs <OLD,NEW> <FILE.jsonl>")]
pub struct Compare {
    /// The samples from before; with --programs, those of both programs
    #[arg(value_name = "OLD.jsonl")]
    pub old: PathBuf,

    /// The samples from after
    #[arg(value_name = "NEW.jsonl", required_unless_present = "programs")]
    pub new: Option<PathBuf>,

    /// Compare two programs that matrix --program has run in the same rounds, by their names in the one file
    #[arg(long, value_name = "OLD,NEW", value_parser = two_programs,
        conflicts_with_all = ["new", "old_build"])]
    pub programs: Option<[ProgramName; 2]>,

    /// The build to take of the old file; needed for a file of matrix --against
    #[arg(long, value_enum, value_name = "BUILD")]
    pub old_build: Option<Build>,

    /// The same of the new file
    #[arg(long, value_enum, value_name = "BUILD")]
    pub new_build: Option<Build>,

    /// Ignore changes up to this percentage
    #[arg(long, value_name = "PERCENT", default_value_t = DEFAULT_FLOOR, value_parser = units::floor)]
    pub floor: f64,
}

/// Files of samples, and the report to make.
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

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// The names of two programs.
fn two_programs(text: &str) -> Result<[ProgramName; 2], String> {
    let (old, new) = text.split_once(',').ok_or("must be two names with a comma between them")?;
    Ok([old.parse()?, new.parse()?])
}

/// Values that were typed with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

/// The command line. A run shows no options of forwarders, and `forward` those alone that a forwarder has.
pub fn command() -> clap::Command {
    let of_run = Cell { mode: Some(Mode::Reader), netstack: Some(StackKind::Smoltcp), ..Cell::default() };
    let of_forwarder = Cell { mode: Some(Mode::Writer), forwarder: Some(ForwarderName::Rust), ..Cell::default() };
    let has = |cell: &Cell, id: &str| PROPERTIES.iter().any(|property| property.option == id && property.is_of(cell));
    let is_property = |id: &str| PROPERTIES.iter().any(|property| property.option == id);
    let only_forwarder = |arg: &clap::Arg| {
        let id = arg.get_id().as_str();
        OF_FORWARDERS.contains(&id) || is_property(id) && has(&of_forwarder, id) && !has(&of_run, id)
    };
    let no_forwarder = |arg: &clap::Arg| {
        let id = arg.get_id().as_str();
        NOT_OF_FORWARDERS.contains(&id) || is_property(id) && !has(&of_forwarder, id)
    };
    let hide = |command: clap::Command, is_hidden: &dyn Fn(&clap::Arg) -> bool| {
        command.mut_args(|arg| if is_hidden(&arg) { arg.hide(true) } else { arg })
    };
    hide(Cli::command(), &only_forwarder)
        .mut_subcommand("matrix", |command| hide(command, &only_forwarder))
        .mut_subcommand("forward", |command| hide(command, &no_forwarder).mut_args(|arg| arg.hide_short_help(false)))
}

/// Settings that forwarders alone have, and those that they do not have.
const OF_FORWARDERS: [&str; 6] = ["forwarder", "go_forwarder", "near_name", "far_name", "near_addr", "far_addr"];
const NOT_OF_FORWARDERS: [&str; 12] = [
    "upstream",
    "dest",
    "release",
    "command",
    "link_seed",
    "interval",
    "netns",
    "tun_name",
    "tun_addr",
    "tun_dest",
    "tun_mask",
    "current_thread",
];

/// The file that lets a shell complete the options of the program and their values.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut file = Vec::new();
    clap_complete::generate(shell, &mut command(), THIS, &mut file);
    file
}

/// The manual page, in roff: first the program, then its commands.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut program = command();
    program.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(program.clone()).render(&mut page)?;
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let man = clap_mangen::Man::new(command.clone());
        writeln!(page, ".SH \"THE COMMAND {}\"", command.get_name().to_uppercase())?;
        man.render_description_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
