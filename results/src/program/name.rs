//! A program as a cell has it, and its name.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use arrayvec::ArrayString;
use netstacks::StackKind;
use serde::{Deserialize, Serialize};

use super::built_in::stack;
use super::{Profile, is_baseline};

/// A program that a cell names. Two of one name are the same cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "ProgramName", into = "ProgramName")]
pub struct Program {
    /// Its name in tables and files.
    pub name: ProgramName,
    profile: Option<Arc<Profile>>,
}

impl Program {
    /// How it is started; `None` if the cell is from a file of samples.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// The stack that it is, if it is our proxy.
    pub fn stack(&self) -> Option<StackKind> {
        stack(self.name.as_str())
    }

    /// Whether others are compared with it.
    pub fn is_baseline(&self) -> bool {
        is_baseline(self.name)
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        Profile::named(typed).map(|profile| Self { name: profile.name, profile: Some(Arc::new(profile)) })
    }
}

impl From<ProgramName> for Program {
    fn from(name: ProgramName) -> Self {
        Self { name, profile: None }
    }
}

impl From<Program> for ProgramName {
    fn from(program: Program) -> Self {
        program.name
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Program {}

impl PartialOrd for Program {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Program {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

const MAX_NAME: usize = 32;

/// The name of a program in tables and files: up to 32 letters, digits, dots, hyphens and underscores of ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ProgramName(ArrayString<MAX_NAME>);

impl ProgramName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProgramName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        let refused =
            || format!("a name has 1 to {MAX_NAME} letters, digits, dots, hyphens and underscores, not {text:?}");
        if text.is_empty() || !text.chars().all(is_allowed) {
            return Err(refused());
        }
        ArrayString::from(text).map(Self).map_err(|_| refused())
    }
}

json_as_text!(ProgramName);

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
