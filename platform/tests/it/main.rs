//! The integration tests of this crate. They are one program, so that only one is linked.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod fuzz;
mod profile;
