//! The trait that executes scenarios.

use super::error::RunError;
use crate::sample::{Environment, Sample};
use crate::scenario::Scenario;

/// Something that executes scenarios: the real one, or a test's with fixed samples.
pub trait Executor {
    /// Runs the scenario. A run that began and failed is a sample too; its status says how it failed.
    ///
    /// # Errors
    ///
    /// The run could not begin, or the user interrupted it.
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError>;

    /// Gets ready for these scenarios before the first of them runs, so that slow preparations do not take place
    /// while others are measured. Returns the environment of the program that makes the runs.
    ///
    /// # Errors
    ///
    /// That program cannot make runs for this one, or the user interrupted it.
    fn prepare(&self, _scenarios: &[Scenario]) -> Result<Environment, RunError> {
        Ok(Environment::detect())
    }
}
