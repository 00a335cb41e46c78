//! The ways to carry packets between two TUN devices.

use std::num::NonZeroU16;
use std::path::PathBuf;

use platform::Napi;
use serde::{Deserialize, Serialize};

/// How a device is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// In threads: one for each worker and direction
    Sync,
    /// In tasks on tokio's runtime
    Async,
    /// In tasks, by the framed stream and sink of tun-rs
    Framed,
    /// In threads, with several packets in each system call
    Uring,
}

/// How TCP super-packets are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// There are none: packets have at most the MTU
    Off,
    /// Split into segments when read, and coalesced again when written
    On,
    /// Passed through as they are
    Whole,
}

/// How packets get from the reader of one device to the writer of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Handoff {
    /// The reader writes them itself
    Direct,
    /// Through a channel, each burst in new memory
    Channel,
    /// Through a channel, in buffers that come back to the reader
    Pool,
}

/// A way to carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ForwardConfig {
    /// How a device is read and written.
    pub io: Io,
    /// How super-packets are handled.
    pub offload: Offload,
    /// How packets get from reader to writer.
    pub hop: Handoff,
    /// Workers in each direction, side by side. More than one reorder packets.
    pub workers: NonZeroU16,
    /// Threads of the runtime of [`Io::Async`] and [`Io::Framed`]; `None` for one for each processor.
    pub threads: Option<NonZeroU16>,
    /// How the kernel takes the packets that are written. The caller sets up the thread of [`Napi::Threaded`].
    pub napi: Napi,
}

/// The two devices of a forwarder. The forwarder only creates them: the caller sets their addresses, MTU, queue and
/// routes, and sets the links up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePair {
    /// Name of the device in the calling thread's network namespace.
    pub near: String,
    /// Name of the device in the other network namespace.
    pub far: String,
    /// The other namespace, as a file of `/proc/PID/ns` (`namespaces(7)`).
    pub far_namespace: PathBuf,
}

/// The most workers of a direction, and threads of a runtime.
const MAX_WORKERS: u16 = 64;
const MAX_THREADS: u16 = 1024;

impl ForwardConfig {
    /// Checks that packets can be carried in this way. The error has the option that makes it impossible, and the reason.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let Self { io, offload, hop, workers, threads, napi } = *self;
        let framed = io == Io::Framed;
        let (option, reason) = if framed && offload == Offload::Whole {
            ("--offload", "not whole with --io framed, whose stream cuts super-packets by itself")
        } else if framed && hop == Handoff::Pool {
            ("--hop", "not pool with --io framed, whose stream makes its own buffers")
        } else if io == Io::Uring && offload == Offload::On {
            ("--offload", "not on with --io uring: tun-rs splits and coalesces with calls of its own")
        } else if framed && workers.get() > 1 {
            (
                "--workers",
                "only 1 with --io framed, for of several that wait for one device, tun-rs wakes the last alone",
            )
        } else if workers.get() > MAX_WORKERS {
            ("--workers", "must be 1 to 64")
        } else if matches!(io, Io::Sync | Io::Uring) && threads.is_some() {
            ("--thread", "not with --io sync or uring, where each worker has threads of its own")
        } else if napi != Napi::Off && offload != Offload::Off {
            ("--napi", "needs --offload off: super-packets are joined already")
        } else if threads.is_some_and(|threads| threads.get() > MAX_THREADS) {
            ("--thread", "must be 1 to 1024")
        } else {
            return Ok(());
        };
        Err(InvalidConfig { option, reason })
    }
}

/// Why a configuration is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct InvalidConfig {
    /// The wrong option.
    pub option: &'static str,
    /// The reason why it is wrong.
    pub reason: &'static str,
}

macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal),*) => {
        impl $type {
            /// The name by which users choose it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

names!(Io: Sync = "sync", Async = "async", Framed = "framed", Uring = "uring");
names!(Offload: Off = "off", On = "on", Whole = "whole");
names!(Handoff: Direct = "direct", Channel = "channel", Pool = "pool");

#[cfg(test)]
mod tests {
    use super::*;

    /// The refused configurations with these workers and threads, each with the option in its error.
    fn refused(workers: u16, threads: Option<u16>) -> Vec<String> {
        let mut refused = Vec::new();
        for io in [Io::Sync, Io::Async, Io::Framed] {
            for offload in [Offload::Off, Offload::On, Offload::Whole] {
                for hop in [Handoff::Direct, Handoff::Channel, Handoff::Pool] {
                    let workers = NonZeroU16::new(workers).unwrap();
                    let threads = threads.and_then(NonZeroU16::new);
                    let config = ForwardConfig { io, offload, hop, workers, threads, napi: Napi::Off };
                    if let Err(InvalidConfig { option, .. }) = config.check() {
                        refused.push(format!("{} {} {}: {option}", io.name(), offload.name(), hop.name()));
                    }
                }
            }
        }
        refused
    }

    #[test]
    fn an_impossible_configuration_is_refused_by_the_name_of_an_option() {
        let framed = [
            "framed off pool: --hop",
            "framed on pool: --hop",
            "framed whole direct: --offload",
            "framed whole channel: --offload",
            "framed whole pool: --offload",
        ];
        assert_eq!(refused(1, None), framed);
        let threads = refused(1, Some(2));
        assert_eq!(threads.len(), 9 + 5);
        assert!(threads[..9].iter().all(|way| way.starts_with("sync") && way.ends_with("--thread")), "{threads:?}");
        assert_eq!(threads[9..], framed);
        let workers = refused(2, None);
        assert_eq!(workers.len(), 9);
        assert!(workers.iter().all(|way| way.starts_with("framed")), "{workers:?}");
        assert_eq!(refused(64, Some(1024)).len(), 9 + 9);
        assert_eq!((refused(65, None).len(), refused(1, Some(1025)).len()), (27, 27));
    }

    #[cfg(feature = "clap")]
    #[test]
    fn the_names_of_the_command_line_are_those_of_the_reports() {
        use clap::ValueEnum;
        fn names<T: ValueEnum>() -> Vec<String> {
            T::value_variants().iter().map(|value| value.to_possible_value().unwrap().get_name().to_owned()).collect()
        }
        assert_eq!(names::<Io>(), [Io::Sync, Io::Async, Io::Framed, Io::Uring].map(Io::name));
        assert_eq!(names::<Offload>(), [Offload::Off, Offload::On, Offload::Whole].map(Offload::name));
        assert_eq!(names::<Handoff>(), [Handoff::Direct, Handoff::Channel, Handoff::Pool].map(Handoff::name));
    }
}
