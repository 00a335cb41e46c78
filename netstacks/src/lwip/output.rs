//! The link, and lwIP's callback that sends packets on it.

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::num::NonZeroU16;
use std::slice;

use lwip_sys::{ERR_IF, ERR_OK, ERR_WOULDBLOCK, ErrT, MAX_SLICES, Pbuf, Slice};
use platform::{Link, PacketMeta};

use crate::config::again;
use crate::offload::Offload;

pub(super) struct Output<L> {
    pub(super) link: L,
    /// The link was full. Nothing is sent before the next egress.
    pub(super) blocked: bool,
    /// How many more packets lwIP may send. Beyond it the link seems full.
    pub(super) quota: usize,
    pub(super) failure: Option<io::Error>,
    offload: Offload,
    pub(super) udp_segmentation: bool,
    /// Payload of each datagram in the UDP super-packet that lwIP makes now.
    pub(super) udp_segment: Option<NonZeroU16>,
    /// A copy of a packet that has too many pieces.
    scratch: Vec<u8>,
}

impl<L: Link> Output<L> {
    pub(super) fn new(mut link: L) -> Self {
        let offload = Offload::of(&link.capabilities());
        let udp_segmentation = offload.enable_udp(&mut link);
        let scratch = Vec::new();
        Self {
            link,
            blocked: false,
            quota: usize::MAX,
            failure: None,
            offload,
            udp_segmentation,
            udp_segment: None,
            scratch,
        }
    }

    /// Returns the failure, if there is one. It ends the driver.
    pub(super) fn check(&self) -> io::Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(again(failure)))
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        match self.link.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(())
            }
            result => result,
        }
    }

    fn send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> ErrT {
        match self.link.try_send(meta, slices) {
            Ok(()) => ERR_OK,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                ERR_WOULDBLOCK
            }
            Err(error) => {
                self.failure = Some(error);
                ERR_IF
            }
        }
    }

    /// See [`lwip_sys::Callbacks::output`]. lwIP alone calls it, with a `Self` that nothing else uses meanwhile.
    pub(super) unsafe extern "C" fn callback(
        link: *mut c_void,
        slices: *const Slice,
        count: usize,
        packet: *const Pbuf,
    ) -> ErrT {
        // SAFETY: the caller's promise: no reference of the engine to it lives across a call of lwIP.
        let this = unsafe { &mut *link.cast::<Self>() };
        if this.blocked || this.quota == 0 {
            return ERR_WOULDBLOCK;
        }
        this.quota -= 1;
        if this.failure.is_some() {
            return ERR_IF;
        }
        if count == 0 {
            // SAFETY: the packet is alive during the call.
            return unsafe { this.send_joined(packet) };
        }
        // SAFETY: lwIP's slices are valid during the call.
        let pieces = unsafe { slice::from_raw_parts(slices, count.min(MAX_SLICES)) };
        let len = pieces.iter().map(|piece| piece.len).sum();
        // SAFETY: the headers are at the front of the first piece, in lwIP's memory, and nothing else refers to them
        // during the call.
        let headers = unsafe { slice::from_raw_parts_mut(pieces[0].base, pieces[0].len) };
        let meta = this.offload.prepare(headers, len, this.udp_segment);
        let mut buffers = [IoSlice::new(&[]); MAX_SLICES];
        let mut used = 0;
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            // SAFETY: the piece is in lwIP's memory or in a ring. The bytes of a ring do not change before they are
            // acknowledged. The piece is read only during the call.
            buffers[used] = IoSlice::new(unsafe { slice::from_raw_parts(piece.base, piece.len) });
            used += 1;
        }
        this.send(meta, &buffers[..used])
    }

    /// The packet must be alive.
    unsafe fn send_joined(&mut self, packet: *const Pbuf) -> ErrT {
        let mut scratch = std::mem::take(&mut self.scratch);
        // SAFETY: the caller's promise; the scratch buffer is as long as the packet.
        unsafe {
            let len = lwip_sys::lwip_sys_pbuf_len(packet);
            scratch.resize(usize::from(len), 0);
            lwip_sys::pbuf_copy_partial(packet, scratch.as_mut_ptr().cast(), len, 0);
        }
        let len = scratch.len();
        let meta = self.offload.prepare(&mut scratch, len, self.udp_segment);
        let result = self.send(meta, &[IoSlice::new(&scratch)]);
        self.scratch = scratch;
        result
    }
}
