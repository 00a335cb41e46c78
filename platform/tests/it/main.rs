//! The integration tests of this crate, in one program, so that there is one to link.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod fuzz;
mod profile;
