//! Segmentation offload of an interface, by ethtool's ioctl: allowed to a user in a user namespace.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use socket2::{Domain, Socket, Type};

use super::interface::request_about;
use crate::{Cause, Class, Error};

/// Requests of `linux/ethtool.h`: `ETHTOOL_GTSO`, `ETHTOOL_STSO` and `ETHTOOL_SGSO`.
const GET_TSO: u32 = 0x1e;
const SET_TSO: u32 = 0x1f;
const SET_GSO: u32 = 0x24;

nix::ioctl_readwrite_bad!(
    /// `SIOCETHTOOL` (`linux/sockios.h`).
    ethtool,
    0x8946,
    libc::ifreq
);

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    request: u32,
    data: u32,
}

/// Lets TCP's super-packets leave through an interface, or has the kernel cut them before it. Fails if they cannot.
pub fn set_segmentation(interface: &str, is_on: bool) -> Result<(), Error> {
    let set = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        for request in [SET_GSO, SET_TSO] {
            ask(&socket, interface, request, is_on.into())?;
        }
        // The kernel leaves it off, and says nothing, if the program behind the device has not asked for it.
        if (ask(&socket, interface, GET_TSO, 0)? != 0) == is_on {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "the program behind it takes none"))
    };
    set().map_err(|source| {
        let cause = match source.raw_os_error() {
            Some(libc::EPERM) => Cause::NeedsNetAdmin,
            _ => Class::Unavailable.into(),
        };
        let operation = if is_on { "switch on super-packets of" } else { "switch off super-packets of" };
        Error::new(cause, operation, interface, source)
    })
}

/// Makes a request with a number. Returns the number in the answer.
fn ask(socket: &Socket, interface: &str, request: u32, data: u32) -> io::Result<u32> {
    let mut value = Value { request, data };
    let mut about = request_about(interface)?;
    about.ifr_ifru.ifru_data = ptr::from_mut(&mut value).cast();
    // SAFETY: the socket is open, the name ends with a zero, and the pointer is to the structure of these requests, which
    // outlives the call.
    unsafe { ethtool(socket.as_raw_fd(), &raw mut about) }?;
    Ok(value.data)
}
