//! Runs each scenario in a process of its own, a child of this one.
//!
//! There are three reasons: the largest resident set is a figure of a whole process, lwIP and the namespaces allow only
//! one run for each process, and a crash of C code must not lose the results of other runs.

use std::future;
use std::io;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use platform::{Child, Class, End, Interrupts, KeptDevice, PARENT, ProcessEnd, ending, last_words};
use tokio::runtime::{Builder, Runtime};
use tokio::task;
use tokio::time::timeout;

use super::executor::Executor;
use crate::cell::Subject;
use crate::error::RunError;
use crate::plan::scenario::{Devices, Scenario};
use crate::protocol::{self, CHILD, Greeting, Message, Task};
use crate::remedy::WithRemedy;
use crate::sample::{self, Environment, Measurements, Sample, Status};
use crate::subject::go;

/// How long a process may take beyond its run's timeout by default: to start, and to end its tasks and threads.
const GRACE: Duration = Duration::from_secs(25);

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process may take to end what it has started, such as programs in its networks, after it was asked to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// In a terminal, an interrupt is for this process and its child. This process may get it this much later.
const ECHO: Duration = Duration::from_millis(200);

const INTERRUPTED: i32 = 130;

/// Runs each scenario in a process of its own. That process has ended when a call returns.
#[derive(Debug)]
pub struct ProcessExecutor {
    program: PathBuf,
    grace: Duration,
    watch: Mutex<Option<Watch>>,
    kept: Arc<Mutex<Option<KeptDevice>>>,
}

/// Waits for processes and for the user. It is kept from run to run, so that no interrupt between two runs is lost.
#[derive(Debug)]
struct Watch {
    runtime: Runtime,
    interrupts: Interrupts,
}

impl ProcessExecutor {
    /// Runs scenarios with this program.
    pub fn this_program() -> Self {
        Self::new(platform::this_program())
    }

    /// Runs scenarios with another build of this program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), grace: GRACE, watch: Mutex::default(), kept: Arc::default() }
    }

    /// Shares the device that is kept for the processes with other executors.
    #[must_use]
    pub fn sharing(self, kept: &Arc<Mutex<Option<KeptDevice>>>) -> Self {
        Self { kept: Arc::clone(kept), ..self }
    }

    /// Sets how long a process may take beyond the timeout of its run, or to describe itself, before it is ended.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Asks the program for its environment.
    pub fn hello(&self) -> Result<Environment, RunError> {
        let program = self.program.display().to_string();
        let limit = HELLO_TIMEOUT.min(self.grace);
        let Some(end) = self.child(&[CHILD.to_owned()], &Message::line(Task::Hello), limit)? else {
            let text = format!("{program} did not say what it is within {} s", limit.as_secs_f64());
            return Err(RunError::Process { class: Class::Failed, text });
        };
        let greeting: Greeting = protocol::parse(&String::from_utf8_lossy(&end.stdout), &program)?;
        Ok(greeting.environment)
    }

    /// Starts the program with these arguments and standard input, and waits for its end; `None` if it had to be killed.
    fn child(&self, arguments: &[String], input: &str, limit: Duration) -> Result<Option<Arc<End>>, RunError> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = match &mut *watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        let Watch { runtime, interrupts } = watch;
        runtime.block_on(self.attend(arguments, input, limit, interrupts))
    }

    async fn attend(
        &self,
        arguments: &[String],
        input: &str,
        limit: Duration,
        interrupts: &mut Interrupts,
    ) -> Result<Option<Arc<End>>, RunError> {
        // Lets the reactor see an interrupt that came between two runs.
        task::yield_now().await;
        tokio::select! {
            biased;
            () = interrupts.next() => return Err(RunError::Interrupted),
            () = future::ready(()) => {}
        }
        let mut command = Command::new(&self.program);
        command.args(arguments).env(PARENT, process::id().to_string());
        if let Some(kept) = &*self.kept() {
            kept.hand_to(&mut command);
        }
        let child = Child::start(command, input).map_err(|source| self.error(source))?;
        tokio::select! {
            biased;
            () = interrupts.next() => {
                child.terminate(SHUTDOWN_TIMEOUT).await;
                Err(RunError::Interrupted)
            }
            end = timeout(limit, child.ended()) => match end.ok().flatten() {
                Some(end) if is_interrupted(&end) && timeout(ECHO, interrupts.next()).await.is_ok() => {
                    Err(RunError::Interrupted)
                }
                Some(end) => Ok(Some(end)),
                None => {
                    child.terminate(SHUTDOWN_TIMEOUT).await;
                    Ok(None)
                }
            },
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<KeptDevice>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the device of a scenario, if it has one and the system needs that.
    fn keep_device(&self, scenario: &Scenario) -> Result<(), RunError> {
        let mut kept = self.kept();
        if let (Subject::Path(_), Devices::Tun(tun)) = (scenario.cell.subject(), &scenario.devices)
            && tun.fd.is_none()
            && kept.as_ref().is_none_or(|kept| kept.name() != tun.name)
        {
            *kept = Some(KeptDevice::new(&tun.name)?);
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> RunError {
        let error = platform::Error::new(Class::Failed, "start", self.program.display().to_string(), source);
        error.remedy("see that the program is still there, and that the system has processes left (ulimit -u)").into()
    }
}

impl Executor for ProcessExecutor {
    /// Asks the program for its environment, and builds the forwarder in Go if a scenario needs it.
    fn prepare(&self, scenarios: &[Scenario]) -> Result<Environment, RunError> {
        let mut environment = self.hello()?;
        environment.program.go_forwarder = go::version(scenarios);
        Ok(environment)
    }

    /// The sample has [`Status::Panicked`] if the process crashed, if it alone was interrupted, or if it printed
    /// neither a sample nor an error. A process that does not end is killed, and its sample has [`Status::Stalled`].
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        self.keep_device(scenario)?;
        let limit = scenario.timeout.saturating_add(self.grace);
        let arguments: Vec<_> = scenario.words.iter().cloned().chain(["--json".to_owned()]).collect();
        let Some(end) = self.child(&arguments, "", limit)? else {
            let grace = self.grace.as_secs_f64();
            let detail =
                format!("the run did not end within {grace} seconds of its timeout, and its process was killed");
            return Ok(failed(scenario, Status::Stalled, detail));
        };
        outcome(scenario, &end)
    }
}

impl Watch {
    fn new() -> Result<Self, RunError> {
        let error = |object| move |source| platform::Error::new(Class::Failed, "watch", object, source);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(error("the runs' processes"))?;
        let context = runtime.enter();
        let interrupts = Interrupts::catch().map_err(error("interrupts"))?;
        drop(context);
        Ok(Self { runtime, interrupts })
    }
}

/// Whether an interrupt ended the process, perhaps before it caught any. The interrupt was for it alone, or for all.
fn is_interrupted(end: &End) -> bool {
    match &end.by {
        ProcessEnd::Interrupted | ProcessEnd::Exited(INTERRUPTED) => true,
        ProcessEnd::Crashed(reason) => matches!(reason.as_str(), "SIGTERM" | "SIGHUP"),
        ProcessEnd::Exited(_) => false,
    }
}

pub(super) fn outcome(scenario: &Scenario, end: &End) -> Result<Sample, RunError> {
    // An interrupt for all would have reached this process, too.
    let alone = || "the process alone was interrupted".to_owned();
    let how = if is_interrupted(end) { alone() } else { ending("the process", &end.by) };
    match (parse(&end.stdout), &end.by) {
        (Ok(sample), ProcessEnd::Exited(0)) => Ok(sample),
        (Ok(sample), ProcessEnd::Exited(_)) if !sample.is_ok() => Ok(sample),
        // The sample is good, and the end is not.
        (Ok(mut sample), _) => {
            sample.measured.status = Status::Panicked;
            sample.measured.detail = Some(last_words(&format!("after its result {how}"), &end.stderr));
            Ok(sample)
        }
        (Err(_), _) if end.stderr.contains(&RunError::NoOffload.to_string()) => Err(RunError::NoOffload),
        (Err(reason), by) => RunError::stated(end).map_or_else(
            || {
                let reason = match by {
                    ProcessEnd::Exited(_) => format!("{how} and no sample: {reason}"),
                    _ => how,
                };
                Ok(failed(scenario, Status::Panicked, last_words(&reason, &end.stderr)))
            },
            Err,
        ),
    }
}

fn parse(stdout: &[u8]) -> Result<Sample, String> {
    match str::from_utf8(stdout).map(str::trim) {
        Ok("") => Err("it printed nothing".to_owned()),
        Ok(text) => sample::parse_line(text),
        Err(_) => Err("its output is not text".to_owned()),
    }
}

fn failed(scenario: &Scenario, status: Status, detail: String) -> Sample {
    Sample {
        cell: scenario.planned(),
        measured: Measurements::failed(status, detail),
        environment: Arc::new(crate::environment()),
    }
}
