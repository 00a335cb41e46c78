//! The load of iperf3: a server in the far network and a client in the near one.
//!
//! The figures come from its JSON: the bytes that the receiver counted, and the time by its own clock. The usage of the
//! forwarder is measured from before the client starts until after it has ended.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use platform::{Child, Class, Namespace, ProcessEnd, Worker, last_words};
use serde::Deserialize;

use super::sockets::kernel;
use super::window::Window;
use super::{Clock, Delivered, Figures};
use crate::cell::Mode;
use crate::error::RunError;
use crate::failure::{CLIENT, Failure};
use crate::meter::Cost;
use crate::plan::scenario::{Amount, Scenario};
use crate::remedy::WithRemedy;
use crate::sample::{Measurements, Status};

const PORT: u16 = 5201;

/// How long its server may take until it listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

const PROGRAM: &str = "iperf3";

const MISSING: &str = "install it (the package iperf3), or leave out --generator iperf3";

/// The part of iperf3's JSON that is used here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Report {
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

/// The figures of iperf3, once it has ended. Nothing is seen of it before.
#[derive(Default)]
struct Reported(OnceLock<Delivered>);

impl Figures for Reported {
    /// A task waits for its end.
    fn awaited(&self) -> Option<usize> {
        Some(0)
    }

    fn arrived(&self) -> u64 {
        0
    }

    fn timed_bytes(&self) -> u64 {
        0
    }

    fn progress(&self) -> Option<(String, &'static str)> {
        None
    }

    fn delivered(&self) -> Delivered {
        self.0.get().cloned().unwrap_or_default()
    }
}

pub(crate) struct Iperf3 {
    /// Dropping it kills the server.
    _server: Child,
    client: Command,
    mode: Option<Mode>,
    reported: Arc<Reported>,
    pub(crate) congestion: Option<String>,
}

impl Iperf3 {
    /// Starts the server in the far network. The addresses are of the near and of the far network.
    pub(crate) async fn start(
        scenario: &Scenario,
        (near, far): (IpAddr, IpAddr),
        network: &Namespace,
    ) -> Result<Self, RunError> {
        let (_, congestion) = kernel::socket((far, PORT).into(), scenario.congestion.as_deref())?;
        Ok(Self {
            _server: serve(far, network).await?,
            client: client(scenario, (near, far), congestion.as_deref()),
            mode: scenario.cell.mode,
            reported: Arc::default(),
            congestion,
        })
    }

    pub(crate) fn figures(&self) -> Arc<dyn Figures> {
        Arc::clone(&self.reported) as Arc<dyn Figures>
    }

    pub(crate) async fn run(self, window: Arc<Window>) -> Result<(), Failure> {
        window.wait().map_err(|error| error.failure(CLIENT))?;
        let report = report(self.client).await?;
        let end = Some(window.read());
        let _first = self.reported.0.set(Delivered { end, ..report.delivered(self.mode)? });
        Ok(())
    }
}

async fn serve(address: IpAddr, network: &Namespace) -> Result<Child, RunError> {
    let mut command = Command::new(PROGRAM);
    command.args(["--server", "--one-off", "--forceflush", "--port"]).arg(PORT.to_string());
    command.arg("--bind").arg(address.to_string());
    let (mut server, _) = Worker::converse(command, Some(network), "").map_err(no_start)?;
    // It prints something once it listens.
    if server.first_line(LISTEN_TIMEOUT).await.is_some() {
        return Ok(server.into_process());
    }
    let words = server.into_process().kill().await.map(|end| end.stderr.clone()).unwrap_or_default();
    Err(RunError::Process { class: Class::Failed, text: last_words("iperf3's server did not listen", &words) })
}

fn client(scenario: &Scenario, (near, far): (IpAddr, IpAddr), congestion: Option<&str>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("--client").arg(far.to_string()).arg("--port").arg(PORT.to_string());
    command.arg("--bind").arg(near.to_string()).arg("--json");
    match scenario.amount {
        Amount::Time { time, .. } => command.arg("--time").arg(time.as_secs().to_string()),
        Amount::Bytes(bytes) => command.arg("--bytes").arg(bytes.to_string()),
    };
    command.arg("--parallel").arg(scenario.cell.parallel.to_string());
    command.arg("--length").arg(scenario.cell.buffer_len().to_string());
    if let Some(congestion) = congestion {
        command.arg("--congestion").arg(congestion);
    }
    match scenario.cell.mode {
        Some(Mode::Reader) => drop(command.arg("--reverse")),
        Some(Mode::Both) => drop(command.arg("--bidir")),
        _ => {}
    }
    command
}

fn no_start(source: io::Error) -> RunError {
    match source.kind() {
        io::ErrorKind::NotFound => {
            platform::Error::new(Class::Unavailable, "start", PROGRAM, source).remedy(MISSING).into()
        }
        _ => platform::Error::new(Class::Failed, "start", PROGRAM, source).into(),
    }
}

async fn report(mut client: Command) -> Result<Report, Failure> {
    platform::end_with_this_thread(&mut client);
    let client = Child::start(client, "").map_err(|source| failure(no_start(source).to_string()))?;
    let Some(end) = client.ended().await else { return Err(failure("iperf3: it is lost".to_owned())) };
    match serde_json::from_slice::<Report>(&end.stdout) {
        Ok(Report { error: Some(words), .. }) => Err(failure(format!("iperf3: {words}"))),
        Ok(report) if end.by == ProcessEnd::Exited(0) => Ok(report),
        _ => Err(failure(end.told("client of iperf3"))),
    }
}

fn failure(detail: String) -> Failure {
    Failure { status: Status::Reset, detail }
}

impl Report {
    pub(crate) fn delivered(&self, mode: Option<Mode>) -> Result<Delivered, Failure> {
        let end = &self.end;
        let none = || failure("iperf3 did not report how much was received".to_owned());
        let received = end.sum_received.ok_or_else(none)?;
        let back = match mode {
            Some(Mode::Both) => Some(end.sum_received_bidir_reverse.ok_or_else(none)?),
            _ => None,
        };
        let bytes = received.bytes.checked_add(back.map_or(0, |sum| sum.bytes)).ok_or_else(none)?;
        let seconds = received.seconds.max(back.map_or(0.0, |sum| sum.seconds));
        let elapsed = Duration::try_from_secs_f64(seconds).map_err(|_| none())?;
        let sent: Vec<_> =
            [end.sum_sent, end.sum_sent_bidir_reverse.filter(|_| back.is_some())].into_iter().flatten().collect();
        let parts = self.intervals.iter().filter_map(|part| {
            let bytes = part.sum.bytes.saturating_add(part.sum_bidir_reverse.map_or(0, |sum| sum.bytes));
            Some((Duration::try_from_secs_f64(part.sum.end).ok()?, bytes))
        });
        let retransmits = sent.iter().try_fold(0_u64, |all, sum| all.checked_add(sum.retransmits?));
        let retransmits = retransmits.filter(|_| !sent.is_empty());
        let percent = end.cpu_utilization_percent.map(|cpu| cpu.host_total + cpu.remote_total);
        let cpu = percent.and_then(|percent| Duration::try_from_secs_f64(percent / 100.0 * seconds).ok());
        Ok(Delivered {
            cost: Cost { cpu, ..Cost::default() },
            figures: Measurements {
                bytes,
                bytes_back: back.map(|sum| sum.bytes),
                retransmits,
                ..Measurements::default()
            },
            clock: Some(Clock { elapsed, parts: parts.collect() }),
            ..Delivered::default()
        })
    }
}

#[cfg(test)]
mod tests;
