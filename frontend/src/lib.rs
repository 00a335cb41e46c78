//! The stages of rust-tun-perf that open no device and send no byte.
//!
//! 1. [`cli`] parses the command line.
//! 2. [`plan`] checks it and makes [`scenario`]s of it. [`program`] has what is known of programs that can be measured.
//! 3. A [`sample`] is what a run of a scenario gave. Files have samples of all runs.
//! 4. [`measure`] computes figures from samples.
//! 5. [`mod@report`] writes figures as text, tables, charts and pages.

pub mod cli;
pub mod measure;
pub mod plan;
pub mod program;
pub mod report;
pub mod sample;
pub mod scenario;
