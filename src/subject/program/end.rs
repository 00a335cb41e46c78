//! A process of a program, and all others that live in its network.

use std::future;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use platform::{Child, Class, Printed, ProcessEnd, ending, last_lines, last_words};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::super::networks::Side;
use super::place::{Place, Run, located};
use super::residents::Residents;
use crate::error::RunError;
use crate::failure::Failure;
use crate::program::{Profile, Role, no_shell};
use crate::remedy::WithRemedy;
use crate::sample::Status;

/// How long a program may take until an answer comes back through it.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) const LOOK: Duration = Duration::from_millis(5);

/// How many of its last lines are in an error.
pub(super) const LAST_LINES: usize = 3;

/// How long a process may take to end when it is asked to.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the others may take after it.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(200);

/// A process of a program, and the others in its network. Dropping it kills them all.
pub(super) struct End {
    pub(super) name: String,
    /// What to say of its commands if it fails.
    pub(super) hint: Option<String>,
    pub(super) side: Side,
    /// The number of its peer.
    pub(super) peer: u16,
    /// Whether no other end is in its network, so that all processes there are its own.
    is_alone: bool,
    /// `None` if the kernel does the work.
    process: Option<Child>,
    /// Whether that process has ended in good order and left others.
    is_daemon: bool,
    printed: Printed,
    /// All ends in one network have the same.
    pub(super) residents: Arc<Residents>,
    /// Deleted last.
    folder: TempDir,
}

impl End {
    /// Starts the end of a peer on a side, in a network with these residents.
    pub(super) fn start(run: &Run<'_>, side: Side, peer: u16, residents: Arc<Residents>) -> Result<Self, RunError> {
        let failed = |source| platform::Error::new(Class::Failed, "make", "a folder for the program", source);
        let folder = TempDir::new().map_err(failed)?;
        let place = Place { run, side, peer, folder: folder.path() };
        place.write()?;
        let started = place.command()?.map(|command| Child::watch(command, run.namespace(side)));
        let started = started.transpose().map_err(|source| cannot_start(run.profile, &place.words(), source))?;
        let (process, printed) =
            started.map_or((None, Printed::default()), |(process, printed)| (Some(process), printed));
        let end = match (run.profile.role, side) {
            (Role::Tunnel, Side::Near) => "near end of ".to_owned(),
            (Role::Tunnel, Side::Far) if peer > 0 => format!("far end {} of ", peer + 1),
            (Role::Tunnel, Side::Far) => "far end of ".to_owned(),
            (Role::Proxy, Side::Far) => "server of ".to_owned(),
            _ => String::new(),
        };
        let name = format!("{end}program {}", run.profile.name);
        let is_alone = run.ends_at(side).len() == 1;
        let hint = no_shell(&place.words()).or_else(|| run.setup().find_map(|words| no_shell(words)));
        Ok(Self { name, hint, side, peer, is_alone, process, is_daemon: false, printed, residents, folder })
    }

    /// Runs a command that sets it up, about a peer.
    pub(super) async fn set_up(
        &self,
        run: &Run<'_>,
        peer: u16,
        words: &[String],
    ) -> Result<Result<(), String>, RunError> {
        let place = Place { run, side: self.side, peer, folder: self.folder.path() };
        let ended = to_its_end(run, self.side, words, place.command_of(words)?).await?;
        if ended.is_ok() {
            // It may have started what does the work.
            self.residents.find();
        }
        Ok(ended)
    }

    /// Whether it has a process; otherwise the kernel does the work.
    pub(super) fn has_process(&self) -> bool {
        self.process.is_some() || !self.residents.is_empty()
    }

    /// Looks whether it still runs, as the process that was started or as others. Returns the reason if not.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let Some(by) = self.ended() else { return Ok(()) };
        self.residents.find();
        if by != ProcessEnd::Exited(0) || !self.is_alone || self.residents.is_empty() {
            return Err(ending(&format!("the {}", self.name), &by));
        }
        self.is_daemon = true;
        Ok(())
    }

    /// How the process has ended, if it has and it is the whole program.
    fn ended(&self) -> Option<ProcessEnd> {
        self.process.as_ref().filter(|_| !self.is_daemon)?.has_ended().map(|end| end.by.clone())
    }

    /// Whether it still runs, and its output so far.
    pub(super) fn printed(&self) -> (bool, Printed) {
        (self.ended().is_none(), self.printed.clone())
    }

    /// Ends when the process ends by itself, or takes too much memory.
    pub(super) fn driver(&self) -> impl Future<Output = Failure> + Send + use<> {
        let ended = self.process.as_ref().filter(|_| !self.is_daemon).map(Child::ended);
        // One end watches a network for all ends in it.
        let (is_alone, is_watched) = (self.is_alone, self.has_process() && self.peer == 0);
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
                    Some(end) if end.by == ProcessEnd::Exited(0) && is_alone && !residents.is_empty() => {
                        future::pending().await
                    }
                    Some(end) => {
                        // The thread that reads the output may be a moment behind.
                        sleep(LOOK).await;
                        failed(last_lines(&ending(&format!("the {name}"), &end.by), &printed.text(), LAST_LINES))
                    }
                    None => failed(format!("the {name} is lost")),
                }
            };
            tokio::select! {
                failure = process => failure,
                what = Arc::clone(&residents).misbehave(), if is_watched => failed(format!("the {name} {what}")),
            }
        }
    }

    /// Asks its process to end, and kills it if it does not. Returns whether it had to be killed.
    pub(super) async fn end(&mut self) -> bool {
        // The processes that do the work are then not the one that was started.
        self.is_daemon |= self.process.is_none();
        match self.process.take() {
            Some(process) => process.terminate(END_TIMEOUT).await.1,
            None => false,
        }
    }

    /// Ends the others in its network, when all ends there have ended. Returns whether it had to be killed with them, and how many
    /// others it left.
    pub(super) async fn end_others(&self) -> (bool, u64) {
        self.residents.find();
        let limit = if self.is_daemon { END_TIMEOUT } else { OTHERS_TIMEOUT };
        if self.is_daemon {
            self.residents.terminate();
        }
        let deadline = Instant::now() + limit;
        while !self.residents.is_empty() && Instant::now() < deadline {
            sleep(LOOK).await;
            self.residents.find();
        }
        let left = self.residents.kill();
        if self.is_daemon { (left > 0, 0) } else { (false, left) }
    }
}

/// Runs a command of the profile on a side, and waits for its end. Returns the reason if it fails.
pub(super) async fn to_its_end(
    run: &Run<'_>,
    side: Side,
    words: &[String],
    command: Command,
) -> Result<Result<(), String>, RunError> {
    let cannot = |source| cannot_start(run.profile, words, source);
    let (process, printed) = Child::watch(command, run.namespace(side)).map_err(cannot)?;
    let ended = timeout(READY_TIMEOUT, process.ended()).await;
    let name = format!("the command {}", words.first().map_or("", String::as_str));
    let reason = match ended.ok().flatten() {
        Some(end) if end.by == ProcessEnd::Exited(0) => return Ok(Ok(())),
        Some(end) => ending(&name, &end.by),
        None => format!("{name} did not end in time"),
    };
    // The thread that reads the output may be a moment behind.
    sleep(LOOK).await;
    Ok(Err(last_words(&reason, &printed.text())))
}

pub(super) fn cannot_start(profile: &Profile, words: &[String], source: io::Error) -> RunError {
    let program = words.first().cloned().unwrap_or_default();
    let place = located(&program);
    let error = |class, source| platform::Error::new(class, "start the program", program.clone(), source);
    if source.kind() != io::ErrorKind::NotFound {
        return error(Class::Failed, source).into();
    }
    let looked = match place {
        path if path.as_os_str() == program.as_str() && path.is_absolute() => None,
        path if path.is_absolute() => Some(format!("it was looked for at {}", path.display())),
        _ => Some("it was looked for in the folders of PATH".to_owned()),
    };
    let source = io::Error::new(io::ErrorKind::NotFound, "it is not installed");
    let remedy = match &profile.install {
        Some(install) => format!("install it: {install}"),
        None => "install it, or give its path".to_owned(),
    };
    let parts: Vec<_> = looked.into_iter().chain(no_shell(words)).chain([remedy]).collect();
    error(Class::Unavailable, source).remedy(parts.join("; ")).into()
}

#[cfg(all(test, unix))]
mod tests;
