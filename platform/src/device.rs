//! The configuration of a TUN device, and the device, on any system.

use std::any::Any;
use std::io;
use std::process::Command;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::sys::{self, TunDevice};
use crate::{Cause, Class, Error, Network};

/// Whether a device takes checksums, segmentation and joining off the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// On where the device can: on Linux
    #[default]
    Auto,
    /// Fail if the device cannot offload
    On,
    /// The same, but only super-packets of TCP: each datagram by itself
    Tso,
    /// Never
    Off,
}

/// How the kernel takes the packets that a program writes to a TUN device. Only Linux has a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Napi {
    /// One by one, in the call that writes them
    #[default]
    Off,
    /// By NAPI, which joins segments of a stream; it is polled in each call
    On,
    /// A thread of the kernel polls NAPI, and holds packets 20 µs to join them
    Threaded,
}

impl Napi {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Threaded => "threaded",
        }
    }
}

/// Settings that most devices leave as the system made them. Only Linux has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// How packets to the kernel are taken. It is chosen when the device is opened.
    pub napi: Napi,
    /// The queueing discipline (qdisc) of packets from the kernel; `None` for the system's.
    pub qdisc: Option<String>,
}

/// The configuration of a TUN device.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// The interface's name; see [`validate_name`].
    pub name: String,
    /// On macOS: the next free unit if the name is taken.
    pub or_next: bool,
    /// Its addresses.
    pub network: Network,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// How many packets may wait in the device for the stack (`txqueuelen` of Linux). Other systems ignore it.
    pub tx_queue_len: u32,
    /// Whether the device offloads.
    pub offload: Offload,
    /// An open TUN device to take over, which its owner has set up. Nothing is offloaded: what its owner asked for ends.
    pub fd: Option<i32>,
    /// Its other settings. With NAPI nothing is offloaded.
    pub tuning: Tuning,
}

impl TunConfig {
    /// Fails for settings that this system's devices, or those that another process has opened, do not have.
    fn check_tuning(&self) -> Result<(), Error> {
        let reason = match self.fd {
            Some(_) => "its owner has set it up",
            None if cfg!(target_os = "linux") => return Ok(()),
            None => "only Linux has it",
        };
        let asked = [
            (self.tuning.napi != Napi::Off, Cause::NoNapi, "use NAPI for"),
            (self.tuning.qdisc.is_some(), Cause::NoQdisc, "set the queueing discipline of"),
        ];
        asked.into_iter().find(|(is_asked, ..)| *is_asked).map_or(Ok(()), |(_, cause, operation)| {
            let source = io::Error::new(io::ErrorKind::Unsupported, reason);
            Err(Error::new(cause, operation, "the TUN device", source))
        })
    }

    /// Fails for a device that cannot offload if the configuration demands offload.
    pub(crate) fn do_without_offload(&self, reason: &'static str) -> Result<(), Error> {
        if !matches!(self.offload, Offload::On | Offload::Tso) {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::Unsupported, reason);
        Err(Error::new(Cause::NoOffload, "use the offload of", "the TUN device", source))
    }

    pub(crate) fn no_queues(&self, reason: &'static str) -> Error {
        let source = io::Error::new(io::ErrorKind::Unsupported, reason);
        let device = self.fd.map_or_else(|| self.name.clone(), |fd| format!("file descriptor {fd}"));
        Error::new(Cause::NoQueues, "open several queues of", device, source)
    }
}

impl TunDevice {
    /// Opens a TUN interface as a link for each of so many shards of a stack, over which it sends. With a queue for
    /// each shard, each receives its queue: Linux chooses it by the last sender of the flow, or by a hash. With one
    /// queue, the first link receives all; see [`TunDevice::receives`].
    ///
    /// `queues` is 1 or the number of shards, or else [`Class::Invalid`]; `None` is as many as the device can have.
    pub fn open_shards(config: &TunConfig, shards: usize, queues: Option<usize>) -> Result<Vec<Self>, Error> {
        if shards == 0 || queues.is_some_and(|queues| queues != 1 && queues != shards) {
            let object =
                format!("{} for {shards} shards", queues.map_or("queues".to_owned(), |n| format!("{n} queues")));
            let rule = "needs at least one shard, and one queue or one for each";
            let source = io::Error::new(io::ErrorKind::InvalidInput, rule);
            return Err(Error::new(Class::Invalid, "open", object, source));
        }
        config.check_tuning()?;
        if shards > 1 && queues != Some(1) {
            match sys::open_queues(config, shards) {
                Err(error) if queues.is_none() && error.cause() == Cause::NoQueues => {}
                opened => return opened,
            }
        }
        let first = Self::open(config)?;
        let senders = (1..shards).map(|_| first.sender()).collect::<Result<Vec<_>, _>>()?;
        Ok([first].into_iter().chain(senders).collect())
    }
}

/// The environment variable with the name of the device that the parent process keeps.
pub(crate) const KEPT: &str = "RUST_TUN_PERF_KEPT_DEVICE";

/// A device that this process keeps for the runs of its children, one after the other. On Windows it takes long to make one, and
/// fails now and then. On other systems nothing is kept, and each run makes its own.
#[derive(Debug)]
pub struct KeptDevice {
    name: String,
    device: Option<Box<dyn Any + Send>>,
}

impl KeptDevice {
    /// Makes a device. It goes away when this value is dropped.
    pub fn new(name: &str) -> Result<Self, Error> {
        Ok(Self { name: name.to_owned(), device: sys::keep_device(name)? })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the process that this command starts open the device instead of making one.
    pub fn hand_to(&self, command: &mut Command) {
        if self.device.is_some() {
            command.env(KEPT, &self.name);
        }
    }
}

/// Reads the number of packets that were dropped at an interface.
#[derive(Clone)]
pub struct DropCounter(pub(crate) Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl DropCounter {
    /// Packets dropped so far, both ways. `None` if the system does not report it. Call it in the device's namespace.
    pub fn read(&self) -> Option<u64> {
        (self.0)()
    }
}

/// Checks that this system accepts `name` for a TUN device. The error has the system's rule.
pub fn validate_name(name: &str) -> Result<(), Error> {
    let invalid = |rule: &'static str| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, rule);
        Err(Error::new(Class::Invalid, "name the device", format!("{name:?}"), source))
    };
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c == '/' || c == '\0' || c == ':' || c == '%') {
        return invalid("must not be empty nor hold white space, '/', ':' or '%'");
    }
    if name == "." || name == ".." {
        return invalid("is reserved");
    }
    sys::check_name(name).or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_queue_or_one_for_each_shard() {
        let [address, peer, mask] = ["10.0.1.9", "10.0.1.1", "255.255.255.0"].map(|address| address.parse().unwrap());
        let config = TunConfig {
            name: String::new(),
            or_next: false,
            network: Network::new(address, peer, mask).unwrap(),
            mtu: 1500,
            tx_queue_len: 1000,
            offload: Offload::Auto,
            fd: None,
            tuning: Tuning::default(),
        };
        for (shards, queues) in [(0, None), (0, Some(0)), (4, Some(3)), (4, Some(0)), (1, Some(2))] {
            let error = TunDevice::open_shards(&config, shards, queues).err().unwrap();
            assert_eq!(error.class(), Class::Invalid);
            assert!(error.to_string().contains(&format!("{shards} shards")), "{error}");
        }
        // Another process has opened the device.
        let fd = cfg!(target_os = "linux").then_some(9_999);
        for (tuning, cause) in [
            (Tuning { napi: Napi::On, qdisc: None }, Cause::NoNapi),
            (Tuning { napi: Napi::Off, qdisc: Some("fq".to_owned()) }, Cause::NoQdisc),
        ] {
            let config = TunConfig { fd, tuning, ..config.clone() };
            let error = TunDevice::open_shards(&config, 1, None).err().unwrap();
            assert_eq!((error.cause(), error.class()), (cause, Class::Unavailable), "{error}");
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
