//! Samples to figures. Nothing here touches the system.

mod compare;
mod conditions;
#[cfg(test)]
pub(crate) mod fixture;
mod loopback;
mod rank;
#[cfg(test)]
mod simulation;
mod statistics;
mod summary;
mod warnings;

pub use self::compare::{CellChange, Change, CompareError, Comparison, Side, Verdict};
pub use self::conditions::{Difference, Differences, differences};
pub use self::rank::SIGNIFICANCE;
pub use self::summary::{CellSummary, Estimate, Summary};
