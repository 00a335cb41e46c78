//! Tells apart errors that end the forwarder and errors that only lose a packet.

use std::io;

use platform::linux::loses_packet;
use platform::{Cause, Class, Error};

/// Whether a failed read loses only its packet. Such an error comes from tun-rs, not from the kernel: tun-rs cannot
/// split the super-packet. A deleted device fails with `EBADFD`, or with `EFAULT` if a thread was waiting for a packet
/// (`drivers/net/tun.c`, `tun_chr_read_iter`, `tun_ring_recv`).
pub(super) fn is_malformed(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

/// Whether a failed write loses only its packet: the kernel did not take it, had no room for it, or tun-rs found it
/// malformed.
pub(super) fn is_refused(error: &io::Error) -> bool {
    loses_packet(error) || error.kind() == io::ErrorKind::WouldBlock || is_malformed(error)
}

/// The error that ends a forwarder, for instance because its device was deleted.
pub(super) fn failed(operation: &'static str, device: &str, source: io::Error) -> Error {
    let gone = matches!(source.raw_os_error(), Some(libc::EBADFD | libc::EFAULT));
    let cause = if gone { Cause::InterfaceDeleted } else { Class::Failed.into() };
    Error::new(cause, operation, format!("TUN interface {device}"), source)
}
