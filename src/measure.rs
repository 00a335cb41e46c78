//! Samples to figures. Nothing here touches the system.

mod summary;

pub use self::summary::{CellSummary, Estimate, Summary};
