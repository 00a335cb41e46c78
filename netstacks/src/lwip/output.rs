//! The link, and lwIP's way to it.

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::slice;

use lwip_sys::{ERR_IF, ERR_OK, ERR_WOULDBLOCK, ErrT, MAX_SLICES, Pbuf, Slice};
use platform::{Checksum, Link, PacketMeta};

use super::packet;

/// The engine's link.
pub(super) struct Output<L> {
    pub(super) link: L,
    /// The link took no more. Nothing is tried again before the next egress.
    pub(super) blocked: bool,
    /// Why the link can no longer be used.
    pub(super) failure: Option<io::Error>,
    /// Whether TCP checksums are left to the link.
    partial_checksums: bool,
    /// A packet of too many pieces, in one.
    scratch: Vec<u8>,
}

impl<L: Link> Output<L> {
    pub(super) fn new(link: L) -> Self {
        let partial_checksums = link.capabilities().checksum.tx;
        Self { link, blocked: false, failure: None, partial_checksums, scratch: Vec::new() }
    }

    /// The failure, if there is one, for the driver to end with.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => Err(io::Error::new(failure.kind(), failure.to_string())),
        }
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

    fn send(&mut self, slices: &[IoSlice<'_>], checksum: Checksum) -> ErrT {
        match self.link.try_send(PacketMeta { checksum, gso_size: None }, slices) {
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

    /// See [`lwip_sys::Callbacks::output`].
    ///
    /// # Safety
    ///
    /// To be called by lwIP alone, with a pointer to a `Self` that nobody else uses during the call.
    pub(super) unsafe extern "C" fn callback(
        link: *mut c_void,
        slices: *const Slice,
        count: usize,
        packet: *const Pbuf,
    ) -> ErrT {
        // SAFETY: the caller's promise: the engine makes no reference to it last across a call into
        // lwIP.
        let this = unsafe { &mut *link.cast::<Self>() };
        if this.blocked {
            return ERR_WOULDBLOCK;
        }
        if this.failure.is_some() {
            return ERR_IF;
        }
        if count == 0 {
            // SAFETY: the packet is lwIP's and alive during the call.
            return unsafe { this.send_joined(packet) };
        }
        // SAFETY: lwIP's slices are valid during the call.
        let pieces = unsafe { slice::from_raw_parts(slices, count.min(MAX_SLICES)) };
        let mut checksum = Checksum::Complete;
        if this.partial_checksums {
            // SAFETY: the headers are in lwIP's own memory, at the front of the first piece, and
            // nobody else looks at them during the call.
            let headers = unsafe { slice::from_raw_parts_mut(pieces[0].base, pieces[0].len) };
            if packet::seed_checksum(headers) {
                checksum = Checksum::Partial;
            }
        }
        let mut buffers = [IoSlice::new(&[]); MAX_SLICES];
        let mut used = 0;
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            // SAFETY: the piece is lwIP's, or a ring's whose bytes nobody changes before they are
            // acknowledged, and is only read during the call.
            buffers[used] = IoSlice::new(unsafe { slice::from_raw_parts(piece.base, piece.len) });
            used += 1;
        }
        this.send(&buffers[..used], checksum)
    }

    /// # Safety
    ///
    /// The packet is alive.
    unsafe fn send_joined(&mut self, packet: *const Pbuf) -> ErrT {
        let mut scratch = std::mem::take(&mut self.scratch);
        // SAFETY: the caller's promise; the scratch buffer is as long as the packet.
        unsafe {
            let len = lwip_sys::lwip_sys_pbuf_len(packet);
            scratch.resize(usize::from(len), 0);
            lwip_sys::pbuf_copy_partial(packet, scratch.as_mut_ptr().cast(), len, 0);
        }
        let checksum = if self.partial_checksums && packet::seed_checksum(&mut scratch) {
            Checksum::Partial
        } else {
            Checksum::Complete
        };
        let result = self.send(&[IoSlice::new(&scratch)], checksum);
        self.scratch = scratch;
        result
    }
}
