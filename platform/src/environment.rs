//! A description of this machine.

use std::hash::Hasher;

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use crate::sys;

/// The machine and its settings, as far as they change a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Tells this machine from others: a hash of its id, processors and memory. Only Linux says, where the machine has an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

impl Environment {
    /// Reads the machine's data.
    pub fn detect() -> Self {
        Self {
            system: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            kernel: sys::kernel(),
            cpu: sys::cpu(),
            cpus: crate::process::parallelism(),
            governor: sys::governor(),
            virtual_machine: sys::virtual_machine(),
            machine: sys::identity().map(|identity| hashed(&identity)),
        }
    }

    /// Describes a fault of this kernel that changes packets which it sends to a TUN device.
    pub fn damage(&self) -> Option<&'static str> {
        damage(&self.system, self.kernel.as_deref()?)
    }
}

/// From this release on, XNU may damage TCP segments that it sends over utun, or panic in `m_copym_with_hdrs`.
const DAMAGING: [u32; 2] = [25, 5];

/// Describes a fault of a system's kernel that changes packets which it sends to a TUN device.
pub(crate) fn damage(system: &str, release: &str) -> Option<&'static str> {
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let release = [numbers.next()?, numbers.next()?];
    (system == "macos" && release >= DAMAGING).then_some(
        "from macOS 26.5 on, the kernel may damage the TCP segments that it sends over utun under load, or panic",
    )
}

/// Makes the hash another one than other programs make of the identity.
const PURPOSE: &[u8] = b"rust-tun-perf machine ";

/// A hash of 48 bits. So many ids of 128 bits have the same hash that it says nothing about the id.
fn hashed(identity: &str) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(PURPOSE);
    hasher.write(identity.as_bytes());
    format!("{:012x}", hasher.finish() >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_kernels_of_macos_may_damage_what_they_send() {
        for release in ["25.5.0", "25.6", "25.10.0", "26.0.0"] {
            assert!(damage("macos", release).is_some(), "{release}");
        }
        for (system, release) in [("macos", "25.4.0"), ("macos", "24.6.0"), ("macos", "25"), ("linux", "25.5.0")] {
            assert_eq!(damage(system, release), None, "{system} {release}");
        }
    }

    #[test]
    fn a_machine_has_a_hash_of_its_own_without_its_id() {
        let id = "2c8c1f5ad3b04ef9a9bd2b7a4f0f6c11";
        assert_eq!(hashed(id), hashed(id));
        assert_ne!(hashed(id), hashed("2c8c1f5ad3b04ef9a9bd2b7a4f0f6c12"));
        assert_eq!(hashed(id).len(), 12);
        let detected = Environment::detect();
        assert_eq!(detected.machine, Environment::detect().machine);
        // Not by the id of its last start, which changes.
        let has_id = std::fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim().len() == 32);
        assert_eq!(detected.machine.is_some(), has_id && cfg!(target_os = "linux"));
        let identity = sys::identity().unwrap_or_default();
        let raw = identity.split(' ').next().unwrap_or_default();
        assert!(raw.is_empty() || !format!("{detected:?}").contains(raw));
    }
}
