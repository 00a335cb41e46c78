//! Checks the command line of `forward`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::time::Duration;

use forwarders::{ForwardConfig, Offload};
use netstacks::{StackConfig, StackCongestion, Workarounds as Repairs};

use super::PlanError;
use super::check::{FORWARD_INTERVAL, buffer, congestion, time, timeout, warmup};
use super::devices::{check_mtu, check_version, name};
use crate::cli::Forward;
use crate::cli::forward::{ForwarderName, ForwarderOptions};
use crate::scenario::{
    Amount, Conditions, DEFAULT_RELEASE, Devices, End, Forwarder, Generator, Mode, RuntimeKind, Scenario, Subject,
    Verify, Workload,
};

/// The default timeout of a forwarder's run is this much longer than its load: it starts, warms up and ends.
const FORWARD_GRACE: Duration = Duration::from_secs(30);

/// The most that iperf3 writes at once, in bytes (`iperf_api.h`, `MAX_BLOCKSIZE`).
const IPERF3_BUFFER: u64 = 1 << 20;

/// The addresses of a forwarder's devices by default, for each IP version.
const DEFAULT_PAIR_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)];
const DEFAULT_PAIR_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd10, 0, 1, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1)];

impl TryFrom<Forward> for Scenario {
    type Error = PlanError;

    fn try_from(arguments: Forward) -> Result<Self, PlanError> {
        Self::of_forwarder(forwarder(&arguments)?, &arguments)
    }
}

impl Scenario {
    /// A run of `forwarder`. The forwarder that `arguments` name is ignored.
    pub(super) fn of_forwarder(forwarder: Forwarder, arguments: &Forward) -> Result<Self, PlanError> {
        let timeout = timeout(arguments.timeout.unwrap_or(arguments.time.saturating_add(FORWARD_GRACE)))?;
        if arguments.generator == Generator::Iperf3 {
            takes_iperf3(arguments)?;
        }
        let [near, far] = pair(arguments)?;
        Ok(Self {
            subject: Subject::Forward(forwarder),
            workload: Workload::Stream(match (arguments.reverse, arguments.bidir) {
                (_, true) => Mode::Both,
                (true, false) => Mode::Reader,
                (false, false) => Mode::Writer,
            }),
            conditions: Conditions::default(),
            link_seed: 0,
            runtime: RuntimeKind::MultiThread(None),
            offload: platform::Offload::Auto,
            mtu: arguments.mtu,
            // The command line refuses 0.
            parallel: NonZeroU16::new(arguments.parallel).unwrap_or(NonZeroU16::MIN),
            shards: NonZeroU16::MIN,
            queues: None,
            client_threads: None,
            pin: None,
            bitrate: None,
            background: None,
            window_bytes: StackConfig::default().window,
            buffer_bytes: buffer(Some(arguments.buffer), arguments.parallel)?,
            repairs: Repairs::ALL,
            stack_congestion: StackCongestion::None,
            queue_packets: Some(arguments.queue),
            congestion: congestion(arguments.congestion.clone())?,
            verify: arguments.verify,
            generator: arguments.generator,
            amount: Amount::time(time(arguments.time, timeout)?),
            warmup_bytes: warmup(arguments.warmup)?,
            release: DEFAULT_RELEASE,
            interval: Some(FORWARD_INTERVAL),
            timeout,
            isolated: true,
            devices: Devices::Pair { near, far },
            go_forwarder: arguments.go_forwarder.clone(),
            command: None,
            program: None,
            profile: arguments.profile.clone(),
        })
    }
}

fn forwarder(arguments: &Forward) -> Result<Forwarder, PlanError> {
    let typed = arguments.options;
    match arguments.forwarder {
        ForwarderName::Rust => {
            let config = ForwardConfig {
                io: typed.io.unwrap_or(forwarders::Io::Sync),
                offload: typed.offload,
                hop: typed.hop,
                workers: typed.workers.unwrap_or(NonZeroU16::MIN),
                threads: typed.thread,
            };
            config.check().map_err(|illegal| PlanError::new(illegal.option, illegal.reason))?;
            Ok(Forwarder::Rust(config))
        }
        ForwarderName::Go => go(typed),
    }
}

/// Refuses the options that the forwarder in Go does not have.
fn go(typed: ForwarderOptions) -> Result<Forwarder, PlanError> {
    let refuse = |option, reason: &str| Err(PlanError::new(option, format!("the forwarder in Go {reason}")));
    if typed.io.is_some() {
        return refuse("--io", "reads and writes as Go's runtime does; leave it out");
    }
    if typed.workers.is_some() {
        return refuse("--workers", "has one goroutine for each direction, or two with a channel; leave it out");
    }
    if typed.thread.is_some() {
        return refuse("--thread", "has as many threads as Go's runtime starts; leave it out");
    }
    match typed.offload {
        Offload::Whole => refuse("--offload", "splits and coalesces super-packets, as wireguard-go's tun package does"),
        offload => Ok(Forwarder::Go { offload, hop: typed.hop }),
    }
}

/// Refuses options of the load that iperf3 does not have.
fn takes_iperf3(arguments: &Forward) -> Result<(), PlanError> {
    if arguments.time.subsec_nanos() != 0 {
        return Err(PlanError::new("--time", "iperf3 takes whole seconds"));
    }
    if arguments.verify == Verify::Full {
        return Err(PlanError::new("--verify", "iperf3 checks no bytes; leave it out, or leave out --generator"));
    }
    if arguments.buffer > IPERF3_BUFFER {
        return Err(PlanError::new("--buffer", format!("iperf3 takes at most {IPERF3_BUFFER} bytes")));
    }
    Ok(())
}

fn pair(arguments: &Forward) -> Result<[End; 2], PlanError> {
    let ipv6 = arguments.ipv6;
    check_mtu("--mtu", arguments.mtu, ipv6)?;
    let defaults: [IpAddr; 2] = if ipv6 { DEFAULT_PAIR_V6.map(Into::into) } else { DEFAULT_PAIR_V4.map(Into::into) };
    let near = end(("--near-name", &arguments.near_name), ("--near-addr", arguments.near_addr, defaults[0]), ipv6)?;
    let far = end(("--far-name", &arguments.far_name), ("--far-addr", arguments.far_addr, defaults[1]), ipv6)?;
    if near.name == far.name {
        // They would be in different namespaces, but a report could not tell them apart.
        return Err(PlanError::new("--far-name", format!("both devices would have the name {}", far.name)));
    }
    let network = |end: &End| platform::network_of(end.address, end.prefix_len());
    if network(&near) == network(&far) {
        let reason = format!(
            "{} and {} are in one network, {}/{}: no packet would leave it through the device",
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
    (name_option, typed): (&'static str, &str),
    (option, given, default): (&'static str, Option<IpAddr>, IpAddr),
    ipv6: bool,
) -> Result<End, PlanError> {
    let name = name(name_option, typed)?;
    if matches!(typed, "lo" | "all" | "default") {
        return Err(PlanError::new(name_option, format!("{typed:?} is taken in every network; choose another")));
    }
    let end = End { name, address: check_version(option, given.unwrap_or(default), ipv6)? };
    platform::validate_host(end.address, end.prefix_len())
        .map_err(|error| PlanError::new(option, error.to_string()))?;
    Ok(end)
}

#[cfg(test)]
mod tests;
