//! The process that carries packets or connections between two networks: its start, its control and its end.

use std::future::Future;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::PathBuf;
use std::process::{self, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use forwarders::{Carried, Counts};
use platform::{Class, Interrupts, Namespace, PacketCounts, ProcessEnd, ProcessMeter};
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::error::RunError;
use super::failure::Failure;
use super::process::{MAX_STDOUT, PARENT, last_words, stated_error, tail};
use super::profile::FoldedStacks;
use super::protocol::{Answer, CHILD, Carry, Message, REPORT, Ready, Report, START, Task};
use crate::load::meter::{Counters, Meter, Usage};
use crate::sample::Status;

/// How long a carrier may take to make its devices.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to report: the machine is under load.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to end, and how long if it has to draw a flame graph.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
const DRAW_TIMEOUT: Duration = Duration::from_mins(1);

/// The program of a carrier, and its task.
pub(super) struct CarrierProgram {
    /// Its name in errors.
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// The first line of its standard input, if it takes its task from there.
    pub(super) task: Option<String>,
    /// Whether it writes a profile before it ends.
    pub(super) has_profile: bool,
    /// The profile, if this process must draw the graph.
    pub(super) stacks: Option<FoldedStacks>,
}

impl CarrierProgram {
    /// A child process of this program.
    pub(super) fn this(name: &'static str, carry: Carry) -> Self {
        Self {
            name,
            path: platform::this_program(),
            arguments: vec![CHILD.to_owned()],
            has_profile: carry.scenario.profile.is_some(),
            task: Some(Message::line(Task::Carry(Box::new(carry)))),
            stacks: None,
        }
    }
}

/// A running carrier. [`Carrier::finish`] ends it, and the end of the runtime kills it.
pub(super) struct Carrier {
    name: &'static str,
    pid: u32,
    control: Arc<ControlChannel>,
    /// Its end, once it has ended.
    ended: watch::Receiver<Option<End>>,
    kill: Arc<Notify>,
    has_profile: bool,
    stacks: Option<FoldedStacks>,
}

/// How the process ended, and the last part of its standard error.
#[derive(Clone, Debug)]
struct End {
    by: ProcessEnd,
    stderr: String,
}

impl Carrier {
    /// Starts a carrier in the calling thread's network or in `network`, and waits until its devices exist. Must be
    /// called within a runtime, by a thread that outlives the carrier.
    ///
    /// # Errors
    ///
    /// The error that the program printed; or it was not ready in time, or the user interrupted it.
    pub(super) async fn start(
        program: CarrierProgram,
        network: Option<&Namespace>,
        interrupts: &mut Interrupts,
    ) -> Result<(Self, Ready), RunError> {
        let CarrierProgram { name, path, arguments, task, has_profile, stacks } = program;
        let failed =
            |operation| move |source| platform::Error::new(Class::Failed, operation, format!("the {name}"), source);
        let (stdin, ours) = pipe().map_err(failed("talk with"))?;
        let (theirs, stdout) = pipe().map_err(failed("talk with"))?;
        let mut command = Command::new(path);
        command.args(arguments).env(PARENT, process::id().to_string());
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).kill_on_drop(true);
        platform::end_with_this_thread(command.as_std_mut());
        let runtime = Handle::current();
        // The command holds the carrier's ends of the pipes. It is dropped here, so that the parent sees when the
        // carrier closes them.
        let spawn = move || {
            let (mut command, _entered) = (command, runtime.enter());
            command.spawn()
        };
        let child = match network {
            Some(network) => network.run(spawn)?,
            None => spawn(),
        };
        let child = child.map_err(failed("start"))?;
        let pid = child.id().unwrap_or_default();
        let control = ControlChannel::new(ours, theirs).map_err(failed("start a thread for"))?;
        control.send(task.as_deref().unwrap_or_default());
        let (control, kill) = (Arc::new(control), Arc::default());
        let (sender, ended) = watch::channel(None);
        tokio::spawn(attend(child, Arc::clone(&kill), sender));
        let carrier = Self { name, pid, control, ended, kill, has_profile, stacks };
        let control = carrier.control();
        let answer = spawn_blocking(move || control.receive(READY_TIMEOUT));
        tokio::select! {
            biased;
            () = interrupts.next() => {
                carrier.stop().await;
                Err(RunError::Interrupted)
            }
            answer = answer => match answer.ok().flatten().as_deref().and_then(parse_ready) {
                Some(ready) => Ok((carrier, ready)),
                None => Err(carrier.refusal().await),
            },
        }
    }

    /// The reason why it did not become ready.
    async fn refusal(self) -> RunError {
        let name = self.name;
        let late = || {
            let source = io::Error::new(io::ErrorKind::TimedOut, "it was not ready in time");
            RunError::from(platform::Error::new(Class::Failed, "start", format!("the {name}"), source))
        };
        self.stop().await.map_or_else(late, |end| end.error(name))
    }

    /// Its name in errors.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Tells the carrier to begin.
    pub(super) fn begin(&self) {
        self.control.send(&format!("{START}\n"));
    }

    /// The control channel, for any thread.
    pub(super) fn control(&self) -> Arc<ControlChannel> {
        Arc::clone(&self.control)
    }

    /// A meter of the carrier. `carried` selects the counts of the payload's direction. `drops` returns how many
    /// packets the devices have dropped so far.
    pub(super) fn meter(
        &self,
        carried: fn(&Counts) -> Carried,
        drops: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) -> CarrierMeter {
        CarrierMeter { process: ProcessMeter::of(self.pid), control: self.control(), carried, drops: Box::new(drops) }
    }

    /// The meter of its process.
    pub(super) fn process(&self) -> ProcessMeter {
        ProcessMeter::of(self.pid)
    }

    /// Its counts so far; `None` if it does not report in time.
    pub(super) async fn report<R: DeserializeOwned + Send + 'static>(&self) -> Option<R> {
        let control = self.control();
        spawn_blocking(move || control.report()).await.ok()?
    }

    /// Waits until the carrier ends. If it ends by itself, that is a failure.
    pub(super) fn ended(&self) -> impl Future<Output = Failure> + Send + use<> {
        let (name, mut ended) = (self.name, self.ended.clone());
        async move {
            let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            // A carrier that loses its device prints an error.
            let status = match &end {
                Some(End { by: ProcessEnd::Exited(code), stderr }) if stated_error(*code, stderr).is_some() => {
                    Status::DeviceLost
                }
                _ => Status::Panicked,
            };
            Failure { status, detail: end.map_or_else(|| format!("the {name} is lost"), |end| end.text(name)) }
        }
    }

    /// Tells the carrier to end, and kills it if it does not.
    async fn stop(self) -> Option<End> {
        self.control.close();
        let mut ended = self.ended.clone();
        let limit = if self.has_profile { DRAW_TIMEOUT } else { SHUTDOWN_TIMEOUT };
        if timeout(limit, ended.wait_for(Option::is_some)).await.is_err() {
            self.kill.notify_one();
        }
        timeout(SHUTDOWN_TIMEOUT, ended.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
    }

    /// Ends the carrier after a run. If the run succeeded and has a profile, the profile is written.
    pub(super) async fn finish(mut self, succeeded: bool) -> Result<(), RunError> {
        let (name, has_profile, stacks) = (self.name, self.has_profile, self.stacks.take());
        let end = self.stop().await;
        if !(succeeded && has_profile) {
            return Ok(());
        }
        match end {
            Some(End { by: ProcessEnd::Exited(0), .. }) => Ok(stacks.map_or(Ok(()), FoldedStacks::draw)?),
            Some(end) => Err(end.error(name)),
            None => Err(RunError::Process { class: Class::Failed, text: format!("the {name} does not end") }),
        }
    }
}

pub(super) fn parse_ready(line: &str) -> Option<Ready> {
    serde_json::from_str(line).ok().map(|Answer::Ready(ready)| ready)
}

impl End {
    /// The error that the process printed; without one, how it ended.
    fn error(&self, name: &str) -> RunError {
        let stated = match self.by {
            ProcessEnd::Exited(code) => stated_error(code, &self.stderr),
            _ => None,
        };
        stated.unwrap_or_else(|| RunError::Process { class: Class::Failed, text: self.text(name) })
    }

    fn text(&self, name: &str) -> String {
        let end = match &self.by {
            ProcessEnd::Exited(code) => format!("the {name} ended with exit code {code}"),
            ProcessEnd::Interrupted => format!("the {name} was interrupted"),
            ProcessEnd::Crashed(reason) => format!("the {name} died of {reason}"),
        };
        last_words(&end, &self.stderr)
    }
}

/// Waits for the end of the process, or kills it when told to.
async fn attend(mut child: Child, kill: Arc<Notify>, ended: watch::Sender<Option<End>>) {
    let stderr = child.stderr.take();
    let end = async {
        let status = tokio::select! {
            status = child.wait() => status,
            () = kill.notified() => {
                let _ended = child.start_kill();
                child.wait().await
            }
        };
        status.map_or_else(|error| ProcessEnd::Crashed(error.to_string()), ProcessEnd::of)
    };
    let (by, stderr) = tokio::join!(end, tail(stderr));
    let stderr = String::from_utf8_lossy(&stderr.unwrap_or_default()).into_owned();
    // The receiver may be gone.
    let _unheard = ended.send(Some(End { by, stderr }));
}

/// The standard input and output of a carrier, line by line, from any thread.
pub(super) struct ControlChannel {
    /// `None` after the carrier was told to end.
    stdin: Mutex<Option<PipeWriter>>,
    /// `None` after the carrier did not report in time: nothing waits for it again.
    answers: Mutex<Option<Receiver<String>>>,
}

impl ControlChannel {
    fn new(stdin: PipeWriter, stdout: PipeReader) -> io::Result<Self> {
        // The channel is bounded: a carrier that prints too much blocks.
        let (sender, answers) = mpsc::sync_channel(1);
        // This thread ends with the carrier, and is not joined.
        thread::Builder::new().name("carrier".to_owned()).spawn(move || listen(stdout, &sender))?;
        Ok(Self { stdin: Mutex::new(Some(stdin)), answers: Mutex::new(Some(answers)) })
    }

    /// Sends lines, each with its line feed. Errors are ignored: [`Carrier::ended`] notices the end of the carrier.
    pub(super) fn send(&self, lines: &str) {
        if let Some(stdin) = &mut *self.stdin.lock().unwrap_or_else(PoisonError::into_inner) {
            let _unheard = stdin.write_all(lines.as_bytes());
        }
    }

    /// Tells the carrier to end.
    fn close(&self) {
        *self.stdin.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The next line that the carrier prints; `None` if it prints none in time.
    fn receive(&self, within: Duration) -> Option<String> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.recv_timeout(within).ok()
    }

    /// The carrier's counts so far; `None` if it does not report in time.
    pub(super) fn report<R: DeserializeOwned>(&self) -> Option<R> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&format!("{REPORT}\n"));
        match answers.as_ref()?.recv_timeout(REPORT_TIMEOUT) {
            Ok(answer) => serde_json::from_str(&answer).ok(),
            Err(_late) => {
                *answers = None;
                None
            }
        }
    }
}

fn listen(stdout: PipeReader, answers: &SyncSender<String>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        let read = stdout.by_ref().take(MAX_STDOUT).read_line(&mut line);
        if read.is_ok_and(|len| len > 0) && answers.send(line).is_ok() {
            continue;
        }
        return;
    }
}

/// Measures the cost of a carrier from outside, and asks the carrier for its counts.
pub(super) struct CarrierMeter {
    process: ProcessMeter,
    control: Arc<ControlChannel>,
    carried: fn(&Counts) -> Carried,
    drops: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

impl Meter for CarrierMeter {
    fn usage(&self) -> Usage {
        Usage::with(self.process)
    }

    fn counters(&self) -> Counters {
        let counters = counters(self.control.report(), self.carried, (self.drops)());
        Counters { carrier_peak_rss_bytes: self.process.peak_rss_bytes(), ..counters }
    }
}

/// The counters of a carrier that made this report, between devices that dropped so many packets.
pub(super) fn counters(report: Option<Report>, carried: fn(&Counts) -> Carried, drops: Option<u64>) -> Counters {
    let counts = report.map(|report| report.counts);
    let carried = counts.as_ref().map(carried);
    let lost = counts.map(|Counts { to_far, to_near }| to_far.lost_packets.saturating_add(to_near.lost_packets));
    let packets = carried.map(|carried| PacketCounts {
        rx_packets: carried.read_packets,
        rx_bytes: carried.read_bytes,
        tx_packets: carried.written_packets,
        tx_bytes: carried.written_bytes,
    });
    Counters {
        packets,
        drops: drops.zip(lost).map(|(drops, lost)| drops.saturating_add(lost)),
        reordered: carried.and_then(|carried| carried.reordered),
        faults: report.and_then(|report| report.link),
        ..Counters::default()
    }
}
