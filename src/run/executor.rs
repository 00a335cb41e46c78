//! The trait that executes scenarios.

use crate::error::RunError;
use crate::plan::scenario::Scenario;
use crate::sample::{Environment, Sample};

/// Executes scenarios. The executor of a test may return fixed samples.
pub trait Executor {
    /// Runs the scenario. A run that began and failed is a sample too; its status says how it failed.
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError>;

    /// Prepares for these scenarios before the first one runs. Returns the environment of the program that makes the runs.
    fn prepare(&self, _scenarios: &[Scenario]) -> Result<Environment, RunError> {
        Ok(crate::environment())
    }
}
