//! Network namespaces, with or without root. The kernel removes one after its last thread and device.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};

use crate::{Cause, Error};

/// Moves the calling thread into a new network namespace, with those that it starts. If it lacks the right, it also
/// gets a new user namespace (`user_namespaces(7)`): call it first in `main`, because only a single thread may enter
/// one.
pub fn enter_netns() -> Result<(), Error> {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => enter_as_user(),
        Err(errno) => {
            let cause = if errno == Errno::ENOSPC { Cause::NamespaceLimit } else { Cause::NoNetns };
            Err(Error::new(cause, "create", "a network namespace", errno.into()))
        }
    }
}

/// Moves the calling thread into the network namespace of a file such as [`Namespace::path`](crate::Namespace::path).
pub fn join_netns(path: &Path) -> io::Result<()> {
    Ok(setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?)
}

/// Whether the process is root, or may at least change its own network. A container may have either, and no namespaces.
fn is_privileged() -> bool {
    // `include/uapi/linux/capability.h`
    const CAP_NET_ADMIN: u32 = 12;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    Uid::effective().is_root() || effective.is_some_and(|rights| rights >> CAP_NET_ADMIN & 1 == 1)
}

fn enter_as_user() -> Result<(), Error> {
    let (uid, gid, is_privileged) = (Uid::effective(), Gid::effective(), is_privileged());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        // unshare(2): a process with several threads may not enter a user namespace.
        Errno::EINVAL => Error::new(
            Cause::SeveralThreads,
            "create",
            "a user namespace",
            io::Error::new(io::ErrorKind::Unsupported, "the process already has several threads"),
        ),
        // One of the two.
        Errno::ENOSPC => Error::new(Cause::NamespaceLimit, "create", "a user namespace", errno.into()),
        _ if is_privileged => Error::new(Cause::NetnsForbidden, "create", "a network namespace", errno.into()),
        _ => forbidden(errno.into()),
    })?;
    // An ordinary user may write the map of groups only after giving up setgroups(2) (user_namespaces(7)).
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))
}

fn write(path: &str, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(forbidden)
}

fn forbidden(source: io::Error) -> Error {
    Error::new(Cause::UserNamespaceForbidden, "create", "a user namespace", source)
}
