//! The child process that carries packets or connections for a run of its parent.

use std::io::{self, BufRead, Write};
use std::thread;

use conformance::{Ready, START, line};
use forwarders::{DevicePair, ForwardConfig, Forwarder};
use netstacks::StackKind;
use platform::{Class, Error, read_line};
use serde::Serialize;
use tokio::sync::oneshot;

use super::error::RunError;
use super::networks::NEAR;
use super::profile::profiled;
use super::protocol::{Answer, Carry, REPORT, Report};
use super::proxy::counts;
use super::runtime::runtime;
use super::serve::report;
use super::tun;
use crate::load::meter::Queues;
use crate::load::sockets::kernel;
use crate::proxy::{Config, Proxy};
use crate::scenario::{self, Cell, Devices, Scenario, Subject, Tun};

/// Carries until the end of `orders`.
///
/// # Errors
///
/// A device cannot be made or is lost, an order is unknown, or the answer cannot be written.
pub(super) fn carry(
    task: &Carry,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let scenario = &task.scenario;
    let title = Cell::planned(scenario).to_string();
    profiled(
        &title,
        scenario.profile.as_deref(),
        |()| true,
        || match (scenario.subject, &scenario.devices) {
            (Subject::Forward(scenario::Forwarder::Rust(config)), Devices::Pair { near, far }) => {
                let devices = DevicePair {
                    near: near.name.clone(),
                    far: far.name.clone(),
                    far_namespace: task.far_namespace.clone(),
                };
                forward(&devices, config, orders, output)
            }
            (Subject::Proxy(stack), Devices::Tun(tun)) => proxy(scenario, tun, stack, orders, output),
            (subject, _) => {
                let source = io::Error::new(io::ErrorKind::InvalidInput, "it carries nothing");
                Err(Error::new(Class::Invalid, "carry for", format!("the layer {}", subject.layer()), source).into())
            }
        },
    )
}

fn forward(
    devices: &DevicePair,
    config: ForwardConfig,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let forwarder = Forwarder::open(devices, &config)?;
    let counters = forwarder.counters();
    let stopper = forwarder.stopper();
    let control = Control { orders, output, report: move || Report { counts: counters.read(), ..Report::default() } };
    control.obey(Ready::default(), move || stopper.stop(), || Ok(forwarder.run()?))
}

fn proxy(
    scenario: &Scenario,
    tun: &Tun,
    stack: StackKind,
    orders: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), RunError> {
    let runtime = runtime(scenario.runtime, scenario.pin.as_ref())
        .map_err(|source| Error::new(Class::Failed, "start", "the runtime", source))?;
    let entered = runtime.enter();
    // A socket shows which congestion control the proxy gets.
    let (_, congestion) = kernel::socket((tun.network.peer, 0).into(), scenario.congestion.as_deref())?;
    let defaults = Config::new(NEAR);
    // Only half of the flows may wait for their servers.
    let holes = scenario.workload.requests().map_or(0, |requests| requests.blackholes);
    let max_flows = defaults.max_flows.max(2 * usize::from(scenario.parallel.get() + holes));
    // The network is the run's own.
    let datagram_buffer = Some(scenario.window_bytes);
    let window = scenario.window_bytes;
    let Scenario { repairs, stack_congestion, impairments, link_seed, .. } = *scenario;
    let config = Config {
        window,
        repairs,
        stack_congestion,
        datagram_buffer,
        max_flows,
        congestion,
        impairments,
        link_seed,
        report,
        ..defaults
    };
    let proxy = Proxy::new(config)?;
    let (mut devices, facts) = tun::open_shards(scenario, tun)?;
    let receiving = devices.iter().filter(|device| device.receives()).count();
    let shards = devices.len();
    let mut running = proxy.start(devices.remove(0), devices, stack)?;
    drop(entered);
    let ready = Ready { offload: facts.offload, effective: Some(running.effective().clone()) };
    let (traffic, faults) = (running.traffic(), running.faults());
    let queues = Queues::new(shards, receiving, running.passed_on());
    let report = move || Report {
        counts: counts(traffic.iter().map(|traffic| traffic.counts()).sum()),
        link: Some(faults.counts()),
        queues: queues.as_ref().map(Queues::facts),
    };
    let control = Control { orders, output, report };
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = async {
        tokio::select! {
            _ = stopped => Ok(()),
            ended = running.ended() => {
                let source = ended.err().unwrap_or_else(|| io::Error::other("the stack ended"));
                Err(Error::new(Class::Failed, "serve", &tun.name, source).into())
            }
        }
    };
    control.obey(ready, move || drop(stop), || runtime.block_on(serve))
}

/// Reads orders, and prints reports.
pub(super) struct Control<I, O, R> {
    pub(super) orders: I,
    pub(super) output: O,
    /// Returns the report so far.
    pub(super) report: R,
}

/// An order other than a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Start,
    Stop,
}

impl<I, O, R> Control<I, O, R>
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
    R: Fn() -> Report + Send + 'static,
{
    /// Prints that it is ready, waits for the order to start, and does the work. At the end of the orders it calls
    /// `stop`, which must end the work.
    pub(super) fn obey(
        mut self,
        ready: Ready,
        stop: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        self.say(&Answer::Ready(ready))?;
        if self.next()? == Order::Stop {
            return Ok(());
        }
        // If the work fails, this thread may still wait for an order. Then it ends with the process.
        let control = thread::spawn(move || {
            let end = self.until_end();
            stop();
            end
        });
        work()?;
        let panicked = |_| Err(failed("obey", io::Error::other("the thread that reads them panicked")));
        Ok(control.join().unwrap_or_else(panicked)?)
    }
}

impl<I: BufRead, O: Write, R: Fn() -> Report> Control<I, O, R> {
    fn next(&mut self) -> Result<Order, Error> {
        loop {
            let order = read_line(&mut self.orders).map_err(|error| failed("read", error))?;
            let Some(order) = order else { return Ok(Order::Stop) };
            match order.trim_end() {
                START => return Ok(Order::Start),
                REPORT => self.say(&(self.report)())?,
                other => {
                    let reason = format!("{other} is neither \"start\" nor \"report\"");
                    return Err(failed("obey", io::Error::new(io::ErrorKind::InvalidInput, reason)));
                }
            }
        }
    }

    /// Reads orders to their end. A second start has no effect.
    pub(super) fn until_end(&mut self) -> Result<(), Error> {
        while self.next()? == Order::Start {}
        Ok(())
    }

    fn say(&mut self, answer: &impl Serialize) -> Result<(), Error> {
        let written = self.output.write_all(line(answer).as_bytes()).and_then(|()| self.output.flush());
        written.map_err(|error| failed("answer", error))
    }
}

fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::new(Class::Failed, operation, "the orders of the parent process", source)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn control(orders: &str) -> Control<&[u8], Vec<u8>, impl Fn() -> Report + use<>> {
        let report = || {
            let mut report = Report::default();
            report.counts.to_far.read_packets = 7;
            report
        };
        Control { orders: orders.as_bytes(), output: Vec::new(), report }
    }

    #[test]
    fn orders_are_obeyed_one_after_the_other() {
        let mut control = control("\"report\"\n\"start\"\n\"report\"\n");
        assert_eq!(control.next().unwrap(), Order::Start);
        assert_eq!(control.next().unwrap(), Order::Stop);
        assert_eq!(control.next().unwrap(), Order::Stop, "the end stays the end");
        let answers = String::from_utf8(control.output).unwrap();
        let reports: Vec<Report> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0].counts.to_far.read_packets, 7);
    }

    #[test]
    fn an_unknown_order_is_an_error() {
        assert_eq!(
            control("\"start\"\n\"reprot\"\n").until_end().unwrap_err().to_string(),
            "obey the orders of the parent process: \"reprot\" is neither \"start\" nor \"report\""
        );
    }

    /// An empty line is an error. It does not stop a forwarder as the end of the orders would.
    #[test]
    fn an_empty_line_is_not_the_end() {
        assert!(control("\n\"start\"\n").next().is_err());
    }
}
