//! The name of a program.

use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};

/// Longest name, in bytes.
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

impl TryFrom<String> for ProgramName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ProgramName> for String {
    fn from(name: ProgramName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
