//! The forwarder in Go, built when it is needed first: its sources are part of this program.
//!
//! The finished program lies in the user's cache, by a name that says from which sources it is, so each is
//! built once. It is built in a folder of its own beside it and moved to its place then, so that two processes
//! may do so at once. Who builds removes what was built long ago.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use fnv::FnvHasher;
use platform::{Class, Error};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::runtime;
use tokio::time::timeout;

use super::process::{kill, tail};

/// The files of `forwarders/go` that it is built from, tests left out.
const SOURCES: [(&str, &str); 7] = [
    ("go.mod", include_str!("../../forwarders/go/go.mod")),
    ("go.sum", include_str!("../../forwarders/go/go.sum")),
    ("main.go", include_str!("../../forwarders/go/main.go")),
    ("batch.go", include_str!("../../forwarders/go/batch.go")),
    ("carry.go", include_str!("../../forwarders/go/carry.go")),
    ("device_linux.go", include_str!("../../forwarders/go/device_linux.go")),
    ("profile.go", include_str!("../../forwarders/go/profile.go")),
];

/// How long a build may take, what it downloads included: 20 seconds where nothing is there yet.
const LIMIT: Duration = Duration::from_mins(5);

/// How long what was built stays in the cache: long enough for programs of different age that are run by turns.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// How everything of ours in the cache is called, in front of its own name.
const PREFIX: &str = "go-forwarder-";

/// What the program is called while it is being built.
const UNFINISHED: &str = "forwarder";

/// What helps whoever cannot have it.
const OR_ELSE: &str = "or choose --forwarder rust";

/// The path of the forwarder, which is built first where it is not there yet.
///
/// This blocks for as long as that takes, and must not be called from a task. It is to be called before the thread
/// enters a network namespace, because go fetches the modules that it does not have.
///
/// # Errors
///
/// [`Class::Unavailable`]: there is no go, or it could not build it, in its own words.
pub(super) fn forwarder() -> Result<PathBuf, Error> {
    let cache = cache(|name| env::var_os(name))?;
    Build { cache, search_path: None, limit: LIMIT }.program()
}

/// This program's folder among the user's caches, by the XDG Base Directory Specification, which wants relative
/// paths ignored.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Error> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join(env!("CARGO_PKG_NAME"))).ok_or_else(|| {
        let source = io::Error::new(io::ErrorKind::NotFound, "neither XDG_CACHE_HOME nor HOME is an absolute path");
        unavailable("find", "a folder for the Go forwarder", source, "set one of them,")
    })
}

/// How to come by the program.
struct Build {
    /// The folder that it lies in.
    cache: PathBuf,
    /// Where to look for go in place of `PATH`.
    search_path: Option<OsString>,
    limit: Duration,
}

impl Build {
    /// The path of the program, which is there.
    fn program(&self) -> Result<PathBuf, Error> {
        let program = self.cache.join(format!("{PREFIX}{:016x}", digest()));
        if !program.is_file() {
            self.build(&program)?;
        }
        Ok(program)
    }

    fn build(&self, program: &Path) -> Result<(), Error> {
        let written = |source| {
            let remedy = "see that it can be written to, set XDG_CACHE_HOME to another one,";
            unavailable("write to", &self.cache.display().to_string(), source, remedy)
        };
        let folder = self.folder().map_err(written)?;
        self.compile(folder.path())?;
        fs::rename(folder.path().join(UNFINISHED), program).map_err(written)
    }

    /// A folder with the sources, which goes when it is dropped.
    fn folder(&self) -> io::Result<TempDir> {
        fs::create_dir_all(&self.cache)?;
        remove_old(&self.cache)?;
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&self.cache)?;
        for (name, text) in SOURCES {
            fs::write(folder.path().join(name), text)?;
        }
        Ok(folder)
    }

    fn compile(&self, folder: &Path) -> Result<(), Error> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| unavailable("watch", "go build", source, "see that the system has descriptors left,"))?;
        let end = runtime.block_on(async {
            let mut child = self.start(folder)?;
            match timeout(self.limit, end_of(&mut child)).await {
                Ok(end) => end,
                Err(_elapsed) => {
                    kill(&mut child).await;
                    Err(io::Error::other(format!("it took longer than {} seconds", self.limit.as_secs_f64())))
                }
            }
        });
        match end {
            Ok((status, _)) if status.success() => Ok(()),
            Ok((_, stderr)) => Err(failed(io::Error::other(last_words(&stderr)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let remedy = format!("install Go {} or newer,", needed_version());
                Err(unavailable("start", "go", error, &remedy))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Starts go, with settings of its own where the user's could make another program of it.
    fn start(&self, folder: &Path) -> io::Result<Child> {
        let mut command = Command::new("go");
        platform::end_with_this_thread(command.as_std_mut());
        command.args(["build", "-trimpath", "-buildvcs=false", "-o", UNFINISHED, "."]).current_dir(folder);
        command.envs([("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=readonly"), ("GOWORK", "off"), ("CGO_ENABLED", "0")]);
        for platform in ["GOOS", "GOARCH"] {
            command.env_remove(platform);
        }
        if let Some(path) = &self.search_path {
            command.env("PATH", path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn()
    }
}

async fn end_of(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>)> {
    let stderr = child.stderr.take();
    let (stderr, status) = tokio::try_join!(tail(stderr), child.wait())?;
    Ok((status, stderr))
}

/// What the program is made of, for its name. A home may be that of several machines.
fn digest() -> u64 {
    let mut hasher = FnvHasher::default();
    (env::consts::ARCH, SOURCES).hash(&mut hasher);
    hasher.finish()
}

/// Removes of ours what is older than [`KEPT`], folders of builds that were killed included.
fn remove_old(cache: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let ours = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        // Another process may be at the same, and what cannot be removed is no reason not to build.
        if ours && is_old(&entry).unwrap_or(false) {
            let path = entry.path();
            let _gone = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
    Ok(())
}

fn is_old(entry: &fs::DirEntry) -> io::Result<bool> {
    Ok(entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age > KEPT))
}

fn failed(source: io::Error) -> Error {
    unavailable("build", "the Go forwarder", source, "see that go can fetch its modules (go env GOPROXY),")
}

fn unavailable(operation: &'static str, object: &str, source: io::Error, remedy: &str) -> Error {
    Error::new(Class::Unavailable, operation, object, source).remedy(format!("{remedy} {OR_ELSE}"))
}

/// The oldest Go that builds it.
fn needed_version() -> &'static str {
    let (_, go_mod) = SOURCES[0];
    go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default()
}

/// The last thing that go said: its last line that is not indented, and what belongs to that.
fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.iter().rposition(|line| !line.starts_with([' ', '\t'])).unwrap_or(0);
    let words: Vec<_> = lines[start..].iter().map(|line| line.trim()).collect();
    if words.is_empty() { "go build failed, and did not say why".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests;
