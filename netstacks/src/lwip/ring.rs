//! The bytes of a connection that the peer has not acknowledged yet.

use std::alloc::{self, Layout};
use std::collections::VecDeque;
use std::ptr::NonNull;

/// Size of a chunk, in bytes: about that of a super-packet.
const CHUNK_LEN: usize = 64 << 10;

/// A queue of bytes in chunks, of which the one that was emptied last is filled next. So a peer that
/// acknowledges soon has us write to the few chunks that are in the processor's cache, however large
/// the window; a ring would go through all of its memory.
///
/// lwIP keeps pointers into it, so it is raw memory: a Rust reference is made to the bytes at its tail alone, of which lwIP
/// does not know yet.
#[derive(Debug)]
pub(super) struct Ring {
    /// In the order of the bytes; all but the last are full.
    chunks: VecDeque<NonNull<u8>>,
    spare: Vec<NonNull<u8>>,
    layout: Layout,
    /// How many bytes of the first chunk are acknowledged.
    start: usize,
    /// How many bytes of the last chunk are used.
    end: usize,
}

impl Ring {
    /// For `len` bytes, or `None` where there is no memory. Chunks are allocated as they are needed.
    pub(super) fn new(len: usize) -> Option<Self> {
        let chunk_len = len.clamp(1, CHUNK_LEN);
        let layout = Layout::array::<u8>(chunk_len).ok()?;
        let count = len.div_ceil(chunk_len) + 1;
        let (chunks, spare) = (VecDeque::with_capacity(count), Vec::with_capacity(count));
        Some(Self { chunks, spare, layout, start: 0, end: chunk_len })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() || (self.chunks.len() == 1 && self.start >= self.end)
    }

    /// Where the next bytes go, and how many fit there in one piece: none where there is no memory.
    pub(super) fn tail(&mut self) -> (NonNull<u8>, usize) {
        let len = self.layout.size();
        if self.end == len
            && let Some(chunk) = self.spare.pop().or_else(|| self.allocate())
        {
            self.chunks.push_back(chunk);
            self.end = 0;
        }
        match self.chunks.back() {
            // SAFETY: `end` is at most the chunk's length.
            Some(chunk) => (unsafe { chunk.add(self.end) }, len - self.end),
            None => (NonNull::dangling(), 0),
        }
    }

    /// A chunk of initialised bytes.
    fn allocate(&self) -> Option<NonNull<u8>> {
        // SAFETY: the layout is not of size 0.
        NonNull::new(unsafe { alloc::alloc_zeroed(self.layout) })
    }

    /// Takes over bytes that were written at the tail.
    pub(super) fn push(&mut self, len: usize) {
        self.end = (self.end + len).min(self.layout.size());
    }

    /// Forgets the oldest bytes.
    pub(super) fn pop(&mut self, len: usize) {
        let chunk_len = self.layout.size();
        self.start += len;
        while self.start >= chunk_len
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.start -= chunk_len;
            self.spare.push(chunk);
        }
        if self.is_empty() {
            self.spare.extend(self.chunks.pop_front());
            (self.start, self.end) = (0, chunk_len);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..).chain(self.spare.drain(..)) {
            // SAFETY: allocated in `allocate` with this layout. Whoever drops the ring has seen to it
            // that lwIP refers to its bytes no more.
            unsafe { alloc::dealloc(chunk.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// Writes so many bytes in as many pieces as it takes, and answers these.
    fn write(ring: &mut Ring, mut len: usize) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        while len > 0 {
            let (at, room) = ring.tail();
            let piece = len.min(room);
            ring.push(piece);
            pieces.push((at.as_ptr() as usize, piece));
            len -= piece;
        }
        pieces
    }

    #[test]
    fn the_chunk_that_was_emptied_last_is_filled_next() {
        let mut ring = Ring::new(4 * CHUNK_LEN).unwrap();
        assert!(ring.is_empty());
        let first = write(&mut ring, 100);
        assert!(!ring.is_empty());
        ring.pop(100);
        assert!(ring.is_empty());
        assert_eq!(write(&mut ring, 100), first);
        assert_eq!(write(&mut ring, 50), [(first[0].0 + 100, 50)]);
        let rest = write(&mut ring, CHUNK_LEN);
        assert_eq!(rest.iter().map(|piece| piece.1).collect::<Vec<_>>(), [CHUNK_LEN - 150, 150]);
        ring.pop(CHUNK_LEN);
        assert_eq!(write(&mut ring, CHUNK_LEN), [(rest[1].0 + 150, CHUNK_LEN - 150), (first[0].0, 150)]);
    }

    #[test]
    fn a_window_fits_wherever_it_begins() {
        for len in [1, 4096, CHUNK_LEN, CHUNK_LEN + 1, 3 * CHUNK_LEN] {
            let mut ring = Ring::new(len).unwrap();
            let mut chunks = 0;
            for _ in 0..100 {
                let pieces = write(&mut ring, len);
                chunks = chunks.max(pieces.len());
                ring.pop(len - len / 3);
                write(&mut ring, len - len / 3);
                ring.pop(len - 1);
                write(&mut ring, len - 1);
                ring.pop(len);
                assert!(ring.spare.len() <= len.div_ceil(CHUNK_LEN) + 1);
            }
            ring.pop(len / 3);
            assert!(ring.is_empty());
        }
    }
}
