//! Packets that are in no cache.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Bytes of all packets together: several times the last level cache of most machines. Where a cache is
/// larger, what is called cold here is not.
const SET: usize = 256 << 20;
/// A packet begins at the beginning of a line of the cache, and shares none.
const LINE: usize = 64;
/// After so many bytes the contents repeat. No implementation of the sum could tell.
const PATTERN: usize = 1 << 20;

/// As many packets as fit into [`SET`], side by side, and a random order in which they are visited: each
/// once before any is visited again, so that in the meantime a cache has seen all others.
///
/// Where a packet lies is known before the one in front of it is summed, as it is to a stack that has a
/// batch of them: a processor may wait for several packets at once.
pub(crate) struct Packets<'a> {
    bytes: &'a [u8],
    len: usize,
    /// Where the packets begin.
    order: Vec<u32>,
    next: usize,
}

/// What the packets lie in.
pub(crate) fn set() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SET);
    bytes.extend(super::sums::random(PATTERN));
    while bytes.len() < SET {
        bytes.extend_from_within(..bytes.len());
    }
    bytes
}

impl<'a> Packets<'a> {
    /// Packets of `len` bytes in a [`set`].
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Self {
        let stride = len.next_multiple_of(LINE);
        let mut order: Vec<_> = (0..bytes.len() / stride).map(|slot| (slot * stride) as u32).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(len as u64));
        Self { bytes, len, order, next: 0 }
    }

    /// The next packet. Who goes on where another one stopped finds none that is warm.
    #[inline]
    pub(crate) fn next(&mut self) -> &'a [u8] {
        let at = self.order[self.next] as usize;
        self.next = if self.next + 1 == self.order.len() { 0 } else { self.next + 1 };
        &self.bytes[at..at + self.len]
    }
}
