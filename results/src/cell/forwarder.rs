//! The forwarders: the choices, and the rows of the table that compares them.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::LazyLock;

use forwarders::{ForwardConfig, Handoff, Io};

use super::{Cell, ForwarderName, Offload, Wrong};
use crate::plural;

/// The program that carries packets from one TUN device to the other, and its choices. The one in Go has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forwarder {
    /// Whose it is.
    pub program: ForwarderName,
    /// Its choices.
    pub config: ForwardConfig,
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
    pub(super) fn has_uring(&self) -> bool {
        self.is_rust() && self.io == Some(Io::Uring)
    }

    /// Its forwarder, with the defaults of one: it splits and coalesces super-packets.
    pub fn forwarder(&self) -> Option<Forwarder> {
        let offload = match self.offload {
            Offload::Off => forwarders::Offload::Off,
            Offload::Auto if self.has_uring() => forwarders::Offload::Whole,
            Offload::Auto | Offload::On | Offload::Tso => forwarders::Offload::On,
            Offload::Whole => forwarders::Offload::Whole,
        };
        let config = ForwardConfig {
            io: self.io.unwrap_or(Io::Sync),
            offload,
            hop: self.hop.unwrap_or(Handoff::Direct),
            workers: self.workers.unwrap_or(NonZeroU16::MIN),
            threads: self.thread,
            napi: self.napi,
        };
        Some(Forwarder { program: self.forwarder?, config })
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

    /// How devices are read and written; `None` for the one in Go: its runtime decides.
    pub fn io(self) -> Option<Io> {
        (self.program == ForwarderName::Rust).then_some(self.config.io)
    }

    /// Whether it counts a super-packet as one: tun-rs's stream and wireguard-go's package only show the segments.
    pub fn counts_whole(self) -> bool {
        matches!(self.io(), Some(Io::Sync | Io::Async | Io::Uring))
    }

    pub(super) fn check(self) -> Result<(), Wrong> {
        if self.program == ForwarderName::Rust {
            return self.config.check().map_err(|illegal| Wrong::new(illegal.option, illegal.reason));
        }
        if self.config.offload == forwarders::Offload::Whole {
            let reason = "the forwarder in Go splits and coalesces super-packets, as wireguard-go's tun package does";
            return Err(Wrong::new("--offload", reason));
        }
        Ok(())
    }
}

/// First the rows of the table in its order, then the others by their settings.
impl Ord for Forwarder {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |one: Self| (one.row().unwrap_or(usize::MAX), one.program, one.config);
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
        let ForwardConfig { offload, hop, workers, threads, .. } = self.config;
        let io = self.io().map_or("go", Io::name);
        let mut words = vec![io.to_owned(), format!("offload {}", offload.name()), hop.name().to_owned()];
        words.extend((workers.get() > 1).then(|| format!("{workers} workers")));
        words.extend(threads.map(|threads| plural(threads, "thread")));
        f.pad(&words.join(", "))
    }
}
