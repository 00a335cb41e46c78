//! Checks the command line: returns a scenario, or an error that names the wrong option.

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Parser;
use netstacks::{StackConfig, StackKind, Workarounds as Repairs};

use super::conditions::{check_outage, conditions};
use super::devices::{check_mtu, name, network, tun_fd};
use super::pin::pin;
use super::profile::{check_program, device_mtu};
use super::threads::{check_shards, client_threads, queues, runtime, shards};
use super::{PlanError, axes};
use crate::cli::list::One;
use crate::cli::{Axes, Cli, Netns, Run, Settings, Switch};
use crate::scenario::{
    Amount, Conditions, DEFAULT_MTU, DEFAULT_RELEASE, Devices, Generator, Layer, Mode, Protocol, Requests,
    SHORTEST_DATAGRAM, Scenario, Subject, Tun, Verify, Workload,
};

/// What to type first, for somebody who typed nothing.
const FIRST: &str = "a run needs both, or --program in place of --netstack. Try first:
    rust-tun-perf doctor                     what this machine can run
    rust-tun-perf -m reader -n smoltcp       one run
    rust-tun-perf matrix --preset stacks     the main figures of every stack
    rust-tun-perf programs list              programs to measure as they are
    rust-tun-perf --help                     the main options";

/// Largest `--buffer`: a larger one only wastes memory.
const MAX_BUFFER: usize = 64 << 20;

/// Most memory for the buffers of all streams on one side.
const MAX_BUFFERS: u64 = 1 << 30;

/// Most flows of bulk datagrams.
const MAX_FLOWS: u16 = 256;

/// The default size of a read or write, and the least, in bytes. The buffers of all streams together have a quarter of the
/// most memory by default.
const DEFAULT_BUFFER: u64 = 1_000_000;
const LEAST_BUFFER: u64 = 4 << 10;

/// The least default window of many streams, in bytes.
const LEAST_WINDOW: usize = 64 << 10;

/// Longest request and response, in bytes.
const MAX_MESSAGE: u64 = 64 << 20;

/// How long a run makes requests by default.
const DEFAULT_REQUEST_TIME: Duration = Duration::from_secs(2);

/// The default amount: for at least this long, and up to ten times as long for so many bytes. A shorter run measures
/// mostly noise.
pub(super) const DEFAULT_TIME: Duration = Duration::from_secs(1);
const DEFAULT_BYTES: u64 = 1_000_000_000;

/// Default of `--warmup`.
const DEFAULT_WARMUP: u64 = 64_000_000;

/// Default of `--warmup` over a link with conditions, which may be slow.
const CONDITIONS_WARMUP: u64 = 1_000_000;

/// Largest `--bytes` and `--warmup`: more than any timeout allows.
const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// Longest `--timeout`.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// How often the forwarder's CPU time and memory are sampled.
pub(super) const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest `--interval`: recording takes time on the runtime under test.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Most intervals in a run: they are kept in memory and in the sample.
const MAX_INTERVALS: u32 = 100_000;

impl Scenario {
    /// A run of this stack in this mode, with the defaults of the command line.
    ///
    /// # Errors
    ///
    /// A [`PlanError`] for a stack that is not in this build, or that needs a process of its own and cannot have one.
    pub fn new(netstack: StackKind, mode: Mode) -> Result<Self, PlanError> {
        let words = ["rust-tun-perf", "--netstack", netstack.name(), "--mode", &mode.to_string()];
        let cli = Cli::try_parse_from(words).map_err(|error| PlanError::new("--netstack", error.to_string()))?;
        Self::try_from(cli.run)
    }
}

impl TryFrom<Run> for Scenario {
    type Error = PlanError;

    fn try_from(run: Run) -> Result<Self, PlanError> {
        let Run { axes, tun_fd: fd, settings, profile, .. } = run;
        let axes = axes::single(&axes)?;
        // A device that is taken over keeps its MTU. If the descriptor is no device, the run will say so.
        let mtu = fd.and_then(platform::mtu_of_descriptor).or(axes.mtu.one()).unwrap_or(DEFAULT_MTU);
        let ipv6 = axes.ipv6.one() == Some(Switch::On);
        let program = axes.program.one();
        let device_mtu = device_mtu(program.as_ref(), mtu, ipv6)?;
        let (subject, workload) = subject(&axes, device_mtu, ipv6)?;
        let conditions = conditions(&axes, mtu, ipv6)?;
        let parallel = parallel(&axes, workload)?;
        let streams = if workload.is_stream() { parallel.get() } else { 1 };
        if fd.is_none() {
            check_mtu("--mtu", device_mtu, ipv6)?;
        }
        let bitrate = bitrate(&axes, workload, &conditions)?;
        let release = release(&axes, workload, settings.timeout)?;
        let offload = axes.offload.one().unwrap_or_default();
        let shards = shards(&axes, parallel)?;
        let scenario = Self {
            subject,
            workload,
            conditions,
            link_seed: axes.link_seed.one().unwrap_or(1),
            runtime: runtime(&axes),
            offload: if conditions.corrupt_ppm > 0 { platform::Offload::Off } else { offload },
            mtu,
            parallel,
            shards,
            queues: queues(&axes, shards, fd)?,
            client_threads: client_threads(&axes, workload, parallel)?,
            pin: pin(&axes)?,
            bitrate,
            background: background(&axes)?,
            window_bytes: window(&axes, streams)?,
            buffer_bytes: buffer(axes.buffer.one(), streams)?,
            repairs: repairs(&axes, subject)?,
            stack_congestion: axes.stack_congestion.one().unwrap_or_default(),
            queue_packets: queue(&axes, fd)?,
            congestion: congestion(axes.congestion.one())?,
            verify: axes.verify.one().unwrap_or(Verify::Sample),
            generator: Generator::Own,
            amount: amount(&axes, timeout(settings.timeout)?, release, workload, parallel, &conditions)?,
            release,
            warmup_bytes: warmup_of(&axes, workload, bitrate, &conditions)?,
            interval: interval(&settings, subject)?,
            timeout: settings.timeout,
            isolated: isolated(&settings, fd),
            devices: Devices::Tun(Tun {
                name: name("--tun-name", &settings.tun_name)?,
                network: network(&settings, ipv6)?,
                fd: tun_fd(fd, subject)?,
            }),
            go_forwarder: None,
            command: axes.command.one(),
            program: program.map(Box::new),
            profile,
        };
        check_outage(&scenario)?;
        check_shards(&scenario)?;
        check_process(&scenario)?;
        check_program(&scenario, axes.upstream.one())?;
        Ok(scenario)
    }
}

/// Whether a run gets a network of its own. A device that is taken over stays in its network.
pub(super) fn isolated(settings: &Settings, tun_fd: Option<i32>) -> bool {
    settings.netns == Netns::Auto && tun_fd.is_none() && platform::netns_supported()
}

fn subject(axes: &Axes, mtu: u16, ipv6: bool) -> Result<(Subject, Workload), PlanError> {
    let layer = axes.layer();
    let no_stack = || match layer {
        Layer::Path => PlanError::new("--netstack", "a run needs it, or --program in its place"),
        _ => PlanError::new("--netstack", format!("the layer {layer} needs it")),
    };
    if axes.mode.is_none() && axes.netstack.is_none() && layer == Layer::Path {
        return Err(PlanError::new("--mode, --netstack", FIRST));
    }
    let stack = || compiled_in(axes.netstack.one().ok_or_else(no_stack)?, layer);
    let no_program = || PlanError::new("--layer", "programs have an option of their own: --program");
    let program = || axes.program.one().map(|profile| profile.name).ok_or_else(no_program);
    let forwarder = || Err(PlanError::new("--layer", "forwarders have a command of their own: forward"));
    let subject = Subject::of(layer, stack, program, forwarder)?;
    let workload = match (subject, axes.mode.one()) {
        (Subject::Device, _) => Workload::Packets,
        (_, Some(mode)) => workload(axes, mode, mtu.saturating_sub(if ipv6 { 40 + 8 } else { 20 + 8 }))?,
        (_, None) => return Err(PlanError::new("--mode", "a run needs it: reader, writer, both, rr, crr or idle")),
    };
    Ok((subject, workload))
}

/// The workload of a mode. A packet has `room` bytes for the payload of a datagram.
fn workload(axes: &Axes, mode: Mode, room: u16) -> Result<Workload, PlanError> {
    let requests = requests(axes, mode)?;
    if axes.protocol.one().unwrap_or_default() == Protocol::Tcp {
        let workload = Workload::tcp(mode, requests).ok_or_else(|| PlanError::new("--mode", "it needs requests"))?;
        let is_half = axes.half_closed.one() == Some(Switch::On);
        return Ok(workload.half_closed().filter(|_| is_half).unwrap_or(workload));
    }
    let datagram = NonZeroU16::new(datagram(axes.datagram.one(), room)?);
    if let Some(requests) = requests {
        fits_datagram(requests, room)?;
    }
    let refused =
        || PlanError::new("--protocol", format!("the mode {mode} needs connections, which UDP does not have"));
    Workload::udp(mode, requests, datagram).ok_or_else(refused)
}

/// The payload of a datagram. A packet has `room` bytes for it.
fn datagram(asked: Option<u64>, room: u16) -> Result<u16, PlanError> {
    match asked.map_or(Ok(room), u16::try_from) {
        Ok(len) if (SHORTEST_DATAGRAM..=room).contains(&len) => Ok(len),
        _ => Err(PlanError::new(
            "--datagram",
            format!(
                "must be {SHORTEST_DATAGRAM} bytes or more, to hold its number, and at most {room}, to fit in a packet"
            ),
        )),
    }
}

/// Refuses requests that UDP cannot carry: each message must fit in one datagram.
fn fits_datagram(requests: Requests, room: u16) -> Result<(), PlanError> {
    for (option, len) in [("--request", requests.request_bytes), ("--response", requests.response_bytes)] {
        if len.get() > room.into() {
            return Err(PlanError::new(option, format!("over UDP it is one packet, of {room} bytes at most")));
        }
    }
    Ok(())
}

fn bitrate(axes: &Axes, workload: Workload, conditions: &Conditions) -> Result<Option<NonZeroU64>, PlanError> {
    let bitrate = axes.bitrate.one();
    if bitrate.is_none() && workload.datagram_bytes().is_some() && conditions.loses() {
        let reason =
            "must be set: on a link that loses datagrams, the search for a rate with almost no loss finds none";
        return Err(PlanError::new("--bitrate", reason));
    }
    Ok(bitrate)
}

fn background(axes: &Axes) -> Result<Option<Mode>, PlanError> {
    match axes.background.one() {
        Some(mode) if !mode.is_bulk() => {
            Err(PlanError::new("--background", format!("{mode} is no stream; use reader, writer or both")))
        }
        mode => Ok(mode),
    }
}

fn compiled_in(kind: StackKind, layer: Layer) -> Result<StackKind, PlanError> {
    let refuse = |reason: &str| Err(PlanError::new("--netstack", format!("{kind} is a process of its own; {reason}")));
    if kind.is_process() {
        match layer {
            Layer::Path if platform::netns_supported() => Ok(kind),
            Layer::Path => refuse("only Linux runs it"),
            _ => refuse("it has the layer path alone"),
        }
    } else if kind.compiled_in() {
        Ok(kind)
    } else {
        Err(PlanError::new("--netstack", netstacks::NotCompiledIn(kind).to_string()))
    }
}

/// The requests of a mode; `None` if it has none.
fn requests(axes: &Axes, mode: Mode) -> Result<Option<Requests>, PlanError> {
    if !matches!(mode, Mode::Rr | Mode::Crr) {
        return Ok(None);
    }
    let message = |option, asked: Option<u64>| match u32::try_from(asked.unwrap_or(1)).ok().and_then(NonZeroU32::new) {
        Some(len) if u64::from(len.get()) <= MAX_MESSAGE => Ok(len),
        _ => {
            let bytes = asked.unwrap_or(1);
            Err(PlanError::new(option, format!("{bytes} bytes; it must be at least 1 byte and at most 64 MiB")))
        }
    };
    Ok(Some(Requests {
        request_bytes: message("--request", axes.request.one())?,
        response_bytes: message("--response", axes.response.one())?,
        // The command line refuses 0.
        depth: axes.depth.one().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN),
        rate: axes.rate.one().and_then(NonZeroU32::new),
        think: think(axes)?,
        blackholes: axes.blackholes.one().unwrap_or_default(),
    }))
}

/// The time between a response and the next request of its connection.
fn think(axes: &Axes) -> Result<Duration, PlanError> {
    match axes.think.one() {
        Some(_) if axes.rate.is_some() => {
            Err(PlanError::new("--think", "a rate has its own schedule; leave out --rate"))
        }
        think => Ok(think.unwrap_or_default()),
    }
}

fn parallel(axes: &Axes, workload: Workload) -> Result<NonZeroU16, PlanError> {
    // The command line refuses 0.
    let parallel = axes.parallel.one().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN);
    match parallel.get() {
        count if count > MAX_FLOWS && workload.datagram_bytes().is_some() => {
            Err(PlanError::new("--parallel", format!("at most {MAX_FLOWS} flows of datagrams")))
        }
        1 if workload.held().is_some() => Err(PlanError::new(
            "--parallel",
            "idle compares the memory of many connections with the memory of one; at least 2",
        )),
        _ => Ok(parallel),
    }
}

/// How long the mode idle waits for the subject to release memory. A default must fit a short `--timeout`.
fn release(axes: &Axes, workload: Workload, timeout: Duration) -> Result<Duration, PlanError> {
    let default = if workload.held().is_some() { DEFAULT_RELEASE.min(timeout / 4) } else { DEFAULT_RELEASE };
    let release = axes.release.one().unwrap_or(default);
    if axes.release.is_some() && release >= timeout {
        let [release, timeout] = [release, timeout].map(|time| time.as_secs_f64());
        return Err(PlanError::new("--release", format!("{release} seconds do not fit into --timeout {timeout}")));
    }
    Ok(release)
}

/// How much is delivered. A default must fit a short `--timeout`.
fn amount(
    axes: &Axes,
    timeout: Duration,
    release: Duration,
    workload: Workload,
    streams: NonZeroU16,
    conditions: &Conditions,
) -> Result<Amount, PlanError> {
    let asked = axes.time.one();
    if !workload.is_stream() {
        // After its window, the mode idle waits for the stack to release memory.
        let afterwards = if workload.held().is_some() { release } else { Duration::ZERO };
        let timeout = timeout.saturating_sub(afterwards);
        return time(asked.unwrap_or(DEFAULT_REQUEST_TIME.min(timeout / 2)), timeout).map(Amount::time);
    }
    match (asked, axes.bytes.one()) {
        (Some(wanted), _) => time(wanted, timeout).map(Amount::time),
        (None, None) => {
            // By time alone over a link with conditions: runs over one link are to have one length.
            let fits = timeout >= 2 * Amount::STRETCH * DEFAULT_TIME && *conditions == Conditions::default();
            Ok(Amount::Time { time: DEFAULT_TIME.min(timeout / 2), bytes: if fits { DEFAULT_BYTES } else { 0 } })
        }
        (None, Some(bytes)) => match NonZeroU64::new(bytes) {
            Some(bytes) if (u64::from(streams.get())..=MAX_BYTES).contains(&bytes.get()) => Ok(Amount::Bytes(bytes)),
            _ => Err(PlanError::new("--bytes", "must be at least one byte for each stream and at most 1 PB")),
        },
    }
}

/// The warm-up. By default it is no more than the payload and, at a rate, a second's worth.
fn warmup_of(
    axes: &Axes,
    workload: Workload,
    bitrate: Option<NonZeroU64>,
    conditions: &Conditions,
) -> Result<u64, PlanError> {
    if !workload.is_stream() {
        return Ok(0);
    }
    if let Some(bytes) = axes.warmup.one() {
        return warmup(bytes);
    }
    let most = if *conditions == Conditions::default() { DEFAULT_WARMUP } else { CONDITIONS_WARMUP };
    let rate = [bitrate, conditions.rate_limit].into_iter().flatten().min();
    let bytes = rate.map_or(most, |bits| most.min(bits.get() / 8));
    Ok(bytes.min(axes.bytes.one().unwrap_or(bytes)))
}

/// Checks a warm-up that was asked for.
pub(super) fn warmup(bytes: u64) -> Result<u64, PlanError> {
    if bytes < MAX_BYTES { Ok(bytes) } else { Err(PlanError::new("--warmup", "must be less than 1 PB")) }
}

pub(super) fn timeout(timeout: Duration) -> Result<Duration, PlanError> {
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(PlanError::new("--timeout", "must be more than 0 seconds and at most a day, 86400"));
    }
    Ok(timeout)
}

pub(super) fn time(time: Duration, timeout: Duration) -> Result<Duration, PlanError> {
    if time.is_zero() {
        return Err(PlanError::new("--time", "must be more than 0 seconds"));
    }
    if time >= timeout {
        let [time, timeout] = [time, timeout].map(|time| time.as_secs_f64());
        return Err(PlanError::new("--time", format!("{time} seconds do not fit into --timeout {timeout}")));
    }
    Ok(time)
}

/// The interval. By default, a proxy's process is sampled as often as a forwarder's.
fn interval(settings: &Settings, subject: Subject) -> Result<Option<Duration>, PlanError> {
    match settings.interval {
        Some(interval) if interval < MIN_INTERVAL => {
            Err(PlanError::new("--interval", format!("must be at least {} seconds", MIN_INTERVAL.as_secs_f64())))
        }
        Some(interval) if interval.saturating_mul(MAX_INTERVALS) < settings.timeout => Err(PlanError::new(
            "--interval",
            format!("would be more than {MAX_INTERVALS} intervals in {} seconds", settings.timeout.as_secs_f64()),
        )),
        None if subject.is_carrier() => Ok(Some(FORWARD_INTERVAL)),
        interval => Ok(interval),
    }
}

fn window(axes: &Axes, streams: u16) -> Result<usize, PlanError> {
    let Some(bytes) = axes.window.one() else {
        let share = (MAX_BUFFERS / u64::from(streams)) as usize;
        return Ok(StackConfig::default().window.min(share).max(LEAST_WINDOW));
    };
    usize::try_from(bytes)
        .ok()
        .filter(|window| (StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(window))
        .ok_or_else(|| {
            PlanError::new("--window", format!("{bytes} bytes; it must be at least 4 KiB and less than 1 GiB"))
        })
}

pub(super) fn buffer(asked: Option<u64>, streams: u16) -> Result<NonZeroUsize, PlanError> {
    let default = || DEFAULT_BUFFER.min(MAX_BUFFERS / 4 / u64::from(streams)).max(LEAST_BUFFER);
    let bytes = asked.unwrap_or_else(default);
    if bytes.saturating_mul(streams.into()) > MAX_BUFFERS {
        return Err(PlanError::new(
            "--buffer",
            format!("{bytes} bytes for each of {streams} streams are more than 1 GiB"),
        ));
    }
    usize::try_from(bytes).ok().filter(|buffer| *buffer <= MAX_BUFFER).and_then(NonZeroUsize::new).ok_or_else(|| {
        PlanError::new("--buffer", format!("{bytes} bytes; it must be at least 1 byte and at most 64 MiB"))
    })
}

/// The repairs. A name must be one of the stack's.
fn repairs(axes: &Axes, subject: Subject) -> Result<Repairs, PlanError> {
    let repairs = axes.repairs.one().unwrap_or_default();
    let checked = subject.stack().map_or(Ok(()), |stack| repairs.check(stack));
    checked.map(|()| repairs).map_err(|reason| PlanError::new("--repairs", reason))
}

fn queue(axes: &Axes, tun_fd: Option<i32>) -> Result<Option<u32>, PlanError> {
    match axes.queue.one() {
        Some(_) if tun_fd.is_some() => Err(PlanError::new("--queue", "a device that is taken over keeps its queue")),
        queue => Ok(queue),
    }
}

pub(super) fn congestion(name: Option<String>) -> Result<Option<String>, PlanError> {
    match name {
        Some(name) if name.is_empty() || name.contains('\0') => {
            Err(PlanError::new("--congestion", "must name an algorithm of the kernel, such as cubic"))
        }
        name => Ok(name),
    }
}

/// Refuses the options that a stack in a process of its own cannot support.
fn check_process(run: &Scenario) -> Result<(), PlanError> {
    let Some(stack) = run.subject.stack().filter(|stack| stack.is_process()) else { return Ok(()) };
    let refuse =
        |option, reason: &str| Err(PlanError::new(option, format!("{stack} is a process of its own; {reason}")));
    let is_bulk_udp = run.workload.datagram_bytes().is_some();
    if stack == StackKind::External && run.command.is_none() {
        return Err(PlanError::new("--command", "the stack external needs it"));
    }
    if run.workload == Workload::HalfClosed {
        return refuse("--half-closed", "its server closes a connection when the client has");
    }
    if run.profile.is_some() {
        return refuse("--profile", "only this program draws flame graphs of itself");
    }
    if run.bitrate.is_some() && !is_bulk_udp {
        return refuse("--bitrate", "its streams are as fast as they can be");
    }
    if is_bulk_udp && (run.parallel.get() > 1 || run.workload.mode() == Some(Mode::Both)) {
        return refuse("--parallel", "it has one flow of datagrams, one way");
    }
    if run.tun_fd().is_some() {
        return refuse("--tun-fd", "it opens its device itself");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
