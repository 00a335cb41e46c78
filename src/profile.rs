//! Flame graphs: of this process, or of a carrier.

use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use platform::profile::{self, Profiler};
use platform::{Class, Error};
use tempfile::NamedTempFile;

use crate::error::RunError;
use crate::remedy::{SystemError, WithRemedy};

/// Does some work. If there is a `file`, profiles it and writes a flame graph, unless its result is not good.
pub(crate) fn profiled<T>(
    title: &str,
    file: Option<&Path>,
    is_good: impl FnOnce(&T) -> bool,
    work: impl FnOnce() -> Result<T, RunError>,
) -> Result<T, RunError> {
    let Some(file) = file else { return work() };
    let profiler = Profiler::start(profile::FREQUENCY_HZ)?;
    let result = work()?;
    if is_good(&result) {
        let mut graph = Vec::new();
        profiler.finish(title, &mut graph)?;
        write(file, &graph)?;
    }
    Ok(result)
}

/// The folded stacks that the forwarder in Go writes, and the file for the graph.
pub(crate) struct FoldedStacks {
    stacks: NamedTempFile,
    graph: PathBuf,
    title: String,
}

impl FoldedStacks {
    pub(crate) fn new(graph: PathBuf, title: String) -> Result<Self, Error> {
        let stacks =
            NamedTempFile::new().map_err(|source| Error::new(Class::Failed, "make", "a temporary file", source))?;
        Ok(Self { stacks, graph, title })
    }

    pub(crate) fn path(&self) -> &Path {
        self.stacks.path()
    }

    pub(crate) fn draw(self) -> Result<(), SystemError> {
        let stacks = self.stacks.reopen().map_err(|source| Error::new(Class::Failed, "read", "a profile", source))?;
        let mut graph = Vec::new();
        profile::flame_graph(BufReader::new(stacks), &self.title, &mut graph)?;
        write(&self.graph, &graph)
    }
}

fn write(file: &Path, graph: &[u8]) -> Result<(), SystemError> {
    fs::write(file, graph).map_err(|source: io::Error| {
        Error::new(Class::Failed, "write", file.display().to_string(), source).remedy("choose another --profile")
    })
}
