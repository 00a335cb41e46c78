//! The functions that lwIP calls.

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::slice;

use lwip_sys::{ERR_ABRT, ERR_CLSD, ERR_OK, ERR_RST, Endpoints, ErrT, Pbuf, TcpPcb};

use super::Core;
use crate::FlowKey;
use crate::driven::{FlowId, Stage};
use crate::lwip::flow::{Flow, Open, both_ends};

/// lwIP's callbacks; see [`lwip_sys::Callbacks`]. Only lwIP calls them, with the engine's pointer. None panics.
impl Core {
    pub(in crate::lwip) unsafe extern "C" fn on_admit(engine: *mut c_void, opens: u8) -> u8 {
        let this = engine.cast::<Self>();
        // SAFETY: see above, and the top of this file.
        unsafe {
            if !(*this).table.is_listening() {
                return lwip_sys::REFUSE;
            }
            if (*this).table.room() == 0 {
                return lwip_sys::DROP;
            }
            if opens != 0
                && let Some(oldest) = (*this).table.oldest_half_open()
                && let Some(pcb) = (*this).pcb(oldest)
            {
                lwip_sys::lwip_sys_pcb_forget(pcb);
            }
            lwip_sys::OPEN
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_opened(engine: *mut c_void, pcb: *mut TcpPcb) -> usize {
        let this = engine.cast::<Self>();
        let mut endpoints = Endpoints::default();
        // SAFETY: see above. lwIP's pcb is alive.
        unsafe {
            lwip_sys::lwip_sys_pcb_endpoints(pcb, &raw mut endpoints);
            let (local, peer) = both_ends(&endpoints);
            let connection = Flow::new(pcb, (*this).now);
            let flow = (*this).table.open(FlowKey { local, peer }, connection);
            (*this).demand(flow);
            flow.0 + 1
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_established(engine: *mut c_void, flow: usize) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            if (*this).table.stage(flow) == Some(Stage::Handshake) {
                (*this).table.established(flow);
                let open = Box::new(Open::new((*this).mss, (*this).config.workarounds));
                if let Some(connection) = (*this).table.get_mut(flow) {
                    connection.open = Some(open);
                }
            }
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_received(
        engine: *mut c_void,
        flow: usize,
        pcb: *mut TcpPcb,
        data: *mut Pbuf,
    ) -> ErrT {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above. The data is ours; the reference to the connection ends before lwIP is called.
        unsafe {
            let is_wanted = matches!((*this).table.stage(flow), Some(Stage::Ready | Stage::Accepted));
            match (*this).table.get_mut(flow).filter(|_| is_wanted) {
                Some(connection) if data.is_null() => connection.eof = true,
                Some(connection) => connection.push(data),
                None if data.is_null() => {}
                None => {
                    // No task will read the data, so the peer gets a RST (RFC 9293, 3.6.1).
                    lwip_sys::lwip_sys_pbuf_free(data);
                    lwip_sys::lwip_sys_pcb_abort(pcb);
                    return ERR_ABRT;
                }
            }
            (*this).table.set_changed(flow);
        }
        ERR_OK
    }

    pub(in crate::lwip) unsafe extern "C" fn on_sent(engine: *mut c_void, flow: usize, len: u16) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            let Some(open) = (*this).open(flow) else { return };
            open.ring.pop(usize::from(len), &mut (*this).chunks);
            (*this).table.set_changed(flow);
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_failed(engine: *mut c_void, flow: usize, error: ErrT) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            match error {
                ERR_CLSD => connection.eof = true,
                ERR_RST => connection.error = Some(io::ErrorKind::ConnectionReset),
                // Aborted by `lose_patience`, or by lwIP after its last retransmission.
                ERR_ABRT => connection.error = Some(io::ErrorKind::TimedOut),
                _ => connection.error = Some(io::ErrorKind::ConnectionAborted),
            }
            (*this).table.set_changed(flow);
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_destroyed(engine: *mut c_void, flow: usize) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            let is_held = matches!((*this).table.stage(flow), Some(Stage::Ready | Stage::Accepted));
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            connection.pcb = ptr::null_mut();
            if let Some(open) = &mut connection.open {
                open.ring.clear(&mut (*this).chunks);
            }
            if is_held {
                // lwIP reports the reason, if it has one, right before or after this.
                if !connection.eof && connection.error.is_none() {
                    connection.error = Some(io::ErrorKind::ConnectionAborted);
                }
                (*this).table.detach(flow);
                (*this).table.set_changed(flow);
            } else {
                drop((*this).table.remove(flow));
            }
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_isn(engine: *mut c_void, endpoints: *const Endpoints) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above. lwIP's pointer is valid during the call.
        unsafe {
            let (local, peer) = both_ends(&*endpoints);
            (*this).initial_numbers.of(&FlowKey { local, peer }, (*this).now)
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_datagram(
        engine: *mut c_void,
        endpoints: *const Endpoints,
        bytes: *const u8,
        len: usize,
    ) {
        let this = engine.cast::<Self>();
        // SAFETY: see above. lwIP's pointers are valid during the call.
        unsafe {
            let (local, peer) = both_ends(&*endpoints);
            let gso_size = (*this).gso_size;
            (*this).inbox.push(local, peer, slice::from_raw_parts(bytes, len), gso_size);
        }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_seconds(engine: *mut c_void) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above.
        unsafe { (*this).now.saturating_duration_since((*this).epoch).as_secs() as u32 }
    }

    pub(in crate::lwip) unsafe extern "C" fn on_released(engine: *mut c_void, slot: *mut c_void) {
        let this = engine.cast::<Self>();
        // SAFETY: see above. The pool has lent this slot.
        unsafe { (*this).pool.take_back(slot) };
    }
}
