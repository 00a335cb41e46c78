//! A process of a program, and all others that live in its network.

use std::future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use platform::{Child, Class, Printed, ProcessEnd};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::super::error::RunError;
use super::super::failure::Failure;
use super::super::process::{ending, last_lines};
use super::place::{Place, Run, Side};
use super::residents::Residents;
use super::{LAST_LINES, LOOK};
use crate::program::Profile;
use crate::remedy::WithRemedy;
use crate::sample::Status;

/// How long a process may take to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the others may take after it.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a command that sets the program up may take.
const SETUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A process of a program, and the others in its network. Dropping it kills them all.
pub(super) struct End {
    /// Its name in messages.
    name: String,
    pub(super) side: Side,
    /// `None` if the kernel does the work.
    process: Option<Child>,
    /// Whether that process has ended in good order and left others.
    is_daemon: bool,
    printed: Printed,
    pub(super) residents: Arc<Residents>,
    /// Deleted last.
    folder: TempDir,
}

impl End {
    /// Starts the process.
    pub(super) fn start(run: &Run<'_>, side: Side, is_second: bool) -> Result<Self, RunError> {
        let failed = |source| platform::Error::new(Class::Failed, "make", "a folder for the program", source);
        let folder = TempDir::new().map_err(failed)?;
        let place = Place { run, side, folder: folder.path() };
        place.write()?;
        let residents = Arc::new(Residents::new(run.folder_at(side)));
        let started = place.command()?.map(|command| Child::watch(command, run.namespace(side)));
        let started = started.transpose().map_err(|source| cannot_start(run.profile, &run.profile.command, source))?;
        let (process, printed) =
            started.map_or((None, Printed::default()), |(process, printed)| (Some(process), printed));
        let whose = if is_second { "far end of the program" } else { "program" };
        let name = format!("{whose} {}", run.profile.name);
        Ok(Self { name, side, process, is_daemon: false, printed, residents, folder })
    }

    /// Runs a command that sets it up. Returns the reason if it failed.
    pub(super) async fn set_up(&self, run: &Run<'_>, words: &[String]) -> Result<Result<(), String>, RunError> {
        let place = Place { run, side: self.side, folder: self.folder.path() };
        let command = place.command_of(words)?;
        let cannot = |source| cannot_start(run.profile, words, source);
        let (process, printed) = Child::watch(command, run.namespace(self.side)).map_err(cannot)?;
        let ended = timeout(SETUP_TIMEOUT, process.ended()).await;
        let reason = match ended.ok().flatten() {
            Some(end) if end.by == ProcessEnd::Exited(0) => return Ok(Ok(())),
            Some(end) => ending(words.first().map_or("command", String::as_str), &end.by),
            None => format!("it took longer than {} s", SETUP_TIMEOUT.as_secs()),
        };
        // The thread that reads the output may be a moment behind.
        sleep(LOOK).await;
        Ok(Err(last_lines(&reason, &printed.text(), 1)))
    }

    pub(super) fn has_process(&self) -> bool {
        self.process.is_some()
    }

    /// Looks whether it still runs, as the process that was started or as others. Returns the reason if not.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let Some(by) = self.ended() else { return Ok(()) };
        self.residents.find();
        if by != ProcessEnd::Exited(0) || self.residents.is_empty() {
            return Err(ending(&self.name, &by));
        }
        self.is_daemon = true;
        Ok(())
    }

    /// How the process has ended, if it has and it is the whole program.
    fn ended(&self) -> Option<ProcessEnd> {
        let end = self.process.as_ref().filter(|_| !self.is_daemon)?.ended().now_or_never()?;
        Some(end.map_or_else(|| ProcessEnd::Crashed("an unknown cause".to_owned()), |end| end.by.clone()))
    }

    /// What it has printed. After its end, that is all.
    pub(super) fn printed(&self) -> (bool, Printed) {
        (self.ended().is_none(), self.printed.clone())
    }

    /// Ends when the process ends by itself, or takes too much memory.
    pub(super) fn driver(&self) -> impl Future<Output = Failure> + Send + use<> {
        let ended = self.process.as_ref().filter(|_| !self.is_daemon).map(Child::ended);
        let is_program = self.process.is_some();
        let (name, residents, printed) = (self.name.clone(), Arc::clone(&self.residents), self.printed.clone());
        async move {
            let failed = |detail| Failure { status: Status::Panicked, detail };
            let process = async {
                let end = match ended {
                    Some(ended) => ended.await,
                    None => future::pending().await,
                };
                residents.find();
                match end {
                    // It has left the work to another process.
                    Some(end) if end.by == ProcessEnd::Exited(0) && !residents.is_empty() => future::pending().await,
                    Some(end) => {
                        // The thread that reads the output may be a moment behind.
                        sleep(LOOK).await;
                        failed(last_lines(&ending(&name, &end.by), &printed.text(), LAST_LINES))
                    }
                    None => failed(format!("the {name} is lost")),
                }
            };
            tokio::select! {
                failure = process => failure,
                what = residents.misbehave(), if is_program => failed(format!("the {name} {what}")),
            }
        }
    }

    /// Asks it to end, and kills what is left of it. Returns whether it had to be killed, and how many others it left.
    pub(super) async fn end(&mut self) -> (bool, u64) {
        let Some(process) = self.process.take() else { return (false, 0) };
        let (_, was_killed) = process.terminate(END_TIMEOUT).await;
        let deadline = Instant::now() + OTHERS_TIMEOUT;
        self.residents.find();
        while !self.is_daemon && !self.residents.is_empty() && Instant::now() < deadline {
            sleep(LOOK).await;
            self.residents.find();
        }
        (was_killed, self.residents.kill())
    }
}

fn cannot_start(profile: &Profile, words: &[String], source: io::Error) -> RunError {
    let class = if source.kind() == io::ErrorKind::NotFound { Class::Unavailable } else { Class::Failed };
    let program = words.first().cloned().unwrap_or_default();
    let remedy = match &profile.install {
        Some(install) => format!("install it: {install}"),
        None => "install it, or give its path".to_owned(),
    };
    platform::Error::new(class, "start the program", program, source).remedy(remedy).into()
}
