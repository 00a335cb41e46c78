//! From what was typed to a scenario, or to the option that is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Parser;
use netstacks::{StackConfig, StackKind};
use platform::Network;

use super::{Amount, Mode, PlanError, RuntimeKind, Scenario, Subject, Verify};
use crate::cli::{self, Cli, Run, Settings};

/// Largest `--buffer`: a larger one only wastes memory.
const MAX_BUFFER: usize = 64 << 20;

/// Most memory for the buffers of all streams on one side.
const MAX_BUFFERS: u64 = 1 << 30;

/// Default of `--bytes`.
const DEFAULT_BYTES: u64 = 1_000_000_000;

/// Largest `--bytes` and `--warmup`: more than any timeout lets through.
pub(super) const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// Longest `--timeout`.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// Shortest `--interval`: looking costs time on the runtime under test.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Most intervals in a run: they are kept in memory and in the sample.
const MAX_INTERVALS: u32 = 100_000;

/// What the ends of the device and its mask are by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 10, 10, 9), Ipv4Addr::new(10, 10, 10, 1), Ipv4Addr::new(255, 255, 255, 0)];
const DEFAULT_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0),
];

/// RFC 8200, 5.
pub(super) const MIN_MTU_V6: u16 = 1280;

impl Scenario {
    /// The run of a stack and a mode with every option at its default, as the command line has them.
    ///
    /// # Errors
    ///
    /// A [`PlanError`] for a stack that this build is without.
    pub fn new(netstack: StackKind, mode: Mode) -> Result<Self, PlanError> {
        let arguments = ["rust-tun-perf", "--netstack", netstack.name(), "--mode", mode.name()];
        let cli = Cli::try_parse_from(arguments).map_err(|error| PlanError::new("--netstack", error.to_string()))?;
        Self::try_from(cli.run)
    }
}

impl TryFrom<Run> for Scenario {
    type Error = PlanError;

    fn try_from(run: Run) -> Result<Self, PlanError> {
        let settings = &run.settings;
        if settings.warmup > MAX_BYTES {
            return Err(PlanError::new("--warmup", "must be at most 1 PB"));
        }
        let subject = subject(&run)?;
        Ok(Self {
            subject,
            runtime: runtime(run.current_thread, run.worker_threads),
            offload: run.offload.into(),
            mtu: run.mtu,
            amount: amount(settings, run.parallel)?,
            warmup_bytes: settings.warmup,
            interval: interval(settings)?,
            parallel: parallel(run.parallel, subject)?,
            window_bytes: window(settings.window)?,
            buffer_bytes: buffer(settings.buffer, run.parallel)?,
            verify: settings.verify.into(),
            isolated: isolated(&run),
            timeout: settings.timeout,
            network: network(&run)?,
            tun_fd: tun_fd(run.tun_fd, subject)?,
            congestion: congestion(settings.congestion.as_deref())?,
            tun_name: tun_name(&settings.tun_name)?,
        })
    }
}

/// Whether a run gets a network of its own. A device that somebody else has made is in the network that it
/// was made in.
pub(super) fn isolated(run: &Run) -> bool {
    run.settings.netns == cli::Netns::Auto && run.tun_fd.is_none() && platform::netns_supported()
}

fn subject(run: &Run) -> Result<Subject, PlanError> {
    let missing = |option| PlanError::new(option, format!("the layer {:?} wants it", run.layer));
    let mode = || run.mode.map(Mode::from).ok_or_else(|| missing("--mode"));
    let stack = || netstack(run.netstack.ok_or_else(|| missing("--netstack"))?.into());
    let without = |given: bool, option| {
        if given { Err(PlanError::new(option, "this layer has none; leave it out")) } else { Ok(()) }
    };
    match run.layer {
        cli::Layer::Path => Ok(Subject::Path(stack()?, mode()?)),
        cli::Layer::Stack => Ok(Subject::Stack(stack()?, mode()?)),
        cli::Layer::Loopback => {
            without(run.netstack.is_some(), "--netstack")?;
            Ok(Subject::Loopback(mode()?))
        }
        cli::Layer::Device => {
            without(run.netstack.is_some(), "--netstack")?;
            without(run.mode.is_some(), "--mode")?;
            Ok(Subject::Device)
        }
    }
}

impl From<cli::Verify> for Verify {
    fn from(verify: cli::Verify) -> Self {
        match verify {
            cli::Verify::Sample => Self::Sample,
            cli::Verify::Full => Self::Full,
            cli::Verify::Off => Self::Off,
        }
    }
}

impl From<cli::Mode> for Mode {
    fn from(mode: cli::Mode) -> Self {
        match mode {
            cli::Mode::Reader => Self::Reader,
            cli::Mode::Writer => Self::Writer,
        }
    }
}

/// The runtime of so many workers, where it has several.
pub(super) fn runtime(current_thread: bool, workers: Option<u16>) -> RuntimeKind {
    if current_thread {
        RuntimeKind::CurrentThread
    } else {
        RuntimeKind::MultiThread(workers.map(usize::from).and_then(NonZeroUsize::new))
    }
}

fn netstack(kind: StackKind) -> Result<StackKind, PlanError> {
    if kind.compiled_in() {
        Ok(kind)
    } else {
        Err(PlanError::new("--netstack", netstacks::NotCompiledIn(kind).to_string()))
    }
}

fn parallel(streams: u16, subject: Subject) -> Result<NonZeroU16, PlanError> {
    match subject {
        Subject::Stack(..) | Subject::Device if streams > 1 => {
            Err(PlanError::new("--parallel", format!("the layer {} has one stream", subject.layer())))
        }
        // The command line refuses 0.
        _ => Ok(NonZeroU16::new(streams).unwrap_or(NonZeroU16::MIN)),
    }
}

fn network(run: &Run) -> Result<Network, PlanError> {
    if run.ipv6 && run.mtu < MIN_MTU_V6 && run.tun_fd.is_none() {
        return Err(PlanError::new("--mtu", format!("{} bytes; IPv6 wants at least {MIN_MTU_V6}", run.mtu)));
    }
    let settings = &run.settings;
    let given =
        [("--tun-addr", settings.tun_addr), ("--tun-dest", settings.tun_dest), ("--tun-mask", settings.tun_mask)];
    let mut addresses: [IpAddr; 3] = if run.ipv6 { DEFAULT_V6.map(Into::into) } else { DEFAULT_V4.map(Into::into) };
    for (address, (option, given)) in addresses.iter_mut().zip(given) {
        match given {
            Some(given) if given.is_ipv6() != run.ipv6 => {
                let remedy = if run.ipv6 { "leave out --ipv6, or give IPv6's" } else { "add --ipv6, or give IPv4's" };
                return Err(PlanError::new(option, format!("{given} is of the other IP version; {remedy}")));
            }
            Some(given) => *address = given,
            None => {}
        }
    }
    let [address, peer, mask] = addresses;
    Network::new(address, peer, mask)
        .map_err(|error| PlanError::new("--tun-addr, --tun-dest, --tun-mask", error.to_string()))
}

fn amount(settings: &Settings, streams: u16) -> Result<Amount, PlanError> {
    let timeout = timeout(settings.timeout)?;
    match settings.time {
        Some(wanted) => time(wanted, timeout).map(Amount::Time),
        None => match NonZeroU64::new(settings.bytes.unwrap_or(DEFAULT_BYTES)) {
            Some(bytes) if (u64::from(streams)..=MAX_BYTES).contains(&bytes.get()) => Ok(Amount::Bytes(bytes)),
            _ => Err(PlanError::new("--bytes", "must be at least one byte for each stream and at most 1 PB")),
        },
    }
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

fn interval(settings: &Settings) -> Result<Option<Duration>, PlanError> {
    match settings.interval {
        Some(interval) if interval < MIN_INTERVAL => {
            Err(PlanError::new("--interval", format!("must be at least {} seconds", MIN_INTERVAL.as_secs_f64())))
        }
        Some(interval) if interval.saturating_mul(MAX_INTERVALS) < settings.timeout => Err(PlanError::new(
            "--interval",
            format!("would be more than {MAX_INTERVALS} intervals in {} seconds", settings.timeout.as_secs_f64()),
        )),
        interval => Ok(interval),
    }
}

fn window(bytes: u64) -> Result<usize, PlanError> {
    usize::try_from(bytes)
        .ok()
        .filter(|window| (StackConfig::MIN_WINDOW..=StackConfig::MAX_WINDOW).contains(window))
        .ok_or_else(|| {
            PlanError::new("--window", format!("{bytes} bytes; it must be at least 4 KiB and less than 1 GiB"))
        })
}

pub(super) fn buffer(bytes: u64, streams: u16) -> Result<NonZeroUsize, PlanError> {
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

pub(super) fn congestion(name: Option<&str>) -> Result<Option<String>, PlanError> {
    match name {
        Some(name) if name.is_empty() || name.contains('\0') => {
            Err(PlanError::new("--congestion", "must name an algorithm of the kernel's, such as cubic"))
        }
        name => Ok(name.map(ToOwned::to_owned)),
    }
}

fn tun_name(name: &str) -> Result<String, PlanError> {
    match platform::validate_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(error) => Err(PlanError::new("--tun-name", error.to_string())),
    }
}

fn tun_fd(fd: Option<i32>, subject: Subject) -> Result<Option<i32>, PlanError> {
    match (fd, subject) {
        // The standard streams are never a device.
        (Some(..=2), _) => Err(PlanError::new("--tun-fd", "must be the number of an open descriptor above 2")),
        (Some(_), Subject::Loopback(_) | Subject::Stack(..) | Subject::Device) => {
            Err(PlanError::new("--tun-fd", format!("the layer {} makes what it needs itself", subject.layer())))
        }
        (fd, _) => Ok(fd),
    }
}
