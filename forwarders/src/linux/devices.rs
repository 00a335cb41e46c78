//! The two devices, each in its network namespace.

use std::fs::File;
use std::io;
use std::thread;

use nix::sched::{CloneFlags, setns};
use tun_rs::SyncDevice;

use crate::{DevicePair, ForwardConfig, Offload};
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
    /// Creates both devices with the framing that the offload needs, and with NAPI if it is asked for.
    pub(super) fn open(pair: &DevicePair, config: ForwardConfig) -> Result<[Self; 2], Error> {
        let path = &pair.far_namespace;
        let missing =
            |source| Error::new(Cause::NotANetns, "open the network namespace", path.display().to_string(), source);
        let namespace = File::open(path).map_err(missing)?;
        let create = |name| create_tun(name, config.offload != Offload::Off, config.napi);
        let near = create(&pair.near)?;
        let far = within(&namespace, &pair.far, || create(&pair.far))??;
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

/// Runs a closure in another namespace, in a new thread that ends with it.
fn within<T: Send>(namespace: &File, device: &str, action: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let failed = |cause, source| Error::new(cause, "enter the network namespace of", device, source);
    let work = || {
        let entered = setns(namespace, CloneFlags::CLONE_NEWNET);
        entered.map_err(|errno| failed(Cause::NetnsPermission, errno.into())).map(|()| action())
    };
    let panicked = || Err(failed(Class::Failed.into(), io::Error::other("it panicked")));
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|_| panicked()))
}
