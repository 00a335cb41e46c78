//! Warnings: what the reader of a figure should know.

use std::mem;
use std::time::Duration;

use super::{IdleFacts, MIXED, Measurements, ProgramFacts, Sample, Status};
use crate::cell::{Cell, Forwarder, MAX_QUEUE, Protocol};
use crate::plural;
use crate::program::is_baseline;

/// Something about a sample or a cell that its figure does not show: a line of advice.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Warning {
    #[error("this is a debug build; build with --release")]
    DebugBuild,
    #[error("the timed window was only {:.3} s; deliver for longer, with --time 2", .0.as_secs_f64())]
    ShortWindow(Duration),
    #[error("the kernel retransmitted {}; packets were lost or reordered{}", plural(.0, "segment"), .1)]
    Retransmits(u64, &'static str),
    #[error("the device dropped {}; {}", plural(.0, "packet"), .1)]
    DeviceDrops(u64, String),
    #[error("{} {} dropped {}", plural(.0, "packet"), if *.0 == 1 { "was" } else { "were" }, .1)]
    LinkDrops(u64, &'static str),
    #[error("{} arrived again, and the link repeats none", plural(.0, "datagram"))]
    Repeated(u64),
    #[error("the host took {:.0} % of the processors' time; run again when the host is idle", .0 * 100.0)]
    Stolen(f64),
    #[error(
        "a quota of the processor held the process back for {:.0} % of the timed window; raise it (docker run --cpus, limits in \
         Kubernetes), or compare only runs with the same",
        .0 * 100.0
    )]
    Throttled(f64),
    #[error("the process was stopped for {0:.1} s of the timed window; run again without interruption")]
    Stopped(f64),
    #[error("the client ran with {0} instead of cubic; compare only with runs of the same")]
    CongestionControl(String),
    #[error(
        "the sockets of the run did not have one congestion control: {0}; the program chose its own, or doctor says why its network \
         has another"
    )]
    MixedControls(String),
    #[error("the frequency governor is {0}; set it to performance for steady figures")]
    Governor(String),
    #[error("this is a virtual machine, whose host may be shared; compare ratios measured side by side")]
    VirtualMachine,
    #[error("{} share {}", plural(.0, "shard"), plural(.1, "processor"))]
    MoreShards(u16, usize),
    #[error("the stack has a window of at most {1} bytes instead of {0}")]
    SmallerWindow(usize, usize),
    #[error("offload is on, but packets of {0:.0} bytes are no super-packets; offload has no effect here")]
    NoSuperPackets(f64),
    #[error(
        "a lost packet is a super-packet here, of {0:.0} bytes on average; --offload off loses single segments, as a network does"
    )]
    LostSuperPackets(f64),
    #[error(
        "the profile was tried with version {1} of the program, and this is {0}; what it sets may mean something else"
    )]
    OtherVersion(String, String),
    #[error("the program took {:.0} % of a processor at rest", .0 * 100.0)]
    BusyAtRest(f64),
    #[error("after all connections were closed the program had {} more open than before", plural(.0, "file"))]
    FilesLeft(u64),
    #[error("the program does not pass on the end of a stream; the run ended both sides itself")]
    EndsWithheld,
    #[error("the program did not end by SIGTERM within 2 seconds, and was killed")]
    Killed,
    #[error("the program left {} behind", if *.0 == 1 { "a process".to_owned() } else { format!("{} processes", .0) })]
    LeftBehind(u64),
    #[error(
        "slower by the end: the rate of the last third of the timed window was {:.0} % of the first third's; deliver for \
            longer to see where it ends",
        (1.0 - .0) * 100.0
    )]
    SlowerByTheEnd(f64),
    #[error(
        "the memory did not grow: each connection or flow took under {0:.1} bytes, its share of a page; hold more of them, with \
         --parallel"
    )]
    NotGrown(f64),
    #[error(
        "the memory of the subject's sockets in the kernel is not known, so there is no figure; run as root of the machine, which \
         may read /proc/slabinfo"
    )]
    NoKernelMemory,
    #[error("the memory was read after {} s of rest; tables compare it after 5 s: give --time 5", .0.as_secs_f64())]
    ShortRest(Duration),
    #[error("nothing arrived after the outage; deliver for longer, with --time, to see whether it recovers")]
    NotRecovered,
    #[error(
        "{} {} little about the spread; make at least {FEWEST_RUNS}, with --runs",
        plural(.0, "run"), if *.0 == 1 { "says" } else { "say" }
    )]
    FewRuns(usize),
    #[error("the {} is the median ±{:.0} %; keep the machine idle, or make more runs (matrix --until)", .1, .0 * 100.0)]
    HighSpread(f64, &'static str),
    #[error(
        "{} far from the others; check what else the machine did",
        if *.0 == 1 { "one run lies".to_owned() } else { format!("{} runs lie", .0) }
    )]
    Outliers(usize),
    #[error(
        "{AT_LIMIT} at the limit of the upstream: {:.0} % of the figure of socks5, the client alone through the same SOCKS5 server, \
         so the program may be faster",
        .0 * 100.0
    )]
    AtUpstreamLimit(f64),
    #[error("in {1} of {2} runs: {0}")]
    /// With the median of the amounts of these runs.
    InRuns(Box<Self>, usize, usize),
}

/// The mark of such a figure.
pub(crate) const AT_LIMIT: &str = "†";

const MOST_STOLEN: f64 = 0.05;

const MOST_THROTTLED: f64 = 0.05;

const MOST_STOPPED: f64 = 0.05;

/// A timed window below this is mostly noise.
pub const SHORTEST_WINDOW: Duration = Duration::from_secs(1);

/// With fewer runs no interval holds the true median in 95 % of all cases.
pub const FEWEST_RUNS: usize = 6;

/// An interval that reaches further from its median, as a share of it, says so in every table.
pub const WIDEST_REACH: f64 = 0.1;

const MOST_AT_REST: f64 = 0.2;

/// A program may open this many files for good at its first connections: pools, logs, timers.
const MOST_FILES_LEFT: u64 = 32;

/// How many times as long a queue is proposed for one that was too short.
const LONGER_QUEUE: u32 = 10;

/// Above this MTU not even two segments fit into the largest packet that IP can have, 65,535 bytes.
const LARGEST_MTU_TO_SEGMENT: usize = 65_535 / 2;

impl Warning {
    /// The warning about a frequency governor.
    pub fn of_governor(name: &str) -> Option<Self> {
        matches!(name, "powersave" | "conservative").then(|| Self::Governor(name.to_owned()))
    }

    /// Whether it is about the machine or its settings, and so about all samples.
    pub fn is_of_environment(&self) -> bool {
        match self {
            Self::DebugBuild | Self::CongestionControl(_) | Self::Governor(_) | Self::VirtualMachine => true,
            Self::InRuns(warning, ..) => warning.is_of_environment(),
            _ => false,
        }
    }

    /// Of a cell of so many runs: in how many of them it was, if it is that they were slower by the end.
    pub fn slower_runs(&self, runs: usize) -> Option<usize> {
        match self {
            Self::SlowerByTheEnd(_) => Some(runs),
            Self::InRuns(warning, count, _) => warning.slower_runs(*count),
            _ => None,
        }
    }

    /// Its amount, if that differs from run to run.
    pub fn amount(&self) -> Option<f64> {
        match self {
            Self::ShortWindow(time) => Some(time.as_secs_f64()),
            Self::Retransmits(count, _)
            | Self::DeviceDrops(count, _)
            | Self::LinkDrops(count, _)
            | Self::Repeated(count)
            | Self::FilesLeft(count)
            | Self::LeftBehind(count) => Some(*count as f64),
            Self::NoSuperPackets(amount)
            | Self::LostSuperPackets(amount)
            | Self::BusyAtRest(amount)
            | Self::SlowerByTheEnd(amount)
            | Self::NotGrown(amount)
            | Self::Stolen(amount)
            | Self::Throttled(amount)
            | Self::AtUpstreamLimit(amount)
            | Self::Stopped(amount) => Some(*amount),
            _ => None,
        }
    }

    /// Whether both are the same advice, whatever the amount.
    pub fn is_like(&self, other: &Self) -> bool {
        self == other || self.amount().is_some() && mem::discriminant(self) == mem::discriminant(other)
    }
}

impl Sample {
    /// The warnings about its figure.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let (measured, environment) = (&self.measured, &self.environment);
        if environment.program.build.as_deref() == Some("debug") {
            warnings.push(Warning::DebugBuild);
        }
        if measured.status == Status::Ok && measured.elapsed < SHORTEST_WINDOW {
            warnings.push(Warning::ShortWindow(measured.elapsed));
        }
        warnings.extend(measured.stolen_share.filter(|share| *share > MOST_STOLEN).map(Warning::Stolen));
        warnings.extend(throttled_share(measured).filter(|share| *share > MOST_THROTTLED).map(Warning::Throttled));
        let most_stopped = measured.elapsed.as_secs_f64() * MOST_STOPPED;
        warnings.extend(measured.stopped_seconds.filter(|stopped| *stopped > most_stopped).map(Warning::Stopped));
        // QUIC finds the rate of its path by losses.
        let is_quic = self.cell.protocol == Protocol::Quic;
        let retransmits = measured.retransmits.filter(|count| *count > 0 && !is_quic);
        warnings.extend(retransmits.map(|count| sent_again(&self.cell, count)));
        // Lost datagrams are a figure of their own.
        let is_udp = self.cell.protocol == Protocol::Udp;
        let has_outage = self.cell.impairments.outage.is_some();
        let drops = measured.device_drops.filter(|count| *count > 0 && !is_udp && !has_outage);
        warnings.extend(drops.map(|count| dropped(self, count)));
        let repeated = measured.datagrams.map(|datagrams| datagrams.duplicated);
        let repeats_none = self.cell.impairments.duplicate_ppm == 0;
        warnings.extend(repeated.filter(|count| *count > 0 && repeats_none).map(Warning::Repeated));
        if let Some(name) = measured.congestion.as_deref().filter(|name| *name != "cubic") {
            let warning = if name.contains(MIXED) { Warning::MixedControls } else { Warning::CongestionControl };
            warnings.push(warning(name.to_owned()));
        }
        warnings.extend(environment.machine.governor.as_deref().and_then(Warning::of_governor));
        if environment.machine.virtual_machine == Some(true) {
            warnings.push(Warning::VirtualMachine);
        }
        let processors = environment.machine.cpus.filter(|count| usize::from(self.cell.shards.get()) > *count);
        warnings.extend(processors.map(|count| Warning::MoreShards(self.cell.shards.get(), count)));
        warnings.extend(smaller_window(self));
        warnings.extend(no_super_packets(self).map(Warning::NoSuperPackets));
        let loses = self.cell.impairments.loss_ppm > 0 && self.cell.offloads();
        let mtu = measured.device.as_ref().map_or(usize::from(self.cell.mtu()), |device| device.mtu);
        let lost = self.bytes_per_packet().filter(|bytes| loses && *bytes > mtu as f64);
        warnings.extend(lost.map(Warning::LostSuperPackets));
        let not_recovered = has_outage && self.is_ok() && measured.recovery_seconds.is_none();
        warnings.extend(not_recovered.then_some(Warning::NotRecovered));
        if let Some((idle, last)) =
            measured.idle.as_ref().filter(|_| self.is_ok()).and_then(|idle| Some((idle, idle.rest.last()?)))
        {
            let not_grown = idle.bytes_per_connection(last.after).filter(|_| idle.is_below(last.after) == Some(true));
            warnings.extend(not_grown.map(Warning::NotGrown));
            warnings.extend(idle.lacks_kernel_memory().then_some(Warning::NoKernelMemory));
            warnings.extend((last.after < IdleFacts::COMPARED).then_some(Warning::ShortRest(last.after)));
        }
        warnings.extend(measured.ends_withheld.then_some(Warning::EndsWithheld));
        warnings.extend(slower_by_the_end(self).map(Warning::SlowerByTheEnd));
        warnings.extend(measured.program.as_deref().into_iter().flat_map(of_program));
        warnings
    }
}

fn sent_again(cell: &Cell, count: u64) -> Warning {
    let cause = match cell.program() {
        Some(program) if !is_baseline(program) => ", or the program paused",
        None if cell.forwarder().is_none() => ", or the stack paused",
        _ => " on the way",
    };
    Warning::Retransmits(count, cause)
}

/// The warning about packets that a device dropped: its advice is one that the cell takes.
fn dropped(sample: &Sample, count: u64) -> Warning {
    let (cell, device) = (&sample.cell, sample.measured.device.as_ref());
    let queue = device.and_then(|device| device.tx_queue_len);
    match (cell.forwarder, cell.window, queue) {
        (Some(_), ..) => Warning::LinkDrops(count, "on the way; lengthen the devices' queues, with --queue"),
        (None, Some(_), _) => {
            Warning::DeviceDrops(count, "lower --window, or lengthen its queue with --queue".to_owned())
        }
        (None, None, None) => Warning::LinkDrops(count, "between the networks"),
        (None, None, Some(queue)) => {
            let longer = queue.saturating_mul(LONGER_QUEUE).min(MAX_QUEUE);
            let advice = format!("its queue of {} is short; try --queue {longer}", plural(queue, "packet"));
            Warning::DeviceDrops(count, advice)
        }
    }
}

fn of_program(facts: &ProgramFacts) -> impl Iterator<Item = Warning> {
    let files = facts.afterwards.open_files.zip(facts.at_rest.open_files);
    let at_rest = [facts.rest_cpu_share, facts.far_rest_cpu_share].into_iter().flatten().reduce(f64::max);
    let left = files.map(|(after, before)| after.saturating_sub(before)).filter(|left| *left > MOST_FILES_LEFT);
    let versions = facts.version.clone().zip(facts.tested.clone());
    [
        versions.map(|(version, tested)| Warning::OtherVersion(version, tested)),
        at_rest.filter(|share| *share > MOST_AT_REST).map(Warning::BusyAtRest),
        left.map(Warning::FilesLeft),
        facts.was_killed.then_some(Warning::Killed),
        (facts.left_behind > 0).then_some(Warning::LeftBehind(facts.left_behind)),
    ]
    .into_iter()
    .flatten()
}

/// Of the timed window, or of the time that the threads wanted if several were held back at once.
fn throttled_share(measured: &Measurements) -> Option<f64> {
    let throttled = measured.throttled?.time_ns as f64 / 1e9;
    let used: f64 = [measured.cpu.client_seconds, measured.cpu.subject_seconds].into_iter().flatten().sum();
    let wanted = (throttled + used).max(measured.elapsed.as_secs_f64());
    (wanted > 0.0).then(|| throttled / wanted)
}

fn smaller_window(sample: &Sample) -> Option<Warning> {
    let asked = usize::try_from(sample.cell.window?).ok()?;
    let effective = sample.measured.effective.as_ref()?;
    let got = effective.receive_buffer_bytes.min(effective.send_buffer_bytes);
    // A scaled window is a multiple of its unit (RFC 7323, 2.3).
    let unit = 1_usize.checked_shl(effective.window_scale.unwrap_or(0).into()).unwrap_or(usize::MAX);
    (got.saturating_add(unit) <= asked).then_some(Warning::SmallerWindow(asked, got))
}

fn no_super_packets(sample: &Sample) -> Option<f64> {
    let cell = &sample.cell;
    let mtu = sample.measured.device.as_ref().map_or(cell.mtu().into(), |device| device.mtu);
    if !cell.workload().is_stream() || cell.protocol == Protocol::Quic {
        return None;
    }
    let counts_whole = cell.forwarder().is_none_or(Forwarder::counts_whole);
    let could_be = cell.offloads() && counts_whole && mtu <= LARGEST_MTU_TO_SEGMENT;
    sample.bytes_per_packet().filter(|bytes| could_be && *bytes <= mtu as f64)
}

fn slower_by_the_end(sample: &Sample) -> Option<f64> {
    let [first, _, last] = sample.measured.thirds.filter(|_| sample.cell.impairments.outage.is_none())?;
    (last < first / 2).then(|| 1.0 - last as f64 / first as f64)
}

#[cfg(test)]
mod tests {
    use platform::Throttled;

    use super::*;
    use crate::measure::fixture::{cell, program, run};
    use crate::sample::DeviceFacts;

    #[test]
    fn a_last_third_under_half_of_the_first_is_a_warning_of_a_run_that_finished() {
        let slower = |thirds| {
            let mut run = run("-n lwip -m writer", 1.0);
            run.measured.thirds = thirds;
            run.warnings().into_iter().find_map(|warning| warning.slower_runs(1).and(warning.amount()))
        };
        assert_eq!(slower(Some([100, 70, 40])), Some(0.6));
        assert_eq!([None, Some([100, 70, 50]), Some([0, 5, 0]), Some([40, 70, 100])].map(slower), [None; 4]);
    }

    #[test]
    fn the_advice_on_a_short_queue_is_an_option_that_the_run_takes() {
        let dropping = |mut run: Sample, queue: Option<u32>| {
            run.measured.device_drops = Some(7);
            let device = |queue| DeviceFacts {
                name: String::new(),
                mtu: 1500,
                offload: true,
                tx_queue_len: Some(queue),
                qdisc: None,
            };
            run.measured.device = queue.map(device);
            let warnings = run.warnings().into_iter().map(|warning| warning.to_string());
            warnings.filter(|text| text.contains("dropped")).collect::<Vec<_>>()
        };
        let mine = || program("mine", None, 1.0);
        let short = "the device dropped 7 packets; its queue of 500 packets is short; try --queue 5000";
        for run in [mine(), run("-n kernel -m reader", 1.0)] {
            assert_eq!(dropping(run, Some(500)), [short]);
        }
        assert!(dropping(mine(), Some(200_000))[0].ends_with("try --queue 262144"));
        assert_eq!(dropping(mine(), None), ["7 packets were dropped between the networks"]);
        assert!(dropping(run("-n lwip -m reader", 1.0), Some(500))[0].contains("lower --window"));
    }

    #[test]
    fn a_pause_is_that_of_the_subject() {
        for (cell, end) in [
            (program("mine", None, 1.0).cell, "or the program paused"),
            (cell("--program kernel -m reader"), "lost or reordered on the way"),
            (cell("-n lwip -m reader"), "or the stack paused"),
        ] {
            assert!(sent_again(&cell, 2).to_string().ends_with(end), "{cell}");
        }
    }

    #[test]
    fn a_quota_is_a_warning_with_the_share_that_it_took() {
        let warned = |seconds: f64, cpu: f64| {
            let mut run = run("-n lwip -m writer", 1.0);
            run.measured.throttled = Some(Throttled { periods: 7, time_ns: (seconds * 1e9) as u64 });
            (run.measured.elapsed, run.measured.cpu.subject_seconds) = (Duration::from_secs(2), Some(cpu));
            run.measured.cpu.client_seconds = None;
            run.warnings()
                .into_iter()
                .find(|warning| matches!(warning, Warning::Throttled(_)))
                .and_then(|found| found.amount())
        };
        // One thread, two threads at once, a mostly idle process, and next to nothing.
        assert_eq!(
            [(1.5, 0.5), (3.0, 1.0), (1.0, 0.0), (0.1, 1.9)].map(|(seconds, cpu)| warned(seconds, cpu)),
            [Some(0.75), Some(0.75), Some(0.5), None]
        );
    }

    #[test]
    fn amounts_may_differ_and_names_may_not() {
        assert!(Warning::Retransmits(1, "stack").is_like(&Warning::Retransmits(7, "stack")));
        assert!(!Warning::Retransmits(1, "stack").is_like(&Warning::LinkDrops(1, "")));
        assert!(Warning::Governor("a".to_owned()).is_like(&Warning::Governor("a".to_owned())));
        assert!(!Warning::Governor("a".to_owned()).is_like(&Warning::Governor("b".to_owned())));
        assert!(Warning::InRuns(Box::new(Warning::VirtualMachine), 1, 2).is_of_environment());
    }
}
