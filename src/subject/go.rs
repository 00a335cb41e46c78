//! The programs in Go, gVisor's stack and the forwarder, which are built from sources in this program.
//!
//! A finished program is in the user's cache. Its name has a hash of the sources, of the version of Go, and of the system that it is
//! for. Each build has a folder of its own and moves its result into place at the end, so two processes may build at once.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fnv::FnvHasher;
use platform::{Class, End, Error, ProcessEnd, output, printed};
use tempfile::TempDir;

use crate::cell::ForwarderName;
use crate::plan::scenario::Scenario;
use crate::remedy::{SystemError, WithRemedy};

struct GoProgram {
    name: &'static str,
    prefix: &'static str,
    /// The files that it is built from, tests left out; the first is `go.mod`.
    sources: &'static [(&'static str, &'static str)],
    /// The last part of each remedy: the alternatives to a build.
    or_else: &'static str,
}

const FORWARDER: GoProgram = GoProgram {
    name: "forwarder in Go",
    prefix: "go-forwarder-",
    sources: &forwarders::GO_SOURCES,
    or_else: "or name a finished program with --go-forwarder, or choose --forwarder rust",
};

const GVISOR: GoProgram = GoProgram {
    name: "stack of gVisor",
    prefix: "go-gvisor-",
    sources: &netstacks::GVISOR_SOURCES,
    or_else: "or choose another --netstack",
};

/// How long a build may take, downloads included. It takes 20 seconds with empty caches.
const BUILD_TIMEOUT: Duration = Duration::from_mins(5);

/// How long go or the forwarder may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Age at which a program in the cache is removed. Two builds of this program that run in turns each keep theirs.
const MAX_AGE: Duration = Duration::from_hours(30 * 24);

const UNFINISHED: &str = "unfinished";

/// Settings that replace the user's, of the environment and of `go env -w`: each could change the program, or prevent it.
const FIXED: [(&str, &str); 5] = [
    ("GOTOOLCHAIN", "local"),
    ("GOFLAGS", "-mod=readonly"),
    ("GOWORK", "off"),
    ("GO111MODULE", "on"),
    ("CGO_ENABLED", "0"),
];

/// Settings that do the same, and whose default depends on the version of Go, or on the machine.
const UNSET: [&str; 10] =
    ["GOEXPERIMENT", "GOFIPS140", "GO386", "GOAMD64", "GOARM", "GOARM64", "GOMIPS", "GOMIPS64", "GOPPC64", "GORISCV64"];

/// What is asked of go. The program is for the first two. The others say where modules come from and where go keeps its
/// files, and stay the user's.
const ASKED: [&str; 12] = [
    "GOHOSTOS",
    "GOHOSTARCH",
    "GOPROXY",
    "GOSUMDB",
    "GONOPROXY",
    "GONOSUMDB",
    "GOPRIVATE",
    "GOINSECURE",
    "GOAUTH",
    "GOVCS",
    "GOCACHE",
    "GOMODCACHE",
];

/// The program of gVisor's stack, which is built if it is not in the cache. The rules of [`program`] hold here, too.
pub(crate) fn gvisor() -> Result<PathBuf, SystemError> {
    GVISOR.build()
}

impl GoProgram {
    fn build(&'static self) -> Result<PathBuf, SystemError> {
        let cache = self.cache(|name| env::var_os(name))?;
        Build { of: self, cache, replaced: Vec::new(), limit: BUILD_TIMEOUT }.program()
    }

    /// This program's folder in the user's cache, by the XDG Base Directory Specification: relative paths are ignored.
    fn cache(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, SystemError> {
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        base.map(|base| base.join(env!("CARGO_PKG_NAME"))).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::NotFound, "neither XDG_CACHE_HOME nor HOME is an absolute path");
            self.unavailable("find", "a folder for programs in Go", source, "set one of them,")
        })
    }

    /// A hash of everything that determines the program, for its name. The system is in it, because several machines may
    /// share a home.
    fn digest(&self, go: &Go) -> u64 {
        let mut hasher = FnvHasher::default();
        (&go.version, &go.settings[..2], FIXED, self.sources).hash(&mut hasher);
        hasher.finish()
    }

    fn needed_version(&self) -> &'static str {
        let (_, go_mod) = self.sources[0];
        go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default()
    }

    /// The error of an operation that failed for lack of something.
    fn unavailable(&self, operation: &'static str, object: &str, source: io::Error, remedy: &str) -> SystemError {
        Error::new(Class::Unavailable, operation, object, source).remedy(format!("{remedy} {}", self.or_else))
    }
}

/// The forwarder that the scenario names, or else the one in the cache, which is built if it is not there yet. Must be
/// called before the thread enters a network namespace, and not from a task: go may have to download modules.
pub(crate) fn program(scenario: &Scenario) -> Result<PathBuf, SystemError> {
    match &scenario.go_forwarder {
        Some(program) => Ok(program.clone()),
        None => FORWARDER.build(),
    }
}

/// The versions of Go and of the modules of the forwarder in Go, if a scenario has one.
pub(crate) fn version<'a>(scenarios: impl IntoIterator<Item = &'a Scenario>) -> Option<String> {
    let mut scenarios = scenarios.into_iter();
    let scenario = scenarios.find(|scenario| scenario.cell.forwarder == Some(ForwarderName::Go))?;
    version_of(&program(scenario).ok()?)
}

fn version_of(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("-version");
    let version = printed(command, VERSION_TIMEOUT)?.trim().to_owned();
    (!version.is_empty()).then_some(version)
}

struct Build {
    of: &'static GoProgram,
    cache: PathBuf,
    /// Variables of the environment that tests replace.
    replaced: Vec<(&'static str, OsString)>,
    limit: Duration,
}

/// The go that is installed.
struct Go {
    /// Such as `go1.24.1`.
    version: String,
    /// The values of [`ASKED`].
    settings: Vec<String>,
}

impl Build {
    fn program(&self) -> Result<PathBuf, SystemError> {
        let go = self.installed()?;
        let program = self.cache.join(format!("{}{:016x}", self.of.prefix, self.of.digest(&go)));
        // It may be broken, by a full disk for example.
        if !program.is_file() || version_of(&program).is_none() {
            // Standard error may be closed.
            let _closed = writeln!(io::stderr(), "building the {} with {}", self.of.name, go.version);
            self.build(&go, &program)?;
        }
        Ok(program)
    }

    fn installed(&self) -> Result<Go, SystemError> {
        let folder = env::temp_dir();
        fs::read_dir(&folder).map_err(|source| {
            let object = format!("the folder for temporary files, {}", folder.display());
            self.of.unavailable("open", &object, source, "set TMPDIR to a folder that exists,")
        })?;
        let end = self.go(&folder, &[&["env", "GOVERSION"][..], &ASKED].concat(), &[], VERSION_TIMEOUT)?;
        let text = String::from_utf8_lossy(&end.stdout);
        let mut lines = text.lines().map(|line| line.trim().to_owned());
        let mut next = || lines.next().unwrap_or_default();
        Ok(Go { version: next(), settings: ASKED.map(|_| next()).into() })
    }

    fn build(&self, go: &Go, program: &Path) -> Result<(), SystemError> {
        let failed = |source| {
            let remedy = "see that it can be written to, set XDG_CACHE_HOME to another one,";
            self.of.unavailable("write to", &self.cache.display().to_string(), source, remedy)
        };
        let folder = self.folder().map_err(failed)?;
        let names = ["GOOS", "GOARCH"].into_iter().chain(ASKED.into_iter().skip(2));
        let settings = names.zip(go.settings.iter().map(String::as_str)).chain([("GOENV", "off")]);
        let arguments = ["build", "-trimpath", "-buildvcs=false", "-o", UNFINISHED, "."];
        self.go(folder.path(), &arguments, &settings.collect::<Vec<_>>(), self.limit)?;
        fs::rename(folder.path().join(UNFINISHED), program).map_err(failed)
    }

    /// A folder with the sources, which is removed when it is dropped.
    fn folder(&self) -> io::Result<TempDir> {
        fs::create_dir_all(&self.cache)?;
        self.remove_old()?;
        let folder = tempfile::Builder::new().prefix(self.of.prefix).tempdir_in(&self.cache)?;
        for (name, text) in self.of.sources {
            fs::write(folder.path().join(name), text)?;
        }
        Ok(folder)
    }

    /// Runs go with these settings and the fixed ones.
    fn go(
        &self,
        folder: &Path,
        arguments: &[&str],
        settings: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Arc<End>, SystemError> {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(folder);
        for (name, value) in &self.replaced {
            command.env(name, value);
        }
        for name in UNSET {
            command.env_remove(name);
        }
        command.envs(FIXED).envs(settings.iter().copied());
        let failed = |source| {
            let remedy = "see that go can fetch its modules (go env GOPROXY),";
            self.of.unavailable("build", &format!("the {}", self.of.name), source, remedy)
        };
        match output(command, limit) {
            Ok(end) if end.by == ProcessEnd::Exited(0) => Ok(end),
            Ok(end) => Err(failed(io::Error::other(last_words(&end.stderr)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let remedy = format!("install Go {} or newer,", self.of.needed_version());
                Err(self.of.unavailable("start", "go", error, &remedy))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes programs that are older than [`MAX_AGE`], and folders of builds that were killed.
    fn remove_old(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.cache)? {
            let entry = entry?;
            let ours = entry.file_name().as_encoded_bytes().starts_with(self.of.prefix.as_bytes());
            // Errors are ignored: another process may remove it at the same time, and a build does not need the room.
            if ours && is_old(&entry).unwrap_or(false) {
                let path = entry.path();
                let _gone = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            }
        }
        Ok(())
    }
}

fn is_old(entry: &fs::DirEntry) -> io::Result<bool> {
    Ok(entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age > MAX_AGE))
}

/// The last message of go: its last line that is not indented, and the indented lines after it.
pub(crate) fn last_words(stderr: &str) -> String {
    let lines: Vec<_> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.iter().rposition(|line| !line.starts_with([' ', '\t'])).unwrap_or(0);
    let words: Vec<_> = lines[start..].iter().map(|line| line.trim()).collect();
    if words.is_empty() { "it failed and printed no reason".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests;
