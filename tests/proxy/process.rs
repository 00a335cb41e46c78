//! Programs that run in a namespace and end with the test.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use platform::Namespace;

/// Longer than any program runs, even on a busy machine.
const DEADLINE: Duration = Duration::from_mins(5);

/// Longer than any other wait takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `holds` returns true.
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait(PATIENCE, what, holds);
}

fn wait(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "timed out: waited until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A running program. It is killed when this value is dropped, and by the kernel when the test process ends.
pub(crate) struct Program {
    name: String,
    child: Child,
    stdout: File,
    stderr: File,
    /// Whether a test has waited for its end, and has its output.
    ended: bool,
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// Starts a program with its arguments.
    pub(crate) fn start(namespace: &Namespace, words: &[&str]) -> Self {
        // Files, because a pipe that is not read would fill up.
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words).stdin(Stdio::null());
        // Otherwise the allocator keeps an arena for each processor, and the memory depends on the machine.
        command.env("MALLOC_ARENA_MAX", "1");
        command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
        // For pdeathsig the parent is the namespace's thread, which ends with the namespace or the process.
        let child = namespace.run(move || command.spawn()).unwrap().unwrap();
        Self { name: words[0].to_owned(), child, stdout, stderr, ended: false }
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output so far.
    pub(crate) fn said(&self) -> String {
        text(&self.stdout)
    }

    /// Returns its standard error so far.
    pub(crate) fn complaints(&self) -> String {
        text(&self.stderr)
    }

    /// Returns whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.id().to_string()]).status().unwrap().success());
    }

    /// Waits until it ends.
    pub(crate) fn end(mut self) -> Ended {
        let what = format!("{} ends", self.name);
        wait(DEADLINE, &what, || !self.runs());
        self.ended = true;
        Ended { status: self.child.wait().unwrap(), stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _gone = self.child.kill();
        let status = self.child.wait();
        if thread::panicking() {
            let said = format!("{}{}", self.said(), text(&self.stderr));
            let _closed = writeln!(std::io::stderr(), "{} ended with {status:?} and said: {said}", self.name);
        }
    }
}

/// Returns the content of a file. Does not move the position of the writer.
fn text(file: &File) -> String {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
