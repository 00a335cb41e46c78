//! What a run asks of the kernel's own network: its loopback, and to forward packets.

use crate::{Error, imp};

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

/// Sees that the loopback of the calling thread's network is up, which in a new network namespace it is
/// not, and says what is known of it: on Linux alone.
///
/// # Errors
///
/// [`crate::Class::Failed`], where it cannot be taken up.
pub fn take_up_loopback() -> Result<Option<Loopback>, Error> {
    imp::take_up_loopback()
}

/// Has the kernel forward packets that come out of an interface, of the calling thread's network, by its
/// routes, which may lead back into the same interface. It makes a router of that network, so it is for
/// a network of the run's own: see [`crate::isolate`].
///
/// # Errors
///
/// [`crate::Class::Unavailable`], where the system has no networks of one's own or does not let them be
/// set up.
pub fn enable_forwarding(interface: &str, ipv6: bool) -> Result<(), Error> {
    imp::enable_forwarding(interface, ipv6)
}
