//! The stages of rust-tun-perf that open no device and send no byte.
//!
//! 1. [`cli`] parses the command line.
//! 2. [`plan`] checks it and makes [`scenario`]s of it. A [`program`] is started as its profile says.
//! 3. A [`sample`] is the result of a run, and a file has those of a matrix.
//! 4. [`measure`] computes figures from samples.
//! 5. [`mod@report`] writes figures as text, tables, charts and pages.

pub mod cli;
pub mod measure;
pub mod plan;
pub mod program;
pub mod report;
pub mod sample;
pub mod scenario;
