//! What a run asks of the kernel's own network: its loopback, and to forward packets.

use crate::Error;
use crate::sys::{Native, System};

/// The kernel's loopback interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loopback {
    /// Its name.
    pub name: String,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// Whether super-packets and undone checksums cross it.
    pub offload: bool,
}

/// Sets the link of the loopback up in the calling thread's network, and describes it. In a new network namespace it
/// is down. `None` on other systems than Linux.
///
/// # Errors
///
/// [`crate::Class::Failed`] if it cannot be set up.
pub fn set_loopback_up() -> Result<Option<Loopback>, Error> {
    Native::set_loopback_up()
}

/// Has the kernel forward packets that come out of an interface, of the calling thread's network, by its
/// routes, which may lead back into the same interface. It makes a router of that network, so it is for
/// a network of the run's own: see [`crate::enter_netns`].
///
/// # Errors
///
/// [`crate::Class::Unavailable`], where the system has no networks of one's own or does not let them be
/// set up.
pub fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    Native::enable_forwarding(interface, ipv6)
}
