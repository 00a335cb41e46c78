//! What machine and what program a sample is of.

use std::hash::Hasher;

use fnv::FnvHasher;
use netstacks::StackKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fields::{field_text, fields};

/// The machine and the program, as far as they change a figure. `None` is what is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The machine.
    #[serde(flatten)]
    pub machine: platform::Environment,
    /// What ran on it.
    #[serde(flatten)]
    pub program: Program,
}

/// The program as it was built. All of it is `None` in files of older programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program's version.
    #[serde(default)]
    pub version: Option<String>,
    /// The commit that it was built from, with `-dirty.` and a hash of the changes where files had been
    /// changed since.
    #[serde(default)]
    pub commit: Option<String>,
    /// `release` or `debug`.
    #[serde(default)]
    pub build: Option<String>,
    /// Tokio's version.
    #[serde(default)]
    pub tokio: Option<String>,
    /// lwIP's version, where it is compiled in.
    #[serde(default)]
    pub lwip: Option<String>,
    /// ipstack's version, where it is compiled in.
    #[serde(default)]
    pub ipstack: Option<String>,
    /// smoltcp's version, where it is compiled in.
    #[serde(default)]
    pub smoltcp: Option<String>,
}

impl Program {
    /// This program.
    pub fn this() -> Self {
        let stack = |kind: StackKind| kind.version().map(ToOwned::to_owned);
        Self {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            commit: option_env!("RUST_TUN_PERF_COMMIT").map(ToOwned::to_owned),
            build: Some(if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
            tokio: option_env!("RUST_TUN_PERF_TOKIO").map(ToOwned::to_owned),
            lwip: stack(StackKind::Lwip),
            ipstack: stack(StackKind::Ipstack),
            smoltcp: stack(StackKind::Smoltcp),
        }
    }
}

impl Environment {
    /// This machine and this program.
    pub fn detect() -> Self {
        Self { machine: platform::Environment::detect(), program: Program::this() }
    }

    /// A short name for it: equal for equal environments, on every system.
    pub fn id(&self) -> String {
        id(&fields(self))
    }

    /// What is not alike: the name of the field, its value here and its value there.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let theirs = fields(other);
        let differing = fields(self).into_iter().filter(|(name, ours)| theirs.get(name) != Some(ours));
        differing
            .map(|(name, ours)| {
                let theirs = field_text(theirs.get(&name));
                (name, field_text(Some(&ours)), theirs)
            })
            .collect()
    }
}

/// The [`Environment::id`] of an environment by its fields in a file, of which this program need not know
/// all: what another one wrote has the fields that it knew.
pub(super) fn id(fields: &Map<String, Value>) -> String {
    let mut hasher = FnvHasher::default();
    for (name, value) in fields {
        hasher.write(name.as_bytes());
        hasher.write(value.to_string().as_bytes());
    }
    format!("{:016x}", hasher.finish())
}
