//! The forwarders: the choices, and the rows of the table that compares them.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU16;

use forwarders::{ForwardConfig, Handoff, Io, Offload};
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plural;

/// The program that carries packets from one TUN device to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(tag = "program", rename_all = "lowercase")]
pub enum Forwarder {
    /// This program's own, on tun-rs.
    Rust(ForwardConfig),
    /// The one in Go, on wireguard-go's `tun` package.
    Go {
        /// What becomes of super-packets. It has no [`Offload::Whole`].
        offload: Offload,
        /// How packets get from reader to writer.
        hop: Handoff,
    },
}

/// The rows of the published table, in order and numbered from 1. This program adds the last row, which passes
/// super-packets through.
pub const ROWS: [Forwarder; 18] = {
    use Handoff::{Channel, Direct, Pool};
    use Io::{Async, Framed, Sync};
    use Offload::{Off, On, Whole};
    [
        rust(Async, Off, Direct, 1),
        rust(Async, Off, Channel, 1),
        rust(Framed, Off, Channel, 1),
        rust(Async, On, Direct, 1),
        rust(Async, On, Channel, 1),
        rust(Async, On, Pool, 1),
        rust(Framed, On, Channel, 1),
        rust(Sync, Off, Direct, 1),
        rust(Sync, Off, Channel, 1),
        rust(Sync, On, Direct, 1),
        rust(Sync, On, Channel, 1),
        rust(Sync, On, Direct, 2),
        Forwarder::Go { offload: Off, hop: Direct },
        Forwarder::Go { offload: Off, hop: Channel },
        Forwarder::Go { offload: On, hop: Direct },
        Forwarder::Go { offload: On, hop: Channel },
        Forwarder::Go { offload: On, hop: Pool },
        rust(Sync, Whole, Direct, 1),
    ]
};

const fn rust(io: Io, offload: Offload, hop: Handoff, workers: u16) -> Forwarder {
    let workers = match NonZeroU16::new(workers) {
        Some(workers) => workers,
        None => NonZeroU16::MIN,
    };
    Forwarder::Rust(ForwardConfig { io, offload, hop, workers, threads: None })
}

impl Forwarder {
    /// Its number in the published table, from 1; `None` if it is not in it.
    pub fn row(self) -> Option<usize> {
        ROWS.iter().position(|row| *row == self).map(|index| index + 1)
    }

    /// What becomes of super-packets.
    pub const fn offload(self) -> Offload {
        match self {
            Self::Rust(config) => config.offload,
            Self::Go { offload, .. } => offload,
        }
    }

    /// How packets get from reader to writer.
    pub const fn handoff(self) -> Handoff {
        match self {
            Self::Rust(config) => config.hop,
            Self::Go { hop, .. } => hop,
        }
    }

    /// How devices are read and written; `None` for the one in Go: its runtime decides.
    pub const fn io(self) -> Option<Io> {
        match self {
            Self::Rust(config) => Some(config.io),
            Self::Go { .. } => None,
        }
    }

    /// Its configuration, if it is this program's own.
    pub const fn config(self) -> Option<ForwardConfig> {
        match self {
            Self::Rust(config) => Some(config),
            Self::Go { .. } => None,
        }
    }

    /// Whether it counts packets as they cross the devices, a super-packet as one. tun-rs's stream and
    /// wireguard-go's package only show the segments.
    pub fn counts_whole(self) -> bool {
        matches!(self.io(), Some(Io::Sync | Io::Async))
    }

    /// Checks that this combination of settings exists.
    ///
    /// # Errors
    ///
    /// Names the first setting that is not possible.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::Go { offload: Offload::Whole, .. } => {
                Err("the forwarder go cannot have the offload whole".to_owned())
            }
            Self::Rust(config) => config.check().map_err(|illegal| illegal.to_string()),
            Self::Go { .. } => Ok(()),
        }
    }
}

/// First the rows of the table in its order, then the others by their settings.
impl Ord for Forwarder {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |forwarder: Self| {
            let row = forwarder.row().unwrap_or(usize::MAX);
            (row, forwarder.config().is_none(), forwarder.config(), forwarder.offload(), forwarder.handoff())
        };
        key(*self).cmp(&key(*other))
    }
}

impl PartialOrd for Forwarder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By the names of its options: `sync, offload on, direct`.
impl fmt::Display for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = vec![self.io().map_or("go", Io::name).to_owned()];
        words.push(format!("offload {}", self.offload().name()));
        words.push(self.handoff().name().to_owned());
        if let Self::Rust(config) = self {
            words.extend((config.workers.get() > 1).then(|| format!("{} workers", config.workers)));
            words.extend(config.threads.map(|threads| plural(threads, "thread")));
        }
        f.pad(&words.join(", "))
    }
}
