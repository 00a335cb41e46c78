//! Races the parties of a run against each other, the user and the clock, and joins every one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use platform::{Class, Interrupts, PacketCounts, TcpStatistics};
use tokio::sync::mpsc;

use super::RunError;
use super::client::{Cancel, Client};
use super::failure::{CLIENT, Failure};
use super::intervals::Intervals;
use super::meter::{Reading, Spent, Tally};
use super::party::Party;
use super::transfer::{Finish, Lane, StartingGate};
use crate::plan::{Mode, Scenario};
use crate::sample::{Interval, Status};

/// Nothing has arrived for so long: the run is not slow, it stands still.
const STALL: Duration = Duration::from_secs(1);

/// How often it is looked at what has arrived.
const LOOK: Duration = Duration::from_millis(250);

/// After one party has failed, the others may have the better reason for it.
const AFTERMATH: Duration = Duration::from_millis(100);

type Reporter = mpsc::UnboundedSender<Result<(), Failure>>;
type Reports = mpsc::UnboundedReceiver<Result<(), Failure>>;

/// What came of the delivery.
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) detail: Option<String>,
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// Of the bytes, those of readers.
    pub(super) read_bytes: u64,
    pub(super) client_cpu: Option<Duration>,
    /// What was spent in the timed window; of memory, what was held at its end.
    pub(super) spent: Spent,
    pub(super) retransmits: Option<u64>,
    pub(super) device_drops: Option<u64>,
    pub(super) packets: Option<PacketCounts>,
    pub(super) reordered: Option<u64>,
    pub(super) forwarder_peak_rss_bytes: Option<u64>,
    pub(super) tcp: Option<TcpStatistics>,
    pub(super) intervals: Vec<Interval>,
}

impl Outcome {
    /// Of a run that never came to its timed window.
    pub(super) fn failed(status: Status, detail: Option<String>) -> Self {
        Self {
            status,
            detail,
            bytes: 0,
            elapsed: Duration::ZERO,
            read_bytes: 0,
            client_cpu: None,
            spent: Spent::default(),
            retransmits: None,
            device_drops: None,
            packets: None,
            reordered: None,
            forwarder_peak_rss_bytes: None,
            tcp: None,
            intervals: Vec::new(),
        }
    }
}

/// What a run is judged by.
pub(super) struct Supervisor {
    timeout: Duration,
    interval: Option<Duration>,
    lanes: Arc<[Lane]>,
    gate: Arc<StartingGate>,
}

/// The clients at work.
#[derive(Default)]
struct Threads {
    /// Each ends with its connection, which lives until the other side has ended, too.
    running: Vec<thread::JoinHandle<Option<Box<dyn Send>>>>,
    cancel: Vec<Cancel>,
}

impl Supervisor {
    /// Of a scenario that delivers these lanes through this gate.
    pub(super) fn of(scenario: &Scenario, lanes: Arc<[Lane]>, gate: Arc<StartingGate>) -> Self {
        Self::new(scenario.timeout, scenario.interval, lanes, gate)
    }

    /// Of a run that delivers these lanes through this gate within that time.
    pub(super) fn new(
        timeout: Duration,
        interval: Option<Duration>,
        lanes: Arc<[Lane]>,
        gate: Arc<StartingGate>,
    ) -> Self {
        Self { timeout, interval, lanes, gate }
    }

    /// Runs the clients, one for each lane or none, against the stack's side until all is delivered or
    /// something has failed. Nobody is left running, whatever comes of it.
    pub(super) async fn supervise(
        self,
        mut party: Party,
        clients: Vec<Client>,
        interrupts: Interrupts,
    ) -> Result<Outcome, RunError> {
        let (report, mut reports) = mpsc::unbounded_channel();
        let (mut threads, mut intervals) = (Threads::default(), Intervals::new(self.interval));
        // The clients and the server.
        let awaited = clients.len() + 1;
        let started = self.start(clients, &report, &mut threads);
        drop(report);
        let verdict = match started {
            Ok(()) => self.race(awaited, &mut party, &mut reports, &mut intervals, interrupts).await,
            Err(error) => Err(error),
        };
        let connections = self.stop(threads);
        let ended = party.end().await;
        drop(connections);
        let verdict = verdict?.and(ended);
        Ok(self.outcome(verdict, intervals))
    }

    fn start(&self, clients: Vec<Client>, report: &Reporter, threads: &mut Threads) -> Result<(), RunError> {
        for (index, Client { deliver, cancel }) in clients.into_iter().enumerate() {
            threads.cancel.push(cancel);
            let (lanes, gate, report) = (Arc::clone(&self.lanes), Arc::clone(&self.gate), report.clone());
            let client = move || {
                // A panic is to be told at once, and not when everybody is joined.
                let (connection, result) = match catch_unwind(AssertUnwindSafe(|| deliver(&lanes[index], &gate))) {
                    Ok((connection, result)) => {
                        (Some(connection), result.map_err(|error| Failure::of_transfer(CLIENT, &error)))
                    }
                    Err(panic) => (None, Err(Failure::of_panic("a client", panic.as_ref()))),
                };
                let _unheard = report.send(result);
                connection
            };
            let thread = thread::Builder::new().name(format!("client-{index}")).spawn(client);
            threads.running.push(thread.map_err(|source| {
                platform::Error::new(Class::Failed, "start", "a client thread", source)
                    .remedy("lower --parallel, or raise the limit on processes (ulimit -u)")
            })?);
        }
        Ok(())
    }

    /// Ends what still waits, for the gate or at a connection, and joins all.
    fn stop(&self, threads: Threads) -> Vec<Box<dyn Send>> {
        self.gate.cancel();
        for cancel in threads.cancel {
            cancel();
        }
        // A client catches its own panics.
        threads.running.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    }

    /// Waits until every client and the server are done, or for the first thing that goes wrong.
    async fn race(
        &self,
        mut awaited: usize,
        party: &mut Party,
        clients: &mut Reports,
        intervals: &mut Intervals,
        mut interrupts: Interrupts,
    ) -> Result<Result<(), Failure>, RunError> {
        let deadline = tokio::time::Instant::now() + self.timeout;
        let mut look = tokio::time::interval(LOOK);
        let mut progress = Progress::default();
        while awaited > 0 {
            let report = tokio::select! {
                biased;
                report = party.next() => report,
                Some(report) = clients.recv() => report,
                () = interrupts.next() => return Err(RunError::Interrupted),
                () = tokio::time::sleep_until(deadline) => {
                    progress.update(self.arrived());
                    return Ok(Err(self.late(&progress)));
                }
                () = intervals.due(&self.gate) => {
                    intervals.look(self.arrived().saturating_sub(self.warmup_bytes()), self.gate.spent());
                    continue;
                }
                _ = look.tick() => {
                    progress.update(self.arrived());
                    continue;
                }
            };
            match report {
                Ok(()) => awaited -= 1,
                Err(failure) => return Ok(Err(nearest_cause(failure, party, clients).await)),
            }
        }
        Ok(Ok(()))
    }

    fn arrived(&self) -> u64 {
        self.lanes.iter().map(Lane::arrived).sum()
    }

    fn warmup_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.warmup_bytes).sum()
    }

    fn late(&self, progress: &Progress) -> Failure {
        let (arrived, timeout) = (self.arrived(), self.timeout.as_secs_f64());
        let quiet = progress.since.elapsed();
        if quiet >= STALL {
            let detail = format!(
                "nothing arrived for the last {:.1} of {timeout} seconds, after {arrived} bytes",
                quiet.as_secs_f64()
            );
            Failure { status: Status::Stalled, detail }
        } else {
            let detail = format!(
                "{arrived} bytes had arrived after {timeout} seconds; raise --timeout, or lower --bytes and --warmup"
            );
            Failure { status: Status::Timeout, detail }
        }
    }

    fn outcome(self, verdict: Result<(), Failure>, intervals: Intervals) -> Outcome {
        let opened = self.gate.opened();
        let finishes: Vec<Finish> = self.lanes.iter().filter_map(Lane::finished).collect();
        let end = finishes.iter().map(|finish| finish.end).max_by_key(|end| end.at);
        let (status, detail) = match verdict {
            Ok(()) => (Status::Ok, None),
            Err(failure) => (failure.status, Some(failure.detail)),
        };
        let complete = status == Status::Ok;
        let bytes = if complete {
            finishes.iter().map(|finish| finish.bytes).sum()
        } else {
            self.arrived().saturating_sub(self.warmup_bytes())
        };
        let end = end.filter(|_| complete).unwrap_or_else(|| self.gate.read());
        let window = opened.map(|begin| Window { begin, end });
        let elapsed = window.map_or(Duration::ZERO, |window| window.end.at - window.begin.at);
        let spent = window.map(Window::spent).unwrap_or_default();
        let carried = window.map(Window::carried).unwrap_or_default();
        let readers = self.lanes.iter().filter(|lane| lane.mode == Mode::Reader);
        Outcome {
            status,
            detail,
            bytes,
            elapsed,
            read_bytes: readers.filter_map(Lane::finished).map(|finish| finish.bytes).sum(),
            client_cpu: sum(finishes.iter().map(|finish| finish.cpu)).filter(|_| complete),
            spent,
            retransmits: sum(finishes.iter().map(|finish| finish.retransmits)).filter(|_| complete),
            device_drops: carried.drops,
            packets: carried.packets,
            reordered: carried.reordered,
            forwarder_peak_rss_bytes: end.tally.forwarder_peak_rss_bytes,
            tcp: finishes.first().map(|finish| finish.tcp),
            intervals: intervals.finish(elapsed, bytes, spent),
        }
    }
}

/// The timed window, from the opening of the gate to the last client's end.
#[derive(Clone, Copy)]
struct Window {
    begin: Reading,
    end: Reading,
}

impl Window {
    fn spent(self) -> Spent {
        self.end.spent.since(self.begin.spent)
    }

    fn carried(self) -> Tally {
        self.end.tally.since(self.begin.tally)
    }
}

/// The sum, where all are known.
fn sum<T: std::iter::Sum>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    values.sum()
}

/// What has arrived, and since when no more.
struct Progress {
    arrived: u64,
    since: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { arrived: 0, since: Instant::now() }
    }
}

impl Progress {
    fn update(&mut self, arrived: u64) {
        if arrived != self.arrived {
            *self = Self { arrived, since: Instant::now() };
        }
    }
}

/// Of the failures that come at about the same time, the one that explains the others.
async fn nearest_cause(first: Failure, party: &mut Party, clients: &mut Reports) -> Failure {
    let mut cause = first;
    let deadline = tokio::time::Instant::now() + AFTERMATH;
    loop {
        let report = tokio::select! {
            // What has been said before the time was over counts.
            biased;
            report = party.next() => report,
            Some(report) = clients.recv() => report,
            () = tokio::time::sleep_until(deadline) => return cause,
        };
        if let Err(failure) = report
            && failure.weight() > cause.weight()
        {
            cause = failure;
        }
    }
}

#[cfg(test)]
mod tests;
