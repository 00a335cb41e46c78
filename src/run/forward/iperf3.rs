//! The load of iperf3: a server in the far network and a client in the near one.
//!
//! The figures come from its JSON: the bytes that the receiver counted, and the time by its own clock. The usage of the
//! forwarder is measured from before the client starts until after it has ended. The extra time has no load, so it adds
//! next to nothing.

use std::io;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use platform::{Class, ProcessEnd};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::load::meter::Meter;
use crate::load::sockets::kernel;
use crate::load::window::Window;
use crate::load::{Clock, Delivered, Load};
use crate::remedy::WithRemedy;
use crate::run::error::RunError;
use crate::run::failure::{CLIENT, Failure};
use crate::run::networks::Networks;
use crate::run::prepared::Prepared;
use crate::run::process::{MAX_STDOUT, head, last_words, tail};
use crate::run::server_side::ServerSide;
use crate::sample::Status;
use crate::scenario::{Amount, Mode, Scenario};

const PORT: u16 = 5201;

/// How long its server may take until it listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

const PROGRAM: &str = "iperf3";

const MISSING: &str = "install it (the package iperf3), or leave out --generator iperf3";

/// The part of iperf3's JSON that is used here.
#[derive(Debug, Default, Deserialize)]
pub(in crate::run) struct Report {
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
    /// Its end, in seconds from the beginning.
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

/// Prepares iperf3 between addresses of the near and of the far network. `driver` ends if the path between them fails.
pub(super) async fn prepare(
    scenario: &Scenario,
    (near, far): (IpAddr, IpAddr),
    networks: &Networks,
    driver: impl Future<Output = Failure> + Send + 'static,
    meter: impl Meter,
) -> Result<Prepared, RunError> {
    let (_, congestion) = kernel::socket((far, PORT).into(), scenario.congestion.as_deref())?;
    let server = serve(far, networks).await?;
    let client = client(scenario, (near, far), congestion.as_deref());
    let mode = scenario.workload.mode();
    let window = Arc::new(Window::new(1, meter));
    let delivered = Arc::new(OnceLock::new());
    let task = {
        let (window, delivered) = (Arc::clone(&window), Arc::clone(&delivered));
        async move {
            // The end of this task drops the server, which kills it.
            let _server = server;
            window.wait().map_err(|error| Failure::of_transfer(CLIENT, &error))?;
            let report = finished(start(client).map_err(|error| failure(error.to_string()))?).await?;
            let end = Some(window.read());
            let _first = delivered.set(Delivered { end, ..report.delivered(mode)? });
            Ok(())
        }
    };
    let server = ServerSide::new(driver, task);
    Ok(Prepared { congestion, ..Prepared::new(Load::External(delivered), window, server) })
}

/// Starts the server in the far network, and waits until it listens.
async fn serve(address: IpAddr, networks: &Networks) -> Result<Child, RunError> {
    let mut command = Command::new(PROGRAM);
    command.args(["--server", "--one-off", "--forceflush", "--port"]).arg(PORT.to_string());
    command.arg("--bind").arg(address.to_string());
    let handle = Handle::current();
    let mut child = networks.far().run(move || {
        let _context = handle.enter();
        start(command)
    })??;
    // It prints something once it listens.
    let stdout = child.stdout.take().ok_or_else(|| failed("talk with", io::ErrorKind::BrokenPipe.into()))?;
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    let mut limited = (&mut stdout).take(MAX_STDOUT);
    if let Ok(Ok(1..)) = timeout(LISTEN_TIMEOUT, limited.read_until(b'\n', &mut line)).await {
        // The rest is read too, because a closed pipe would kill the server.
        tokio::spawn(async move { tail(Some(stdout)).await });
        return Ok(child);
    }
    let _ended = child.start_kill();
    let words = tail(child.stderr.take()).await.unwrap_or_default();
    let text = last_words("iperf3's server did not listen", &String::from_utf8_lossy(&words));
    Err(RunError::Process { class: Class::Failed, text })
}

fn client(scenario: &Scenario, (near, far): (IpAddr, IpAddr), congestion: Option<&str>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("--client").arg(far.to_string()).arg("--port").arg(PORT.to_string());
    command.arg("--bind").arg(near.to_string()).arg("--json");
    match scenario.amount {
        Amount::Time { time, .. } => command.arg("--time").arg(time.as_secs().to_string()),
        Amount::Bytes(bytes) => command.arg("--bytes").arg(bytes.to_string()),
    };
    command.arg("--parallel").arg(scenario.parallel.to_string());
    command.arg("--length").arg(scenario.buffer_bytes.to_string());
    if let Some(congestion) = congestion {
        command.arg("--congestion").arg(congestion);
    }
    match scenario.workload.mode() {
        Some(Mode::Reader) => drop(command.arg("--reverse")),
        Some(Mode::Both) => drop(command.arg("--bidir")),
        _ => {}
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

/// The report of the client, once it has ended.
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

impl Report {
    /// The figures of a run in this mode.
    pub(in crate::run) fn delivered(&self, mode: Option<Mode>) -> Result<Delivered, Failure> {
        let end = &self.end;
        let none = || failure("iperf3 did not report how much was received".to_owned());
        let received = end.sum_received.ok_or_else(none)?;
        let back = match mode {
            Some(Mode::Both) => Some(end.sum_received_bidir_reverse.ok_or_else(none)?),
            _ => None,
        };
        let read_bytes = back.map_or(0, |sum| sum.bytes);
        let seconds = received.seconds.max(back.map_or(0.0, |sum| sum.seconds));
        let elapsed = Duration::try_from_secs_f64(seconds).map_err(|_| none())?;
        let sent: Vec<_> =
            [end.sum_sent, end.sum_sent_bidir_reverse.filter(|_| back.is_some())].into_iter().flatten().collect();
        let parts = self.intervals.iter().filter_map(|part| {
            let bytes = part.sum.bytes.saturating_add(part.sum_bidir_reverse.map_or(0, |sum| sum.bytes));
            Some((Duration::try_from_secs_f64(part.sum.end).ok()?, bytes))
        });
        let percent = end.cpu_utilization_percent.map(|cpu| cpu.host_total + cpu.remote_total);
        Ok(Delivered {
            bytes: received.bytes.checked_add(read_bytes).ok_or_else(none)?,
            read_bytes,
            cpu: percent.and_then(|percent| Duration::try_from_secs_f64(percent / 100.0 * seconds).ok()),
            retransmits: (!sent.is_empty())
                .then(|| sent.iter().try_fold(0_u64, |all, sum| all.checked_add(sum.retransmits?)))
                .flatten(),
            clock: Some(Clock { elapsed, parts: parts.collect() }),
            ..Delivered::default()
        })
    }
}

#[cfg(test)]
mod tests;
