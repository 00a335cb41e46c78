//! The forwarders: the choices, and the rows of the table that compares them.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::LazyLock;

use forwarders::{ForwardConfig, Handoff, Io};

use super::{Cell, ForwarderName, Offload, Wrong};
use crate::plural;

/// The program that carries packets from one TUN device to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forwarder {
    /// This program's own, on tun-rs.
    Rust(ForwardConfig),
    /// The one in Go, on wireguard-go's `tun` package.
    Go {
        /// What becomes of super-packets. It has no [`forwarders::Offload::Whole`].
        offload: forwarders::Offload,
        /// How packets get from reader to writer.
        hop: Handoff,
    },
}

/// The rows of the published table, as words and numbered from 1. The last, which passes super-packets through, is new.
pub const ROWS: [&str; 18] = [
    "--forwarder rust --io async --offload off --hop direct",
    "--forwarder rust --io async --offload off --hop channel",
    "--forwarder rust --io framed --offload off --hop channel",
    "--forwarder rust --io async --offload on --hop direct",
    "--forwarder rust --io async --offload on --hop channel",
    "--forwarder rust --io async --offload on --hop pool",
    "--forwarder rust --io framed --offload on --hop channel",
    "--forwarder rust --io sync --offload off --hop direct",
    "--forwarder rust --io sync --offload off --hop channel",
    "--forwarder rust --io sync --offload on --hop direct",
    "--forwarder rust --io sync --offload on --hop channel",
    "--forwarder rust --io sync --offload on --hop direct --workers 2",
    "--forwarder go --offload off --hop direct",
    "--forwarder go --offload off --hop channel",
    "--forwarder go --offload on --hop direct",
    "--forwarder go --offload on --hop channel",
    "--forwarder go --offload on --hop pool",
    "--forwarder rust --io sync --offload whole --hop direct",
];

impl Cell {
    /// Its forwarder, with the defaults of one: it splits and coalesces super-packets.
    pub fn forwarder(&self) -> Option<Forwarder> {
        let offload = match self.offload {
            Offload::Off => forwarders::Offload::Off,
            Offload::Auto | Offload::On => forwarders::Offload::On,
            Offload::Whole => forwarders::Offload::Whole,
        };
        let hop = self.hop.unwrap_or(Handoff::Direct);
        Some(match self.forwarder? {
            ForwarderName::Go => Forwarder::Go { offload, hop },
            ForwarderName::Rust => Forwarder::Rust(ForwardConfig {
                io: self.io.unwrap_or(Io::Sync),
                offload,
                hop,
                workers: self.workers.unwrap_or(NonZeroU16::MIN),
                threads: self.thread,
            }),
        })
    }
}

impl Forwarder {
    /// Those of the published table: each of [`ROWS`].
    pub(crate) fn rows() -> &'static [Self] {
        static FORWARDERS: LazyLock<Vec<Forwarder>> = LazyLock::new(|| {
            // A test counts them.
            ROWS.iter().filter_map(|words| Cell::parse(words).ok()?.forwarder()).collect()
        });
        &FORWARDERS
    }

    /// Its number in the published table, from 1; `None` if it is not in it.
    pub fn row(self) -> Option<usize> {
        Self::rows().iter().position(|row| *row == self).map(|index| index + 1)
    }

    /// What becomes of super-packets.
    pub const fn offload(self) -> forwarders::Offload {
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

    /// Whether it counts a super-packet as one: tun-rs's stream and wireguard-go's package only show the segments.
    pub fn counts_whole(self) -> bool {
        matches!(self.io(), Some(Io::Sync | Io::Async))
    }

    pub(super) fn check(self) -> Result<(), Wrong> {
        match self {
            Self::Go { offload: forwarders::Offload::Whole, .. } => {
                let reason =
                    "the forwarder in Go splits and coalesces super-packets, as wireguard-go's tun package does";
                Err(Wrong::new("--offload", reason))
            }
            Self::Go { .. } => Ok(()),
            Self::Rust(config) => config.check().map_err(|illegal| Wrong::new(illegal.option, illegal.reason)),
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
