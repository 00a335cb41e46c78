//! What is to be done about a call that failed: go on without the packet, or end.

use std::io;

use platform::{Class, Error};

/// Whether a read failed for its packet alone: tun-rs, not the kernel, says so of a super-packet that it cannot
/// cut. A device that is gone fails with `EBADFD`, or with `EFAULT` where somebody waited for a packet
/// (`drivers/net/tun.c`, `tun_chr_read_iter`, `tun_ring_recv`).
pub(super) fn is_odd(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() != io::ErrorKind::Interrupted
}

/// Whether a write failed for its packet alone, which is lost then as in any network (`drivers/net/tun.c`,
/// `tun_get_user`):
///
/// - the kernel has no memory for it (`ENOMEM`, `ENOBUFS`), or it is of no use to it (`EINVAL`);
/// - the device is down (`EIO`), which it may be for a moment alone: it still exists, and its owner may take it
///   up again.
///
/// The last kind is tun-rs's complaint about a packet.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS | libc::EINVAL | libc::EIO)) || is_odd(error)
}

/// The error that ends a forwarder whose device is gone.
pub(super) fn failed(operation: &'static str, device: &str, source: io::Error) -> Error {
    let gone = matches!(source.raw_os_error(), Some(libc::EBADFD | libc::EFAULT));
    let error = Error::new(Class::Failed, operation, format!("TUN interface {device}"), source);
    if gone { error.remedy("the interface has been deleted") } else { error }
}
