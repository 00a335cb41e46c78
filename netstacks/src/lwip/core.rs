//! The connections, and what lwIP calls for them.
//!
//! Who may touch what: the engine owns the `Core` by a raw pointer and calls lwIP with it; lwIP
//! calls back, from within such a call, with the same pointer. So nothing here keeps a reference
//! into the core across a call into lwIP that may call back, and each callback refers only to the
//! fields that it needs, through the pointer.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem;
use std::ptr;
use std::slice;

use lwip_sys::{ERR_ABRT, ERR_CLSD, ERR_OK, ERR_RST, Endpoints, ErrT, Pbuf, TCP_WRITE_FLAG_MORE, TcpPcb};
use platform::{Checksum, PacketBuffer};
use slab::Slab;
use tokio::time::Instant;

use super::flow::{Flow, Patience, Stage, both_ends};
use super::pool::Pool;
use super::ring::{Chunks, Ring};
use crate::datagrams::Inbox;
use crate::{Sink, Source, StackConfig};

/// Connections in whatever state, TIME-WAIT included. A SYN beyond them is dropped.
const MAX_FLOWS: usize = 1 << 16;

pub(super) struct Core {
    pub(super) flows: Slab<Flow>,
    pub(super) pool: Pool,
    chunks: Chunks,
    /// Connections whose handshake is done, for `accept`.
    pub(super) accepted: VecDeque<usize>,
    pub(super) touched: Vec<usize>,
    pub(super) inbox: Inbox,
    /// Connections that egress has to look at: they got a segment, or have something to send.
    due: Vec<usize>,
    /// The list that egress works through, kept for its memory.
    flushing: Vec<usize>,
    half_open: usize,
    /// How many pcbs live.
    pub(super) alive: usize,
    pub(super) now: Instant,
    pub(super) config: StackConfig,
    epoch: Instant,
    /// The secret of RFC 6528.
    secret: RandomState,
}

impl Core {
    pub(super) fn new(config: StackConfig, pool: Pool, now: Instant) -> Self {
        Self {
            flows: Slab::new(),
            pool,
            chunks: Chunks::new(config.window),
            accepted: VecDeque::new(),
            touched: Vec::new(),
            inbox: Inbox::new(),
            due: Vec::new(),
            flushing: Vec::new(),
            half_open: 0,
            alive: 0,
            now,
            config,
            epoch: now,
            secret: RandomState::new(),
        }
    }

    /// Names a connection to the tasks that may wait for it.
    fn touch(&mut self, key: usize) {
        if let Some(flow) = self.flows.get_mut(key)
            && flow.stage == Stage::Established
            && !mem::replace(&mut flow.listed.touched, true)
        {
            self.touched.push(key);
        }
    }

    /// Names a connection to the next egress.
    pub(super) fn demand(&mut self, key: usize) {
        if let Some(flow) = self.flows.get_mut(key)
            && !mem::replace(&mut flow.listed.due, true)
        {
            self.due.push(key);
        }
    }

    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    fn pcb(&self, key: usize) -> Option<*mut TcpPcb> {
        self.flows.get(key).map(|flow| flow.pcb).filter(|pcb| !pcb.is_null())
    }
}

/// What the engine asks for. All take the core's pointer, since lwIP calls back.
///
/// # Safety
///
/// For all: the pointer is the one that lwIP was started with, nobody else uses it during the call,
/// and no reference into the core is alive.
impl Core {
    /// Hands lwIP a packet. `buffer` has the same size afterwards, and no meaning.
    pub(super) unsafe fn input(this: *mut Self, buffer: &mut PacketBuffer, verify: bool) {
        let verify = verify && buffer.meta().checksum == Checksum::Filled;
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let packet = (*this).pool.pbuf_of(buffer);
            if packet.is_null() {
                return;
            }
            let flow = lwip_sys::lwip_sys_input(packet, u8::from(verify));
            let now = (*this).now;
            if let Some(key) = flow.checked_sub(1)
                && let Some(flow) = (*this).flows.get_mut(key)
            {
                flow.heard(now);
                (*this).demand(key);
            }
        }
    }

    /// Runs TCP's timer, and gives up peers that are silent for too long.
    pub(super) unsafe fn tick(this: *mut Self) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            lwip_sys::tcp_tmr();
            let (now, timeout) = ((*this).now, (*this).config.user_timeout);
            for key in 0..(*this).flows.capacity() {
                let Some(flow) = (*this).flows.get_mut(key).filter(|flow| !flow.pcb.is_null()) else { continue };
                let pcb = flow.pcb;
                match flow.stage {
                    _ if lwip_sys::lwip_sys_pcb_is_over(pcb) != 0 => continue,
                    // lwIP gives a handshake 20 seconds.
                    Stage::HalfOpen => continue,
                    Stage::Released => lwip_sys::lwip_sys_pcb_linger(pcb),
                    Stage::Established => {}
                }
                let outstanding = lwip_sys::lwip_sys_pcb_outstanding(pcb) != 0;
                match flow.patience(now, timeout, outstanding) {
                    Patience::Enough => {}
                    Patience::Probe => drop(lwip_sys::tcp_keepalive(pcb)),
                    Patience::Exhausted => lwip_sys::tcp_abort(pcb),
                }
            }
        }
    }

    /// lwIP forgets the acknowledgements that its timer could not send. Makes them due again.
    pub(super) unsafe fn demand_acks(this: *mut Self) {
        // SAFETY: the caller's promise. Nothing calls back.
        unsafe {
            for &key in &(*this).due {
                if let Some(pcb) = (*this).pcb(key) {
                    lwip_sys::lwip_sys_pcb_demand_ack(pcb);
                }
            }
        }
    }

    /// Sends what the due connections have to send. Those that could not stay due.
    pub(super) unsafe fn flush(this: *mut Self) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let mut flushing = mem::take(&mut (*this).flushing);
            mem::swap(&mut flushing, &mut (*this).due);
            for key in flushing.drain(..) {
                if let Some(flow) = (*this).flows.get_mut(key) {
                    flow.listed.due = false;
                }
                if let Some(pcb) = (*this).pcb(key)
                    && lwip_sys::lwip_sys_pcb_flush(pcb) != ERR_OK
                {
                    (*this).demand(key);
                }
            }
            (*this).flushing = flushing;
        }
    }

    /// Lends received bytes to a sink, and opens the window again by what it took.
    pub(super) unsafe fn lend(this: *mut Self, key: usize, sink: &mut Sink<'_>) -> io::Result<usize> {
        // SAFETY: the caller's promise; the reference to the flow ends before the window opens.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return Err(io::ErrorKind::NotConnected.into()) };
            if !flow.has_data() {
                let open = !flow.eof && !flow.pcb.is_null();
                return flow.end(if open { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(0) });
            }
            let len = flow.lend(sink)?;
            let pcb = flow.pcb;
            if !pcb.is_null() {
                lwip_sys::lwip_sys_pcb_recved(pcb, len);
                (*this).demand(key);
            }
            Ok(len)
        }
    }

    /// Has a source fill the connection's ring, and tells lwIP where the bytes are.
    pub(super) unsafe fn fill(this: *mut Self, key: usize, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        // SAFETY: the caller's promise; the references to the flow end before lwIP is called back from.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return Err(io::ErrorKind::NotConnected.into()) };
            if flow.finished || flow.pcb.is_null() || flow.error.is_some() {
                return flow.end(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let pcb = flow.pcb;
            let chunks = &mut (*this).chunks;
            let filled = fill(pcb, &mut flow.ring, chunks, most, source);
            flow.ring.settle(chunks);
            let Some(filled) = filled else {
                // The peer is not to get those behind them.
                lwip_sys::tcp_abort(pcb);
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            (*this).demand(key);
            filled
        }
    }

    /// Queues our FIN.
    pub(super) unsafe fn finish(this: *mut Self, key: usize) {
        // SAFETY: the caller's promise; the reference to the flow ends before lwIP is called.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            if mem::replace(&mut flow.finished, true) || flow.pcb.is_null() {
                return;
            }
            let pcb = flow.pcb;
            // It fails only for a connection that is closing already.
            lwip_sys::tcp_shutdown(pcb, 0, 1);
            (*this).demand(key);
        }
    }

    /// Ends the connection with a RST.
    pub(super) unsafe fn reset(this: *mut Self, key: usize) {
        // SAFETY: the caller's promise; no reference is alive when lwIP is called.
        unsafe {
            if let Some(pcb) = (*this).pcb(key) {
                lwip_sys::tcp_abort(pcb);
            }
        }
    }

    /// The stream is gone: closes the connection.
    pub(super) unsafe fn release(this: *mut Self, key: usize) {
        // SAFETY: the caller's promise; the reference to the flow ends before lwIP is called.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            let unread = flow.discard();
            flow.stage = Stage::Released;
            flow.finished = true;
            let pcb = flow.pcb;
            if pcb.is_null() {
                (*this).flows.remove(key);
                return;
            }
            lwip_sys::lwip_sys_pcb_release(pcb, u8::from(unread));
            (*this).demand(key);
        }
    }
}

/// Gives lwIP at most so many bytes by way of the ring. Answers how many, or `None` where bytes were lost for lack of
/// memory.
///
/// RFC 9293, 3.9.1 wants a PSH where what is queued ends: without one the peer may keep its acknowledgement back.
///
/// # Safety
///
/// The pcb lives, and the ring is the one that all bytes written to it before are in.
unsafe fn fill(
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
        let (tail, contiguous) = ring.tail(chunks);
        // A chunk is no longer than one `tcp_write` takes.
        let len = (room - filled).min(contiguous);
        if len == 0 {
            if filled == 0 {
                return Some(Err(io::ErrorKind::OutOfMemory.into()));
            }
            break;
        }
        // SAFETY: the tail has room for so many bytes. They are initialised, and lwIP has not been told of
        // them yet.
        let given = match source(unsafe { slice::from_raw_parts_mut(tail.as_ptr(), len) }) {
            Ok(0) if filled == 0 => return Some(Ok(0)),
            Err(error) if filled == 0 => return Some(Err(error)),
            Ok(0) | Err(_) => break,
            Ok(given) => given.min(len),
        };
        filled += given;
        // More follows at once where only the chunk's end has cut.
        pushed = given < len || filled == room;
        let flags = if pushed { 0 } else { TCP_WRITE_FLAG_MORE };
        // SAFETY: the bytes stay as they are until they are acknowledged. The call only queues, and calls nothing
        // back. What there is room for it fails to take only without memory.
        if unsafe { lwip_sys::tcp_write(pcb, tail.as_ptr().cast(), given as u16, flags) } != ERR_OK {
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

/// lwIP's callbacks; see [`lwip_sys::Callbacks`]. None panics: they index nothing.
///
/// # Safety
///
/// For all: to be called by lwIP alone, with the engine's pointer.
impl Core {
    pub(super) unsafe extern "C" fn on_admit(engine: *mut c_void) -> u8 {
        let this = engine.cast::<Self>();
        // SAFETY: see above, and the head of this file.
        unsafe {
            let waiting = (*this).half_open + (*this).accepted.len();
            u8::from(waiting < (*this).config.backlog && (*this).flows.len() < MAX_FLOWS)
        }
    }

    pub(super) unsafe extern "C" fn on_opened(engine: *mut c_void, pcb: *mut TcpPcb) -> usize {
        let this = engine.cast::<Self>();
        let mut endpoints = Endpoints::default();
        // SAFETY: see above. lwIP's pcb is alive.
        unsafe {
            lwip_sys::lwip_sys_pcb_endpoints(pcb, &raw mut endpoints);
            let now = (*this).now;
            let key = (*this).flows.insert(Flow::new(pcb, &endpoints, now));
            (*this).half_open += 1;
            (*this).alive += 1;
            (*this).demand(key);
            key + 1
        }
    }

    pub(super) unsafe extern "C" fn on_established(engine: *mut c_void, flow: usize) {
        let (this, key) = (engine.cast::<Self>(), flow.wrapping_sub(1));
        // SAFETY: see above.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            flow.stage = Stage::Established;
            (*this).half_open -= 1;
            (*this).accepted.push_back(key);
        }
    }

    pub(super) unsafe extern "C" fn on_received(
        engine: *mut c_void,
        flow: usize,
        pcb: *mut TcpPcb,
        data: *mut Pbuf,
    ) -> ErrT {
        let (this, key) = (engine.cast::<Self>(), flow.wrapping_sub(1));
        // SAFETY: see above. The data is ours; the flow's reference ends before lwIP is called.
        unsafe {
            match (*this).flows.get_mut(key).filter(|flow| flow.stage == Stage::Established) {
                Some(flow) if data.is_null() => flow.eof = true,
                Some(flow) => flow.push(data),
                None if data.is_null() => {}
                None => {
                    // Nobody will read it, which a RST tells the peer (RFC 9293, 3.6.1).
                    lwip_sys::pbuf_free(data);
                    lwip_sys::tcp_abort(pcb);
                    return ERR_ABRT;
                }
            }
            (*this).touch(key);
        }
        ERR_OK
    }

    pub(super) unsafe extern "C" fn on_sent(engine: *mut c_void, flow: usize, len: u16) {
        let (this, key) = (engine.cast::<Self>(), flow.wrapping_sub(1));
        // SAFETY: see above.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            flow.ring.pop(usize::from(len), &mut (*this).chunks);
            (*this).touch(key);
        }
    }

    pub(super) unsafe extern "C" fn on_failed(engine: *mut c_void, flow: usize, error: ErrT) {
        let (this, key) = (engine.cast::<Self>(), flow.wrapping_sub(1));
        // SAFETY: see above.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            match error {
                ERR_CLSD => flow.eof = true,
                ERR_RST => flow.error = Some(io::ErrorKind::ConnectionReset),
                // Given up, by `tick` or by lwIP after as many retransmissions as it makes.
                ERR_ABRT => flow.error = Some(io::ErrorKind::TimedOut),
                _ => flow.error = Some(io::ErrorKind::ConnectionAborted),
            }
            (*this).touch(key);
        }
    }

    pub(super) unsafe extern "C" fn on_destroyed(engine: *mut c_void, flow: usize) {
        let (this, key) = (engine.cast::<Self>(), flow.wrapping_sub(1));
        // SAFETY: see above.
        unsafe {
            let Some(flow) = (*this).flows.get_mut(key) else { return };
            flow.pcb = ptr::null_mut();
            flow.ring.clear(&mut (*this).chunks);
            (*this).alive -= 1;
            if flow.stage == Stage::Established {
                // lwIP tells the reason, if it has one, right before or after this.
                if !flow.eof && flow.error.is_none() {
                    flow.error = Some(io::ErrorKind::ConnectionAborted);
                }
                (*this).touch(key);
            } else {
                (*this).half_open -= usize::from(flow.stage == Stage::HalfOpen);
                drop((*this).flows.remove(key));
            }
        }
    }

    pub(super) unsafe extern "C" fn on_isn(engine: *mut c_void, endpoints: *const Endpoints) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above. lwIP's pointer is valid during the call.
        unsafe {
            let clock = (*this).now.saturating_duration_since((*this).epoch).as_micros() / 4;
            (clock as u32).wrapping_add((*this).secret.hash_one(*endpoints) as u32)
        }
    }

    pub(super) unsafe extern "C" fn on_datagram(
        engine: *mut c_void,
        endpoints: *const Endpoints,
        bytes: *const u8,
        len: usize,
    ) {
        let this = engine.cast::<Self>();
        // SAFETY: see above. lwIP's pointers are valid during the call.
        unsafe {
            let (local, peer) = both_ends(&*endpoints);
            (*this).inbox.push(local, peer, slice::from_raw_parts(bytes, len));
        }
    }

    pub(super) unsafe extern "C" fn on_seconds(engine: *mut c_void) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above.
        unsafe { (*this).now.saturating_duration_since((*this).epoch).as_secs() as u32 }
    }

    pub(super) unsafe extern "C" fn on_released(engine: *mut c_void, slot: *mut c_void) {
        let this = engine.cast::<Self>();
        // SAFETY: see above. The slot is one that the pool has lent.
        unsafe { (*this).pool.take_back(slot) };
    }
}
