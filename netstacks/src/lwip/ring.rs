//! The bytes of a connection that the peer has not acknowledged yet.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// A fixed ring. lwIP keeps pointers into it, so it is raw memory: no Rust reference to its bytes
/// is ever made that could claim them for itself.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    layout: Layout,
    /// Position of the oldest byte.
    start: usize,
    used: usize,
}

impl Ring {
    /// A ring of `len` bytes, or `None` where there is no memory. Pages that are never written cost
    /// nothing.
    pub(super) fn new(len: usize) -> Option<Self> {
        let layout = Layout::array::<u8>(len.max(1)).ok()?;
        // SAFETY: the layout is not of size 0.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        Some(Self { base, layout, start: 0, used: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Where the next bytes go, and how many fit there in one piece.
    pub(super) fn tail(&self) -> (NonNull<u8>, usize) {
        let len = self.layout.size();
        let end = self.start + self.used;
        let (position, room) = if end < len { (end, len - end) } else { (end - len, len - self.used) };
        // SAFETY: the position is below the ring's length: `start` is, and `used` is at most that.
        // A full ring at position 0 wraps to where it starts, with no room.
        (unsafe { self.base.add(position) }, room)
    }

    /// Takes over bytes that were written at the tail.
    pub(super) fn push(&mut self, len: usize) {
        self.used = (self.used + len).min(self.layout.size());
    }

    /// Forgets the oldest bytes.
    pub(super) fn pop(&mut self, len: usize) {
        let len = len.min(self.used);
        self.start = (self.start + len) % self.layout.size();
        self.used -= len;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout. Whoever drops the ring has seen to it that
        // lwIP refers to its bytes no more.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn offset(ring: &Ring) -> (usize, usize) {
        let (at, room) = ring.tail();
        (at.as_ptr() as usize - ring.base.as_ptr() as usize, room)
    }

    #[test]
    fn the_tail_wraps_and_stops_at_the_oldest_byte() {
        let mut ring = Ring::new(10).unwrap();
        assert_eq!(offset(&ring), (0, 10));
        ring.push(10);
        assert_eq!(offset(&ring), (0, 0));
        ring.pop(4);
        assert_eq!(offset(&ring), (0, 4));
        ring.push(3);
        assert_eq!(offset(&ring), (3, 1));
        ring.pop(6);
        assert_eq!(offset(&ring), (3, 7));
        ring.pop(3);
        assert!(ring.is_empty());
        assert_eq!(offset(&ring), (3, 7));
        ring.push(7);
        assert_eq!(offset(&ring), (0, 3));
    }
}
