//! The configuration of a TUN device, and the device, on any system.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};

use crate::sys::{Native, System, Tun};
use crate::{Capabilities, Cause, Class, Error, Link, Network, PacketBuffer, PacketMeta};

/// Checks that this process can ask the system for a TUN device. A system without a file for that passes.
///
/// # Errors
///
/// [`Class::Unavailable`]: on Linux `/dev/net/tun` is missing, or may not be opened.
pub fn check_device_node() -> Result<(), Error> {
    Native::check_device_node()
}

/// Whether a device is to take work off the stack: checksums, and the segmentation and joining of
/// TCP segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// On where the device can: on Linux
    #[default]
    Auto,
    /// Fail if the device cannot offload
    On,
    /// Never
    Off,
}

/// The configuration of a TUN device.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// The interface's name; see [`validate_name`].
    pub name: String,
    /// Its addresses.
    pub network: Network,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// How many packets may wait in the device for the stack before the kernel drops packets (`txqueuelen` of
    /// Linux). Other systems ignore it.
    pub tx_queue_len: u32,
    /// Whether the device offloads.
    pub offload: Offload,
    /// An open TUN device to take over instead of creating one. Its owner has set it up: name, addresses, MTU, queue
    /// and framing stay unchanged, and nothing is offloaded.
    pub fd: Option<i32>,
}

impl TunConfig {
    /// Fails for a device that cannot offload if the configuration demands offload.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] for [`Offload::On`].
    pub(crate) fn do_without_offload(&self, reason: &'static str) -> Result<(), Error> {
        if self.offload != Offload::On {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::Unsupported, reason);
        Err(Error::new(Cause::NoOffload, "use the offload of", "the TUN device", source))
    }

    /// The error of a device that has one queue.
    pub(crate) fn no_queues(&self, source: io::Error) -> Error {
        let device = self.fd.map_or_else(|| self.name.clone(), |fd| format!("file descriptor {fd}"));
        Error::new(Cause::NoQueues, "open several queues of", device, source)
    }
}

/// A TUN device. Dropping it deletes the interface, unless the interface was taken over or another descriptor of it
/// is open.
pub struct TunDevice {
    tun: <Native as System>::Tun,
    receives: bool,
}

impl TunDevice {
    /// Opens a TUN interface and sets it up. Call it inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Class::Unavailable`] if the driver, a right, or the demanded offload is missing, [`Class::Invalid`] for a
    /// name that is taken or a descriptor that is not a TUN device, else [`Class::Failed`].
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        Ok(Self { tun: Tun::open(config)?, receives: true })
    }

    /// Opens a TUN interface like [`TunDevice::open`], as a link for each of so many shards of a stack. Each shard sends over
    /// its own link. With a queue for each shard, each receives the packets of its queue: Linux puts those of a flow into the
    /// queue that last sent some of it, and else into one that it chooses by a hash. With one queue, the first link receives
    /// all packets, and the others none.
    ///
    /// `queues` is 1 or the number of shards. `None` is as many as there are shards where the device can have several, else
    /// one; [`TunDevice::receives`] tells which.
    ///
    /// # Errors
    ///
    /// Those of [`TunDevice::open`]; [`Cause::NoQueues`] if the device has one queue and several are asked for;
    /// [`Class::Invalid`] for no shards, and for another number of queues.
    pub fn open_shards(config: &TunConfig, shards: usize, queues: Option<usize>) -> Result<Vec<Self>, Error> {
        if shards == 0 || queues.is_some_and(|queues| queues != 1 && queues != shards) {
            let object =
                format!("{} for {shards} shards", queues.map_or("queues".to_owned(), |n| format!("{n} queues")));
            let rule = "needs at least one shard, and one queue or one for each";
            let source = io::Error::new(io::ErrorKind::InvalidInput, rule);
            return Err(Error::new(Class::Invalid, "open", object, source));
        }
        if shards > 1 && queues != Some(1) {
            match Tun::open_queues(config, shards) {
                Err(error) if queues.is_none() && error.cause() == Cause::NoQueues => {}
                opened => return Ok(opened?.into_iter().map(|tun| Self { tun, receives: true }).collect()),
            }
        }
        let first = Self::open(config)?;
        let others = (1..shards).map(|_| Ok(Self { tun: first.tun.sender()?, receives: false }));
        let others: Vec<_> = others.collect::<Result<_, Error>>()?;
        Ok([first].into_iter().chain(others).collect())
    }

    /// Whether packets can come over this link; see [`TunDevice::open_shards`].
    pub fn receives(&self) -> bool {
        self.receives
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        self.tun.name()
    }

    /// How many packets may wait for the stack before the kernel drops packets. `None` on systems without this
    /// setting.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn tx_queue_len(&self) -> io::Result<Option<u32>> {
        self.tun.tx_queue_len()
    }

    /// A reader of the interface's drop counters. It stays valid after the device was moved into a stack.
    pub fn drop_counter(&self) -> DropCounter {
        self.tun.drop_counter()
    }
}

impl Link for TunDevice {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        self.tun.capabilities()
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        self.tun.enable_udp_segmentation()
    }

    #[inline]
    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if self.receives { self.tun.try_recv(buffers) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    #[inline]
    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.tun.try_send(meta, slices)
    }

    #[inline]
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.receives { self.tun.poll_readable(cx) } else { Poll::Pending }
    }

    #[inline]
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tun.poll_writable(cx)
    }
}

/// Reads the number of packets that were dropped at an interface. See [`TunDevice::open`] for an example.
#[derive(Clone)]
pub struct DropCounter(pub(crate) Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl DropCounter {
    /// Packets dropped so far in both directions: because the queue was full, because the kernel did not accept them,
    /// or because they were malformed. `None` if the system does not report it. Call it in the device's network
    /// namespace.
    pub fn read(&self) -> Option<u64> {
        (self.0)()
    }
}

impl fmt::Debug for DropCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropCounter").finish_non_exhaustive()
    }
}

/// Checks that this system accepts `name` for a TUN device.
///
/// # Errors
///
/// [`crate::Class::Invalid`], with the system's rule.
pub fn validate_name(name: &str) -> Result<(), Error> {
    let invalid = |rule: &'static str| {
        Err(Error::new(
            Class::Invalid,
            "name the device",
            format!("{name:?}"),
            io::Error::new(io::ErrorKind::InvalidInput, rule),
        ))
    };
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c == '/' || c == '\0' || c == ':' || c == '%') {
        return invalid("must not be empty nor hold white space, '/', ':' or '%'");
    }
    if name == "." || name == ".." {
        return invalid("is reserved");
    }
    Native::check_name(name).or_else(invalid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn there_is_one_queue_or_one_for_each_shard() {
        let [address, peer, mask] = ["10.0.1.9", "10.0.1.1", "255.255.255.0"].map(|address| address.parse().unwrap());
        let config = TunConfig {
            name: String::new(),
            network: Network::new(address, peer, mask).unwrap(),
            mtu: 1500,
            tx_queue_len: 1000,
            offload: Offload::Auto,
            fd: None,
        };
        for (shards, queues) in [(0, None), (0, Some(0)), (4, Some(3)), (4, Some(0)), (1, Some(2))] {
            let error = TunDevice::open_shards(&config, shards, queues).err().unwrap();
            assert_eq!(error.class(), Class::Invalid);
            assert!(error.to_string().contains(&format!("{shards} shards")), "{error}");
        }
    }

    #[test]
    fn names_follow_the_rules_of_the_system() {
        validate_name("utun8").unwrap();
        for wrong in ["", "a b", "a/b", "..", "a:b"] {
            validate_name(wrong).unwrap_err();
        }
        if cfg!(unix) {
            validate_name("utun12345678901234").unwrap_err();
        }
    }
}
