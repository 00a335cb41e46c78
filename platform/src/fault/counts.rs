//! Counts of what a link has done to packets, and faults that only tests ask for.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Pass,
    /// It is lost.
    Lose,
    /// It arrives twice in a row.
    Duplicate,
    /// One of its bits is flipped.
    Corrupt,
    /// The next three packets overtake it, if so many follow.
    Reorder,
}

/// Faults of single packets, by their numbers from 0 on, for tests. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The fate of one received, and of one sent packet.
    pub once: Option<(u64, Fate)>,
    /// `try_send` returns `WouldBlock` for the last of so many calls, although the link has room. It is writable at once.
    pub block_every: Option<u64>,
    /// For this packet `try_send` returns the system's error with this number. A stack takes it as the end of the link.
    pub fail: Option<(u64, i32)>,
}

/// The counter of a [`Faulty`](super::Faulty) link. Any thread can read it.
#[derive(Debug, Default)]
pub struct FaultCounter(Mutex<FaultCounts>);

impl FaultCounter {
    /// The counts so far.
    pub fn counts(&self) -> FaultCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, which: impl FnOnce(&mut FaultCounts) -> &mut u64) {
        *which(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)) += 1;
    }
}

/// What the link did to packets, both ways together. A super-packet counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Packets that were lost by chance, or in the outage.
    pub lost: u64,
    /// Packets that were held back so that later ones overtook them.
    pub reordered: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets of which a bit was changed.
    pub corrupted: u64,
    /// Packets that were lost because too many waited.
    pub overflowed: u64,
    /// Packets that were dropped because they were too long for the path.
    #[serde(default)]
    pub too_big: u64,
}

impl FaultCounts {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            lost: self.lost.saturating_sub(earlier.lost),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            duplicated: self.duplicated.saturating_sub(earlier.duplicated),
            corrupted: self.corrupted.saturating_sub(earlier.corrupted),
            overflowed: self.overflowed.saturating_sub(earlier.overflowed),
            too_big: self.too_big.saturating_sub(earlier.too_big),
        }
    }
}
