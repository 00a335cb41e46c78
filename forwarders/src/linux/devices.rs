//! The two devices, each in its network namespace.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns};
use tun_rs::SyncDevice;

use crate::{DevicePair, Offload};
use platform::linux::create_tun;
use platform::{Cause, Class, Error};

/// One of the devices.
pub(super) struct NamedDevice {
    pub(super) device: SyncDevice,
    pub(super) name: String,
    /// Its namespace. `None` for the calling thread's namespace.
    namespace: Option<File>,
}

impl NamedDevice {
    /// Creates both devices with the framing that the offload needs.
    pub(super) fn open(pair: &DevicePair, offload: Offload) -> Result<[Self; 2], Error> {
        let namespace = open_namespace(&pair.far_namespace)?;
        let near = create(&pair.near, offload)?;
        let far = within(&namespace, &pair.far, || create(&pair.far, offload))??;
        let near = Self { device: near, name: pair.near.clone(), namespace: None };
        Ok([near, Self { device: far, name: pair.far.clone(), namespace: Some(namespace) }])
    }

    /// The MTU. Only a thread in the device's namespace can read it.
    pub(super) fn mtu(&self) -> Result<usize, Error> {
        let ask = || self.device.mtu();
        let mtu = match &self.namespace {
            None => ask(),
            Some(namespace) => within(namespace, &self.name, ask)?,
        };
        mtu.map(usize::from).map_err(|source| {
            Error::new(Class::Failed, "ask the MTU of", format!("TUN interface {}", self.name), source)
        })
    }
}

fn open_namespace(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| {
        Error::new(Cause::NotANetns, "open the network namespace", path.display().to_string(), source)
    })
}

/// Runs a closure in another namespace, in a new thread that ends with it.
fn within<T: Send>(namespace: &File, device: &str, action: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let enter = || {
        setns(namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::new(Cause::NetnsPermission, "enter the network namespace of", device, errno.into()))
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| enter().map(|()| action()));
        thread.join().unwrap_or_else(|_| {
            Err(Error::new(Class::Failed, "enter the network namespace of", device, io::Error::other("it panicked")))
        })
    })
}

/// Creates a device in the calling thread's namespace.
fn create(name: &str, offload: Offload) -> Result<SyncDevice, Error> {
    create_tun(name, offload != Offload::Off)
}
