//! Packet buffers that lwIP reads received packets from, without a copy.

use std::ffi::c_void;
use std::mem;
use std::ptr::{self, NonNull};

use lwip_sys::{Frame, Pbuf};
use platform::PacketBuffer;
use platform::packet::flags::FIN;
use platform::packet::{Ipv4Fragment, TcpSegment};

/// Buffers that wait for a packet. Those that are lent to lwIP live outside.
#[derive(Debug)]
pub(super) struct Pool {
    spare: Vec<NonNull<Slot>>,
    lent: usize,
    /// So many buffers are lent whatever is in them; and so many are kept when they come back.
    budget: usize,
    /// Size of each in bytes.
    capacity: usize,
}

/// So many windows of buffers are lent whatever is in them: a window of packets that fill half of
/// theirs.
const BUDGET_WINDOWS: usize = 2;

/// Bounds of the budget, in buffers: a few batches, and what lwIP's list of segments out of order is
/// not longer than.
const BUDGET: (usize, usize) = (64, 16384);

/// What the budget holds at most, in bytes, unless its lower bound is more.
const BUDGET_BYTES: usize = 64 << 20;

/// A buffer and the memory of the pbuf over it. Either the pool has it or lwIP.
struct Slot {
    buffer: PacketBuffer,
    frame: *mut Frame,
}

impl Pool {
    /// Of buffers of `capacity` bytes, for connections with windows of `window` bytes.
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        let bytes = (BUDGET_WINDOWS * window).min(BUDGET_BYTES);
        let budget = (bytes / capacity.max(1)).clamp(BUDGET.0, BUDGET.1);
        Self { spare: Vec::with_capacity(budget), lent: 0, budget, capacity }
    }

    /// A pbuf of the packet in `buffer`; null where there is no memory, or for a packet that no IP
    /// packet can be.
    ///
    /// The packet changes place: its buffer goes to lwIP, and `buffer` gets a spare one. Only where
    /// many are lent already, a packet that fills less than half of its buffer is copied, so that what
    /// waits for its reader holds no more than twice its size; how much waits, the receive windows
    /// bound. A fragment may wait for others that never come, so it is copied, too.
    pub(super) fn pbuf_of(&mut self, buffer: &mut PacketBuffer) -> *mut Pbuf {
        let bytes = buffer.packet();
        let Ok(len) = u16::try_from(bytes.len()) else { return ptr::null_mut() };
        let soon_back = self.lent < self.budget || bytes.len() >= self.capacity / 2 || is_bare_segment(bytes);
        if soon_back && Ipv4Fragment::parse(bytes).is_none() {
            return self.lend(buffer, len);
        }
        // SAFETY: the pointer and the length are a slice's.
        unsafe { lwip_sys::lwip_sys_pbuf_of(bytes.as_ptr(), len) }
    }

    fn lend(&mut self, buffer: &mut PacketBuffer, len: u16) -> *mut Pbuf {
        let Some(slot) = self.spare.pop().or_else(|| Slot::allocate(self.capacity)) else { return ptr::null_mut() };
        self.lent += 1;
        // SAFETY: a slot in `spare`, or a new one, is the pool's alone. From here on it is lwIP's,
        // until it calls `Callbacks::released`: nobody else touches it. The bytes do not move, since
        // the buffer has them in a box, and there are `len` of them.
        unsafe {
            let slot = slot.as_ptr();
            mem::swap(&mut (*slot).buffer, buffer);
            let bytes = (*slot).buffer.storage_mut().as_mut_ptr();
            lwip_sys::lwip_sys_frame_wrap((*slot).frame, bytes, len)
        }
    }

    /// How many buffers lwIP and the readers' queues have.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Takes a slot back from lwIP.
    ///
    /// # Safety
    ///
    /// The slot was lent by this pool, and lwIP gives it up.
    pub(super) unsafe fn take_back(&mut self, slot: *mut c_void) {
        let Some(slot) = NonNull::new(slot.cast::<Slot>()) else { return };
        self.lent = self.lent.saturating_sub(1);
        if self.spare.len() < self.budget {
            self.spare.push(slot);
        } else {
            // SAFETY: made in `Slot::allocate`, and nobody else's.
            unsafe { Slot::free(slot) };
        }
    }
}

/// Whether this is a TCP segment without data and FIN, which lwIP has no reason to keep.
fn is_bare_segment(packet: &[u8]) -> bool {
    TcpSegment::parse(packet).is_some_and(|segment| segment.payload().is_empty() && segment.flags() & FIN == 0)
}

impl Drop for Pool {
    fn drop(&mut self) {
        for slot in self.spare.drain(..) {
            // SAFETY: made in `Slot::allocate`; what is spare is nobody else's.
            unsafe { Slot::free(slot) };
        }
    }
}

impl Slot {
    fn allocate(capacity: usize) -> Option<NonNull<Self>> {
        let slot = Box::into_raw(Box::new(Self { buffer: PacketBuffer::new(capacity), frame: ptr::null_mut() }));
        // SAFETY: the slot was made just now, and C only remembers its address.
        let frame = unsafe { lwip_sys::lwip_sys_frame_new(slot.cast()) };
        if frame.is_null() {
            // SAFETY: as above; it goes where it came from.
            drop(unsafe { Box::from_raw(slot) });
            return None;
        }
        // SAFETY: as above.
        unsafe { (*slot).frame = frame };
        NonNull::new(slot)
    }

    /// # Safety
    ///
    /// The slot was made by `allocate` and is the caller's; no pbuf over it is alive.
    unsafe fn free(slot: NonNull<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            lwip_sys::lwip_sys_frame_delete((*slot.as_ptr()).frame);
            drop(Box::from_raw(slot.as_ptr()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_without_data_and_fin_are_bare() {
        let v4 = |flags, payload: usize| {
            let mut packet = vec![0; 40 + payload];
            (packet[0], packet[9], packet[32], packet[33]) = (0x45, 6, 5 << 4, flags);
            packet
        };
        let v6 = |payload: usize| {
            let mut packet = vec![0; 60 + payload];
            (packet[0], packet[6], packet[52]) = (0x60, 6, 5 << 4);
            packet
        };
        assert!(is_bare_segment(&v4(0x10, 0)));
        assert!(!is_bare_segment(&v4(0x11, 0)), "a FIN may be kept out of order");
        assert!(!is_bare_segment(&v4(0x10, 1)));
        assert!(is_bare_segment(&v6(0)));
        assert!(!is_bare_segment(&v6(1)));
        for len in 0..40 {
            assert!(!is_bare_segment(&v4(0x10, 0)[..len]), "cut short at {len}");
        }
    }
}
