//! The load of iperf3: a server in the far network and a client in the near one.
//!
//! The figures are its own, of its JSON: what the receiver has counted. Its clock is its own too, so what the
//! forwarder spends is taken from before its client starts until after it has ended; without load that is
//! next to nothing.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use platform::{Class, Interrupts, ProcessEnd};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use super::program::Program;
use super::topology::Topology;
use super::{EVERY, ForwarderMeter, Loaded};
use crate::plan::{Direction, ForwardScenario, Verify};
use crate::run::failure::Failure;
use crate::run::meter::{Meter, Spent, difference};
use crate::run::process::{head, last_words, tail};
use crate::run::supervisor::Outcome;
use crate::run::{RunError, kernel};
use crate::sample::{Interval, Status};

const PORT: u16 = 5201;

/// How long its server may take until it listens.
const READY: Duration = Duration::from_secs(5);

const PROGRAM: &str = "iperf3";

const MISSING: &str = "install it (the package iperf3), or leave out --generator iperf3";

/// What iperf3 says in JSON, as far as it is of use here.
#[derive(Debug, Default, Deserialize)]
struct Report {
    #[serde(default)]
    intervals: Vec<Part>,
    #[serde(default)]
    end: End,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Part {
    sum: Sum,
    sum_bidir_reverse: Option<Sum>,
}

#[derive(Debug, Default, Deserialize)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    sum_sent_bidir_reverse: Option<Sum>,
    sum_received_bidir_reverse: Option<Sum>,
    cpu_utilization_percent: Option<Cpu>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Sum {
    /// Its end, from the beginning.
    end: f64,
    seconds: f64,
    bytes: u64,
    retransmits: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Cpu {
    host_total: f64,
    remote_total: f64,
}

/// Loads the forwarder, and sees what it takes.
pub(super) async fn run(
    scenario: &ForwardScenario,
    topology: &Topology,
    forwarder: &Program,
    mut interrupts: Interrupts,
) -> Result<Loaded, RunError> {
    let target = (scenario.far.address, PORT).into();
    let (_, congestion) = kernel::socket(target, scenario.congestion.as_deref())?;
    let deadline = Instant::now() + scenario.timeout;
    let meter = ForwarderMeter::new(scenario, topology, forwarder);
    let _server = serve(scenario, topology).await?;
    let (tally, before) = (meter.tally(), meter.spent());
    let client = finished(start(client(scenario, congestion.as_deref()))?);
    tokio::pin!(client);
    let lost = forwarder.end();
    tokio::pin!(lost);
    let mut looks = Vec::new();
    let mut clock = interval_at(Instant::now() + EVERY, EVERY);
    let report = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => return Err(RunError::Interrupted),
            failure = &mut lost => break Err(failure),
            report = &mut client => break report,
            () = sleep_until(deadline) => {
                let detail = format!("iperf3 did not end within {} seconds", scenario.timeout.as_secs_f64());
                break Err(Failure { status: Status::Timeout, detail });
            }
            _ = clock.tick() => looks.push(meter.spent().since(before)),
        }
    };
    let spent = meter.spent().since(before);
    let carried = meter.tally().since(tally);
    let measured = report.and_then(|report| Measured::of(&report, scenario.direction));
    let mut outcome = Outcome {
        spent,
        device_drops: carried.drops,
        packets: carried.packets,
        reordered: carried.reordered,
        forwarder_peak_rss_bytes: carried.forwarder_peak_rss_bytes,
        ..Outcome::failed(Status::Ok, None)
    };
    let mut generator_seconds = None;
    match measured {
        Ok(measured) => {
            generator_seconds = measured.generator_seconds;
            measured.tell(&mut outcome, &looks);
        }
        Err(Failure { status, detail }) => (outcome.status, outcome.detail) = (status, Some(detail)),
    }
    Ok(Loaded { outcome, congestion, generator_seconds, verified: Verify::Off })
}

/// Starts the server, and waits until it listens.
async fn serve(scenario: &ForwardScenario, topology: &Topology) -> Result<Child, RunError> {
    let mut command = Command::new(PROGRAM);
    command.args(["--server", "--one-off", "--forceflush", "--port"]).arg(PORT.to_string());
    command.arg("--bind").arg(scenario.far.address.to_string());
    let handle = Handle::current();
    let mut child = topology.far().run(move || {
        let _context = handle.enter();
        start(command)
    })??;
    // It says something once it listens.
    let stdout = child.stdout.take().ok_or_else(|| failed("talk with", io::ErrorKind::BrokenPipe.into()))?;
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    if let Ok(Ok(1..)) = timeout(READY, stdout.read_line(&mut line)).await {
        // Nobody reads the rest, but it is not to die of that.
        tokio::spawn(async move { tail(Some(stdout)).await });
        return Ok(child);
    }
    let _ended = child.start_kill();
    let words = tail(child.stderr.take()).await.unwrap_or_default();
    let text = last_words("iperf3's server did not listen", &String::from_utf8_lossy(&words));
    Err(RunError::Process { class: Class::Failed, text })
}

fn client(scenario: &ForwardScenario, congestion: Option<&str>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("--client").arg(scenario.far.address.to_string()).arg("--port").arg(PORT.to_string());
    command.arg("--bind").arg(scenario.near.address.to_string()).arg("--json");
    command.arg("--time").arg(scenario.time.as_secs().to_string());
    command.arg("--parallel").arg(scenario.parallel.to_string());
    command.arg("--length").arg(scenario.buffer_bytes.to_string());
    if let Some(congestion) = congestion {
        command.arg("--congestion").arg(congestion);
    }
    match scenario.direction {
        Direction::Forward => {}
        Direction::Reverse => drop(command.arg("--reverse")),
        Direction::Bidir => drop(command.arg("--bidir")),
    }
    command
}

/// Starts iperf3, in the calling thread's network.
fn start(mut command: Command) -> Result<Child, RunError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    platform::end_with_this_thread(command.as_std_mut());
    command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            platform::Error::new(Class::Unavailable, "start", PROGRAM, source).remedy(MISSING).into()
        }
        _ => failed("start", source),
    })
}

fn failed(operation: &'static str, source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, operation, PROGRAM, source).into()
}

/// What the client says in the end.
async fn finished(mut client: Child) -> Result<Report, Failure> {
    let (stdout, stderr) = (client.stdout.take(), client.stderr.take());
    let (stdout, stderr, status) = tokio::try_join!(head(stdout), tail(stderr), client.wait())
        .map_err(|error| failure(format!("iperf3: {error}")))?;
    match serde_json::from_slice::<Report>(&stdout) {
        Ok(Report { error: Some(words), .. }) => Err(failure(format!("iperf3: {words}"))),
        Ok(report) if ProcessEnd::of(status) == ProcessEnd::Exited(0) => Ok(report),
        _ => Err(failure(last_words(&format!("iperf3 ended with {status}"), &String::from_utf8_lossy(&stderr)))),
    }
}

fn failure(detail: String) -> Failure {
    Failure { status: Status::Reset, detail }
}

/// What a report comes to.
struct Measured {
    bytes: u64,
    /// Of these, those of the way back where both were used.
    bytes_back: u64,
    elapsed: Duration,
    retransmits: Option<u64>,
    generator_seconds: Option<f64>,
    /// The end of each of its intervals, and what its client counted in it.
    parts: Vec<(Duration, u64)>,
}

impl Measured {
    fn of(report: &Report, direction: Direction) -> Result<Self, Failure> {
        let Report { intervals, end, .. } = report;
        let none = || failure("iperf3 did not say what was received".to_owned());
        let received = end.sum_received.ok_or_else(none)?;
        let back = match direction {
            Direction::Bidir => Some(end.sum_received_bidir_reverse.ok_or_else(none)?),
            Direction::Forward | Direction::Reverse => None,
        };
        let bytes_back = back.map_or(0, |sum| sum.bytes);
        let seconds = received.seconds.max(back.map_or(0.0, |sum| sum.seconds));
        let elapsed = Duration::try_from_secs_f64(seconds).map_err(|_| none())?;
        let sent = [end.sum_sent, end.sum_sent_bidir_reverse.filter(|_| back.is_some())];
        let parts = intervals.iter().filter_map(|part| {
            let bytes = part.sum.bytes + part.sum_bidir_reverse.map_or(0, |sum| sum.bytes);
            Some((Duration::try_from_secs_f64(part.sum.end).ok()?, bytes))
        });
        Ok(Self {
            bytes: received.bytes + bytes_back,
            bytes_back,
            elapsed,
            retransmits: sent
                .iter()
                .any(Option::is_some)
                .then(|| sent.into_iter().flatten().map(|sum| sum.retransmits).sum())
                .flatten(),
            generator_seconds: end
                .cpu_utilization_percent
                .map(|cpu| (cpu.host_total + cpu.remote_total) / 100.0 * seconds),
            parts: parts.collect(),
        })
    }

    /// Puts it into the outcome of a run. `looks` say what the forwarder had spent by each second.
    fn tell(self, outcome: &mut Outcome, looks: &[Spent]) {
        outcome.intervals = self.intervals(outcome.spent, looks);
        outcome.bytes = self.bytes;
        outcome.read_bytes = self.bytes_back;
        outcome.elapsed = self.elapsed;
        outcome.retransmits = self.retransmits;
    }

    /// Its intervals, of which the last one is what is left.
    fn intervals(&self, spent: Spent, looks: &[Spent]) -> Vec<Interval> {
        let mut left = self.bytes;
        let mut cpu_before = Some(Duration::ZERO);
        let mut interval = |end, bytes: u64, spent: Spent| {
            // The client sends what the server never counts.
            let bytes = bytes.min(left);
            left -= bytes;
            let cpu = difference(spent.forwarder_cpu, cpu_before);
            cpu_before = spent.forwarder_cpu;
            let cpu_seconds = cpu.map(|cpu| cpu.as_secs_f64());
            Interval { end, bytes, cpu_seconds, rss_bytes: spent.forwarder_rss_bytes }
        };
        let all_but_last = self.parts.len().saturating_sub(1);
        let looked = self.parts.iter().zip(looks).take(all_but_last).take_while(|((end, _), _)| *end < self.elapsed);
        let mut intervals: Vec<_> = looked.map(|((end, bytes), look)| interval(*end, *bytes, *look)).collect();
        intervals.push(interval(self.elapsed, u64::MAX, spent));
        intervals
    }
}

#[cfg(test)]
mod tests;
