//! The validated request. After this stage no text holds an address, a size or a mode, and what is
//! out of range has been refused by the name of its option.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use netstacks::{StackConfig, StackKind};
use platform::{Network, Offload};
use serde::Serialize;

use crate::cli::{self, Cli};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run.
    pub scenario: Scenario,
    /// Whether the result is written as JSON.
    pub json: bool,
}

/// Everything that says how one run is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What the kernel client does.
    pub mode: Mode,
    /// The stack.
    pub netstack: StackKind,
    /// What the stack runs on.
    pub runtime: RuntimeKind,
    /// Whether super-packets and undone checksums are to cross the device. What came of it is the
    /// sample's to say.
    pub offload: Offload,
    /// MTU of the device, in bytes: 576 to 65,535.
    pub mtu: u16,
    /// How much is delivered in the timed window, by all streams together.
    pub amount: Amount,
    /// How much is delivered before the timed window, in bytes, by all streams together.
    pub warmup_bytes: u64,
    /// Streams at once.
    pub parallel: NonZeroU16,
    /// The stack's receive buffer and send buffer for each stream, in bytes.
    pub window_bytes: usize,
    /// Size of one read or write, in bytes, of both client and server.
    pub buffer_bytes: NonZeroUsize,
    /// The kernel client's congestion control; `None` for cubic or else the kernel's own.
    pub congestion: Option<String>,
    /// How much of the payload is checked.
    pub verify: Verify,
    /// Whether the run gets a network of its own.
    pub isolated: bool,
    /// After how long the run has failed.
    pub timeout: Duration,
    /// The device's name.
    pub tun_name: String,
    /// Its addresses.
    pub network: Network,
    /// A device to take over instead of making one.
    pub tun_fd: Option<i32>,
}

/// How much is delivered in the timed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(NonZeroU64),
    /// As many as can be in that time.
    Time(Duration),
}

/// What the kernel client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It reads what the stack sends.
    Reader,
    /// It writes, and the stack receives.
    Writer,
}

impl Mode {
    /// The name by which users choose the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
        }
    }
}

/// What the stack and its server run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Tokio's current-thread runtime.
    CurrentThread,
    /// Tokio's multi-thread runtime, with its own number of workers or the user's.
    MultiThread(Option<NonZeroUsize>),
}

impl RuntimeKind {
    /// The name in samples.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current-thread",
            Self::MultiThread(_) => "multi-thread",
        }
    }
}

/// How much of the payload is compared with the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The warm-up.
    Sample,
    /// Everything.
    Full,
    /// Nothing: only the count.
    Off,
}

/// An option whose value cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct PlanError {
    option: &'static str,
    reason: String,
}

impl PlanError {
    fn new(option: &'static str, reason: impl Into<String>) -> Self {
        Self { option, reason: reason.into() }
    }
}

/// Largest `--buffer`: a larger one only wastes memory.
const MAX_BUFFER: usize = 64 << 20;

/// Most memory for the buffers of all streams on one side.
const MAX_BUFFERS: u64 = 1 << 30;

/// Largest `--bytes` and `--warmup`: more than any timeout lets through.
const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// Longest `--timeout`.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

impl TryFrom<Cli> for Plan {
    type Error = PlanError;

    fn try_from(cli: Cli) -> Result<Self, PlanError> {
        let json = cli.json;
        Scenario::try_from(cli).map(|scenario| Self { scenario, json })
    }
}

impl TryFrom<Cli> for Scenario {
    type Error = PlanError;

    fn try_from(cli: Cli) -> Result<Self, PlanError> {
        if cli.warmup > MAX_BYTES {
            return Err(PlanError::new("--warmup", "must be at most 1 PB"));
        }
        Ok(Self {
            mode: match cli.mode {
                cli::Mode::Reader => Mode::Reader,
                cli::Mode::Writer => Mode::Writer,
            },
            netstack: netstack(cli.netstack)?,
            runtime: if cli.current_thread {
                RuntimeKind::CurrentThread
            } else {
                RuntimeKind::MultiThread(cli.worker_threads.map(usize::from).and_then(NonZeroUsize::new))
            },
            offload: match cli.offload {
                cli::Offload::Auto => Offload::Auto,
                cli::Offload::On => Offload::On,
                cli::Offload::Off => Offload::Off,
            },
            mtu: cli.mtu,
            amount: amount(&cli)?,
            warmup_bytes: cli.warmup,
            // The command line refuses 0.
            parallel: NonZeroU16::new(cli.parallel).unwrap_or(NonZeroU16::MIN),
            window_bytes: window(cli.window)?,
            buffer_bytes: buffer(cli.buffer, cli.parallel)?,
            verify: match cli.verify {
                cli::Verify::Sample => Verify::Sample,
                cli::Verify::Full => Verify::Full,
                cli::Verify::Off => Verify::Off,
            },
            // A device that somebody else has made is in the network that it was made in.
            isolated: cli.netns == cli::Netns::Auto && cli.tun_fd.is_none() && platform::isolation_supported(),
            timeout: cli.timeout,
            network: network(&cli)?,
            tun_fd: tun_fd(cli.tun_fd)?,
            congestion: congestion(cli.congestion)?,
            tun_name: tun_name(cli.tun_name)?,
        })
    }
}

/// What the ends of the device and its mask are by default, for each IP version.
const DEFAULT_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 10, 10, 9), Ipv4Addr::new(10, 10, 10, 1), Ipv4Addr::new(255, 255, 255, 0)];
const DEFAULT_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0xfd10, 0x10, 0x10, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0),
];

/// RFC 8200, 5.
const MIN_MTU_V6: u16 = 1280;

fn network(cli: &Cli) -> Result<Network, PlanError> {
    if cli.ipv6 && cli.mtu < MIN_MTU_V6 && cli.tun_fd.is_none() {
        return Err(PlanError::new("--mtu", format!("{} bytes; IPv6 wants at least {MIN_MTU_V6}", cli.mtu)));
    }
    let given = [("--tun-addr", cli.tun_addr), ("--tun-dest", cli.tun_dest), ("--tun-mask", cli.tun_mask)];
    let mut addresses: [IpAddr; 3] = if cli.ipv6 { DEFAULT_V6.map(Into::into) } else { DEFAULT_V4.map(Into::into) };
    for (address, (option, given)) in addresses.iter_mut().zip(given) {
        match given {
            Some(given) if given.is_ipv6() != cli.ipv6 => {
                let remedy = if cli.ipv6 { "leave out --ipv6, or give IPv6's" } else { "add --ipv6, or give IPv4's" };
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

fn netstack(name: cli::Netstack) -> Result<StackKind, PlanError> {
    let kind = match name {
        cli::Netstack::Lwip => StackKind::Lwip,
        cli::Netstack::Ipstack => StackKind::Ipstack,
        cli::Netstack::Smoltcp => StackKind::Smoltcp,
    };
    if kind.compiled_in() {
        Ok(kind)
    } else {
        Err(PlanError::new("--netstack", netstacks::NotCompiledIn(kind).to_string()))
    }
}

fn amount(cli: &Cli) -> Result<Amount, PlanError> {
    if cli.timeout.is_zero() || cli.timeout > MAX_TIMEOUT {
        return Err(PlanError::new("--timeout", "must be more than 0 seconds and at most a day, 86400"));
    }
    let streams = u64::from(cli.parallel);
    match cli.time {
        Some(time) if time.is_zero() => Err(PlanError::new("--time", "must be more than 0 seconds")),
        Some(time) if time >= cli.timeout => Err(PlanError::new(
            "--time",
            format!("{} seconds do not fit into --timeout {}", time.as_secs_f64(), cli.timeout.as_secs_f64()),
        )),
        Some(time) => Ok(Amount::Time(time)),
        None => match NonZeroU64::new(cli.bytes) {
            Some(bytes) if (streams..=MAX_BYTES).contains(&bytes.get()) => Ok(Amount::Bytes(bytes)),
            _ => Err(PlanError::new("--bytes", "must be at least one byte for each stream and at most 1 PB")),
        },
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

fn congestion(name: Option<String>) -> Result<Option<String>, PlanError> {
    match name {
        Some(name) if name.is_empty() || name.contains('\0') => {
            Err(PlanError::new("--congestion", "must name an algorithm of the kernel's, such as cubic"))
        }
        name => Ok(name),
    }
}

fn tun_name(name: String) -> Result<String, PlanError> {
    match platform::validate_name(&name) {
        Ok(()) => Ok(name),
        Err(error) => Err(PlanError::new("--tun-name", error.to_string())),
    }
}

fn tun_fd(fd: Option<i32>) -> Result<Option<i32>, PlanError> {
    match fd {
        // The standard streams are never a device.
        Some(..=2) => Err(PlanError::new("--tun-fd", "must be the number of an open descriptor above 2")),
        fd => Ok(fd),
    }
}
