//! The machine and the program that made a sample.

use std::hash::Hasher;
use std::sync::OnceLock;

use fnv::FnvHasher;
use netstacks::StackKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The machine and the program, as far as they change a figure. `None` is what is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    #[serde(flatten)]
    pub machine: platform::Environment,
    #[serde(flatten)]
    pub program: Program,
}

/// The program as it was built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub version: Option<String>,
    /// The commit that it was built from, with `-dirty.` and a hash of the changes if there were any.
    pub commit: Option<String>,
    /// `release` or `debug`.
    pub build: Option<String>,
    pub tokio: Option<String>,
    pub lwip: Option<String>,
    pub ipstack: Option<String>,
    pub smoltcp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_ip: Option<String>,
    #[serde(default, rename = "netstack-smoltcp", skip_serializing_if = "Option::is_none")]
    pub netstack_smoltcp: Option<String>,
    #[serde(default, rename = "lwip-published", skip_serializing_if = "Option::is_none")]
    pub lwip_published: Option<String>,
    /// What the forwarder in Go was built with, where it is run: the versions of Go and of its modules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub go_forwarder: Option<String>,
}

/// The sources of a build, as its build script knows them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// The commit of the working tree; `None` without git.
    pub commit: Option<&'static str>,
    pub tokio: Option<&'static str>,
}

static ORIGIN: OnceLock<Origin> = OnceLock::new();

impl Origin {
    /// Records the origin of this process. Only the first call has an effect.
    pub fn declare(self) {
        ORIGIN.get_or_init(|| self);
    }
}

impl Program {
    /// This program. Its origin is known after [`Origin::declare`].
    pub fn this() -> Self {
        let origin = ORIGIN.get().copied().unwrap_or_default();
        let stack = |kind: StackKind| kind.version().map(ToOwned::to_owned);
        Self {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            commit: origin.commit.map(ToOwned::to_owned),
            build: Some(if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
            tokio: origin.tokio.map(ToOwned::to_owned),
            lwip: stack(StackKind::Lwip),
            ipstack: stack(StackKind::Ipstack),
            smoltcp: stack(StackKind::Smoltcp),
            tcp_ip: stack(StackKind::TcpIp),
            netstack_smoltcp: stack(StackKind::NetstackSmoltcp),
            lwip_published: stack(StackKind::LwipPublished),
            go_forwarder: None,
        }
    }

    /// What tells it from another build: its commit, or its version.
    pub fn name(&self) -> &str {
        self.commit.as_deref().or(self.version.as_deref()).unwrap_or("unknown")
    }

    /// The version of a stack, if it is compiled in: the field with its name.
    pub fn version_of(&self, stack: StackKind) -> Option<String> {
        fields(self).get(stack.name())?.as_str().map(ToOwned::to_owned)
    }
}

impl Environment {
    /// This machine and this program. Its commit is known after [`Origin::declare`].
    pub fn detect() -> Self {
        Self { machine: platform::Environment::detect(), program: Program::this() }
    }

    /// A short name: the same for equal environments, on every system.
    pub fn id(&self) -> String {
        id(&fields(self))
    }

    /// The fields that differ: name, value in this environment, value in the other.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let theirs = fields(other);
        let differing = fields(self).into_iter().filter(|(name, ours)| theirs.get(name) != Some(ours));
        differing.map(|(name, ours)| (name.clone(), field_text(Some(&ours)), field_text(theirs.get(&name)))).collect()
    }
}

/// The [`Environment::id`] of the fields in a file, of which another version may have written others.
pub(super) fn id(fields: &Map<String, Value>) -> String {
    let mut hasher = FnvHasher::default();
    for (name, value) in fields {
        hasher.write(name.as_bytes());
        hasher.write(value.to_string().as_bytes());
    }
    format!("{:016x}", hasher.finish())
}

/// All fields of a structure by their names in a file, sorted.
pub fn fields(structure: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(structure) {
        Ok(Value::Object(fields)) => fields,
        // A structure of text and numbers is always an object.
        _ => Map::new(),
    }
}

/// The value of a field as text, without the quotes of JSON.
pub fn field_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "unknown".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}
