//! Linux namespaces: a network of one's own, with or without root.
//!
//! A namespace is entered by `unshare(2)` and belongs to the thread that calls it; threads started
//! from there are in it too. When the last of them and the last device have gone, the kernel takes
//! it down: nothing has to be cleaned up.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use crate::{Cause, Error};

/// A new network namespace for the calling thread. Where that right is missing, a new user
/// namespace first, in which the caller has it (`user_namespaces(7)`).
pub(super) fn enter() -> Result<(), Error> {
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
    // Without a map the new user would be nobody. setgroups(2) has to be given up before an
    // ordinary user may write the group's map (user_namespaces(7)).
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
