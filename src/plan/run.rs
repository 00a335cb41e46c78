//! Makes a run of the words of a command line: returns a scenario, or an error that names the wrong option.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Parser;
use netstacks::StackKind;

use super::PlanError;
use super::devices;
use super::scenario::{Amount, DEFAULT_RELEASE, Devices, Scenario, Tun};
use crate::cell::{Cell, Generator, Layer, Mode, Napi, Outage, Protocol, Runtime, Subject, Verify};
use crate::cli::{Netns, Run, Settings};
use crate::program::Upstream;
use crate::sample::IdleFacts;

/// What to type first, for somebody who typed nothing.
const FIRST: &str = "a run needs both, or --program in place of --netstack. Try first:
    rust-tun-perf doctor                     what this machine can run
    rust-tun-perf -m reader -n smoltcp       one run
    rust-tun-perf matrix --preset stacks     the main figures of every stack
    rust-tun-perf programs list              programs to measure as they are
    rust-tun-perf --help                     the main options";

const DEFAULT_REQUEST_TIME: Duration = Duration::from_secs(2);

/// The default amount: for at least this long, and up to ten times as long for so many bytes. A shorter run measures
/// mostly noise.
pub(super) const DEFAULT_TIME: Duration = Duration::from_secs(1);
const DEFAULT_BYTES: u64 = 1_000_000_000;

const DEFAULT_WARMUP: u64 = 64_000_000;

/// Default of `--warmup` over a link with impairments, which may be slow.
const IMPAIRED_WARMUP: u64 = 1_000_000;

/// Largest `--bytes` and `--warmup`: more than any timeout allows.
const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// How long a forwarder is loaded by default, and how much longer its run may take: it starts, warms up and ends.
const FORWARD_TIME: Duration = Duration::from_secs(10);
const FORWARD_GRACE: Duration = Duration::from_secs(30);

const TIMEOUT: Duration = Duration::from_mins(1);

const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// How often the CPU time and memory of a carrier are sampled.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest `--interval`: recording takes time on the runtime under test.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Most intervals in a run: they are kept in memory and in the sample.
const MAX_INTERVALS: u32 = 100_000;

#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    run: Run,
}

impl Scenario {
    /// A run of this stack in this mode, with the defaults of the command line.
    pub fn new(netstack: StackKind, mode: Mode) -> Result<Self, PlanError> {
        Self::of_words(vec![format!("--netstack={netstack}"), format!("--mode={mode}")])
    }

    /// The run of these words.
    pub fn of_words(words: Vec<String>) -> Result<Self, PlanError> {
        let Words { run } = Words::try_parse_from(&words).map_err(|error| super::of_parser(&error))?;
        Ok(Self { words, ..Self::try_from(run)? })
    }
}

impl TryFrom<Run> for Scenario {
    type Error = PlanError;

    fn try_from(run: Run) -> Result<Self, PlanError> {
        let Run { mut cell, current_thread, settings, profile, check_path, .. } = run;
        if current_thread {
            cell.runtime = Runtime::CurrentThread;
        }
        if cell.mode.is_none()
            && cell.netstack.is_none()
            && cell.subject() == Subject::Loopback
            && cell.layer == Layer::Path
        {
            return Err(PlanError::new("--mode, --netstack", FIRST));
        }
        // A device that is taken over keeps its MTU. If the descriptor is no device, the run will say so.
        cell.mtu = settings.tun_fd.and_then(platform::mtu_of_descriptor).or(cell.mtu);
        let cell = cell.checked()?;
        let is_forward = cell.forwarder.is_some();
        check_machine(&cell, &settings)?;
        let timeout = timeout(&settings, is_forward)?;
        let release = release(&cell, &settings, timeout)?;
        // Twice the default rest is within any timeout, or within the time that a process may take beyond it.
        let rest = 2 * cell.rest.saturating_sub(Cell::default().rest);
        let scenario = Self {
            link_seed: settings.link_seed,
            congestion: congestion(settings.congestion.clone())?,
            verify: settings.verify,
            amount: amount(&cell, &settings, timeout, release)?,
            release,
            warmup_bytes: warmup(&cell, &settings)?,
            interval: interval(&cell, &settings, timeout)?,
            timeout: timeout.saturating_add(rest),
            isolated: isolated(&settings),
            devices: if is_forward {
                devices::pair(&settings, cell.ipv6)?
            } else if let Some(device) = &cell.device {
                devices::given(device, &settings, cell.ipv6)?
            } else {
                let (name, or_next) = devices::tun_name(settings.tun_name.as_deref(), settings.tun_fd)?;
                let network = devices::network(&settings, cell.ipv6)?;
                Devices::Tun(Tun { name, or_next, network, fd: devices::tun_fd(settings.tun_fd, &cell)? })
            },
            go_forwarder: settings.go_forwarder,
            command: settings.command,
            profile,
            pcap: settings.pcap,
            words: Vec::new(),
            cell,
        };
        scenario.check()?;
        Ok(if check_path { scenario.path_check() } else { scenario })
    }
}

impl Scenario {
    fn check(&self) -> Result<(), PlanError> {
        let (cell, subject) = (&self.cell, self.cell.subject());
        if let Some(Outage { at, lasts }) = cell.impairments.outage {
            let end = at.saturating_add(lasts);
            if !matches!(self.amount, Amount::Time { time, .. } if time > end) {
                let end = end.as_secs_f64();
                let reason = format!("must end within the timed window; use a --time of more than {end} s");
                return Err(PlanError::new("--outage", reason));
            }
        }
        if cell.generator == Generator::Iperf3 {
            let is_whole = matches!(self.amount, Amount::Time { time, .. } if time.subsec_nanos() == 0);
            if !is_whole {
                return Err(PlanError::new("--time", "iperf3 takes whole seconds"));
            }
            if self.verify == Verify::Full {
                let reason = "iperf3 checks no bytes; leave it out, or leave out --generator";
                return Err(PlanError::new("--verify", reason));
            }
        }
        let is_external = cell.netstack == Some(StackKind::External);
        if is_external != self.command.is_some() {
            let reason = if is_external { "the stack external needs it" } else { "only --netstack external takes it" };
            return Err(PlanError::new("--command", reason));
        }
        if self.profile.is_some() && (subject.has_process() || matches!(subject, Subject::Program(_) | Subject::Given))
        {
            return Err(PlanError::new("--profile", "only this program draws flame graphs of itself"));
        }
        let without_device =
            cell.program.as_ref().and_then(|program| program.profile()).is_some_and(|of| !of.has_device());
        if self.pcap.is_some() && (without_device || matches!(subject, Subject::Loopback | Subject::Stack(_))) {
            return Err(PlanError::new("--pcap", "there is no device whose packets could be written"));
        }
        Ok(())
    }
}

/// Refuses a cell that this machine or this build cannot run, and settings that the cell does not take.
fn check_machine(cell: &Cell, settings: &Settings) -> Result<(), PlanError> {
    let refuse = |option: &'static str, reason: String| Err(PlanError::new(option, reason));
    match cell.netstack {
        Some(stack) if stack.is_process() && !platform::netns_supported() => {
            return refuse("--netstack", format!("{stack} is a process of its own; only Linux runs it"));
        }
        Some(StackKind::Kernel | StackKind::Gvisor | StackKind::External) | None => {}
        Some(stack) if stack.compiled_in() => {}
        Some(stack) => return refuse("--netstack", netstacks::NotCompiledIn(stack).to_string()),
    }
    if let Some(pin) = &cell.pin {
        let Some(there) = platform::processors() else {
            return refuse("--pin", "only Linux can keep a thread on a processor".to_owned());
        };
        if let Some(number) = pin.numbers().iter().find(|number| !there.contains(number)) {
            let reason =
                format!("there is no processor {number}, or this process may not use it; see nproc and taskset -p");
            return refuse("--pin", reason);
        }
    }
    if settings.dest.is_some() && cell.device.is_none() {
        return refuse("--dest", "only --device takes it".to_owned());
    }
    let is_named = settings.tun_name.is_some() || settings.tun_addr.is_some() || settings.tun_dest.is_some();
    if cell.peers.get() > 1 && (is_named || settings.tun_mask.is_some()) {
        let reason =
            "each peer has a device and a network; leave out --tun-name, --tun-addr, --tun-dest and --tun-mask";
        return refuse("--peers", reason.to_owned());
    }
    if settings.tun_fd.is_some() {
        let keeps = [
            (cell.queue.is_some(), "--queue", "queue"),
            (cell.qdisc.is_some(), "--qdisc", "qdisc"),
            (cell.napi != Napi::Off, "--napi", "NAPI"),
        ];
        if let Some((_, option, name)) = keeps.into_iter().find(|(is_given, ..)| *is_given) {
            return refuse(option, format!("a device that is taken over keeps its {name}"));
        }
        if cell.queues.is_some_and(|queues| queues.get() > 1) {
            return refuse("--queues", "the device of --tun-fd has one; leave it out, or give 1".to_owned());
        }
    }
    check_amounts(cell, settings)
}

/// Refuses amounts that the cell does not have, and a program with another upstream.
fn check_amounts(cell: &Cell, settings: &Settings) -> Result<(), PlanError> {
    let workload = cell.workload();
    let no_bytes = "requests, idle connections and datagrams last for a time; use --time";
    if !workload.is_stream() && settings.bytes.is_some() {
        return Err(PlanError::new("--bytes", no_bytes));
    }
    if !workload.is_stream() && settings.warmup.is_some() {
        return Err(PlanError::new("--warmup", no_bytes));
    }
    if !workload.is_held() && settings.release.is_some() {
        let reason = "only the mode idle reads the memory again after its connections have closed";
        return Err(PlanError::new("--release", reason));
    }
    let has_tcp = !matches!(cell.layer, Layer::Stack | Layer::Device)
        && (cell.protocol == Protocol::Tcp || cell.background.is_some());
    if settings.congestion.is_some() && !has_tcp {
        return Err(PlanError::new("--congestion", "there are no TCP sockets of the kernel"));
    }
    let Some(asked) = settings.upstream else { return Ok(()) };
    let Some(profile) = cell.program.as_ref().and_then(|program| program.profile()) else {
        return Err(PlanError::new("--upstream", "only the programs of --program have one"));
    };
    if profile.upstream() == Some(asked) {
        return Ok(());
    }
    let does = match profile.upstream() {
        None => "has no upstream",
        Some(Upstream::Socks5) => "sends its connections to the SOCKS5 server",
        Some(Upstream::Direct) => "opens its connections itself",
        Some(Upstream::Far) => "sends its connections to a server of its own",
    };
    Err(PlanError::new("--upstream", format!("{} {does}; choose another profile", profile.name)))
}

/// Whether a run gets a network of its own. A device that is taken over stays in its network.
pub(super) fn isolated(settings: &Settings) -> bool {
    settings.netns == Netns::Auto && settings.tun_fd.is_none() && platform::netns_supported()
}

/// How long the mode idle waits for the subject to release memory. A default must fit a short `--timeout`.
fn release(cell: &Cell, settings: &Settings, timeout: Duration) -> Result<Duration, PlanError> {
    let default = if cell.workload().is_held() { DEFAULT_RELEASE.min(timeout / 4) } else { DEFAULT_RELEASE };
    match settings.release {
        Some(release) if release >= timeout => {
            let [release, timeout] = [release, timeout].map(|time| time.as_secs_f64());
            Err(PlanError::new("--release", format!("{release} seconds do not fit into --timeout {timeout}")))
        }
        release => Ok(release.unwrap_or(default)),
    }
}

/// How much is delivered. A default must fit a short `--timeout`.
fn amount(cell: &Cell, settings: &Settings, timeout: Duration, release: Duration) -> Result<Amount, PlanError> {
    let workload = cell.workload();
    if !workload.is_stream() {
        // After its window, the mode idle waits for the stack to release memory.
        let afterwards = if workload.is_held() { release } else { Duration::ZERO };
        let timeout = timeout.saturating_sub(afterwards);
        let default = if workload.is_held() { IdleFacts::COMPARED } else { DEFAULT_REQUEST_TIME };
        return time(settings.time.unwrap_or(default.min(timeout / 2)), timeout).map(Amount::time);
    }
    match (settings.time, settings.bytes) {
        (Some(wanted), _) => time(wanted, timeout).map(Amount::time),
        (None, None) if cell.forwarder.is_some() => time(FORWARD_TIME, timeout).map(Amount::time),
        (None, None) => {
            // By time alone over an impaired link: runs over one link are to have one length.
            let fits = timeout >= 2 * Amount::STRETCH * DEFAULT_TIME && cell.impairments.is_none();
            Ok(Amount::Time { time: DEFAULT_TIME.min(timeout / 2), bytes: if fits { DEFAULT_BYTES } else { 0 } })
        }
        (None, Some(bytes)) => match NonZeroU64::new(bytes) {
            Some(bytes) if (u64::from(cell.parallel.get())..=MAX_BYTES).contains(&bytes.get()) => {
                Ok(Amount::Bytes(bytes))
            }
            _ => Err(PlanError::new("--bytes", "must be at least one byte for each stream and at most 1 PB")),
        },
    }
}

/// The warm-up. By default it is no more than the payload and, at a rate, a second's worth.
fn warmup(cell: &Cell, settings: &Settings) -> Result<u64, PlanError> {
    match settings.warmup {
        Some(MAX_BYTES..) => Err(PlanError::new("--warmup", "must be less than 1 PB")),
        Some(bytes) => Ok(bytes),
        None if !cell.workload().is_stream() => Ok(0),
        None => {
            let most = if cell.impairments.is_none() { DEFAULT_WARMUP } else { IMPAIRED_WARMUP };
            let rate = [cell.bitrate, cell.impairments.rate_limit].into_iter().flatten().min();
            let bytes = rate.map_or(most, |bits| most.min(bits.get() / 8));
            Ok(bytes.min(settings.bytes.unwrap_or(bytes)))
        }
    }
}

fn timeout(settings: &Settings, is_forward: bool) -> Result<Duration, PlanError> {
    let of_forward = || settings.time.unwrap_or(FORWARD_TIME).saturating_add(FORWARD_GRACE);
    let timeout = settings.timeout.unwrap_or_else(|| if is_forward { of_forward() } else { TIMEOUT });
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

/// The interval. By default, the process of a carrier is sampled once a second.
fn interval(cell: &Cell, settings: &Settings, timeout: Duration) -> Result<Option<Duration>, PlanError> {
    match settings.interval {
        Some(interval) if interval < MIN_INTERVAL => {
            Err(PlanError::new("--interval", format!("must be at least {} seconds", MIN_INTERVAL.as_secs_f64())))
        }
        Some(interval) if interval.saturating_mul(MAX_INTERVALS) < timeout => Err(PlanError::new(
            "--interval",
            format!("would be more than {MAX_INTERVALS} intervals in {} seconds", timeout.as_secs_f64()),
        )),
        None if cell.subject().is_carrier() => Ok(Some(FORWARD_INTERVAL)),
        interval => Ok(interval),
    }
}

fn congestion(name: Option<String>) -> Result<Option<String>, PlanError> {
    match name {
        Some(name) if name.is_empty() || name.contains('\0') => {
            Err(PlanError::new("--congestion", "must name an algorithm of the kernel, such as cubic"))
        }
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests;
