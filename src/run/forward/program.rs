//! The forwarder's process: how it is started, talked with and ended.

use std::future::Future;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use forwarders::Counts;
use platform::{Class, Interrupts, ProcessEnd, ProcessMeter};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Profile, Topology};
use crate::plan::{ForwardScenario, Forwarder};
use crate::run::failure::Failure;
use crate::run::forwarder::{READY as IS_READY, REPORT};
use crate::run::process::{PARENT, last_words, stated_error, tail};
use crate::run::{RunError, go};
use crate::sample::Status;

/// How long a forwarder may take until both devices are there.
const READY: Duration = Duration::from_secs(10);

/// How long it may take to answer: the machine is under load.
const ANSWER: Duration = Duration::from_secs(10);

/// How long it may take to end when it is told to, and how long where a flame graph is to be drawn.
const PARTING: Duration = Duration::from_secs(2);
const DRAWING: Duration = Duration::from_mins(1);

/// The most that is read of its standard output, in bytes: an answer has less than a kilobyte.
const MAX_STDOUT: u64 = 16 << 20;

/// The program that forwards. The one in Go is built where it is not there yet.
pub(super) fn executable(forwarder: Forwarder) -> Result<PathBuf, RunError> {
    match forwarder {
        Forwarder::Rust(_) => Ok(platform::this_program()),
        Forwarder::Go { .. } => Ok(go::forwarder()?),
    }
}

/// The forwarder under way. It does not outlive this value.
pub(super) struct Program {
    pid: u32,
    talk: Arc<Talk>,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<End>>,
    kill: Arc<Notify>,
    /// Whether it makes a profile.
    draws: bool,
}

/// How it ended, and the end of its standard error.
#[derive(Clone, Debug)]
struct End {
    by: ProcessEnd,
    stderr: String,
}

impl Program {
    /// Starts it in the near network and waits until both devices are there. To be called within a runtime,
    /// by a thread that outlives the forwarder.
    ///
    /// # Errors
    ///
    /// The program's own, where it says why it cannot.
    pub(super) async fn start(
        executable: &Path,
        scenario: &ForwardScenario,
        topology: &Topology,
        profile: Option<&Profile>,
        interrupts: &mut Interrupts,
    ) -> Result<Self, RunError> {
        let failed = |operation| move |source| platform::Error::new(Class::Failed, operation, "the forwarder", source);
        let (stdin, ours) = pipe().map_err(failed("talk with"))?;
        let (theirs, stdout) = pipe().map_err(failed("talk with"))?;
        let mut command = Command::new(executable);
        command.args(arguments(scenario, topology, profile)).env(PARENT, process::id().to_string());
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).kill_on_drop(true);
        platform::end_with_this_thread(command.as_std_mut());
        let child = command.spawn().map_err(failed("start"))?;
        // The command holds the forwarder's ends of the pipes: that it closed them could not be seen.
        drop(command);
        let pid = child.id().unwrap_or_default();
        let (talk, kill) = (Arc::new(Talk::new(ours, theirs)?), Arc::default());
        let (answer, ended) = watch::channel(None);
        tokio::spawn(attend(child, Arc::clone(&kill), answer));
        let program = Self { pid, talk, ended, kill, draws: profile.is_some() };
        let talk = program.talk();
        let answer = spawn_blocking(move || talk.answer(READY));
        tokio::select! {
            biased;
            () = interrupts.next() => {
                program.stop().await;
                Err(RunError::Interrupted)
            }
            answer = answer => match answer {
                Ok(Some(word)) if word == IS_READY => Ok(program),
                _ => Err(program.refusal().await),
            },
        }
    }

    /// Why it did not come so far as to say that it is ready.
    async fn refusal(self) -> RunError {
        let late = || {
            let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "its devices were not there in time");
            RunError::from(platform::Error::new(Class::Failed, "start", "the forwarder", source))
        };
        self.stop().await.map_or_else(late, |end| end.error())
    }

    /// What it costs.
    pub(super) const fn meter(&self) -> ProcessMeter {
        ProcessMeter::of(self.pid)
    }

    /// The way to talk with it, from any thread.
    pub(super) fn talk(&self) -> Arc<Talk> {
        Arc::clone(&self.talk)
    }

    /// Waits until it ends, which it should not do by itself, and answers how.
    pub(super) fn end(&self) -> impl Future<Output = Failure> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            // It says so itself where a device is the reason.
            let status = match &end {
                Some(End { by: ProcessEnd::Exited(code), stderr }) if stated_error(*code, stderr).is_some() => {
                    Status::DeviceLost
                }
                _ => Status::Panicked,
            };
            Failure { status, detail: end.map_or_else(|| "the forwarder is lost".to_owned(), |end| end.text()) }
        }
    }

    /// Has it end, by force where it will not by itself.
    async fn stop(self) -> Option<End> {
        self.talk.hang_up();
        let mut ended = self.ended.clone();
        let parting = if self.draws { DRAWING } else { PARTING };
        if timeout(parting, ended.wait_for(Option::is_some)).await.is_err() {
            self.kill.notify_one();
        }
        timeout(PARTING, ended.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
    }

    /// The same, after a run that succeeded. Where it was to leave a profile, a bad end is an error.
    pub(super) async fn finish(self) -> Result<(), RunError> {
        let draws = self.draws;
        match self.stop().await {
            _ if !draws => Ok(()),
            Some(End { by: ProcessEnd::Exited(0), .. }) => Ok(()),
            Some(end) => Err(end.error()),
            None => Err(RunError::Process { class: Class::Failed, text: "the forwarder does not end".to_owned() }),
        }
    }
}

impl End {
    /// In the forwarder's own words, where it has any.
    fn error(&self) -> RunError {
        let stated = match self.by {
            ProcessEnd::Exited(code) => stated_error(code, &self.stderr),
            _ => None,
        };
        stated.unwrap_or_else(|| RunError::Process { class: Class::Failed, text: self.text() })
    }

    fn text(&self) -> String {
        match &self.by {
            ProcessEnd::Exited(code) => last_words(&format!("the forwarder ended with exit code {code}"), &self.stderr),
            ProcessEnd::Interrupted => last_words("the forwarder was interrupted", &self.stderr),
            ProcessEnd::Crashed(reason) => last_words(&format!("the forwarder died of {reason}"), &self.stderr),
        }
    }
}

/// Waits for the end of the process, or makes one.
async fn attend(mut child: Child, kill: Arc<Notify>, answer: watch::Sender<Option<End>>) {
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
    // Where nobody listens any more, nobody wants to know.
    let _unheard = answer.send(Some(End { by, stderr }));
}

fn arguments(scenario: &ForwardScenario, topology: &Topology, profile: Option<&Profile>) -> Vec<String> {
    let mut words = Vec::new();
    let dashes = match scenario.forwarder {
        Forwarder::Rust(way) => {
            words.push("forwarder".to_owned());
            words.push(format!("--io={}", way.io.name()));
            words.push(format!("--workers={}", way.workers));
            words.extend(way.threads.map(|threads| format!("--thread={threads}")));
            "--"
        }
        Forwarder::Go { .. } => {
            words.push(format!("-mtu={}", scenario.mtu));
            "-"
        }
    };
    let mut option = |name: &str, value: &str| words.push(format!("{dashes}{name}={value}"));
    option("offload", scenario.forwarder.offload().name());
    option("hop", scenario.forwarder.hop().name());
    option("near", &scenario.near.name);
    option("far", &scenario.far.name);
    option("far-namespace", &topology.far().path().to_string_lossy());
    if let Some(profile) = profile {
        option("profile", &profile.path().to_string_lossy());
    }
    words
}

/// What is said to a forwarder and what it answers, a line each, from any thread.
pub(super) struct Talk {
    /// `None` once it was told to end.
    stdin: Mutex<Option<PipeWriter>>,
    /// `None` once it has not answered in time: nobody waits for it again.
    answers: Mutex<Option<Receiver<String>>>,
}

impl Talk {
    fn new(stdin: PipeWriter, stdout: PipeReader) -> Result<Self, platform::Error> {
        let (sender, answers) = mpsc::channel();
        // It ends with the forwarder, which nobody need wait for.
        let reader = thread::Builder::new().name("forwarder".to_owned()).spawn(move || listen(stdout, &sender));
        reader.map_err(|source| platform::Error::new(Class::Failed, "start", "a thread for the forwarder", source))?;
        Ok(Self { stdin: Mutex::new(Some(stdin)), answers: Mutex::new(Some(answers)) })
    }

    /// Tells the forwarder something. One that has ended does not hear, which is noticed elsewhere.
    pub(super) fn tell(&self, line: &str) {
        if let Some(stdin) = &mut *self.stdin.lock().unwrap_or_else(PoisonError::into_inner) {
            let _unheard = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Tells it to end.
    fn hang_up(&self) {
        *self.stdin.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The next line that it says within a time.
    fn answer(&self, within: Duration) -> Option<String> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.recv_timeout(within).ok()
    }

    /// What it has carried so far; `None` where it does not answer.
    pub(super) fn report(&self) -> Option<Counts> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell(REPORT);
        match answers.as_ref()?.recv_timeout(ANSWER) {
            Ok(answer) => serde_json::from_str(&answer).ok(),
            Err(_late) => {
                *answers = None;
                None
            }
        }
    }
}

fn listen(stdout: PipeReader, answers: &Sender<String>) {
    for line in BufReader::new(stdout.take(MAX_STDOUT)).lines().map_while(Result::ok) {
        if answers.send(line).is_err() {
            return;
        }
    }
}
