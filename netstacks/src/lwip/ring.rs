//! The bytes of a connection that the peer has not acknowledged.

use std::alloc::{self, Layout};
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Size of a chunk, in bytes: about a super-packet, and the limit of one `tcp_write`. Or the window, if smaller.
const CHUNK_LEN: usize = u16::MAX as usize;

/// Size of a ring's first chunk for a short write, in bytes: thousands of short responses need no large chunks.
const SMALL_LEN: usize = 1024;

/// Largest number of spare chunks of each size: 16 MiB of large ones, and 256 KiB of small ones.
const MOST_SPARE: usize = 256;

/// Spare chunks of all connections. The last returned is used next, so it is in the processor's cache.
#[derive(Debug)]
pub(super) struct Chunks {
    small: Spare,
    large: Spare,
}

#[derive(Debug)]
struct Spare {
    chunks: Vec<Chunk>,
    layout: Layout,
}

impl Spare {
    fn take(&mut self) -> Option<Chunk> {
        self.chunks.pop().or_else(|| Chunk::allocate(self.layout))
    }
}

impl Chunks {
    /// For connections with a window of `window` bytes. Chunks are allocated when they are needed.
    pub(super) fn new(window: usize) -> Self {
        let large =
            Layout::array::<u8>(window.clamp(SMALL_LEN + 1, CHUNK_LEN)).unwrap_or(Layout::new::<[u8; CHUNK_LEN]>());
        let [small, large] =
            [Layout::new::<[u8; SMALL_LEN]>(), large].map(|layout| Spare { chunks: Vec::new(), layout });
        Self { small, large }
    }

    fn give(&mut self, chunk: Chunk) {
        let spare = if chunk.layout == self.small.layout { &mut self.small } else { &mut self.large };
        if spare.chunks.len() < MOST_SPARE {
            spare.chunks.push(chunk);
        }
    }
}

/// Initialised bytes. lwIP keeps pointers into it, so Rust refers only to the bytes at a ring's tail.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

impl Chunk {
    fn allocate(layout: Layout) -> Option<Self> {
        // SAFETY: the layout is not of size 0.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: `allocate` used this layout. A ring is dropped only after lwIP no longer refers to its bytes.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A queue of bytes in chunks. lwIP reports acknowledged bytes after it has freed their segment.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// In the order of the bytes. All but the last are full.
    chunks: VecDeque<Chunk>,
    /// How many bytes of the first chunk are acknowledged.
    start: usize,
    /// How many bytes of the last chunk are used.
    end: usize,
}

impl Ring {
    /// Where to write the next of `wanted` bytes, and how many fit there in one piece: 0 if there is no memory.
    pub(super) fn tail(&mut self, wanted: usize, chunks: &mut Chunks) -> (NonNull<u8>, usize) {
        let next = match self.chunks.back() {
            None if wanted <= SMALL_LEN => chunks.small.take(),
            Some(chunk) if self.end < chunk.layout.size() => None,
            _ => chunks.large.take(),
        };
        if let Some(chunk) = next {
            self.chunks.push_back(chunk);
            self.end = 0;
        }
        match self.chunks.back() {
            // SAFETY: `end` is at most the chunk's length.
            Some(chunk) => (unsafe { chunk.start.add(self.end) }, chunk.layout.size() - self.end),
            None => (NonNull::dangling(), 0),
        }
    }

    pub(super) fn push(&mut self, len: usize) {
        self.end += len;
    }

    pub(super) fn pop(&mut self, len: usize, chunks: &mut Chunks) {
        self.start += len;
        while let Some(first) = self.chunks.front().map(|chunk| chunk.layout.size())
            && self.start >= first
        {
            self.start -= first;
            self.chunks.pop_front().into_iter().for_each(|chunk| chunks.give(chunk));
        }
        self.settle(chunks);
    }

    /// Returns the chunk of an empty ring.
    pub(super) fn settle(&mut self, chunks: &mut Chunks) {
        if self.chunks.is_empty() || (self.chunks.len() == 1 && self.start >= self.end) {
            self.clear(chunks);
        }
    }

    /// Removes all bytes. lwIP must no longer refer to them.
    pub(super) fn clear(&mut self, chunks: &mut Chunks) {
        for chunk in self.chunks.drain(..) {
            chunks.give(chunk);
        }
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `len` bytes. Returns the address and the length of each piece.
    fn write(ring: &mut Ring, chunks: &mut Chunks, mut len: usize) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        while len > 0 {
            let (at, room) = ring.tail(len, chunks);
            let piece = len.min(room);
            ring.push(piece);
            pieces.push((at.as_ptr() as usize, piece));
            len -= piece;
        }
        pieces
    }

    #[test]
    fn the_chunk_that_was_emptied_last_is_filled_next() {
        let mut chunks = Chunks::new(4 * CHUNK_LEN);
        let mut ring = Ring::default();
        let first = write(&mut ring, &mut chunks, 2000);
        ring.pop(2000, &mut chunks);
        let mut other = Ring::default();
        assert_eq!(write(&mut other, &mut chunks, 2000), first, "in another ring too");
        assert_eq!(write(&mut other, &mut chunks, 50), [(first[0].0 + 2000, 50)]);
        let rest = write(&mut other, &mut chunks, CHUNK_LEN);
        assert_eq!(rest.iter().map(|piece| piece.1).collect::<Vec<_>>(), [CHUNK_LEN - 2050, 2050]);
        other.pop(CHUNK_LEN, &mut chunks);
        let next = write(&mut other, &mut chunks, CHUNK_LEN);
        assert_eq!(next, [(rest[1].0 + 2050, CHUNK_LEN - 2050), (first[0].0, 2050)]);
    }

    #[test]
    fn an_empty_ring_has_no_chunk() {
        for len in [2 * SMALL_LEN, CHUNK_LEN, CHUNK_LEN + 1, 3 * CHUNK_LEN] {
            let mut chunks = Chunks::new(len);
            let mut ring = Ring::default();
            for _ in 0..100 {
                write(&mut ring, &mut chunks, len);
                ring.pop(len - len / 3, &mut chunks);
                write(&mut ring, &mut chunks, len - len / 3);
                ring.pop(len - 1, &mut chunks);
                write(&mut ring, &mut chunks, len - 1);
                assert!(ring.chunks.len() <= len.div_ceil(CHUNK_LEN) + 1);
                ring.pop(len, &mut chunks);
                assert!(ring.chunks.is_empty());
            }
            // A chunk that was offered and not written to.
            ring.tail(len, &mut chunks);
            ring.settle(&mut chunks);
            assert!(ring.chunks.is_empty());
            assert!((1..=len.div_ceil(CHUNK_LEN) + 1).contains(&chunks.large.chunks.len()), "{len}");
        }
    }

    #[test]
    fn spare_chunks_are_bounded() {
        for window in [1, SMALL_LEN, 2 * SMALL_LEN] {
            let mut chunks = Chunks::new(window);
            let mut ring = Ring::default();
            write(&mut ring, &mut chunks, 2 * MOST_SPARE * 2 * SMALL_LEN);
            ring.clear(&mut chunks);
            assert_eq!((chunks.small.chunks.len(), chunks.large.chunks.len()), (0, MOST_SPARE));
        }
    }

    #[test]
    fn short_bytes_take_a_small_chunk_and_what_follows_a_large_one() {
        let mut chunks = Chunks::new(CHUNK_LEN);
        let mut ring = Ring::default();
        write(&mut ring, &mut chunks, 1);
        assert_eq!(ring.tail(CHUNK_LEN, &mut chunks).1, SMALL_LEN - 1);
        let pieces = write(&mut ring, &mut chunks, CHUNK_LEN);
        assert_eq!(pieces.iter().map(|piece| piece.1).collect::<Vec<_>>(), [SMALL_LEN - 1, CHUNK_LEN - SMALL_LEN + 1]);
        ring.pop(CHUNK_LEN + 1, &mut chunks);
        assert!(ring.chunks.is_empty());
        assert_eq!((chunks.small.chunks.len(), chunks.large.chunks.len()), (1, 1));
    }
}
