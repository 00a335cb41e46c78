//! The flame graph of a forwarder.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use platform::{Class, Error};
use tempfile::NamedTempFile;

use crate::plan::{ForwardScenario, Forwarder};

/// Where the forwarder is to write what it has found out about itself.
pub(super) enum Profile {
    /// The graph, to its place: this program draws by itself.
    Graph(PathBuf),
    /// Its stacks, to be drawn from here: the one in Go.
    Stacks(NamedTempFile),
}

impl Profile {
    /// `None` where no graph is wanted.
    pub(super) fn of(scenario: &ForwardScenario) -> Result<Option<Self>, Error> {
        let Some(file) = &scenario.profile else { return Ok(None) };
        Ok(Some(match scenario.forwarder {
            Forwarder::Rust(_) => Self::Graph(file.clone()),
            Forwarder::Go { .. } => {
                let made = NamedTempFile::new();
                Self::Stacks(made.map_err(|source| Error::new(Class::Failed, "make", "a temporary file", source))?)
            }
        }))
    }

    /// The file for the forwarder to write.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Graph(file) => file,
            Self::Stacks(file) => file.path(),
        }
    }

    /// Draws what is left to be drawn, once the forwarder has ended.
    pub(super) fn finish(self, scenario: &ForwardScenario) -> Result<(), Error> {
        let (Self::Stacks(stacks), Some(file)) = (self, &scenario.profile) else { return Ok(()) };
        let failed = |source: io::Error| {
            Error::new(Class::Failed, "write", file.display().to_string(), source).remedy("choose another --profile")
        };
        let stacks = BufReader::new(stacks.reopen().map_err(failed)?);
        let mut graph = BufWriter::new(File::create(file).map_err(failed)?);
        platform::profile::flame_graph(stacks, &scenario.forwarder.to_string(), &mut graph)?;
        graph.flush().map_err(failed)
    }
}
