//! Checks the command line: returns a scenario, or an error that names the wrong option.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Parser;
use forwarders::{ForwardConfig, Offload};
use netstacks::{StackConfig, StackKind};
use platform::Network;

use super::PlanError;
use crate::cli::forward::ForwarderName;
use crate::cli::{self, Cli, Forward, Netns, Run, Settings};
use crate::scenario::{
    Amount, Conditions, Devices, End, Forwarder, Generator, Layer, Mode, Protocol, RELEASE_DELAY, Requests,
    RuntimeKind, SHORTEST_DATAGRAM, Scenario, Subject, Tun, Verify, Workload,
};

/// Largest `--buffer`: a larger one only wastes memory.
const MAX_BUFFER: usize = 64 << 20;

/// Most memory for the buffers of all streams on one side.
const MAX_BUFFERS: u64 = 1 << 30;

/// Most streams at once: each has a client thread.
const MAX_STREAMS: u16 = 10_000;

/// Longest request and response, in bytes.
const MAX_MESSAGE: u64 = 64 << 20;

/// How long a run makes requests by default.
const DEFAULT_REQUEST_TIME: Duration = Duration::from_secs(2);

/// The default amount: for at least this long, and up to ten times as long for so many bytes. A shorter run measures
/// mostly noise.
const DEFAULT_TIME: Duration = Duration::from_secs(1);
const DEFAULT_BYTES: u64 = 1_000_000_000;

/// Default of `--warmup`.
const DEFAULT_WARMUP: u64 = 64_000_000;

/// Default of `--warmup` over a link with conditions, which may be slow.
const CONDITIONS_WARMUP: u64 = 1_000_000;

/// Largest `--bytes` and `--warmup`: more than any timeout allows.
const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// Longest `--timeout`.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// The default timeout of a forwarder's run is this much longer than its load: it starts, warms up and ends.
const FORWARD_GRACE: Duration = Duration::from_secs(30);

/// How often the forwarder's CPU time and memory are sampled.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest `--interval`: recording takes time on the runtime under test.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Most intervals in a run: they are kept in memory and in the sample.
const MAX_INTERVALS: u32 = 100_000;

/// The most that iperf3 writes at once, in bytes (`iperf_api.h`, `MAX_BLOCKSIZE`).
const IPERF3_BUFFER: u64 = 1 << 20;

/// Address, peer and mask of the device by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 10, 10, 9), Ipv4Addr::new(10, 10, 10, 1), Ipv4Addr::new(255, 255, 255, 0)];
const DEFAULT_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0),
];

/// The addresses of a forwarder's devices by default, for each IP version.
const DEFAULT_PAIR_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 2, 1)];
const DEFAULT_PAIR_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd10, 0, 1, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1)];

/// RFC 8200, 5.
const MIN_MTU_V6: u16 = 1280;

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

    fn try_from(mut run: Run) -> Result<Self, PlanError> {
        // A device that is taken over keeps its MTU. If the descriptor is no device, the run will say so.
        run.mtu = run.tun_fd.and_then(platform::mtu_of_descriptor).unwrap_or(run.mtu);
        let settings = &run.settings;
        let (subject, workload) = subject(&run)?;
        let is_stream = workload.is_stream();
        let conditions = conditions(&run, subject)?;
        let amount = match amount(settings, run.parallel)? {
            _ if !is_stream => request_time(settings, workload)?,
            // By time alone: runs over one link with conditions are to have one length.
            Amount::Time { time, .. } if conditions != Conditions::default() => Amount::time(time),
            amount => amount,
        };
        let network = network(&run)?;
        Ok(Self {
            subject,
            workload,
            conditions,
            link_seed: run.link.link_seed,
            runtime: runtime(run.current_thread, run.worker_threads),
            offload: if run.link.corrupt > 0 { platform::Offload::Off } else { run.offload },
            mtu: run.mtu,
            parallel: parallel(run.parallel, subject, workload)?,
            client_threads: None,
            bitrate: bitrate(&run.load, workload, &conditions)?,
            background: background(&run.load, workload)?,
            window_bytes: window(settings.window, subject, workload)?,
            // Only streams have a buffer for each connection.
            buffer_bytes: buffer(settings.buffer, if is_stream { run.parallel } else { 1 })?,
            queue_packets: None,
            congestion: congestion(settings.congestion.as_deref())?,
            verify: settings.verify,
            generator: Generator::Own,
            amount,
            warmup_bytes: match settings.warmup.map(warmup).transpose()? {
                _ if !is_stream => no_bytes(settings)?,
                Some(bytes) => bytes,
                None => {
                    let most = if conditions == Conditions::default() { DEFAULT_WARMUP } else { CONDITIONS_WARMUP };
                    let rate = [run.load.bitrate, conditions.rate_limit].into_iter().flatten().min();
                    // At a rate, a second's worth. No more than the payload.
                    let bytes = rate.map_or(most, |bits| most.min(bits.get() / 8));
                    bytes.min(settings.bytes.unwrap_or(bytes))
                }
            },
            interval: interval(settings, subject)?,
            timeout: settings.timeout,
            isolated: isolated(&run),
            devices: Devices::Tun(Tun {
                name: name("--tun-name", &settings.tun_name)?,
                network,
                fd: tun_fd(run.tun_fd, subject)?,
            }),
            go_forwarder: None,
            command: command(&run, subject, workload)?,
            profile: run.profile,
        })
    }
}

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
            client_threads: None,
            bitrate: None,
            background: None,
            window_bytes: StackConfig::default().window,
            buffer_bytes: buffer(arguments.buffer, arguments.parallel)?,
            queue_packets: Some(arguments.queue),
            congestion: congestion(arguments.congestion.as_deref())?,
            verify: arguments.verify,
            generator: arguments.generator,
            amount: Amount::time(time(arguments.time, timeout)?),
            warmup_bytes: warmup(arguments.warmup)?,
            interval: Some(FORWARD_INTERVAL),
            timeout,
            isolated: true,
            devices: Devices::Pair { near, far },
            go_forwarder: arguments.go_forwarder.clone(),
            command: None,
            profile: arguments.profile.clone(),
        })
    }
}

/// Whether a run gets a network of its own. A device that is taken over stays in its network.
pub(super) fn isolated(run: &Run) -> bool {
    run.settings.netns == Netns::Auto && run.tun_fd.is_none() && platform::netns_supported()
}

fn subject(run: &Run) -> Result<(Subject, Workload), PlanError> {
    let layer = run.layer;
    let missing = |option| PlanError::new(option, format!("the layer {layer} needs it"));
    let stack = || compiled_in(run.netstack.ok_or_else(|| missing("--netstack"))?, layer);
    let forwarder = || Err(PlanError::new("--layer", "forwarders have a command of their own: forward"));
    let subject = Subject::of(layer, stack, forwarder)?;
    let workload = match (subject, run.mode) {
        (Subject::Device, _) => packets(&run.load)?,
        (_, Some(mode)) => workload(run, mode)?,
        (_, None) => return Err(missing("--mode")),
    };
    for (option, given, taken) in [
        ("--netstack", run.netstack.is_some(), subject.stack().is_some()),
        ("--mode", run.mode.is_some(), workload.mode().is_some()),
    ] {
        if given && !taken {
            return Err(PlanError::new(option, "this layer has none; leave it out"));
        }
    }
    Ok((subject, workload))
}

/// The workload of the layer device. Refuses the options of all others.
fn packets(load: &cli::Load) -> Result<Workload, PlanError> {
    requests(load, Mode::Writer)?;
    for (option, given) in [
        ("--protocol", load.protocol != Protocol::Tcp),
        ("--datagram", load.datagram.is_some()),
        ("--background", load.background.is_some()),
    ] {
        if given {
            return Err(PlanError::new(option, "the layer device has packets without connections; leave it out"));
        }
    }
    Ok(Workload::Packets)
}

/// The workload of a mode.
fn workload(run: &Run, mode: Mode) -> Result<Workload, PlanError> {
    let load = &run.load;
    let requests = requests(load, mode)?;
    let has_datagrams = load.protocol == Protocol::Udp && matches!(mode, Mode::Reader | Mode::Writer | Mode::Both);
    if load.datagram.is_some() && !has_datagrams {
        return Err(PlanError::new("--datagram", "only reader and writer over UDP have it; requests have --request"));
    }
    if load.protocol == Protocol::Tcp {
        return Workload::tcp(mode, requests).ok_or_else(|| PlanError::new("--mode", "it needs requests"));
    }
    let room = run.mtu.saturating_sub(if run.ipv6 { 40 + 8 } else { 20 + 8 });
    let datagram = NonZeroU16::new(datagram(load.datagram, room)?);
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

/// Refuses requests that UDP cannot carry: each message must fit in one datagram, and only one request is in flight.
fn fits_datagram(requests: Requests, room: u16) -> Result<(), PlanError> {
    for (option, len) in [("--request", requests.request_bytes), ("--response", requests.response_bytes)] {
        if len.get() > room.into() {
            return Err(PlanError::new(option, format!("over UDP it is one packet, of {room} bytes at most")));
        }
    }
    if requests.depth > NonZeroU16::MIN {
        return Err(PlanError::new("--depth", "over UDP there is one request under way; raise --parallel"));
    }
    Ok(())
}

fn bitrate(load: &cli::Load, workload: Workload, conditions: &Conditions) -> Result<Option<NonZeroU64>, PlanError> {
    let has_stream = workload.is_bulk() && workload != Workload::Packets || load.background.is_some();
    if load.bitrate.is_some() && !has_stream {
        return Err(PlanError::new("--bitrate", "there are no bulk bytes; requests have --rate"));
    }
    let loses = conditions.loss_ppm > 0 || conditions.corrupt_ppm > 0;
    if load.bitrate.is_none() && workload.datagram_bytes().is_some() && loses {
        let reason =
            "must be set: on a link that loses datagrams, the search for a rate with almost no loss finds none";
        return Err(PlanError::new("--bitrate", reason));
    }
    Ok(load.bitrate)
}

fn background(load: &cli::Load, workload: Workload) -> Result<Option<Mode>, PlanError> {
    match load.background {
        Some(mode @ (Mode::Rr | Mode::Crr | Mode::Idle)) => {
            Err(PlanError::new("--background", format!("{mode} is no stream; use reader, writer or both")))
        }
        Some(_) if workload.requests().is_none() => {
            Err(PlanError::new("--background", "only the requests of rr and crr have a stream beside them"))
        }
        mode => Ok(mode),
    }
}

fn runtime(current_thread: bool, workers: Option<u16>) -> RuntimeKind {
    if current_thread {
        RuntimeKind::CurrentThread
    } else {
        RuntimeKind::MultiThread(workers.map(usize::from).and_then(NonZeroUsize::new))
    }
}

/// The conditions of the link. Refuses them if the subject has no link with conditions.
fn conditions(run: &Run, subject: Subject) -> Result<Conditions, PlanError> {
    let cli::Link { delay, jitter, loss, reorder, duplicate, corrupt, rate_limit, .. } = run.link;
    let conditions = Conditions {
        delay,
        jitter,
        loss_ppm: loss,
        reorder_ppm: reorder,
        duplicate_ppm: duplicate,
        corrupt_ppm: corrupt,
        rate_limit,
    };
    if let Some((option, _)) = conditions.options().next().filter(|_| !subject.has_conditions()) {
        return Err(PlanError::new(option, format!("the layer {} has no link with conditions", subject.layer())));
    }
    if jitter > delay {
        return Err(PlanError::new("--jitter", "must not be more than --delay"));
    }
    if corrupt > 0 && run.offload == platform::Offload::On {
        let reason = "needs --offload off: nobody verifies the checksum of a super-packet";
        return Err(PlanError::new("--corrupt", reason));
    }
    Ok(conditions)
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

/// The requests of a mode. If the mode has none, their options are refused.
fn requests(load: &cli::Load, mode: Mode) -> Result<Option<Requests>, PlanError> {
    let cli::Load { request, response, depth, rate, .. } = *load;
    let message = |option, bytes: u64| match u32::try_from(bytes).ok().and_then(NonZeroU32::new) {
        Some(len) if bytes <= MAX_MESSAGE => Ok(len),
        _ => Err(PlanError::new(option, format!("{bytes} bytes; it must be at least 1 byte and at most 64 MiB"))),
    };
    let requests = Requests {
        request_bytes: message("--request", request)?,
        response_bytes: message("--response", response)?,
        // The command line refuses 0.
        depth: NonZeroU16::new(depth).unwrap_or(NonZeroU16::MIN),
        rate: rate.and_then(NonZeroU32::new),
    };
    if mode == Mode::Crr && depth > 1 {
        return Err(PlanError::new("--depth", "a connection of crr has one request"));
    }
    if matches!(mode, Mode::Rr | Mode::Crr) {
        return Ok(Some(requests));
    }
    let usual = Requests::default();
    for (option, is_usual) in [
        ("--request", requests.request_bytes == usual.request_bytes),
        ("--response", requests.response_bytes == usual.response_bytes),
        ("--depth", requests.depth == usual.depth),
        ("--rate", requests.rate.is_none()),
    ] {
        if !is_usual {
            return Err(PlanError::new(option, format!("the mode {mode} has no requests; use rr or crr")));
        }
    }
    Ok(None)
}

fn request_time(settings: &Settings, workload: Workload) -> Result<Amount, PlanError> {
    // After its window, the mode idle waits for the stack to release memory.
    let afterwards = if workload == Workload::Idle { RELEASE_DELAY } else { Duration::ZERO };
    let timeout = timeout(settings.timeout)?.saturating_sub(afterwards);
    // The default must fit a short --timeout.
    time(settings.time.unwrap_or(DEFAULT_REQUEST_TIME.min(timeout / 2)), timeout).map(Amount::time)
}

/// Refuses numbers of bytes for workloads that last for a time.
fn no_bytes(settings: &Settings) -> Result<u64, PlanError> {
    for (option, given) in [("--bytes", settings.bytes), ("--warmup", settings.warmup)] {
        if given.is_some() {
            return Err(PlanError::new(option, "requests, idle connections and datagrams last for a time; use --time"));
        }
    }
    Ok(0)
}

fn parallel(streams: u16, subject: Subject, workload: Workload) -> Result<NonZeroU16, PlanError> {
    if streams > MAX_STREAMS && workload.is_stream() {
        return Err(PlanError::new(
            "--parallel",
            format!("at most {MAX_STREAMS} streams; rr, crr and idle have more connections"),
        ));
    }
    if streams < 2 && workload == Workload::Idle {
        return Err(PlanError::new(
            "--parallel",
            "idle compares the memory of many connections with that of one; at least 2",
        ));
    }
    match subject {
        Subject::Device if streams > 1 => Err(PlanError::new("--parallel", "the layer device has one stream")),
        // The command line refuses 0.
        _ => Ok(NonZeroU16::new(streams).unwrap_or(NonZeroU16::MIN)),
    }
}

fn check_mtu(mtu: u16, ipv6: bool) -> Result<(), PlanError> {
    if ipv6 && mtu < MIN_MTU_V6 {
        return Err(PlanError::new("--mtu", format!("{mtu} bytes; IPv6 needs at least {MIN_MTU_V6}")));
    }
    Ok(())
}

fn check_version(option: &'static str, address: IpAddr, ipv6: bool) -> Result<IpAddr, PlanError> {
    if address.is_ipv6() == ipv6 {
        return Ok(address);
    }
    let remedy = if ipv6 { "leave out --ipv6, or give IPv6 addresses" } else { "add --ipv6, or give IPv4 addresses" };
    Err(PlanError::new(option, format!("{address} is of the other IP version; {remedy}")))
}

fn network(run: &Run) -> Result<Network, PlanError> {
    if run.tun_fd.is_none() {
        check_mtu(run.mtu, run.ipv6)?;
    }
    let settings = &run.settings;
    let given =
        [("--tun-addr", settings.tun_addr), ("--tun-dest", settings.tun_dest), ("--tun-mask", settings.tun_mask)];
    let mut addresses: [IpAddr; 3] = if run.ipv6 { DEFAULT_V6.map(Into::into) } else { DEFAULT_V4.map(Into::into) };
    for (address, (option, given)) in addresses.iter_mut().zip(given) {
        *address = check_version(option, given.unwrap_or(*address), run.ipv6)?;
    }
    let [address, peer, mask] = addresses;
    Network::new(address, peer, mask)
        .map_err(|error| PlanError::new("--tun-addr, --tun-dest, --tun-mask", error.to_string()))
}

fn amount(settings: &Settings, streams: u16) -> Result<Amount, PlanError> {
    let timeout = timeout(settings.timeout)?;
    match (settings.time, settings.bytes) {
        (Some(wanted), _) => time(wanted, timeout).map(Amount::time),
        // The default must fit a short --timeout.
        (None, None) => {
            let fits = timeout >= 2 * Amount::STRETCH * DEFAULT_TIME;
            Ok(Amount::Time { time: DEFAULT_TIME.min(timeout / 2), bytes: if fits { DEFAULT_BYTES } else { 0 } })
        }
        (None, Some(bytes)) => match NonZeroU64::new(bytes) {
            Some(bytes) if (u64::from(streams)..=MAX_BYTES).contains(&bytes.get()) => Ok(Amount::Bytes(bytes)),
            _ => Err(PlanError::new("--bytes", "must be at least one byte for each stream and at most 1 PB")),
        },
    }
}

/// Checks a warm-up that was asked for.
fn warmup(bytes: u64) -> Result<u64, PlanError> {
    if bytes < MAX_BYTES { Ok(bytes) } else { Err(PlanError::new("--warmup", "must be less than 1 PB")) }
}

fn timeout(timeout: Duration) -> Result<Duration, PlanError> {
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(PlanError::new("--timeout", "must be more than 0 seconds and at most a day, 86400"));
    }
    Ok(timeout)
}

fn time(time: Duration, timeout: Duration) -> Result<Duration, PlanError> {
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

fn window(bytes: Option<u64>, subject: Subject, workload: Workload) -> Result<usize, PlanError> {
    let Some(bytes) = bytes else { return Ok(StackConfig::default().window) };
    if !subject.has_window(workload) {
        return Err(PlanError::new("--window", format!("the layer {} has no stack; leave it out", subject.layer())));
    }
    usize::try_from(bytes)
        .ok()
        .filter(|window| (StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(window))
        .ok_or_else(|| {
            PlanError::new("--window", format!("{bytes} bytes; it must be at least 4 KiB and less than 1 GiB"))
        })
}

fn buffer(bytes: u64, streams: u16) -> Result<NonZeroUsize, PlanError> {
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

fn congestion(name: Option<&str>) -> Result<Option<String>, PlanError> {
    match name {
        Some(name) if name.is_empty() || name.contains('\0') => {
            Err(PlanError::new("--congestion", "must name an algorithm of the kernel, such as cubic"))
        }
        name => Ok(name.map(ToOwned::to_owned)),
    }
}

fn name(option: &'static str, name: &str) -> Result<String, PlanError> {
    match platform::validate_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(error) => Err(PlanError::new(option, error.to_string())),
    }
}

/// The command of a stack that is a process of its own. Refuses the options that this process cannot support.
fn command(run: &Run, subject: Subject, workload: Workload) -> Result<Option<String>, PlanError> {
    let command = run.settings.command.clone();
    if command.is_some() && subject.stack() != Some(StackKind::External) {
        return Err(PlanError::new("--command", "only --netstack external takes it"));
    }
    let Some(stack) = subject.stack().filter(|stack| stack.is_process()) else { return Ok(None) };
    let refuse =
        |option, reason: &str| Err(PlanError::new(option, format!("{stack} is a process of its own; {reason}")));
    if stack == StackKind::External && command.is_none() {
        return Err(PlanError::new("--command", "the stack external needs it"));
    }
    if run.profile.is_some() {
        return refuse("--profile", "only this program draws flame graphs of itself");
    }
    if run.load.bitrate.is_some() && workload.datagram_bytes().is_none() {
        return refuse("--bitrate", "its streams are as fast as they can be");
    }
    if run.tun_fd.is_some() {
        return refuse("--tun-fd", "it opens its device itself");
    }
    Ok(command)
}

fn tun_fd(fd: Option<i32>, subject: Subject) -> Result<Option<i32>, PlanError> {
    match (fd, subject) {
        // The standard streams are never a device.
        (Some(..=2), _) => Err(PlanError::new("--tun-fd", "must be the number of an open descriptor above 2")),
        (None, _) | (_, Subject::Path(_)) => Ok(fd),
        (Some(_), _) => Err(PlanError::new("--tun-fd", format!("the layer {} makes its own device", subject.layer()))),
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
fn go(typed: cli::forward::ForwarderOptions) -> Result<Forwarder, PlanError> {
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
    check_mtu(arguments.mtu, ipv6)?;
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
