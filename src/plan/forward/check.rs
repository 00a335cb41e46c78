//! From what was typed to the run of a forwarder, or to the option that is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::time::Duration;

use forwarders::{ForwardConfig as Way, Handoff as Hop, Io, Offload};

use super::super::check::{self, MAX_BYTES, MIN_MTU_V6};
use super::{Direction, End, ForwardScenario, Forwarder, Generator, ROWS};
use crate::cli::forward as cli;
use crate::cli::{Forward, LAST_ROW, Verify};
use crate::plan::{MatrixPlan, PlanError};

/// How much longer than its load a run may take by default: for the forwarder's start, the warm-up, and until all have
/// ended.
const GRACE: Duration = Duration::from_secs(30);

/// The most that iperf3 writes at once, in bytes.
const IPERF3_BUFFER: u64 = 1 << 20;

/// The addresses of the devices by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)];
const DEFAULT_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd10, 0, 1, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1)];

const _: () = assert!(ROWS.len() == LAST_ROW as usize, "the command line knows every row");

impl ForwardScenario {
    /// The run of one forwarder, whatever `arguments` say of tables.
    fn of(forwarder: Forwarder, arguments: &Forward) -> Result<Self, PlanError> {
        if arguments.warmup > MAX_BYTES {
            return Err(PlanError::new("--warmup", "must be at most 1 PB"));
        }
        let timeout = check::timeout(arguments.timeout.unwrap_or(arguments.time.saturating_add(GRACE)))?;
        let [near, far] = ends(arguments)?;
        if arguments.generator == cli::Generator::Iperf3 {
            takes_iperf3(arguments)?;
        }
        Ok(Self {
            forwarder,
            direction: match (arguments.reverse, arguments.bidir) {
                (false, false) => Direction::Forward,
                (true, _) => Direction::Reverse,
                (false, true) => Direction::Bidir,
            },
            generator: match arguments.generator {
                cli::Generator::Own => Generator::Own,
                cli::Generator::Iperf3 => Generator::Iperf3,
            },
            time: check::time(arguments.time, timeout)?,
            warmup_bytes: arguments.warmup,
            // The command line refuses 0.
            parallel: NonZeroU16::new(arguments.parallel).unwrap_or(NonZeroU16::MIN),
            buffer_bytes: check::buffer(arguments.buffer, arguments.parallel)?,
            congestion: check::congestion(arguments.congestion.as_deref())?,
            verify: arguments.verify.into(),
            mtu: arguments.mtu,
            queue_packets: arguments.queue,
            timeout,
            near,
            far,
            profile: arguments.profile.clone(),
        })
    }
}

impl TryFrom<Forward> for ForwardScenario {
    type Error = PlanError;

    fn try_from(arguments: Forward) -> Result<Self, PlanError> {
        Self::of(forwarder(&arguments)?, &arguments)
    }
}

impl TryFrom<Forward> for MatrixPlan<ForwardScenario> {
    type Error = PlanError;

    fn try_from(arguments: Forward) -> Result<Self, PlanError> {
        let rows = match &arguments.row {
            Some(list) => list.values().iter().filter_map(|row| ROWS.get(usize::from(*row) - 1)).copied().collect(),
            None => ROWS.to_vec(),
        };
        Ok(Self {
            scenarios: rows.into_iter().map(|row| ForwardScenario::of(row, &arguments)).collect::<Result<_, _>>()?,
            skipped: Vec::new(),
            runs: arguments.runs,
            out: arguments.out,
            seed: arguments.seed,
        })
    }
}

fn forwarder(arguments: &Forward) -> Result<Forwarder, PlanError> {
    match arguments.forwarder {
        cli::ForwarderName::Rust => Way::try_from(arguments.way).map(Forwarder::Rust),
        cli::ForwarderName::Go => go(arguments.way),
    }
}

impl TryFrom<cli::Way> for Way {
    type Error = PlanError;

    fn try_from(typed: cli::Way) -> Result<Self, PlanError> {
        let io = match typed.io {
            None | Some(cli::Io::Sync) => Io::Sync,
            Some(cli::Io::Async) => Io::Async,
            Some(cli::Io::Framed) => Io::Framed,
        };
        let workers = typed.workers.unwrap_or(NonZeroU16::MIN);
        let way = Self { io, offload: typed.offload.into(), hop: typed.hop.into(), workers, threads: typed.thread };
        way.check().map_err(|illegal| PlanError::new(illegal.option, illegal.reason))?;
        Ok(way)
    }
}

impl From<cli::Offload> for Offload {
    fn from(typed: cli::Offload) -> Self {
        match typed {
            cli::Offload::Off => Self::Off,
            cli::Offload::On => Self::On,
            cli::Offload::Whole => Self::Whole,
        }
    }
}

impl From<cli::Hop> for Hop {
    fn from(typed: cli::Hop) -> Self {
        match typed {
            cli::Hop::Direct => Self::Direct,
            cli::Hop::Channel => Self::Channel,
            cli::Hop::Pool => Self::Pool,
        }
    }
}

/// What the one in Go has no choice in is not to be chosen.
fn go(arguments: cli::Way) -> Result<Forwarder, PlanError> {
    let refuse = |option, reason: &str| Err(PlanError::new(option, format!("the forwarder in Go {reason}")));
    if arguments.io.is_some() {
        return refuse("--io", "reads and writes as Go's runtime does; leave it out");
    }
    if arguments.workers.is_some() {
        return refuse("--workers", "has one goroutine for each direction, or two with a channel; leave it out");
    }
    if arguments.thread.is_some() {
        return refuse("--thread", "has as many threads as Go's runtime wants; leave it out");
    }
    match Offload::from(arguments.offload) {
        Offload::Whole => refuse("--offload", "cuts and joins super-packets, as wireguard-go's tun package does"),
        offload => Ok(Forwarder::Go { offload, hop: arguments.hop.into() }),
    }
}

/// What iperf3 can do with the load's options (`iperf_api.h`: `MAX_BLOCKSIZE`).
fn takes_iperf3(arguments: &Forward) -> Result<(), PlanError> {
    if arguments.time.subsec_nanos() != 0 {
        return Err(PlanError::new("--time", "iperf3 takes whole seconds"));
    }
    if arguments.verify == Verify::Full {
        return Err(PlanError::new("--verify", "iperf3 checks no bytes; leave it out, or the generator"));
    }
    if arguments.buffer > IPERF3_BUFFER {
        return Err(PlanError::new("--buffer", format!("iperf3 takes {IPERF3_BUFFER} bytes at most")));
    }
    Ok(())
}

fn ends(arguments: &Forward) -> Result<[End; 2], PlanError> {
    let Forward { ipv6, mtu, .. } = *arguments;
    if ipv6 && mtu < MIN_MTU_V6 {
        return Err(PlanError::new("--mtu", format!("{mtu} bytes; IPv6 wants at least {MIN_MTU_V6}")));
    }
    let defaults: [IpAddr; 2] = if ipv6 { DEFAULT_V6.map(Into::into) } else { DEFAULT_V4.map(Into::into) };
    let near = end(("--near-name", &arguments.near_name), ("--near-addr", arguments.near_addr, defaults[0]), ipv6)?;
    let far = end(("--far-name", &arguments.far_name), ("--far-addr", arguments.far_addr, defaults[1]), ipv6)?;
    if near.name == far.name {
        // They would be in different namespaces, but nobody could tell them apart in a report.
        return Err(PlanError::new("--far-name", format!("both devices would have the name {}", far.name)));
    }
    let network = |end: &End| platform::network_of(end.address, end.prefix_len());
    if network(&near) == network(&far) {
        let reason = format!(
            "{} and {} are in one network, {}/{}, which no packet would leave through the device",
            near.address,
            far.address,
            network(&near),
            near.prefix_len()
        );
        return Err(PlanError::new("--far-addr", reason));
    }
    Ok([near, far])
}

fn end(
    (name_option, name): (&'static str, &str),
    (option, given, default): (&'static str, Option<IpAddr>, IpAddr),
    ipv6: bool,
) -> Result<End, PlanError> {
    platform::validate_name(name).map_err(|error| PlanError::new(name_option, error.to_string()))?;
    if matches!(name, "lo" | "all" | "default") {
        return Err(PlanError::new(name_option, format!("{name:?} is taken in every network; choose another")));
    }
    let address = given.unwrap_or(default);
    if address.is_ipv6() != ipv6 {
        let remedy = if ipv6 { "leave out --ipv6, or give IPv6's" } else { "add --ipv6, or give IPv4's" };
        return Err(PlanError::new(option, format!("{address} is of the other IP version; {remedy}")));
    }
    let end = End { name: name.to_owned(), address };
    platform::validate_host(address, end.prefix_len()).map_err(|error| PlanError::new(option, error.to_string()))?;
    Ok(end)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
