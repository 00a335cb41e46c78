//! Reads and fills one of lwIP's connections.

use std::io;
use std::slice;

use lwip_sys::{ERR_OK, TCP_WRITE_FLAG_MORE, TcpPcb};

use crate::Source;
use crate::lwip::ring::{Chunks, Ring};
use crate::recovery::Edges;

/// The sequence numbers of a connection, whose pcb is alive.
pub(super) unsafe fn edges(pcb: *const TcpPcb) -> Edges {
    let mut edges = [0; 5];
    // SAFETY: the caller's promise.
    unsafe { lwip_sys::lwip_sys_pcb_edges(pcb, &raw mut edges) };
    // The order of `c/shim.h`.
    let [unacknowledged, sent, expected, window_end, peer_window] = edges;
    Edges { unacknowledged, sent, expected, window_end, peer_window: peer_window as u16 }
}

/// Takes at most `most` bytes from the source into the ring, and queues them in lwIP. Returns how many, or `None` if
/// bytes were lost for lack of memory. A PSH is at their end (RFC 9293, 3.9.1).
///
/// The pcb must be alive, and the ring must hold all bytes of it that are not acknowledged.
pub(super) unsafe fn fill(
    pcb: *mut TcpPcb,
    ring: &mut Ring,
    chunks: &mut Chunks,
    most: usize,
    source: &mut Source<'_>,
) -> Option<io::Result<usize>> {
    // SAFETY: the caller's promise.
    let room = unsafe { lwip_sys::lwip_sys_pcb_room(pcb, most) };
    let (mut filled, mut pushed) = (0, true);
    while filled < room {
        let (tail, contiguous) = ring.tail(room - filled, chunks);
        // A chunk is not longer than the limit of one `tcp_write`.
        let len = (room - filled).min(contiguous);
        if len == 0 {
            if filled == 0 {
                return Some(Err(io::ErrorKind::OutOfMemory.into()));
            }
            break;
        }
        // SAFETY: the tail has room for `len` bytes. They are initialised, and lwIP does not know them yet.
        let given = match source(unsafe { slice::from_raw_parts_mut(tail.as_ptr(), len) }) {
            Ok(0) if filled == 0 => return Some(Ok(0)),
            Err(error) if filled == 0 => return Some(Err(error)),
            Ok(0) | Err(_) => break,
            Ok(given) => given.min(len),
        };
        filled += given;
        // If only the end of the chunk was the limit, more bytes follow at once.
        pushed = given < len || filled == room;
        let flags = if pushed { 0 } else { TCP_WRITE_FLAG_MORE };
        // SAFETY: the bytes do not change until they are acknowledged. The call only queues, and makes no callback.
        // Within `room` it fails only for lack of memory.
        if unsafe { lwip_sys::lwip_sys_pcb_write(pcb, tail.as_ptr().cast(), given as u16, flags) } != ERR_OK {
            return None;
        }
        ring.push(given);
        if given < len {
            break;
        }
    }
    if !pushed {
        // SAFETY: the caller's promise.
        unsafe { lwip_sys::lwip_sys_pcb_push(pcb) };
    }
    Some(if filled == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(filled) })
}
