//! Runs each scenario in a process of its own: the same program, told to print its sample as JSON.
//!
//! The largest resident set is one of the whole process, lwIP and the namespaces know one run for each
//! process, and C code that crashes is not to take the results of others along.

use std::env;
use std::future;
use std::io;
use std::path::PathBuf;
use std::process::{self, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use platform::{Class, Interrupts, ProcessEnd};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::runtime::{Builder, Runtime};
use tokio::task;
use tokio::time::timeout;

use super::{Executor, Job, RunError};
use crate::sample::{self, Cell, Environment, Facts, Planned, Sample, Status};

/// How long a process may take beyond its run's timeout, by default: for its start, until a forwarder has answered,
/// and until its tasks and threads have ended.
const GRACE: Duration = Duration::from_secs(25);

/// How long an interrupted process may take to end by itself. In a terminal it was interrupted, too.
const PARTING: Duration = Duration::from_millis(500);

/// The most of standard output that is kept: the most intervals that a run may have are 5 MB.
const MAX_STDOUT: u64 = 16 << 20;

/// The most of standard error that is kept, from its end: what a process dies of is said last.
const MAX_STDERR: usize = 64 << 10;

/// How much later than its child this process may learn of an interrupt that was meant for both, as in a
/// terminal.
const ECHO: Duration = Duration::from_millis(200);

/// Names this process to the other, which is to end with it: see [`end_with_parent`].
pub(super) const PARENT: &str = "RUST_TUN_PERF_PARENT";

/// What `main` puts in front of the one error.
const ERROR: &str = "error: ";

/// With what an interrupted run exits.
const INTERRUPTED: i32 = 130;

/// The advice with which a panic ends.
const PANIC_NOTE: &str = "note: ";

/// Has this process end with the one that runs scenarios by it, where there is one: should that be killed,
/// what it has begun would run on beside what comes after it. Of systems that cannot do so nothing is asked.
///
/// # Errors
///
/// [`RunError::Interrupted`], where that process is no more.
pub fn end_with_parent() -> Result<(), RunError> {
    match env::var(PARENT).ok().and_then(|parent| parent.parse().ok()) {
        Some(parent) if !platform::end_with_parent(parent) => Err(RunError::Interrupted),
        _ => Ok(()),
    }
}

/// Runs each scenario in a process of its own. Whatever becomes of that, it has ended when the answer is
/// there.
#[derive(Debug)]
pub struct ProcessExecutor {
    program: PathBuf,
    grace: Duration,
    watch: Mutex<Option<Watch>>,
}

/// What waits for processes and for the user. It is kept from run to run, so that no interrupt gets
/// lost between two.
#[derive(Debug)]
struct Watch {
    runtime: Runtime,
    interrupts: Interrupts,
}

/// What a process left behind.
struct Remains {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: ProcessEnd,
}

impl ProcessExecutor {
    /// Runs scenarios by this very program.
    pub fn this_program() -> Self {
        Self::new(platform::this_program())
    }

    /// Runs scenarios by a program that takes the same arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), grace: GRACE, watch: Mutex::new(None) }
    }

    /// The same, but a process is ended when it has taken this long beyond the timeout of its run.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }
}

impl<S: Job> Executor<S> for ProcessExecutor {
    fn prepare(&self, scenarios: &[S]) {
        S::prepare(scenarios);
    }

    /// A process that crashes, that was interrupted alone, or that says neither what it measured nor why it
    /// could not, is a sample of [`Status::Panicked`]; one that does not end is killed, and
    /// [`Status::Stalled`].
    fn execute(&self, scenario: &S) -> Result<Sample, RunError> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = match &mut *watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        let Watch { runtime, interrupts } = watch;
        match runtime.block_on(self.attend(scenario, interrupts))? {
            Some(remains) => answer(scenario, &remains),
            None => Ok(failed(
                scenario,
                Status::Stalled,
                format!(
                    "the run did not end within {} seconds of its timeout, and its process was killed",
                    self.grace.as_secs_f64()
                ),
            )),
        }
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

impl ProcessExecutor {
    /// Starts the process and waits for its end; `None` where it had to be killed.
    async fn attend(&self, scenario: &impl Planned, interrupts: &mut Interrupts) -> Result<Option<Remains>, RunError> {
        // What came between two runs is told once the reactor has looked.
        task::yield_now().await;
        tokio::select! {
            biased;
            () = interrupts.next() => return Err(RunError::Interrupted),
            () = future::ready(()) => {}
        }
        let mut command = Command::new(&self.program);
        command.args(scenario.arguments()).arg("--json").env(PARENT, process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|source| self.error("start", source))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let remains = async { tokio::try_join!(head(stdout), tail(stderr), child.wait()) };
        tokio::select! {
            biased;
            () = interrupts.next() => {
                let _late = timeout(PARTING, child.wait()).await;
                kill(&mut child).await;
                Err(RunError::Interrupted)
            }
            remains = timeout(scenario.timeout().saturating_add(self.grace), remains) => match remains {
                Ok(Ok(remains)) => {
                    let remains = Remains::from(remains);
                    if remains.interrupted() && timeout(ECHO, interrupts.next()).await.is_ok() {
                        return Err(RunError::Interrupted);
                    }
                    Ok(Some(remains))
                }
                Ok(Err(source)) => {
                    kill(&mut child).await;
                    Err(self.error("attend", source))
                }
                Err(_elapsed) => {
                    kill(&mut child).await;
                    Ok(None)
                }
            },
        }
    }

    fn error(&self, operation: &'static str, source: io::Error) -> RunError {
        let error = platform::Error::new(Class::Failed, operation, self.program.display().to_string(), source);
        error.remedy("see that the program is still there, and that the system has processes left (ulimit -u)").into()
    }
}

impl From<(Vec<u8>, Vec<u8>, ExitStatus)> for Remains {
    fn from((stdout, stderr, status): (Vec<u8>, Vec<u8>, ExitStatus)) -> Self {
        Self { stdout, stderr, end: ProcessEnd::of(status) }
    }
}

impl Remains {
    /// Whether an interrupt ended the process: of its own, or the user's of everything.
    fn interrupted(&self) -> bool {
        matches!(self.end, ProcessEnd::Interrupted | ProcessEnd::Exited(INTERRUPTED))
    }

    /// Whether it ended as one does that has printed a good sample.
    fn succeeded(&self) -> bool {
        self.end == ProcessEnd::Exited(0)
    }
}

/// Kills a process and waits until it has gone. One that has ended already is no mistake.
pub(super) async fn kill(child: &mut Child) {
    let _ended = child.start_kill();
    // The kernel may hold it in a driver for a while. It is reaped later, then.
    let _held = timeout(GRACE, child.wait()).await;
}

/// The beginning of a stream. Beyond its bound the stream is closed, of which the writer dies.
pub(super) async fn head(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_STDOUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The end of a stream, all of which is read.
pub(super) async fn tail(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut stream) = stream else { return Ok(bytes) };
    while stream.read_buf(&mut bytes).await? > 0 {
        if bytes.len() >= 2 * MAX_STDERR {
            bytes.drain(..bytes.len() - MAX_STDERR);
        }
    }
    Ok(bytes)
}

/// What the process answered, or what its silence means.
fn answer(scenario: &impl Planned, remains: &Remains) -> Result<Sample, RunError> {
    let stderr = String::from_utf8_lossy(&remains.stderr);
    let by_itself = matches!(remains.end, ProcessEnd::Exited(_));
    let end = match &remains.end {
        // This process was not: that would have been an interrupt of all.
        ProcessEnd::Interrupted | ProcessEnd::Exited(INTERRUPTED) => {
            "the process was interrupted, and it alone".to_owned()
        }
        ProcessEnd::Exited(code) => format!("the process ended with exit code {code}"),
        ProcessEnd::Crashed(reason) => format!("the process died of {reason}"),
    };
    match (parse(&remains.stdout), &remains.end) {
        (Ok(sample), _) if remains.succeeded() || (by_itself && !sample.is_ok()) => Ok(sample),
        // It says that all is well, and its end says that it is not.
        (Ok(mut sample), _) => {
            sample.facts.status = Status::Panicked;
            sample.facts.detail = Some(last_words(&format!("after its result {end}"), &stderr));
            Ok(sample)
        }
        (Err(reason), ProcessEnd::Exited(code)) => stated_error(*code, &stderr).map_or_else(
            || {
                let end = format!("{end} and no sample: {reason}");
                Ok(failed(scenario, Status::Panicked, last_words(&end, &stderr)))
            },
            Err,
        ),
        (Err(_), _) => Ok(failed(scenario, Status::Panicked, last_words(&end, &stderr))),
    }
}

fn parse(stdout: &[u8]) -> Result<Sample, String> {
    match str::from_utf8(stdout).map(str::trim) {
        Ok("") => Err("it printed nothing".to_owned()),
        Ok(text) => sample::parse_line(text),
        Err(_) => Err("it printed what is no text".to_owned()),
    }
}

/// Why a run could not begin, in the process' own words.
pub(super) fn stated_error(code: i32, stderr: &str) -> Option<RunError> {
    let class = match code {
        1 => Class::Failed,
        2 => Class::Invalid,
        3 => Class::Unavailable,
        _ => return None,
    };
    let text = stderr.lines().rev().find_map(|line| line.strip_prefix(ERROR))?;
    Some(RunError::Process { class, text: text.to_owned() })
}

/// How the process ended, and the last that it said.
pub(super) fn last_words(end: &str, stderr: &str) -> String {
    let mut lines = stderr.lines().rev().map(str::trim);
    match lines.find(|line| !line.is_empty() && !line.starts_with(PANIC_NOTE)) {
        Some(line) => format!("{end}; its last words: {line}"),
        None => end.to_owned(),
    }
}

fn failed(scenario: &impl Planned, status: Status, detail: String) -> Sample {
    Sample {
        cell: Cell::planned(scenario),
        facts: Facts::failed(status, detail),
        environment: Arc::new(Environment::detect()),
    }
}
