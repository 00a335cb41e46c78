//! Samples to figures. Nothing here touches the system.

#[cfg(test)]
mod fixture;
mod statistics;
mod summary;
mod warnings;

pub use self::summary::{CellSummary, Estimate, Summary};
