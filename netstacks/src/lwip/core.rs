//! The connections, and lwIP's callbacks for them.
//!
//! The rule for `unsafe`: the engine owns the `Core` by a raw pointer and passes it to lwIP. During a call, lwIP calls
//! back with the same pointer. So no function here keeps a reference into the core across a call of lwIP that may call
//! back, and each callback refers only to the fields that it needs, through the pointer.

mod callbacks;
mod pcb;

use std::io;
use std::mem;
use std::num::NonZeroU16;
use std::ptr;
use std::time::Duration;

use lwip_sys::{ERR_OK, TcpPcb};
use platform::packet::Ipv4Fragment;
use platform::{Checksum, Link, PacketBuffer};
use tokio::time::Instant;

use self::pcb::{edges, fill};
use super::flow::{Flow, Open, Patience};
use super::output::Output;
use super::pool::Pool;
use super::ring::Chunks;
use crate::datagrams::Inbox;
use crate::driven::isn::InitialNumbers;
use crate::driven::{FlowId, Stage, Table, segment};
use crate::{Sink, Source, StackConfig};

/// TIME-WAIT lasts two maximum segment lifetimes: 60 seconds, as on Linux (`TCP_TIMEWAIT_LEN`, `include/net/tcp.h`).
const TIME_WAIT: Duration = Duration::from_mins(1);

/// The most packets of one egress. Then packets are received, and other tasks run.
pub(super) const EGRESS_PACKETS: usize = 256;

const FLOW_PACKETS: usize = 16;

pub(super) struct Core {
    pub(super) table: Table<Flow>,
    pub(super) pool: Pool,
    chunks: Chunks,
    pub(super) inbox: Inbox,
    gso_size: Option<NonZeroU16>,
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
            table: Table::new(&config),
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

/// The pointer is lwIP's. Nothing else uses it during a call, and no reference into the core is alive.
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
            let (mut pcb, mut lost, now) = (ptr::null_mut(), None, (*this).now);
            if let Some(flow) = known
                && let Some(connection) = (*this).table.get_mut(flow)
            {
                pcb = connection.pcb;
                if let Some(open) = connection.open.as_mut().filter(|_| !pcb.is_null()) {
                    let edges = edges(pcb);
                    if let Some(segment) = edges.accept(buffer.packet()) {
                        lost = open.recovery.on_segment(&segment, &edges, now);
                        if open.recovery.duplicates > 0 {
                            lwip_sys::lwip_sys_pcb_take_window(pcb, segment.window());
                        }
                    }
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
                if let Some(lost) = lost
                    && !connection.pcb.is_null()
                {
                    lwip_sys::lwip_sys_pcb_retransmit(connection.pcb, lost as u8);
                }
                (*this).demand(flow);
            }
        }
    }

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

    /// Sends for the due connections in turn, at most [`EGRESS_PACKETS`]. One that could not send all stays due.
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

    unsafe fn flush_one(this: *mut Self, flow: FlowId) -> bool {
        // SAFETY: the caller's promise; each reference ends with its statement.
        unsafe {
            let now = (*this).now;
            let Some(pcb) = (*this).pcb(flow) else { return true };
            if lwip_sys::lwip_sys_pcb_is_over(pcb) != 0 && (*this).is_orphan(flow) {
                Self::wait(this, flow, pcb);
                return true;
            }
            let is_done = lwip_sys::lwip_sys_pcb_flush(pcb) == ERR_OK;
            if !is_done {
                (*this).demand(flow);
            }
            match (*this).open(flow).map_or(Ok(None), |open| open.recovery.next(&edges(pcb), true, now)) {
                Ok(None) => {}
                Ok(Some(at)) => (*this).table.set_timer(flow, at),
                Err(lost) => {
                    lwip_sys::lwip_sys_pcb_retransmit(pcb, lost as u8);
                    (*this).demand(flow);
                }
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

    pub(super) unsafe fn reset(this: *mut Self, flow: FlowId) {
        // SAFETY: the caller's promise; no reference is alive when lwIP is called.
        unsafe {
            if let Some(pcb) = (*this).pcb(flow) {
                Self::abort(pcb);
            }
        }
    }

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
