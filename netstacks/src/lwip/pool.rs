//! Packet buffers that lwIP reads received packets from, without a copy.

use std::ffi::c_void;
use std::mem;
use std::ptr::{self, NonNull};

use lwip_sys::{Frame, Pbuf};
use platform::PacketBuffer;

use super::packet;

/// Buffers that wait for a packet. As many as are lent to lwIP live outside; each connection's
/// receive window bounds those.
#[derive(Debug)]
pub(super) struct Pool {
    spare: Vec<NonNull<Slot>>,
    /// How many spare ones are kept.
    limit: usize,
    /// Size of each in bytes.
    capacity: usize,
}

/// A buffer and the memory of the pbuf over it. Either the pool has it or lwIP.
struct Slot {
    buffer: PacketBuffer,
    frame: *mut Frame,
}

impl Pool {
    /// Of buffers of `capacity` bytes, of which about `window` bytes are kept when they are spare.
    pub(super) fn new(capacity: usize, window: usize) -> Self {
        Self { spare: Vec::new(), limit: (window / capacity.max(1)).clamp(32, 8192), capacity }
    }

    /// A pbuf of the packet in `buffer`; null where there is no memory, or for a packet that no IP
    /// packet can be.
    ///
    /// A large packet changes place: its buffer goes to lwIP, and `buffer` gets a spare one. A small
    /// one is copied, so that a few bytes that wait for their reader do not hold a whole buffer.
    pub(super) fn pbuf_of(&mut self, buffer: &mut PacketBuffer) -> *mut Pbuf {
        let bytes = buffer.packet();
        let Ok(len) = u16::try_from(bytes.len()) else { return ptr::null_mut() };
        if bytes.len() >= self.capacity / 2 || packet::is_bare_segment(bytes) {
            return self.lend(buffer, len);
        }
        // SAFETY: the pointer and the length are a slice's.
        unsafe { lwip_sys::lwip_sys_pbuf_of(bytes.as_ptr(), len) }
    }

    fn lend(&mut self, buffer: &mut PacketBuffer, len: u16) -> *mut Pbuf {
        let Some(slot) = self.spare.pop().or_else(|| Slot::allocate(self.capacity)) else { return ptr::null_mut() };
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

    /// Takes a slot back from lwIP.
    ///
    /// # Safety
    ///
    /// The slot was lent by this pool, and lwIP gives it up.
    pub(super) unsafe fn take_back(&mut self, slot: *mut c_void) {
        let Some(slot) = NonNull::new(slot.cast::<Slot>()) else { return };
        if self.spare.len() < self.limit {
            self.spare.push(slot);
        } else {
            // SAFETY: made in `Slot::allocate`, and nobody else's.
            unsafe { Slot::free(slot) };
        }
    }
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
