//! Packets that are not in the cache.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Size of all packets together in bytes: several times the last-level cache of most machines. With a larger cache,
/// `cold` is not really cold.
const SET: usize = 256 << 20;
/// Size of a cache line in bytes. Each packet begins on a new line, and shares none.
const LINE: usize = 64;
/// The contents repeat after this many bytes, which makes no difference to any implementation.
const PATTERN: usize = 1 << 20;

/// As many packets as fit into [`SET`], and a random order in which they are visited. Each is visited once before any
/// is visited again, so the cache has seen all others in between.
///
/// The position of the next packet is known early, as in a stack that has a batch of packets, so a processor can load
/// several packets at once.
pub(crate) struct Packets<'a> {
    bytes: &'a [u8],
    len: usize,
    /// The offsets of the packets.
    order: Vec<u32>,
    next: usize,
}

/// Returns the memory that the packets are in.
pub(crate) fn set() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SET);
    bytes.extend(random(PATTERN));
    while bytes.len() < SET {
        bytes.extend_from_within(..bytes.len());
    }
    bytes
}

impl<'a> Packets<'a> {
    /// Returns packets of `len` bytes in a [`set`].
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Self {
        let stride = len.next_multiple_of(LINE);
        let mut order: Vec<_> = (0..bytes.len() / stride).map(|slot| (slot * stride) as u32).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(len as u64));
        Self { bytes, len, order, next: 0 }
    }

    /// Returns the next packet. All implementations go through the same order, each from where the one before it
    /// stopped, so no packet is warm.
    #[inline]
    pub(crate) fn next(&mut self) -> &'a [u8] {
        let at = self.order[self.next] as usize;
        self.next = if self.next + 1 == self.order.len() { 0 } else { self.next + 1 };
        &self.bytes[at..at + self.len]
    }
}

/// Returns random bytes, the same ones each time.
pub(crate) fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes
}
