//! Makes figures of samples. Nothing here uses the system.

mod compare;
mod conditions;
#[cfg(test)]
pub(crate) mod fixture;
mod known;
pub(crate) mod metric;
mod rank;
mod settled;
#[cfg(test)]
mod simulation;
mod statistics;
mod summary;
mod warnings;

pub use self::compare::{CellChange, Change, CompareError, Comparison, Method, Side, Verdict};
pub use self::conditions::{Difference, Differences, differences};
pub use self::known::known_to_fail;
pub use self::rank::SIGNIFICANCE;
pub use self::settled::{FEWEST_ROUNDS, settled};
pub(crate) use self::statistics::{estimate, median};
pub(crate) use self::summary::best;
pub use self::summary::{CellSummary, Estimate, Summary, latency};
pub(crate) use self::warnings::grouped;
