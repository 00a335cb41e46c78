//! One connection's record: the TCP that ipstack lacks.
//!
//! ipstack only ever sees an established connection with clean data in both directions. Opening and
//! closing, resets, windows and time-outs are decided here, and nothing here does I/O: a method
//! notes what is due, and the bridge asks for it.

use std::io;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use tokio::time::Instant;

use super::events::{Due, Forged, Limits, Owner, Session, Stage, Verdict, Wakes};
use super::receive::{Arrival, Receiver};
use super::segment::{Header, Segment};
use super::send::{Fin, Sender};
use crate::FlowKey;

/// How long a closed connection still answers a repeated FIN. Short, because the link is local; a
/// new SYN takes its place at any time.
const TIME_WAIT: Duration = Duration::from_secs(2);
/// How long the peer of a dropped stream may leave its half open, as Linux has it (`tcp_fin_timeout`).
const FIN_WAIT: Duration = Duration::from_mins(1);

/// A connection, shared by the bridge and its stream.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    state: Mutex<State>,
}

impl Flow {
    pub(super) fn new(key: FlowKey, state: State) -> Self {
        Self { key, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code that may panic runs under the lock in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// What is due, one bit each, in the order in which it is done.
const DUE_SYN: u8 = 1;
const DUE_RETRANSMIT_TICK: u8 = 1 << 1;
const DUE_SYN_ACK: u8 = 1 << 2;
const DUE_RESET: u8 = 1 << 3;
const DUE_FIN: u8 = 1 << 4;
const DUE_PROBE: u8 = 1 << 5;
const DUE_ACK: u8 = 1 << 6;

/// The state of a connection.
#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: Stage,
    pub(super) session: Session,
    pub(super) owner: Owner,
    pub(super) receive: Receiver,
    pub(super) send: Sender,
    /// The MSS that our SYN-ACK names.
    pub(super) own_mss: u16,
    /// Whether the bridge has it on its list already.
    pub(super) listed: bool,
    limits: Limits,
    irs: u32,
    error: Option<io::ErrorKind>,
    due: u8,
    reader: Option<Waker>,
    writer: Option<Waker>,
    wakes: Wakes,
    /// When the peer was last heard of, or first asked.
    heard: Instant,
    /// When to try again, and how long to wait then.
    retry: (Instant, Duration),
    /// When the record may go.
    expiry: Option<Instant>,
}

impl State {
    /// A connection that a SYN opens. `mss` is what the peer takes, `own_mss` what is announced.
    pub(super) fn new(syn: &Segment, limits: Limits, mss: u16, own_mss: u16, now: Instant) -> Self {
        Self {
            stage: Stage::Opening,
            session: Session::Running,
            owner: Owner::Waiting(None),
            receive: Receiver::new(syn.seq, limits.budget, u32::from(own_mss)),
            send: Sender::new(syn, limits.budget, u32::from(mss)),
            own_mss,
            listed: false,
            limits,
            irs: syn.seq,
            error: None,
            due: DUE_SYN,
            reader: None,
            writer: None,
            wakes: Wakes::default(),
            heard: now,
            retry: (now + limits.first_wait(), limits.first_wait()),
            expiry: None,
        }
    }

    /// A segment from the peer.
    pub(super) fn inbound(&mut self, segment: &Segment, now: Instant) -> Verdict {
        if self.error.is_some() {
            return Verdict::Refuse;
        }
        self.heard = now;
        if segment.has(RST) {
            // A closed connection has nothing left to be reset, though perhaps to be read: RFC 1337.
            if self.receive.admits_reset(segment.seq) && !self.is_closed() {
                self.fail(io::ErrorKind::ConnectionReset);
            }
            return Verdict::Done;
        }
        if segment.has(SYN) {
            self.repeated_syn(segment);
            return Verdict::Done;
        }
        if !segment.has(ACK) || self.stage == Stage::Opening {
            return Verdict::Done;
        }
        if self.stage == Stage::Answered {
            if segment.ack != self.send.next {
                return Verdict::Refuse;
            }
            self.stage = Stage::Established;
        }
        let Some(outcome) = self.send.acknowledge(segment) else {
            self.due |= DUE_ACK;
            return Verdict::Done;
        };
        if outcome.progress {
            self.retry = (now + self.limits.first_wait(), self.limits.first_wait());
            self.wake_writer();
        }
        let verdict = self.payload(segment, outcome.tell);
        self.settle(now);
        verdict
    }

    /// The SYN again: its answer was lost, or is still to come. Any other gets what RFC 5961, 4.2
    /// wants, an ACK, at which a peer that has forgotten the connection resets it.
    fn repeated_syn(&mut self, segment: &Segment) {
        let repeated = segment.seq == self.irs;
        self.due |= match self.stage {
            Stage::Opening if repeated => DUE_SYN,
            Stage::Answered if repeated => DUE_SYN_ACK,
            Stage::Opening => 0,
            Stage::Answered | Stage::Established => DUE_ACK,
        };
    }

    fn payload(&mut self, segment: &Segment, tell: bool) -> Verdict {
        let before = self.receive.next;
        let arrival = self.receive.arrive(segment);
        if arrival != Arrival::Empty {
            self.due |= DUE_ACK;
        }
        if matches!(self.owner, Owner::Dropped) {
            if arrival != Arrival::Empty && segment.payload_len > 0 && self.send.fin == Fin::Acknowledged {
                // Both sides of the stream are gone and all was delivered: say so (RFC 9293, 3.6.1).
                self.due |= DUE_RESET;
                self.fail(io::ErrorKind::ConnectionReset);
            }
            self.receive.discard();
            return self.bare(tell);
        }
        if self.receive.is_finished() {
            self.wake_reader();
        }
        match arrival {
            Arrival::Data { skip, len } if len > 0 && self.session == Session::Running => {
                // The ACK of plain data is ipstack's own.
                if !self.receive.is_finished() {
                    self.due &= !DUE_ACK;
                }
                Verdict::Hand { seq: before, ack: self.send.una, skip, len }
            }
            Arrival::Early => {
                if tell {
                    self.due |= DUE_RETRANSMIT_TICK;
                }
                Verdict::Store
            }
            _ => self.bare(tell),
        }
    }

    /// What ipstack gets of a segment whose payload is not for it.
    fn bare(&self, tell: bool) -> Verdict {
        if tell && self.session == Session::Running {
            Verdict::Hand { seq: self.receive.next, ack: self.send.una, skip: 0, len: 0 }
        } else {
            Verdict::Done
        }
    }

    /// A segment from ipstack: the sequence number, the acknowledgement and the window with which
    /// it leaves. `None`: it stays here.
    ///
    /// ipstack acknowledges each segment that it is handed, and the acknowledgement here covers all
    /// that was handed, so most of its bare ACKs would repeat the one before and be taken for
    /// duplicates (RFC 5681, 2).
    pub(super) fn outbound(&mut self, segment: &Segment, now: Instant) -> Option<(u32, u32, u16)> {
        if segment.has(SYN) {
            if self.stage == Stage::Opening {
                self.send.open(segment.seq);
                self.stage = Stage::Answered;
                self.due |= DUE_SYN_ACK;
            }
            return None;
        }
        if segment.flags & (RST | FIN) != 0 || self.session != Session::Running {
            return None;
        }
        if segment.payload_len > 0 {
            if !self.is_asking() {
                self.heard = now;
            }
            self.send.sent(segment.end());
            if self.send.is_fin_due() {
                self.due |= DUE_FIN;
            }
        }
        let (ack, window, changed) = self.receive.announce();
        let asked = self.due & DUE_ACK != 0;
        if segment.payload_len == 0 && !changed && !asked {
            return None;
        }
        self.due &= !DUE_ACK;
        // A bare ACK comes behind the FIN that ipstack knows nothing of.
        let seq = if segment.payload_len > 0 { segment.seq } else { self.send.seq() };
        Some((seq, ack, window))
    }

    /// What the clock demands.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.error.is_some() {
            return;
        }
        let silence = now.saturating_duration_since(self.heard);
        if self.stage == Stage::Opening {
            // ipstack may have had an older connection of this key still, and ignored the SYN.
            self.due |= DUE_SYN;
        } else if self.is_in_flight() {
            self.due |= DUE_RETRANSMIT_TICK;
        }
        let waits_for_answer = match self.stage {
            Stage::Answered => DUE_SYN_ACK,
            Stage::Established if self.send.fin == Fin::Sent => DUE_FIN,
            Stage::Established if self.writer.is_some() && !self.is_in_flight() => DUE_PROBE,
            Stage::Opening | Stage::Established => 0,
        };
        if waits_for_answer != 0 && now >= self.retry.0 {
            self.due |= waits_for_answer;
            let wait = (self.retry.1 * 2).min(self.limits.longest_wait());
            self.retry = (now + wait, wait);
        }
        if self.reader.is_some() && silence >= self.limits.user_timeout / 2 && now >= self.retry.0 {
            // A peer that has nothing to say still answers a probe; one that is gone does not.
            self.due |= DUE_PROBE;
            self.retry = (now + self.limits.user_timeout / 8, self.limits.first_wait());
        }
        if self.is_asking() && silence >= self.limits.user_timeout {
            self.due |= DUE_RESET;
            self.fail(io::ErrorKind::TimedOut);
        }
        if self.expiry.is_some_and(|expiry| now >= expiry) && !self.is_closed() {
            self.due |= DUE_RESET;
            self.fail(io::ErrorKind::TimedOut);
        }
        self.settle(now);
    }

    fn is_in_flight(&self) -> bool {
        self.send.una != self.send.next
    }

    /// Whether anybody waits for the peer.
    fn is_asking(&self) -> bool {
        self.stage != Stage::Established
            || self.is_in_flight()
            || self.send.fin == Fin::Sent
            || self.reader.is_some()
            || self.writer.is_some()
    }

    /// Both FINs have come, and ours is acknowledged.
    fn is_closed(&self) -> bool {
        self.receive.is_finished() && self.send.fin == Fin::Acknowledged
    }

    /// Looks whether an end is reached.
    pub(super) fn settle(&mut self, now: Instant) {
        let dropped = matches!(self.owner, Owner::Dropped);
        // ipstack answers a read with the end once its task has ended, even where bytes are left.
        let session_idle = self.send.is_delivered() && (dropped || self.receive.is_drained());
        if self.session == Session::Running && (session_idle || self.error.is_some()) {
            self.session = Session::Aborting;
        }
        if self.is_closed() {
            let wait = now + TIME_WAIT;
            self.expiry = Some(self.expiry.map_or(wait, |expiry| expiry.min(wait)));
        } else if dropped && self.send.fin == Fin::Acknowledged && self.expiry.is_none() {
            self.expiry = Some(now + FIN_WAIT.min(self.limits.user_timeout));
        }
    }

    /// Whether the record has no more use.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let expired = self.is_closed() && self.expiry.is_some_and(|expiry| now >= expiry);
        self.session == Session::Ended && self.due == 0 && (self.error.is_some() || expired)
    }

    /// Whether a new SYN may take the record's place.
    pub(super) fn is_replaceable(&self) -> bool {
        self.session == Session::Ended && (self.error.is_some() || self.is_closed())
    }

    /// Whether the bridge has something to do for it.
    pub(super) fn has_work(&self) -> bool {
        self.due != 0 || self.session == Session::Aborting || self.send.is_fin_due()
    }

    /// What is to be done next, if anything.
    pub(super) fn next_due(&mut self, key: FlowKey, now: Instant) -> Option<Due> {
        if self.session == Session::Aborting {
            self.session = Session::Ended;
            return Some(Due::Forge(Forged::Reset));
        }
        if self.error.is_none() && self.send.is_fin_due() {
            self.due |= DUE_FIN;
        }
        loop {
            let bit = self.due & self.due.wrapping_neg();
            self.due &= !bit;
            let (seq, flags) = match bit {
                0 => return None,
                DUE_SYN if self.stage == Stage::Opening => return Some(Due::Forge(Forged::Syn(self.irs))),
                DUE_RETRANSMIT_TICK if self.session == Session::Running => {
                    return Some(Due::Forge(Forged::RetransmitTick { seq: self.receive.next, ack: self.send.una }));
                }
                DUE_SYN_ACK if self.stage == Stage::Answered => (self.send.next.wrapping_sub(1), SYN | ACK),
                DUE_RESET => (self.send.seq(), RST | ACK),
                DUE_FIN => {
                    self.fin_leaves(now);
                    (self.send.next, FIN | ACK)
                }
                // One before what is next: the peer has to answer (RFC 9293, 3.8.4).
                DUE_PROBE => (self.send.seq().wrapping_sub(1), ACK),
                DUE_ACK if self.stage == Stage::Established => (self.send.seq(), ACK),
                _ => continue,
            };
            // Whatever leaves carries the acknowledgement.
            self.due &= !DUE_ACK;
            let (ack, window, _) = self.receive.announce();
            let mss = (flags & SYN != 0).then_some(self.own_mss);
            return Some(Due::Send(Header { source: key.local, destination: key.peer, seq, ack, flags, window, mss }));
        }
    }

    fn fin_leaves(&mut self, now: Instant) {
        if self.send.is_fin_due() {
            if !self.is_asking() {
                self.heard = now;
            }
            self.send.fin = Fin::Sent;
            self.retry = (now + self.limits.first_wait(), self.limits.first_wait());
            self.wake_writer();
        }
    }

    /// Ends the connection at once: reads and writes fail with this.
    pub(super) fn fail(&mut self, kind: io::ErrorKind) {
        if self.error.is_none() {
            self.error = Some(kind);
            self.due &= DUE_RESET;
            self.receive.forget_stored();
            if self.session == Session::Running {
                self.session = Session::Aborting;
            }
            self.wake_reader();
            self.wake_writer();
        }
    }

    /// Ends the connection at once, and tells the peer by a RST.
    pub(super) fn reset(&mut self) {
        if self.error.is_none() {
            self.due |= DUE_RESET;
            self.fail(io::ErrorKind::ConnectionAborted);
        }
    }

    /// The error that ended the connection.
    pub(super) fn check(&self) -> io::Result<()> {
        self.error.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// The application has read so many bytes. Whether the bridge has to be told.
    pub(super) fn read(&mut self, len: usize) -> bool {
        self.receive.read(len);
        if self.receive.is_update_due() {
            self.due |= DUE_ACK;
        }
        self.due & DUE_ACK != 0 || self.receive.is_drained()
    }

    /// Nothing is written behind `end`.
    pub(super) fn finish(&mut self, end: u32) {
        if self.send.fin == Fin::Open {
            self.send.fin = Fin::Wanted(end);
        }
    }

    /// Whether the stream was not shut down yet.
    pub(super) fn is_writable(&self) -> bool {
        self.send.fin == Fin::Open
    }

    /// Whether our FIN has left.
    pub(super) fn is_fin_sent(&self) -> bool {
        matches!(self.send.fin, Fin::Sent | Fin::Acknowledged)
    }

    pub(super) fn park_reader(&mut self, cx: &Context<'_>) {
        self.start_asking();
        self.reader = Some(cx.waker().clone());
    }

    pub(super) fn park_writer(&mut self, cx: &Context<'_>) {
        self.start_asking();
        self.writer = Some(cx.waker().clone());
    }

    /// Silence counts from when somebody began to wait.
    fn start_asking(&mut self) {
        if !self.is_asking() {
            self.heard = Instant::now();
        }
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            self.wakes.0[0] = Some(waker);
        }
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            self.wakes.0[1] = Some(waker);
        }
    }

    /// Who is to be woken, once the lock is released.
    pub(super) fn wakes(&mut self) -> Wakes {
        mem::take(&mut self.wakes)
    }
}
