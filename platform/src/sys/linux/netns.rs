//! Network namespaces, with or without root. The kernel removes one after its last thread and device.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use crate::{Cause, Error};

/// Moves the calling thread into a new network namespace, with those that it starts. If it lacks the right, it also
/// gets a new user namespace (`user_namespaces(7)`): call it first in `main`, because only a single thread may enter
/// one.
pub fn enter_netns() -> Result<(), Error> {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => enter_as_user(),
        Err(errno) => Err(Error::new(Cause::NoNetns, "create", "a network namespace", errno.into())),
    }
}

fn enter_as_user() -> Result<(), Error> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        // unshare(2): a process with several threads may not enter a user namespace.
        Errno::EINVAL => Error::new(
            Cause::SeveralThreads,
            "create",
            "a user namespace",
            io::Error::new(io::ErrorKind::Unsupported, "the process already has several threads"),
        ),
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
