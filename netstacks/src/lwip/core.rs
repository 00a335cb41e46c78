//! The connections, and lwIP's callbacks for them.
//!
//! The rule for `unsafe`: the engine owns the `Core` by a raw pointer and passes it to lwIP. During a call, lwIP calls
//! back with the same pointer. So no function here keeps a reference into the core across a call of lwIP that may call
//! back, and each callback refers only to the fields that it needs, through the pointer.

use std::ffi::c_void;
use std::io;
use std::mem;
use std::num::NonZeroU16;
use std::ptr;
use std::slice;
use std::time::Duration;

use lwip_sys::{ERR_ABRT, ERR_CLSD, ERR_OK, ERR_RST, Endpoints, ErrT, Pbuf, TCP_WRITE_FLAG_MORE, TcpPcb};
use platform::packet::Ipv4Fragment;
use platform::{Checksum, Link, PacketBuffer};
use tokio::time::Instant;

use super::flow::{Flow, Open, Patience, both_ends};
use super::output::Output;
use super::pool::Pool;
use super::ring::{Chunks, Ring};
use crate::datagrams::Inbox;
use crate::driven::isn::InitialNumbers;
use crate::driven::{FlowId, Stage, Table, segment};
use crate::recovery::{Edges, Lost, Recovery};
use crate::{FlowKey, Sink, Source, StackConfig};

/// TIME-WAIT lasts two maximum segment lifetimes: 60 seconds, as on Linux (`TCP_TIMEWAIT_LEN`, `include/net/tcp.h`).
const TIME_WAIT: Duration = Duration::from_mins(1);

/// The most packets of one egress. Then packets are received, and other tasks run.
pub(super) const EGRESS_PACKETS: usize = 256;

/// The most packets that a connection sends before the next connection has its turn.
const FLOW_PACKETS: usize = 16;

pub(super) struct Core {
    pub(super) table: Table<Flow>,
    pub(super) pool: Pool,
    chunks: Chunks,
    pub(super) inbox: Inbox,
    /// Payload of each segment of the packet that lwIP takes now, if it is a super-packet.
    gso_size: Option<NonZeroU16>,
    /// Connections with a running timer.
    pub(super) ticking: Vec<FlowId>,
    pub(super) now: Instant,
    pub(super) config: StackConfig,
    /// The payload of a segment on the wire, in bytes.
    mss: usize,
    epoch: Instant,
    initial_numbers: InitialNumbers,
}

impl Core {
    pub(super) fn new(config: StackConfig, mss: usize, pool: Pool, now: Instant) -> Self {
        Self {
            table: Table::new(config.backlog),
            pool,
            chunks: Chunks::new(config.window),
            inbox: Inbox::new(),
            gso_size: None,
            ticking: Vec::new(),
            now,
            config,
            mss,
            epoch: now,
            initial_numbers: InitialNumbers::new(now),
        }
    }

    /// Notes a change of a connection: it may have something to send, and its timers run.
    pub(super) fn demand(&mut self, flow: FlowId) {
        self.table.set_due(flow);
        if let Some(connection) = self.table.get_mut(flow)
            && !connection.pcb.is_null()
            && !mem::replace(&mut connection.is_ticking, true)
        {
            self.ticking.push(flow);
        }
    }

    /// lwIP's control block of a connection. `None` after lwIP has freed it.
    fn pcb(&self, flow: FlowId) -> Option<*mut TcpPcb> {
        self.table.get(flow).map(|flow| flow.pcb).filter(|pcb| !pcb.is_null())
    }

    fn open(&mut self, flow: FlowId) -> Option<&mut Open> {
        self.table.get_mut(flow)?.open.as_deref_mut()
    }

    fn is_orphan(&self, flow: FlowId) -> bool {
        matches!(self.table.stage(flow), Some(Stage::Orphaned | Stage::TimeWait))
    }
}

/// The operations of the engine. All take the core's pointer, because lwIP calls back.
///
/// # Safety
///
/// For all: the pointer is the one that lwIP was started with, nothing else uses it during the call,
/// and no reference into the core is alive.
impl Core {
    /// Passes a packet to lwIP. Afterwards `buffer` has the same size and no meaningful content.
    pub(super) unsafe fn input(this: *mut Self, buffer: &mut PacketBuffer, verify: bool) {
        let verify = verify && buffer.meta().checksum == Checksum::Filled;
        let segment = segment::parse(buffer.packet());
        if segment.is_some() && !segment::is_intact(buffer.packet(), verify) {
            return;
        }
        // A datagram may be in fragments, so lwIP verifies it. No link verifies fragments.
        let verified = match segment {
            Some(_) => lwip_sys::VERIFIED_ALL,
            None if verify || Ipv4Fragment::parse(buffer.packet()).is_some() => lwip_sys::VERIFIED_NOTHING,
            None => lwip_sys::VERIFIED_ABOVE_IP,
        };
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let known = segment.and_then(|segment| (*this).table.find(&segment.key));
            let (mut pcb, mut lost, mut first, now) = (ptr::null_mut(), None, None, (*this).now);
            let mss = (*this).mss;
            if let Some(flow) = known
                && let Some(connection) = (*this).table.get_mut(flow)
            {
                pcb = connection.pcb;
                if !pcb.is_null() {
                    let recovery = match &mut connection.open {
                        Some(open) => &mut open.recovery,
                        // It may complete the handshake. Then it has the first window.
                        None => first.insert(Recovery::new(mss)),
                    };
                    lost = recovery.on_packet(buffer.packet_mut(), &edges(pcb), now);
                }
            }
            (*this).gso_size = buffer.meta().gso_size;
            let packet = (*this).pool.pbuf_of(buffer);
            if packet.is_null() {
                return;
            }
            let taken_by = lwip_sys::lwip_sys_input(packet, verified, pcb);
            if let Some(flow) = taken_by.checked_sub(1).map(FlowId)
                && let Some(connection) = (*this).table.get_mut(flow)
            {
                connection.heard(now);
                if let Some(first) = first
                    && let Some(open) = &mut connection.open
                {
                    open.recovery = first;
                }
                if let Some(lost) = lost
                    && !connection.pcb.is_null()
                {
                    retransmit(connection.pcb, lost);
                }
                (*this).demand(flow);
            }
        }
    }

    /// Runs TCP's timers.
    pub(super) unsafe fn tick(this: *mut Self) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            lwip_sys::lwip_sys_tick();
            let mut ticking = mem::take(&mut (*this).ticking);
            ticking.retain(|&flow| {
                // A new connection may have the number of an old one. Then the number is in the list twice.
                let connection = (*this).table.get_mut(flow);
                if !connection.is_some_and(|connection| mem::take(&mut connection.is_ticking)) {
                    return false;
                }
                let Some(pcb) = (*this).pcb(flow) else { return false };
                if lwip_sys::lwip_sys_pcb_is_over(pcb) == 0 {
                    if (*this).is_orphan(flow) {
                        lwip_sys::lwip_sys_pcb_linger(pcb);
                    }
                    lwip_sys::lwip_sys_pcb_tick(pcb);
                }
                let Some(pcb) = (*this).pcb(flow) else { return false };
                lwip_sys::lwip_sys_pcb_is_quiet(pcb) == 0
            });
            ticking.retain(|&flow| {
                let connection = (*this).table.get_mut(flow);
                connection.is_some_and(|connection| !mem::replace(&mut connection.is_ticking, true))
            });
            // Connections that a callback has added meanwhile.
            ticking.append(&mut (*this).ticking);
            (*this).ticking = ticking;
        }
    }

    /// Makes acknowledgements due again: lwIP forgets those that its timer could not send.
    pub(super) unsafe fn demand_acks(this: *mut Self) {
        // SAFETY: the caller's promise. The call makes no callback.
        unsafe {
            for flow in (*this).table.all_due() {
                if let Some(pcb) = (*this).pcb(flow) {
                    lwip_sys::lwip_sys_pcb_demand_ack(pcb);
                }
            }
        }
    }

    /// Sends for the due connections in turn, at most [`EGRESS_PACKETS`]. A connection that could not send all stays
    /// due.
    ///
    /// # Safety
    ///
    /// As for all; and the output is the one that lwIP was started with.
    pub(super) unsafe fn flush<L: Link>(this: *mut Self, output: *mut Output<L>) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let now = (*this).now;
            (*this).table.expire(now);
            let mut left = EGRESS_PACKETS;
            while left > 0
                && !(*output).blocked
                && let Some(flow) = (*this).table.next_due()
            {
                let most = left.min(FLOW_PACKETS);
                (*output).quota = most;
                let is_done = Self::flush_one(this, flow);
                // A connection that sends nothing counts too.
                left -= (most - (*output).quota).max(1);
                if !is_done && (*output).quota > 0 {
                    break;
                }
            }
            (*output).quota = usize::MAX;
        }
    }

    /// Sends for a connection. Returns false if it could not send all.
    unsafe fn flush_one(this: *mut Self, flow: FlowId) -> bool {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let now = (*this).now;
            let Some(pcb) = (*this).pcb(flow) else { return true };
            if lwip_sys::lwip_sys_pcb_is_over(pcb) != 0 && (*this).is_orphan(flow) {
                Self::wait(this, flow, pcb);
                return true;
            }
            if let Some(open) = (*this).open(flow)
                && let Some(lost) = open.recovery.expire(&edges(pcb), now)
            {
                retransmit(pcb, lost);
            }
            let is_done = lwip_sys::lwip_sys_pcb_flush(pcb) == ERR_OK;
            if !is_done {
                (*this).demand(flow);
            }
            if let Some(open) = (*this).open(flow)
                && let Some(at) = open.recovery.deadline(&edges(pcb), now)
            {
                (*this).table.set_timer(flow, at);
            }
            Self::lose_patience(this, flow);
            is_done
        }
    }

    /// Keeps a connection in TIME-WAIT until its time is over, unless there are too many.
    unsafe fn wait(this: *mut Self, flow: FlowId, pcb: *mut TcpPcb) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let now = (*this).now;
            if (*this).table.stage(flow) == Some(Stage::Orphaned)
                && let Some(oldest) = (*this).table.wait(flow)
                && let Some(pcb) = (*this).pcb(oldest)
            {
                Self::abort(pcb);
            }
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            let over_at = *connection.over_at.get_or_insert(now + TIME_WAIT);
            if now >= over_at {
                return Self::abort(pcb);
            }
            (*this).table.set_timer(flow, over_at);
            // A retransmitted FIN is acknowledged at once; see `c/tcp_in.c`.
        }
    }

    /// Probes a silent peer, and aborts the connection after the user timeout.
    unsafe fn lose_patience(this: *mut Self, flow: FlowId) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            // lwIP itself aborts a handshake after 20 seconds.
            let Some(pcb) = (*this).pcb(flow).filter(|_| (*this).table.stage(flow) != Some(Stage::Handshake)) else {
                return;
            };
            if lwip_sys::lwip_sys_pcb_is_over(pcb) != 0 {
                return;
            }
            let outstanding = lwip_sys::lwip_sys_pcb_outstanding(pcb) != 0;
            let (now, timeout) = ((*this).now, (*this).config.user_timeout);
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            let patience = connection.patience(now, timeout, outstanding);
            let next_look = connection.next_look(timeout);
            match patience {
                Patience::Enough => {}
                Patience::Probe => lwip_sys::lwip_sys_pcb_keepalive(pcb),
                Patience::Exhausted => return Self::abort(pcb),
            }
            (*this).table.set_timer(flow, next_look);
        }
    }

    /// Ends a connection at once, with a RST except in TIME-WAIT.
    unsafe fn abort(pcb: *mut TcpPcb) {
        // SAFETY: the pcb is alive. No reference into the core is alive, because this calls back.
        unsafe { lwip_sys::lwip_sys_pcb_abort(pcb) };
    }

    /// Refuses all connections from now on, and resets those that were not accepted.
    pub(super) unsafe fn close_listener(this: *mut Self) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            for flow in (*this).table.close_listener() {
                match (*this).pcb(flow) {
                    Some(pcb) => Self::abort(pcb),
                    None => drop((*this).table.remove(flow)),
                }
            }
        }
    }

    /// Ends all connections.
    pub(super) unsafe fn stop(this: *mut Self) {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            for flow in (*this).table.flows() {
                if let Some(pcb) = (*this).pcb(flow) {
                    Self::abort(pcb);
                }
            }
            for flow in (*this).table.flows() {
                if let Some(connection) = (*this).table.get_mut(flow) {
                    // After a failed assertion it is not null, but lwIP does not run again.
                    connection.pcb = ptr::null_mut();
                }
                (*this).table.remove(flow);
            }
        }
    }

    /// Lends received bytes to a sink, and opens the window by the number of bytes that it took.
    pub(super) unsafe fn lend(this: *mut Self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize> {
        // SAFETY: the caller's promise; the reference to the flow ends before the window opens.
        unsafe {
            let Some(connection) = (*this).table.get_mut(flow) else { return Err(io::ErrorKind::NotConnected.into()) };
            if !connection.has_data() {
                let open = !connection.eof && !connection.pcb.is_null();
                return connection.end(if open { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(0) });
            }
            let len = connection.lend(sink)?;
            let pcb = connection.pcb;
            if !pcb.is_null() {
                lwip_sys::lwip_sys_pcb_recved(pcb, len);
                (*this).demand(flow);
            }
            Ok(len)
        }
    }

    /// Lets a source fill the connection's ring, and tells lwIP where the bytes are.
    pub(super) unsafe fn fill(
        this: *mut Self,
        flow: FlowId,
        most: usize,
        source: &mut Source<'_>,
    ) -> io::Result<usize> {
        // SAFETY: the caller's promise; the references to the flow end before a call that may call back.
        unsafe {
            let Some(connection) = (*this).table.get_mut(flow) else { return Err(io::ErrorKind::NotConnected.into()) };
            if connection.finished || connection.pcb.is_null() || connection.error.is_some() {
                return connection.end(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let pcb = connection.pcb;
            let Some(open) = &mut connection.open else { return Err(io::ErrorKind::NotConnected.into()) };
            let chunks = &mut (*this).chunks;
            let filled = fill(pcb, &mut open.ring, chunks, most, source);
            open.ring.settle(chunks);
            let Some(filled) = filled else {
                // Bytes are missing, so the peer must not get the bytes after them.
                Self::abort(pcb);
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            (*this).demand(flow);
            filled
        }
    }

    /// Queues our FIN.
    pub(super) unsafe fn finish(this: *mut Self, flow: FlowId) {
        // SAFETY: the caller's promise; the reference to the flow ends before lwIP is called.
        unsafe {
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            if mem::replace(&mut connection.finished, true) || connection.pcb.is_null() {
                return;
            }
            let pcb = connection.pcb;
            lwip_sys::lwip_sys_pcb_finish(pcb);
            (*this).demand(flow);
        }
    }

    /// Ends the connection with a RST.
    pub(super) unsafe fn reset(this: *mut Self, flow: FlowId) {
        // SAFETY: the caller's promise; no reference is alive when lwIP is called.
        unsafe {
            if let Some(pcb) = (*this).pcb(flow) {
                Self::abort(pcb);
            }
        }
    }

    /// Closes the connection after its stream was dropped.
    pub(super) unsafe fn release(this: *mut Self, flow: FlowId) {
        // SAFETY: the caller's promise; the reference to the flow ends before lwIP is called.
        unsafe {
            let Some(connection) = (*this).table.get_mut(flow) else { return };
            let unread = connection.discard();
            connection.finished = true;
            let pcb = connection.pcb;
            (*this).table.orphan(flow);
            if pcb.is_null() {
                (*this).table.remove(flow);
                return;
            }
            lwip_sys::lwip_sys_pcb_release(pcb, u8::from(unread));
            (*this).demand(flow);
        }
    }
}

/// The sequence numbers of a connection.
///
/// # Safety
///
/// The pcb is alive.
unsafe fn edges(pcb: *const TcpPcb) -> Edges {
    let mut edges = lwip_sys::Edges::default();
    // SAFETY: the caller's promise.
    unsafe { lwip_sys::lwip_sys_pcb_edges(pcb, &raw mut edges) };
    let lwip_sys::Edges { rcv_nxt: expected, rcv_end: window_end, snd_una: unacknowledged, snd_nxt: sent } = edges;
    Edges { unacknowledged, sent, expected, window_end }
}

/// Queues the first unacknowledged segment again. The next flush sends it.
///
/// # Safety
///
/// The pcb is alive.
unsafe fn retransmit(pcb: *mut TcpPcb, lost: Lost) {
    // SAFETY: the caller's promise. The calls only queue, and make no callback.
    unsafe {
        match lost {
            Lost::Probe => drop(lwip_sys::lwip_sys_pcb_probe(pcb)),
            Lost::New | Lost::Again => lwip_sys::lwip_sys_pcb_retransmit(pcb, u8::from(lost == Lost::New)),
        }
    }
}

/// Takes at most `most` bytes from the source into the ring, and queues them in lwIP. Returns how many, or `None` if
/// bytes were lost for lack of memory.
///
/// RFC 9293, 3.9.1 asks for a PSH at the end of the queued bytes. Without it the peer may delay its acknowledgement.
///
/// # Safety
///
/// The pcb is alive, and the ring holds all bytes that were written to this pcb before and are not acknowledged.
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

/// lwIP's callbacks; see [`lwip_sys::Callbacks`]. None of them panics.
///
/// # Safety
///
/// For all: only lwIP calls them, with the engine's pointer.
impl Core {
    pub(super) unsafe extern "C" fn on_admit(engine: *mut c_void, opens: u8) -> u8 {
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

    pub(super) unsafe extern "C" fn on_opened(engine: *mut c_void, pcb: *mut TcpPcb) -> usize {
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

    pub(super) unsafe extern "C" fn on_established(engine: *mut c_void, flow: usize) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            if (*this).table.stage(flow) == Some(Stage::Handshake) {
                (*this).table.established(flow);
                let open = Box::new(Open::new((*this).mss));
                if let Some(connection) = (*this).table.get_mut(flow) {
                    connection.open = Some(open);
                }
            }
        }
    }

    pub(super) unsafe extern "C" fn on_received(
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

    pub(super) unsafe extern "C" fn on_sent(engine: *mut c_void, flow: usize, len: u16) {
        let (this, flow) = (engine.cast::<Self>(), FlowId(flow.wrapping_sub(1)));
        // SAFETY: see above.
        unsafe {
            let Some(open) = (*this).open(flow) else { return };
            open.ring.pop(usize::from(len), &mut (*this).chunks);
            (*this).table.set_changed(flow);
        }
    }

    pub(super) unsafe extern "C" fn on_failed(engine: *mut c_void, flow: usize, error: ErrT) {
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

    pub(super) unsafe extern "C" fn on_destroyed(engine: *mut c_void, flow: usize) {
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

    pub(super) unsafe extern "C" fn on_isn(engine: *mut c_void, endpoints: *const Endpoints) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above. lwIP's pointer is valid during the call.
        unsafe {
            let (local, peer) = both_ends(&*endpoints);
            (*this).initial_numbers.of(&FlowKey { local, peer }, (*this).now)
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
            let gso_size = (*this).gso_size;
            (*this).inbox.push(local, peer, slice::from_raw_parts(bytes, len), gso_size);
        }
    }

    pub(super) unsafe extern "C" fn on_seconds(engine: *mut c_void) -> u32 {
        let this = engine.cast::<Self>();
        // SAFETY: see above.
        unsafe { (*this).now.saturating_duration_since((*this).epoch).as_secs() as u32 }
    }

    pub(super) unsafe extern "C" fn on_released(engine: *mut c_void, slot: *mut c_void) {
        let this = engine.cast::<Self>();
        // SAFETY: see above. The pool has lent this slot.
        unsafe { (*this).pool.take_back(slot) };
    }
}
