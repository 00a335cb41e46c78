//! Buffers of received packets that lwIP reads without a copy.

use std::ffi::c_void;
use std::mem;
use std::ptr::{self, NonNull};

use lwip_sys::{Frame, Pbuf};
use platform::PacketBuffer;
use platform::packet::flags::FIN;
use platform::packet::{Ipv4Fragment, TcpSegment};

/// Spare buffers for packets. The pool only counts those that are lent to lwIP.
#[derive(Debug)]
pub(super) struct Pool {
    spare: Vec<NonNull<Slot>>,
    pub(super) lent: usize,
    /// This many buffers are lent even for small packets, and this many spare ones are kept.
    budget: usize,
    capacity: usize,
}

/// The budget, in windows: enough for a window of packets that fill half of their buffers.
const BUDGET_WINDOWS: usize = 2;

/// Bounds of the budget, in buffers: a few batches, and the limit of lwIP's list of out-of-order segments.
const BUDGET: (usize, usize) = (64, 16384);

/// Upper bound of the budget, in bytes. The lower bound in buffers takes precedence.
const BUDGET_BYTES: usize = 64 << 20;

/// A buffer, and the memory of the pbuf over it. Either the pool or lwIP owns it.
struct Slot {
    buffer: PacketBuffer,
    frame: *mut Frame,
}

impl Pool {
    /// A pool of buffers of `capacity` bytes, for connections with a window of `window` bytes.
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        let bytes = (BUDGET_WINDOWS * window).min(BUDGET_BYTES);
        let budget = (bytes / capacity.max(1)).clamp(BUDGET.0, BUDGET.1);
        Self { spare: Vec::with_capacity(budget), lent: 0, budget, capacity }
    }

    /// A pbuf of the packet in `buffer`, which gets a spare one; null without memory, or if it is too long for IP.
    /// Beyond the budget, a packet that fills less than half of its buffer is copied. So is a fragment: it may wait for
    /// ever.
    pub(super) fn pbuf_of(&mut self, buffer: &mut PacketBuffer) -> *mut Pbuf {
        let bytes = buffer.packet();
        let Ok(len) = u16::try_from(bytes.len()) else { return ptr::null_mut() };
        let soon_back = self.lent < self.budget || bytes.len() >= self.capacity / 2 || is_bare_segment(bytes);
        if soon_back && Ipv4Fragment::parse(bytes).is_none() {
            return self.lend(buffer, len);
        }
        // SAFETY: the pointer and the length come from a slice.
        unsafe { lwip_sys::lwip_sys_pbuf_of(bytes.as_ptr(), len) }
    }

    fn lend(&mut self, buffer: &mut PacketBuffer, len: u16) -> *mut Pbuf {
        let Some(slot) = self.spare.pop().or_else(|| Slot::allocate(self.capacity)) else { return ptr::null_mut() };
        self.lent += 1;
        // SAFETY: only the pool refers to a slot in `spare`, or to a new one. From here on lwIP owns it, until it calls
        // `Callbacks::released`. The bytes do not move, because the buffer has them in a box. There are `len` bytes.
        unsafe {
            let slot = slot.as_ptr();
            mem::swap(&mut (*slot).buffer, buffer);
            let bytes = (*slot).buffer.storage_mut().as_mut_ptr();
            lwip_sys::lwip_sys_frame_wrap((*slot).frame, bytes, len)
        }
    }

    /// Takes a slot back from lwIP. This pool has lent it, and lwIP no longer uses it.
    pub(super) unsafe fn take_back(&mut self, slot: *mut c_void) {
        let Some(slot) = NonNull::new(slot.cast::<Slot>()) else { return };
        self.lent = self.lent.saturating_sub(1);
        if self.spare.len() < self.budget {
            self.spare.push(slot);
        } else {
            // SAFETY: made in `Slot::allocate`, and nothing else refers to it.
            unsafe { Slot::free(slot) };
        }
    }
}

/// Whether this is a TCP segment without data and FIN. lwIP never queues these.
fn is_bare_segment(packet: &[u8]) -> bool {
    TcpSegment::parse(packet).is_some_and(|segment| segment.payload().is_empty() && segment.flags() & FIN == 0)
}

impl Drop for Pool {
    fn drop(&mut self) {
        for slot in self.spare.drain(..) {
            // SAFETY: made in `Slot::allocate`, and nothing else refers to a spare slot.
            unsafe { Slot::free(slot) };
        }
    }
}

impl Slot {
    fn allocate(capacity: usize) -> Option<NonNull<Self>> {
        let slot = Box::into_raw(Box::new(Self { buffer: PacketBuffer::new(capacity), frame: ptr::null_mut() }));
        // SAFETY: the slot is new, and C only stores its address.
        let frame = unsafe { lwip_sys::lwip_sys_frame_new(slot.cast()) };
        if frame.is_null() {
            // SAFETY: it came from `Box::into_raw` above.
            drop(unsafe { Box::from_raw(slot) });
            return None;
        }
        // SAFETY: as above.
        unsafe { (*slot).frame = frame };
        NonNull::new(slot)
    }

    /// `allocate` made the slot, the caller owns it, and no pbuf over it is alive.
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
