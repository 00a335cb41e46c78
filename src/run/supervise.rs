//! Races the parts of a run against each other, the user and the clock, and joins every one of them.

use std::any::Any;
use std::future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use platform::{Class, Interrupts, Throttled};
use tokio::sync::mpsc;

use super::intervals::Intervals;
use super::outage::Interruption;
use super::server_side::ServerSide;
use super::stopped::{self, Gap, StopWatcher};
use super::thirds::Readings;
use crate::error::RunError;
use crate::failure::{CLIENT, Failure};
use crate::load::engine::Client;
use crate::load::sockets::Cancel;
use crate::load::window::Window;
use crate::load::{Delivered, Figures};
use crate::meter::{Cost, Counters, Snapshot, Usage, difference};
use crate::plan::scenario::Scenario;
use crate::remedy::WithRemedy;
use crate::sample::{Measurements, Status};

/// A run has stalled, and is not only slow, if nothing has arrived for this time.
const STALL: Duration = Duration::from_secs(1);

/// How long a run waits, once its figure is complete, for bytes that were in flight and for ends. A stack that repeats lost
/// segments slowly may take minutes for the bytes in its buffers, and another may never say that a stream has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// How often the supervisor checks how many bytes have arrived: ten times in the shortest window.
const LOOK: Duration = Duration::from_millis(100);

/// After one part of a run has failed, another part may report a better reason within this time.
const FAILURE_SETTLE: Duration = Duration::from_millis(100);

/// A client that is cancelled ends at once. One that does not end in this time is stuck.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

type Connections = Box<dyn Any + Send>;

type Reporter = mpsc::UnboundedSender<Result<(), Failure>>;
type Reports = mpsc::UnboundedReceiver<Result<(), Failure>>;

#[derive(Debug)]
pub(super) struct Outcome {
    /// How it ended, the figures of the load, and the timed window.
    pub(super) measured: Measurements,
    /// The cost of the clients' threads, or of the program that made the load, in the timed window.
    pub(super) cost: Cost,
    pub(super) usage: Usage,
    pub(super) counters: Counters,
}

pub(super) struct Supervisor {
    timeout: Duration,
    load: Arc<dyn Figures>,
    window: Arc<Window>,
    outage: Option<Interruption>,
    intervals: Intervals,
    readings: Readings,
    /// The bytes that had arrived at the last look, and the time of their last change.
    progress: (u64, Instant),
}

#[derive(Default)]
struct Threads {
    /// Each returns its connections, which are kept until the other side has ended too.
    running: Vec<thread::JoinHandle<Option<Connections>>>,
    cancel: Vec<Cancel>,
}

impl Supervisor {
    /// A supervisor of this load, which is timed in `window`, with the settings of a scenario. The path may have an outage.
    pub(super) fn new(
        scenario: &Scenario,
        load: Arc<dyn Figures>,
        window: Arc<Window>,
        outage: Option<Interruption>,
    ) -> Self {
        let (intervals, readings) = (Intervals::new(scenario.interval), Readings::default());
        let progress = (0, Instant::now());
        Self { timeout: scenario.timeout, load, window, outage, intervals, readings, progress }
    }

    /// Runs the clients against the server side until all is delivered, or something fails. Every thread and task has
    /// ended when this returns, except a client that does not end when it is cancelled; that is a failure.
    pub(super) async fn supervise(
        mut self,
        mut server: ServerSide,
        clients: Vec<Client>,
        interrupts: Interrupts,
    ) -> Result<Outcome, RunError> {
        let (report, mut reports) = mpsc::unbounded_channel();
        let mut threads = Threads::default();
        // The run does not need this thread. Without it, nothing is known of stops.
        let watcher = StopWatcher::start().ok();
        // Each client reports, and a server that ends by itself.
        let awaited = clients.len() + usize::from(self.load.awaited().is_some());
        let started = self.start(clients, &report, &mut threads);
        drop(report);
        let verdict = match started {
            Ok(()) => self.race(awaited, &mut server, &mut reports, interrupts).await,
            Err(error) => Err(error),
        };
        // Read before the parts are ended, because that takes time.
        let failed_at = matches!(verdict, Ok(Err(_))).then(|| self.window.read());
        let stopped = self.stop(threads, &mut reports).await;
        let ended = server.end().await;
        let stopped = stopped.map(drop);
        let gaps = watcher.map(StopWatcher::finish);
        let verdict = verdict?.and(ended).and(stopped);
        Ok(self.outcome(verdict, failed_at.as_ref(), gaps.as_deref()))
    }

    fn start(&self, clients: Vec<Client>, report: &Reporter, threads: &mut Threads) -> Result<(), RunError> {
        for (index, Client { deliver, cancel }) in clients.into_iter().enumerate() {
            threads.cancel.push(cancel);
            let (window, report) = (Arc::clone(&self.window), report.clone());
            let client = move || {
                // A panic is reported at once, not only when all threads are joined.
                let (connections, result) = match catch_unwind(AssertUnwindSafe(|| deliver(&window))) {
                    Ok((connections, result)) => (Some(connections), result.map_err(|error| error.failure(CLIENT))),
                    Err(panic) => (None, Err(Failure::of_panic("a client", panic.as_ref()))),
                };
                let _unheard = report.send(result);
                connections
            };
            let thread = thread::Builder::new().name(format!("client-{index}")).spawn(client);
            threads.running.push(thread.map_err(|source| {
                platform::Error::new(Class::Failed, "start", "a client thread", source)
                    .remedy("lower --parallel, or raise the limit on processes (ulimit -u)")
            })?);
        }
        Ok(())
    }

    /// Cancels the clients, and joins all threads, but for one that is stuck. Returns the connections.
    async fn stop(&self, threads: Threads, reports: &mut Reports) -> Result<Vec<Connections>, Failure> {
        self.window.cancel();
        for cancel in threads.cancel {
            cancel();
        }
        // Each thread has a sender of the reports until it ends.
        let all = async { while reports.recv().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
            let detail = "a client did not end when it was cancelled".to_owned();
            return Err(Failure { status: Status::Stalled, detail });
        }
        // A client catches its own panics.
        Ok(threads.running.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect())
    }

    /// Waits until every client and the server are done, until nothing that the figure needs is missing, or until something goes
    /// wrong.
    async fn race(
        &mut self,
        mut awaited: usize,
        server: &mut ServerSide,
        clients: &mut Reports,
        mut interrupts: Interrupts,
    ) -> Result<Result<(), Failure>, RunError> {
        let deadline = tokio::time::Instant::now() + self.timeout;
        let mut look = tokio::time::interval(LOOK);
        while awaited > 0 {
            let report = tokio::select! {
                biased;
                report = server.next() => report,
                Some(report) = clients.recv() => report,
                () = interrupts.next() => return Err(RunError::Interrupted),
                () = tokio::time::sleep_until(deadline) => {
                    self.look();
                    return Ok(Err(self.late()));
                }
                () = self.intervals.due(&self.window) => {
                    self.intervals.record(self.load.timed_bytes(), self.window.usage());
                    continue;
                }
                () = outage_due(self.outage.as_ref(), &self.window) => {
                    let arrived = self.load.arrived();
                    self.outage.as_mut().map_or(Ok(()), |outage| outage.step(arrived))?;
                    continue;
                }
                _ = look.tick() => {
                    if self.window.opened().is_some() {
                        self.readings.add(Instant::now(), self.load.timed_bytes());
                    }
                    self.look();
                    if self.is_drained() {
                        return Ok(Ok(()));
                    }
                    continue;
                }
            };
            match report {
                Ok(()) => awaited -= 1,
                Err(failure) => return Ok(Err(nearest_cause(failure, server, clients).await)),
            }
        }
        Ok(Ok(()))
    }

    fn look(&mut self) {
        let arrived = self.load.arrived();
        if arrived != self.progress.0 {
            self.progress = (arrived, Instant::now());
        }
    }

    fn is_drained(&self) -> bool {
        self.load.is_complete() && self.window.ended().is_some_and(|ended| ended.end.at.elapsed() >= DRAIN)
    }

    fn late(&self) -> Failure {
        let timeout = self.timeout.as_secs_f64();
        let Some((arrived, lower)) = self.load.progress() else {
            let detail = format!("the load did not end within {timeout} seconds");
            return Failure { status: Status::Timeout, detail };
        };
        let quiet = self.progress.1.elapsed();
        if quiet >= STALL {
            let quiet = quiet.as_secs_f64();
            let detail = self.until_then().unwrap_or_else(|| {
                format!("nothing arrived for the last {quiet:.1} of {timeout} seconds, after {arrived}")
            });
            Failure { status: Status::Stalled, detail }
        } else {
            let detail = format!("{arrived} had arrived after {timeout} seconds; raise --timeout, or lower {lower}");
            Failure { status: Status::Timeout, detail }
        }
    }

    /// How far the timed window had come when the last byte arrived, and the rate until then.
    fn until_then(&self) -> Option<String> {
        let passed = self.progress.1.checked_duration_since(self.window.opened()?.at)?.as_secs_f64();
        let rate = (passed > 0.0).then(|| self.load.timed_bytes() as f64 * 8e-9 / passed)?;
        Some(format!("{rate:.1} Gbps until {passed:.1} s, then nothing arrived"))
    }

    fn outcome(mut self, verdict: Result<(), Failure>, failed_at: Option<&Snapshot>, gaps: Option<&[Gap]>) -> Outcome {
        let Delivered { mut cost, end, clock, mut figures } = self.load.delivered();
        let clock = clock.filter(|_| verdict.is_ok());
        let ended = self.window.ended();
        if verdict.is_err() {
            // Perhaps not all clients have ended.
            (figures.bytes, figures.retransmits, cost) = (self.load.timed_bytes(), None, Cost::default());
        } else if let Some(ended) = ended.filter(|_| cost == Cost::default()) {
            cost = ended.cost;
        }
        let end = failed_at.copied().or(end).or(ended.map(|ended| ended.end));
        let window = self.window.opened().zip(end).map(|(begin, end)| Timed { begin, end });
        let elapsed = match &clock {
            Some(clock) => {
                self.intervals.count_by(&clock.parts);
                clock.elapsed
            }
            None => window.map_or(Duration::ZERO, Timed::length),
        };
        let usage = window.map(Timed::usage).unwrap_or_default();
        // Another program's bytes are not seen before its end.
        let opened = self.window.opened().filter(|_| verdict.is_ok() && clock.is_none());
        let thirds = opened.and_then(|opened| self.readings.parts(opened.at, elapsed, figures.bytes));
        let tenths = opened.and_then(|opened| self.readings.parts(opened.at, elapsed, figures.bytes));
        let stopped = window.zip(gaps).map(|(window, gaps)| stopped::time_in(gaps, window.begin.at, window.end.at));
        let (status, detail) = match verdict {
            Ok(()) => (Status::Ok, None),
            Err(failure) => (failure.status, Some(failure.detail)),
        };
        let measured = Measurements {
            status,
            detail,
            elapsed,
            stolen_share: window.and_then(Timed::stolen_share),
            throttled: window.and_then(Timed::throttled),
            stopped_seconds: seconds(stopped),
            thirds,
            tenths,
            intervals: self.intervals.finish(elapsed, figures.bytes, usage),
            recovery_seconds: seconds(self.outage.as_ref().and_then(Interruption::recovery)),
            ..figures
        };
        // Of a run that has failed before its window, the faults of the link may be the reason.
        let faults = failed_at.and_then(|read| read.counters.faults);
        let counters = window.map_or(Counters { faults, ..Counters::default() }, Timed::counters);
        Outcome { measured, cost, usage, counters }
    }
}

pub(super) fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// Waits for the next step of an outage, if there is one.
async fn outage_due(outage: Option<&Interruption>, window: &Window) {
    match outage {
        Some(outage) => outage.due(window).await,
        None => future::pending().await,
    }
}

/// The readings at the begin of the timed window, and when the last client ended.
#[derive(Clone, Copy)]
struct Timed {
    begin: Snapshot,
    end: Snapshot,
}

impl Timed {
    fn length(self) -> Duration {
        self.end.at - self.begin.at
    }

    fn usage(self) -> Usage {
        self.end.usage.since(self.begin.usage)
    }

    fn counters(self) -> Counters {
        self.end.counters.since(self.begin.counters)
    }

    fn stolen_share(self) -> Option<f64> {
        let stolen = difference(self.end.withheld.stolen, self.begin.withheld.stolen)?;
        // The kernel counts in ticks, so in a short window their sum may exceed the length of the window.
        (!self.length().is_zero()).then(|| stolen.div_duration_f64(self.length()).min(1.0))
    }

    /// A quota may have ended its first period within the window.
    fn throttled(self) -> Option<Throttled> {
        Some(self.end.withheld.throttled?.since(self.begin.withheld.throttled.unwrap_or_default()))
    }
}

/// Of the failures that come at about the same time, returns the one that explains the others.
async fn nearest_cause(first: Failure, server: &mut ServerSide, clients: &mut Reports) -> Failure {
    let mut cause = first;
    let deadline = tokio::time::Instant::now() + FAILURE_SETTLE;
    loop {
        let report = tokio::select! {
            // Reports first: a report that came before the deadline counts.
            biased;
            report = server.next() => report,
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
