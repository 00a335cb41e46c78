//! A description of this machine.

use serde::{Deserialize, Serialize};

use crate::sys::{Native, System};

/// The machine and its settings, as far as they change a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Environment {
    /// The operating system, as Rust names it: `linux`, `macos`, `windows`.
    pub system: String,
    /// The processor's architecture, as Rust names it.
    pub architecture: String,
    /// The kernel's release, where the system says.
    pub kernel: Option<String>,
    /// The processor's model, where the system says.
    pub cpu: Option<String>,
    /// Processors that this process may use.
    pub cpus: Option<usize>,
    /// The frequency governor of the first processor, where it has one.
    pub governor: Option<String>,
    /// Whether this is a virtual machine, where the system says.
    pub virtual_machine: Option<bool>,
}

impl Environment {
    /// Reads the machine's data.
    ///
    /// ```
    /// use platform::Environment;
    ///
    /// let environment = Environment::detect();
    /// assert_eq!(environment.system, std::env::consts::OS);
    /// ```
    pub fn detect() -> Self {
        Self {
            system: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            kernel: Native::kernel(),
            cpu: Native::cpu(),
            cpus: crate::process::parallelism(),
            governor: Native::governor(),
            virtual_machine: Native::virtual_machine(),
        }
    }
}
