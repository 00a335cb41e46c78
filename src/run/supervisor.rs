//! Races the parties of a run against each other, the user and the clock, and joins every one.

use std::any::Any;
use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netstacks::Listener;
use platform::{Class, Interrupts, PacketCounts};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::RunError;
use super::client::{self, Finish};
use super::server;
use super::transfer::{Lane, Reading, StartingGate, TransferError, difference};
use crate::plan::{Mode, Scenario};
use crate::sample::Status;

/// Nothing has arrived for so long: the run is not slow, it stands still.
const STALL: Duration = Duration::from_secs(1);

/// How often it is looked at what has arrived.
const LOOK: Duration = Duration::from_millis(250);

/// After one party has failed, the others may have the better reason for it.
const AFTERMATH: Duration = Duration::from_millis(100);

/// A task that is told to end does so when it is polled next. One that does not is stuck.
const PARTING: Duration = Duration::from_secs(5);

/// How the two ends of a stream are called in a failure's detail.
const SERVER: &str = "server";
const CLIENT: &str = "client";

/// A handshake within one host takes so long only where nobody answers.
const CONNECT: Duration = Duration::from_secs(10);

/// The congestion control that a client gets where the user names none and the kernel has it.
const CONGESTION: &str = "cubic";

type Reporter = mpsc::UnboundedSender<Result<(), Failure>>;
type Reports = mpsc::UnboundedReceiver<Result<(), Failure>>;

/// What came of the delivery.
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) detail: Option<String>,
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) client_cpu: Option<Duration>,
    pub(super) stack_cpu: Option<Duration>,
    pub(super) retransmits: Option<u64>,
    pub(super) device_drops: Option<u64>,
    pub(super) packets: PacketCounts,
    pub(super) congestion: Option<String>,
}

/// Something that ended the run before its time.
#[derive(Debug)]
struct Failure {
    status: Status,
    detail: String,
}

impl Failure {
    fn of_transfer(who: &str, error: &TransferError) -> Self {
        Self { status: error.status(), detail: format!("{who}: {error}") }
    }

    fn of_panic(who: &str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { status: Status::Panicked, detail: format!("{who} panicked: {}", text.unwrap_or_default()) }
    }

    fn of_join(who: &str, error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(panic) => Self::of_panic(who, panic.as_ref()),
            Err(error) => Self { status: Status::Panicked, detail: format!("{who}: {error}") },
        }
    }

    /// How near a failure is to the cause: a dead stack resets connections, not the other way round,
    /// and what the stack's side sees of a broken stream is told before what the kernel makes of it.
    fn weight(&self) -> (u8, bool) {
        let severity = match self.status {
            Status::Panicked => 3,
            Status::DeviceLost => 2,
            Status::Corrupt => 1,
            _ => 0,
        };
        (severity, self.detail.starts_with(SERVER))
    }
}

/// The stack's side of a run: its driver and its server, on the runtime under test.
pub(super) struct Party {
    /// `None` once it has ended.
    driver: Option<JoinHandle<io::Result<()>>>,
    /// `None` once it has ended.
    server: Option<JoinHandle<Result<(), Failure>>>,
}

impl Party {
    /// Starts the driver, and a server that serves one connection for each lane.
    pub(super) fn spawn<Li: Listener>(
        listener: Li,
        driver: impl Future<Output = io::Result<()>> + Send + 'static,
        mode: Mode,
        lanes: Arc<[Lane]>,
        lane_of: fn(&Li::Stream) -> Option<usize>,
    ) -> Self {
        let driver = Some(tokio::spawn(driver));
        let server = Some(tokio::spawn(serve_all(listener, mode, lanes, lane_of)));
        Self { driver, server }
    }

    /// Waits until the server is done, or either fails; for ever, once both have ended.
    async fn next(&mut self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            result = ended(&mut self.driver) => Err(match result {
                Ok(Ok(())) => Failure { status: Status::DeviceLost, detail: "the stack ended by itself".to_owned() },
                Ok(Err(error)) => {
                    Failure { status: Status::DeviceLost, detail: format!("the stack or its device: {error}") }
                }
                Err(error) => Failure::of_join("the stack", error),
            }),
            result = ended(&mut self.server) => match result {
                Ok(result) => result,
                Err(error) => Err(Failure::of_join("the server", error)),
            },
        }
    }

    /// Ends both and waits for it. A panic on the way is a failure, too.
    async fn end(self) -> Result<(), Failure> {
        let driver = end("the stack", self.driver).await;
        let server = end("the server", self.server).await;
        driver.and(server)
    }
}

/// The end of a task, which is taken note of; never that of one that has ended before.
async fn ended<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(running) => {
            let result = running.await;
            *task = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// Ends a task, if it has not ended before, and waits for it.
async fn end<T>(who: &str, task: Option<JoinHandle<T>>) -> Result<(), Failure> {
    let Some(task) = task else { return Ok(()) };
    task.abort();
    match tokio::time::timeout(PARTING, task).await {
        Ok(Err(error)) if error.is_panic() => Err(Failure::of_join(who, error)),
        Ok(_) => Ok(()),
        Err(_) => Err(Failure { status: Status::Stalled, detail: format!("{who} did not end when it was told to") }),
    }
}

/// Accepts a connection for each lane and serves it, until all have been served or one has failed.
async fn serve_all<Li: Listener>(
    mut listener: Li,
    mode: Mode,
    lanes: Arc<[Lane]>,
    lane_of: fn(&Li::Stream) -> Option<usize>,
) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let mut awaited = lanes.len();
    while awaited > 0 || !tasks.is_empty() {
        tokio::select! {
            stream = listener.accept(), if awaited > 0 => {
                let stream = stream.map_err(|error| {
                    Failure::of_transfer(SERVER, &TransferError::Io { operation: "accept", source: error })
                })?;
                // The run's own network has nobody else in it; the host's may, and they are ignored.
                let Some(index) = lane_of(&stream).filter(|index| *index < lanes.len()) else { continue };
                awaited -= 1;
                let lanes = Arc::clone(&lanes);
                tasks.spawn(async move { server::serve(stream, mode, &lanes[index]).await });
            }
            Some(result) = tasks.join_next() => match result {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Failure::of_transfer(SERVER, &error)),
                Err(error) => return Err(Failure::of_join("the server", error)),
            },
        }
    }
    Ok(())
}

/// A run whose sockets exist and whose clients have not begun.
pub(super) struct Delivery {
    mode: Mode,
    timeout: Duration,
    lanes: Arc<[Lane]>,
    gate: Arc<StartingGate>,
    target: SocketAddr,
    sockets: Vec<Arc<TcpStream>>,
    congestion: Option<String>,
}

impl Delivery {
    /// Makes a socket for each lane; the lanes' connections go to consecutive ports from `target`.
    pub(super) fn new(
        scenario: &Scenario,
        mode: Mode,
        lanes: Arc<[Lane]>,
        gate: StartingGate,
        target: SocketAddr,
    ) -> Result<Self, RunError> {
        let mut congestion = None;
        let mut sockets = Vec::with_capacity(lanes.len());
        for _ in 0..lanes.len() {
            let (socket, name) = socket(target, scenario.congestion.as_deref())?;
            congestion = name;
            sockets.push(Arc::new(socket));
        }
        let timeout = scenario.timeout;
        Ok(Self { mode, timeout, lanes, gate: Arc::new(gate), target, sockets, congestion })
    }

    /// Runs the clients against the stack's side until all is delivered or something has failed.
    /// Nobody is left running, whatever comes of it.
    pub(super) async fn supervise(self, mut party: Party, interrupts: Interrupts) -> Result<Outcome, RunError> {
        let (report, mut reports) = mpsc::unbounded_channel();
        let mut threads = Vec::with_capacity(self.sockets.len());
        let started = self.start_clients(&report, &mut threads);
        drop(report);
        let verdict = match started {
            Ok(()) => self.race(&mut party, &mut reports, interrupts).await,
            Err(error) => Err(error),
        };
        let finishes = self.stop_clients(threads);
        let ended = party.end().await;
        let verdict = verdict?.and(ended);
        Ok(self.outcome(verdict, &finishes))
    }

    fn start_clients(
        &self,
        report: &Reporter,
        threads: &mut Vec<thread::JoinHandle<Option<Finish>>>,
    ) -> Result<(), RunError> {
        for (index, socket) in self.sockets.iter().enumerate() {
            let (socket, lanes, gate) = (Arc::clone(socket), Arc::clone(&self.lanes), Arc::clone(&self.gate));
            let (mode, timeout, report) = (self.mode, self.timeout, report.clone());
            let target = SocketAddr::new(self.target.ip(), self.target.port() + index as u16);
            let client = move || {
                let work = || {
                    connect(&socket, target, timeout).and_then(|()| client::run(&socket, mode, &lanes[index], &gate))
                };
                // A panic is to be told at once, and not when everybody is joined.
                let result = match catch_unwind(AssertUnwindSafe(work)) {
                    Ok(result) => result.map_err(|error| Failure::of_transfer(CLIENT, &error)),
                    Err(panic) => Err(Failure::of_panic("a client", panic.as_ref())),
                };
                let finish = result.as_ref().ok().copied();
                let _unheard = report.send(result.map(drop));
                finish
            };
            let thread = thread::Builder::new().name(format!("client-{index}")).spawn(client);
            threads.push(thread.map_err(|source| {
                platform::Error::new(Class::Failed, "start", "a client thread", source)
                    .remedy("lower --parallel, or raise the limit on processes (ulimit -u)")
            })?);
        }
        Ok(())
    }

    /// Ends what still waits, for the gate or at a socket, and joins all.
    fn stop_clients(&self, threads: Vec<thread::JoinHandle<Option<Finish>>>) -> Vec<Finish> {
        self.gate.cancel();
        for socket in &self.sockets {
            // A socket that was never connected cannot be shut down, and need not be.
            let _unconnected = socket.shutdown(Shutdown::Both);
        }
        // A client catches its own panics.
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    }

    /// Waits until every client and the server are done, or for the first thing that goes wrong.
    async fn race(
        &self,
        party: &mut Party,
        clients: &mut Reports,
        mut interrupts: Interrupts,
    ) -> Result<Result<(), Failure>, RunError> {
        let deadline = tokio::time::Instant::now() + self.timeout;
        let mut look = tokio::time::interval(LOOK);
        let mut progress = Progress::default();
        let mut awaited = self.sockets.len() + 1;
        while awaited > 0 {
            let report = tokio::select! {
                biased;
                report = party.next() => report,
                Some(report) = clients.recv() => report,
                () = interrupts.next() => return Err(RunError::Interrupted),
                () = tokio::time::sleep_until(deadline) => return Ok(Err(self.late(&progress))),
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

    fn outcome(self, verdict: Result<(), Failure>, finishes: &[Finish]) -> Outcome {
        let opened = self.gate.opened();
        let end = finishes.iter().map(|finish| finish.end).max_by_key(|end| end.at);
        let (status, detail) = match verdict {
            Ok(()) => (Status::Ok, None),
            Err(failure) => (failure.status, Some(failure.detail)),
        };
        let complete = status == Status::Ok;
        let warmup: u64 = self.lanes.iter().map(|lane| lane.warmup_bytes).sum();
        let bytes = if complete {
            finishes.iter().map(|finish| finish.bytes).sum()
        } else {
            self.arrived().saturating_sub(warmup)
        };
        let end = end.filter(|_| complete).unwrap_or_else(|| self.gate.read());
        let window = opened.map(|begin| Window { begin, end });
        let client_cpu = sum(finishes.iter().map(|finish| finish.cpu)).filter(|_| complete);
        let process_cpu = window.and_then(|window| difference(window.end.cpu, window.begin.cpu));
        Outcome {
            status,
            detail,
            bytes,
            elapsed: window.map_or(Duration::ZERO, |window| window.end.at - window.begin.at),
            client_cpu,
            stack_cpu: difference(process_cpu, client_cpu),
            retransmits: sum(finishes.iter().map(|finish| finish.retransmits)).filter(|_| complete),
            device_drops: window.and_then(|window| Some(window.end.drops?.saturating_sub(window.begin.drops?))),
            packets: window.map(|window| window.end.packets.since(window.begin.packets)).unwrap_or_default(),
            congestion: self.congestion,
        }
    }
}

/// The timed window, from the opening of the gate to the last client's end.
#[derive(Clone, Copy)]
struct Window {
    begin: Reading,
    end: Reading,
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

/// A socket with its congestion control, and that one's name where the system says.
fn socket(target: SocketAddr, congestion: Option<&str>) -> Result<(TcpStream, Option<String>), RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "the client's socket", source);
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    // The go and the acknowledgement are not to wait for anything.
    socket.set_tcp_nodelay(true).map_err(failed)?;
    let socket = TcpStream::from(socket);
    let name = match platform::set_congestion_control(&socket, congestion.unwrap_or(CONGESTION)) {
        Ok(()) => Some(congestion.unwrap_or(CONGESTION).to_owned()),
        Err(_) if congestion.is_none() => platform::default_congestion_control(),
        Err(source) => {
            let object = format!("congestion control {}", congestion.unwrap_or_default());
            return Err(platform::Error::new(Class::Unavailable, "set", object, source)
                .remedy(
                    "see sysctl net.ipv4.tcp_available_congestion_control, load it with modprobe tcp_NAME, \
                         or leave out --congestion",
                )
                .into());
        }
    };
    Ok((socket, name))
}

fn connect(socket: &TcpStream, target: SocketAddr, timeout: Duration) -> Result<(), TransferError> {
    SockRef::from(socket)
        .connect_timeout(&target.into(), timeout.min(CONNECT))
        .map_err(TransferError::io("connect to the stack"))
}

#[cfg(test)]
mod tests;
