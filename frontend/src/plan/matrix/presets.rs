//! The presets of a matrix: the lists of each, its rounds, and the limits of its runs.

use std::iter;
use std::time::Duration;

use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};
use platform::Offload;

use crate::cli::axes::{compiled_in, offloads};
use crate::cli::list::One;
use crate::cli::{Axes, List, Preset};
use crate::plan::PlanError;
use crate::program::{self, Profile};
use crate::scenario::{Layer, Mode, Protocol, RuntimeName};

/// The timeout of a run that is expected to hang now and then: over a bad network, of a program as it is, of a stack
/// without a repair, or of any stack with many connections. It lasts for a second, but some stacks wait for a minute.
const SHORT_TIMEOUT: Duration = Duration::from_secs(15);

/// Rounds of the preset of programs.
const PROGRAM_RUNS: u32 = 3;

/// The timed window of a run of the preset of repairs, which has many cells and compares runs of one round.
const REPAIRS_TIME: Duration = Duration::from_millis(300);

/// The same with losses: some stacks wait for a timeout of a second and more.
const REPAIRS_LOSS_TIME: Duration = Duration::from_millis(600);

/// How long the connections of the preset of repairs rest after their end. Its table does not ask for the memory then.
const REPAIRS_RELEASE: Duration = Duration::from_millis(100);

/// Rounds of the preset of repairs: the fewest with which a change within rounds is significant.
const REPAIRS_RUNS: u32 = 6;

/// Requests per second beside a stream: too few to be a load themselves.
const BESIDE_RATE: u32 = 1000;

/// Streams, and flows of datagrams, of the preset of cores where it has several.
const MANY_STREAMS: u16 = 16;

/// One packet in a hundred, in parts per million.
const LOSS: u32 = 10_000;

/// The number of rounds, if the user gives none; `None` for that of other matrices.
pub(super) fn rounds(preset: Preset) -> Option<u32> {
    match preset {
        Preset::Programs => Some(PROGRAM_RUNS),
        Preset::Repairs => Some(REPAIRS_RUNS),
        _ => None,
    }
}

/// The longest timeout of a run, which is at least twice its time; `None` for the user's.
pub(super) fn timeout(preset: Preset, axes: &Axes) -> Option<Duration> {
    let is_whole = axes.repairs.one().is_none_or(|repairs| repairs == Repairs::ALL);
    let may_hang = match preset {
        Preset::Programs | Preset::Repairs | Preset::Cores => true,
        _ => axes.loss.is_some() || !is_whole,
    };
    let least = SHORT_TIMEOUT.max(2 * axes.time.one().unwrap_or_default());
    may_hang.then(|| least.saturating_add(axes.release.one().unwrap_or_default()))
}

/// Whether it has cells that may never finish: of programs as they are, of stacks without their repairs, and of `tcp_ip` with new
/// connections.
pub(super) fn gives_up(preset: Preset) -> bool {
    matches!(preset, Preset::Programs | Preset::Stacks | Preset::All | Preset::Repairs | Preset::Cores)
}

/// The lists of a preset. `free` has the options that a preset does not choose.
pub(super) fn lists(preset: Preset, free: &Axes) -> Vec<Axes> {
    use crate::cli::Preset::{
        All, Connections, Cores, Datagrams, Networks, Programs, Repairs, Requests, Stacks, Streams,
    };
    let delay = Duration::from_millis(5);
    match preset {
        Streams => vec![free.clone()],
        Requests => vec![
            of(free, &[Mode::Rr], &[1, 100, 1000]),
            of(free, &[Mode::Crr], &[1, 50]),
            Axes { background: List::new([Mode::Both]), rate: List::new([BESIDE_RATE]), ..of(free, &[Mode::Rr], &[1]) },
        ],
        Connections => vec![of(free, &[Mode::Idle], &[1000])],
        Datagrams => {
            let udp = List::new([Protocol::Udp]);
            vec![Axes { protocol: udp, ..of(free, &[Mode::Rr, Mode::Reader, Mode::Writer], &[1]) }]
        }
        Networks => {
            let runtime = List::new([RuntimeName::MultiThread]);
            let bulk = Axes { runtime, ..free.clone() };
            // One packet in a thousand.
            let loss = 1000;
            let perfect =
                Axes { stack_congestion: free.stack_congestion.clone(), ..network(&bulk, &[Duration::ZERO], &[0]) };
            vec![perfect, network(&bulk, &[Duration::ZERO], &[loss]), network(&bulk, &[delay], &[0, loss])]
        }
        Stacks => main_figures(free, &[netstacks::Workarounds::ALL, netstacks::Workarounds::NONE]),
        Repairs => repairs(free),
        Cores => cores(free),
        Programs => programs(free),
        All => [Streams, Requests, Connections, Datagrams, Networks, Stacks]
            .into_iter()
            .flat_map(|one| lists(one, free))
            .collect(),
    }
}

/// Loads of stacks with offload, beside the kernel's loopback.
fn of(free: &Axes, modes: &[Mode], parallel: &[u16]) -> Axes {
    Axes {
        mode: List::new(modes.iter().copied()),
        parallel: List::new(parallel.iter().copied()),
        layer: List::new([Layer::Loopback, Layer::Path]),
        runtime: List::new([RuntimeName::MultiThread]),
        offload: List::new(offloads().into_iter().take(1)),
        ..free.clone()
    }
}

/// The same loads over a link with conditions, beside the kernel's TCP. A stack that has a choice of congestion control
/// uses the kernel's default.
fn network(loads: &Axes, delay: &[Duration], loss: &[u32]) -> Axes {
    Axes {
        layer: List::new([Layer::Kernel, Layer::Path]),
        offload: List::new([Offload::Off]),
        stack_congestion: loads.stack_congestion.clone().or_else(|| List::new([StackCongestion::Cubic])),
        delay: List::new(delay.iter().copied()),
        loss: List::new(loss.iter().copied()),
        ..loads.clone()
    }
}

/// The main figures of stacks with these settings of their repairs.
fn main_figures(free: &Axes, repairs: &[Repairs]) -> Vec<Axes> {
    let repairs = || List::new(repairs.iter().copied()).into_iter().collect();
    let free = Axes { repairs: if free.repairs.is_empty() { repairs() } else { free.repairs.clone() }, ..free.clone() };
    vec![
        of(&free, &[Mode::Reader, Mode::Writer], &[1]),
        of(&free, &[Mode::Rr], &[1, 1000]),
        of(&free, &[Mode::Crr], &[50]),
        of(&free, &[Mode::Idle], &[1000]),
        network(&of(&free, &[Mode::Reader], &[1]), &[], &[LOSS]),
    ]
}

/// The main figures of each stack with all repairs, with none, and with all but one, without the kernel's.
fn repairs(free: &Axes) -> Vec<Axes> {
    let stacks = free.netstack.as_ref().map_or_else(compiled_in, |stacks| stacks.values().to_vec());
    let of_stack = |stack: StackKind| {
        let one_off = netstacks::Workaround::of(stack).map(Repairs::all_but);
        let settings: Vec<_> = [Repairs::ALL, Repairs::NONE].into_iter().chain(one_off).collect();
        let alone = Axes { netstack: List::new([stack]), ..free.clone() };
        main_figures(&alone, &settings).into_iter().map(|axes| {
            let time = if axes.loss.is_some() { REPAIRS_LOSS_TIME } else { REPAIRS_TIME };
            let time = axes.time.clone().or_else(|| List::new([time]).filter(|_| axes.bytes.is_none()));
            let release = axes.release.clone().or_else(|| List::new([REPAIRS_RELEASE]));
            Axes { layer: List::new([Layer::Path]), time, release, ..axes }
        })
    };
    stacks.into_iter().flat_map(of_stack).collect()
}

/// The loads of the preset of cores. [`sharded`] makes cells with several shards of theirs.
fn cores(free: &Axes) -> Vec<Axes> {
    let of = |modes: &[Mode], parallel: &[u16]| Axes {
        layer: List::new([Layer::Stack, Layer::Path]),
        shards: None,
        ..of(free, modes, parallel)
    };
    vec![
        of(&[Mode::Reader, Mode::Writer], &[1, MANY_STREAMS]),
        of(&[Mode::Rr], &[1000]),
        of(&[Mode::Crr], &[200]),
        Axes { protocol: List::new([Protocol::Udp]), ..of(&[Mode::Rr], &[MANY_STREAMS]) },
    ]
}

/// A cell of the preset of cores with each number of shards, and a worker for each. In memory the clients have no threads beside
/// the workers, so that one shard keeps one processor busy. Shards are not left out of the cells that do not take several: the check
/// of a run says why.
pub(super) fn sharded(cell: &Axes, free: &Axes) -> Vec<Axes> {
    let processors = platform::parallelism().and_then(|count| u16::try_from(count).ok()).unwrap_or(1);
    let doubled = iter::successors(Some(1), |count: &u16| count.checked_mul(2).filter(|next| *next <= processors));
    let counts = free.shards.as_ref().map_or_else(|| doubled.collect(), |list| list.values().to_vec());
    let no_clients = List::new([0]).filter(|_| cell.layer() == Layer::Stack);
    let with = |count| Axes {
        shards: List::new([count]).filter(|_| count > 1),
        worker_threads: cell.worker_threads.clone().or_else(|| List::new([count])),
        client_threads: cell.client_threads.clone().or_else(|| no_clients.clone()),
        ..cell.clone()
    };
    counts.into_iter().map(with).collect()
}

/// A cell of the preset of cores that was left out, and why; `None` if another one has told the reason. All stacks and loads have the
/// same few.
pub(super) fn left_out_once(told: &[String], name: &str, error: &PlanError) -> Option<String> {
    let reason = error.to_string();
    (!told.iter().any(|line| line.ends_with(&reason))).then(|| format!("cells such as {name}: {reason}"))
}

/// The lists of the preset of programs: those that were named, or all that this machine has.
fn programs(free: &Axes) -> Vec<Axes> {
    // The kernel's tunnel is only known to work when it has been tried.
    let is_here = |profile: &Profile| profile.is_installed() && !profile.is_of_kernel();
    let installed = || program::names().filter_map(|name| Profile::named(name).ok()).filter(is_here);
    let named = free.program.clone();
    let programs = if named.is_empty() { List::new(installed()).into_iter().collect() } else { named };
    let of = |modes: &[Mode], parallel: &[u16]| Axes {
        program: programs.clone(),
        mode: List::new(modes.iter().copied()),
        parallel: List::new(parallel.iter().copied()),
        ..free.clone()
    };
    let over_udp = |axes: Axes| Axes { protocol: List::new([Protocol::Udp]), ..axes };
    vec![
        of(&[Mode::Reader, Mode::Writer], &[1]),
        of(&[Mode::Rr], &[1, 100, 1000]),
        of(&[Mode::Crr], &[50]),
        of(&[Mode::Idle], &[1000]),
        over_udp(of(&[Mode::Rr], &[1])),
        over_udp(of(&[Mode::Idle], &[1000])),
    ]
}
