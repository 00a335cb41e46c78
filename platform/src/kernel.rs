//! Settings of the kernel's network: its loopback interface, and forwarding.

use crate::Error;
use crate::sys::{Native, System};

/// The kernel's loopback interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loopback {
    /// Its name.
    pub name: String,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// Whether super-packets and partial checksums cross it.
    pub offload: bool,
}

/// Sets the loopback interface of the calling thread's network up, and returns its description. In a new network
/// namespace it is down. `None` on systems other than Linux.
///
/// # Errors
///
/// [`crate::Class::Failed`] if it cannot be set up.
pub fn set_loopback_up() -> Result<Option<Loopback>, Error> {
    Native::set_loopback_up()
}

/// Makes the kernel forward packets that come from an interface of the calling thread's network, by its routes. A
/// route may lead back into the same interface. This turns the network into a router, so call it only in a separate
/// network namespace: see [`crate::enter_netns`].
///
/// # Errors
///
/// [`crate::Class::Unavailable`] if the system has no network namespaces or does not allow this setting.
pub fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    Native::enable_forwarding(interface, ipv6)
}
