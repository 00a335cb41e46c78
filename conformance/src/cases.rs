//! The cases, by subject.

mod ends;
mod handshake;

use crate::Case;

/// The subjects and their cases, in the order of tables.
pub(crate) const SUBJECTS: &[(&str, &[Case])] = &[("handshake", handshake::CASES), ("ends", ends::CASES)];
