#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod fake;
mod live;
