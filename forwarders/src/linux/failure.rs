//! Whether a call that failed ends the forwarder, or costs only its packet.

use std::io;

use platform::{Cause, Class, Error};

/// Whether a read failed for its packet alone: tun-rs, not the kernel, reports a super-packet that it cannot cut. A
/// deleted device fails with `EBADFD`, or with `EFAULT` if a thread was waiting for a packet (`drivers/net/tun.c`,
/// `tun_chr_read_iter`, `tun_ring_recv`).
pub(super) fn is_malformed(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

/// Whether a write failed for its packet alone, which is lost then as in any network (`drivers/net/tun.c`,
/// `tun_get_user`):
///
/// - the kernel has no memory for it (`ENOMEM`, `ENOBUFS`), or no room (`EAGAIN`), or cannot use it (`EINVAL`);
/// - the device is down (`EIO`), perhaps only for a moment: it still exists, and its owner may set it up again.
///
/// An error that is not the kernel's is tun-rs's complaint about a packet.
pub(super) fn is_refused(error: &io::Error) -> bool {
    use libc::{EAGAIN, EINVAL, EIO, ENOBUFS, ENOMEM};
    matches!(error.raw_os_error(), Some(ENOMEM | ENOBUFS | EAGAIN | EINVAL | EIO)) || is_malformed(error)
}

/// The error that ends a forwarder, for instance when its device was deleted.
pub(super) fn failed(operation: &'static str, device: &str, source: io::Error) -> Error {
    let gone = matches!(source.raw_os_error(), Some(libc::EBADFD | libc::EFAULT));
    let cause = if gone { Cause::InterfaceDeleted } else { Class::Failed.into() };
    Error::new(cause, operation, format!("TUN interface {device}"), source)
}
