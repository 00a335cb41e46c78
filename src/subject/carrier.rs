//! The process that carries packets or connections between two networks: its start, its control and its end.

use std::io;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use conformance::Ready;
use forwarders::{Carried, Counts};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use platform::{
    Child, Class, Conversation, End, Interrupts, Namespace, NotReady, PARENT, PacketCounts, ProcessEnd, ProcessMeter,
    Program, Worker,
};
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::error::RunError;
use crate::failure::Failure;
use crate::meter::{Cost, Counters, Meter, Usage};
use crate::profile::FoldedStacks;
use crate::protocol::{CHILD, Message, Task};
use crate::remedy::WithRemedy;
use crate::sample::Status;

/// How long a carrier may take to end, and how long if it has to draw a flame graph.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
const DRAW_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct CarrierProgram {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// The first line of its standard input. Empty if it takes its task as arguments.
    pub(crate) task: String,
    /// Whether it writes a profile before it ends.
    pub(crate) has_profile: bool,
    /// The profile, if this process must draw the graph.
    pub(crate) stacks: Option<FoldedStacks>,
}

impl CarrierProgram {
    /// A child process of this program with any task that has orders.
    pub(crate) fn with_task(name: &'static str, task: Task) -> Self {
        Self {
            name,
            program: Program { path: platform::this_program(), arguments: vec![CHILD.to_owned()] },
            has_profile: false,
            task: Message::line(task),
            stacks: None,
        }
    }
}

/// A running carrier. [`Carrier::finish`] ends it, and the end of the runtime kills it.
pub(crate) struct Carrier {
    name: &'static str,
    process: Child,
    control: Arc<Conversation>,
    has_profile: bool,
    stacks: Option<FoldedStacks>,
}

impl Carrier {
    /// Starts a carrier in the calling thread's network or in `network`, and waits until its devices exist. Must be
    /// called within a runtime, by a thread that outlives the carrier.
    pub(crate) async fn start(
        program: CarrierProgram,
        network: Option<&Namespace>,
        interrupts: &mut Interrupts,
    ) -> Result<(Self, Ready), RunError> {
        let CarrierProgram { name, program, task, has_profile, stacks } = program;
        let object = format!("the {name} ({})", program.path.display());
        let failed = |source: io::Error| {
            let is_missing = matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
            let class = if is_missing { Class::Unavailable } else { Class::Failed };
            let error = platform::Error::new(class, "start", object, source);
            error.remedy("see that this program is there and may be executed")
        };
        let mut command = program.command();
        command.env(PARENT, process::id().to_string());
        let (worker, control) = Worker::converse(command, network, task).map_err(failed)?;
        match worker.ready(interrupts.next()).await {
            Ok((process, ready)) => {
                Ok((Self { name, process, control: Arc::new(control), has_profile, stacks }, ready))
            }
            Err(NotReady::Cancelled) => Err(RunError::Interrupted),
            Err(NotReady::Ended(end)) => Err(error(name, &end)),
            Err(reason) => {
                let source = io::Error::new(io::ErrorKind::TimedOut, reason.to_string());
                Err(platform::Error::new(Class::Failed, "start", format!("the {name}"), source).into())
            }
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn begin(&self) {
        // Its end is noticed elsewhere.
        let _ended = self.process.begin();
    }

    pub(crate) fn control(&self) -> Arc<Conversation> {
        Arc::clone(&self.control)
    }

    /// A meter of the cost of its process, seen from outside. `count` reads what it carries.
    pub(crate) fn meter<F: Fn() -> Counters + Send + Sync + 'static>(&self, count: F) -> CarrierMeter<F> {
        CarrierMeter { process: self.process(), count }
    }

    /// A meter that asks the carrier for its counts, too. `carried` selects those of the payload's direction.
    pub(crate) fn reporting_meter(
        &self,
        carried: fn(&Counts) -> Carried,
        drops: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> impl Meter {
        let control = self.control();
        self.meter(move || counters(control.report(), carried, drops()))
    }

    pub(crate) fn process(&self) -> ProcessMeter {
        self.process.meter()
    }

    /// Its counts so far; `None` if it does not report in time.
    pub(crate) async fn report<R: DeserializeOwned + Send + 'static>(&self) -> Option<R> {
        let control = self.control();
        spawn_blocking(move || control.report()).await.ok()?
    }

    /// Waits until the carrier ends. If it ends by itself, that is a failure.
    pub(crate) fn ended(&self) -> BoxFuture<'static, Failure> {
        let (name, ended) = (self.name, self.process.ended());
        async move {
            let Some(end) = ended.await else {
                return Failure { status: Status::Panicked, detail: format!("the {name} is lost") };
            };
            // A carrier that loses its device prints an error.
            let status = if end.stated_error().is_some() { Status::DeviceLost } else { Status::Panicked };
            Failure { status, detail: end.told(name) }
        }
        .boxed()
    }

    /// Ends the carrier after a run. If the run succeeded and has a profile, the profile is written.
    pub(crate) async fn finish(self, succeeded: bool) -> Result<(), RunError> {
        let Self { name, process, has_profile, stacks, .. } = self;
        let end = process.stop(if has_profile { DRAW_TIMEOUT } else { SHUTDOWN_TIMEOUT }).await;
        if !(succeeded && has_profile) {
            return Ok(());
        }
        match end {
            Some(end) if end.by == ProcessEnd::Exited(0) => Ok(stacks.map_or(Ok(()), FoldedStacks::draw)?),
            Some(end) => Err(error(name, &end)),
            None => Err(RunError::Process { class: Class::Failed, text: format!("the {name} does not end") }),
        }
    }
}

/// The error that a process printed; without one, how it ended.
fn error(name: &str, end: &End) -> RunError {
    RunError::stated(end).unwrap_or_else(|| RunError::Process { class: Class::Failed, text: end.told(name) })
}

/// Measures the cost of a carrier from outside, and counts the packets that it carries.
pub(crate) struct CarrierMeter<F> {
    process: ProcessMeter,
    count: F,
}

impl<F: Fn() -> Counters + Send + Sync + 'static> Meter for CarrierMeter<F> {
    fn usage(&self) -> Usage {
        let Self { process, .. } = self;
        Usage { own: Cost::of_process(), carrier_cpu: process.cpu(), carrier_rss_bytes: process.rss_bytes() }
    }

    fn counters(&self) -> Counters {
        let counters = (self.count)();
        Counters {
            carrier_peak_rss_bytes: self.process.peak_rss_bytes(),
            carrier_switches: self.process.switches(),
            ..counters
        }
    }
}

/// The counters of a carrier that made this report, between devices that dropped so many packets.
pub(crate) fn counters(report: Option<Counts>, carried: fn(&Counts) -> Carried, drops: Option<u64>) -> Counters {
    let Some(counts) = report else { return Counters::default() };
    let lost = counts.to_far.lost_packets.saturating_add(counts.to_near.lost_packets);
    let carried = carried(&counts);
    let packets = PacketCounts {
        rx_packets: carried.read_packets,
        rx_bytes: carried.read_bytes,
        tx_packets: carried.written_packets,
        tx_bytes: carried.written_bytes,
    };
    Counters {
        packets: Some(packets),
        drops: drops.map(|drops| drops.saturating_add(lost)),
        reordered: carried.reordered,
        ..Counters::default()
    }
}
