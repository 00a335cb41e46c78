//! How connections begin: from the SYN to the socket.

use std::time::Duration;

use platform::Link;
use platform::packet::MAX_HEADERS_LEN;
use smoltcp::socket::tcp::{CongestionControl, State};
use smoltcp::wire::IpEndpoint;
use tokio::time::Instant;

use super::connection::{Connection, Place, Socket};
use super::half_open::{HalfOpen, Next};
use super::numbers::Numbers;
use super::{Class, SmoltcpEngine};
use crate::driven::FlowId;
use crate::recovery::{Recovery, is_before};
use crate::{FlowKey, StackCongestion};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// The distance between the last number of a connection and the first of its successor (Linux, `tcp_timewait_state_process`).
const NEXT_NUMBER: u32 = 65_535 + 2;

impl<L: Link> SmoltcpEngine<L> {
    /// Begins a connection with the next packet, a SYN. Its number follows `old_end` of an earlier one (RFC 1122,
    /// 4.2.2.13).
    pub(super) fn begin(&mut self, key: FlowKey, now: Instant, old_end: Option<u32>) -> Class {
        // smoltcp finds no socket and replies with a RST.
        if !self.table.is_listening() || key.local.port() == 0 {
            return Class::Other;
        }
        let by_clock = self.initial_numbers.of(&key, now);
        // The old connection may have sent faster than the clock of the numbers. The distance is Linux's.
        let too_low = old_end.filter(|end| !is_before(*end, by_clock));
        let initial = too_low.map_or(by_clock, |end| end.wrapping_add(NEXT_NUMBER));
        if self.table.room() > 0
            && let Some(half_open) = self.device.next_packet().and_then(|syn| HalfOpen::new(syn, initial, now))
        {
            if let Some(oldest) = self.table.oldest_half_open() {
                self.forget(oldest);
            }
            let flow = self.table.open(key, Place::HalfOpen(half_open));
            self.table.set_due(flow);
        }
        Class::Unwelcome
    }

    /// Handles the next packet, of a half-open connection.
    pub(super) fn continue_handshake(&mut self, flow: FlowId, next: Next, now: Instant) -> Class {
        match next {
            Next::Open if self.table.room() == 0 || self.open(flow, now).is_none() => Class::Unwelcome,
            Next::Open => Class::Segment(flow),
            Next::Answer => {
                if let Place::HalfOpen(half_open) = &mut self.table[flow] {
                    half_open.again_at = None;
                }
                self.table.set_due(flow);
                Class::Unwelcome
            }
            Next::Replace => {
                let key = *self.table.key(flow);
                self.forget(flow);
                self.begin(key, now, None)
            }
            Next::Forget => {
                self.forget(flow);
                Class::Unwelcome
            }
            Next::Refuse => Class::Other,
            Next::Drop => Class::Unwelcome,
        }
    }

    /// Gives a half-open connection a socket. `None` if the system refuses the memory of its rings.
    fn open(&mut self, flow: FlowId, now: Instant) -> Option<()> {
        let Place::HalfOpen(half_open) = self.table[flow] else { return None };
        let key = *self.table.key(flow);
        // The first SYN-ACK gives a round trip time. Later ones do not (Karn's algorithm; RFC 6298, 3).
        let begun = if half_open.tries == 1 { half_open.since } else { now };
        let (socket, numbers) = self.answer(&key, &half_open, true, begun)?;
        let segment_len = self.device.sender.segment_len(key.local.is_ipv6());
        let recovery = Recovery::new(self.mss, self.config.workarounds);
        self.table[flow] = Place::Open(Connection::new(socket, numbers, &half_open, segment_len, recovery));
        Some(())
    }

    /// Passes the SYN to a socket, which answers it, in a rehearsal only to itself. `None` without memory.
    fn answer(
        &mut self,
        key: &FlowKey,
        half_open: &HalfOpen,
        is_rehearsal: bool,
        now: Instant,
    ) -> Option<(Socket, Numbers)> {
        let mut socket = self.listen(key)?;
        let mut syn = [0; MAX_HEADERS_LEN];
        let len = half_open.write(key, &mut syn)?;
        self.device.put(&syn[..len]);
        let scale = half_open.peer_scale.map_or(0, |_| crate::window_scale(self.config.window));
        let mut numbers = Numbers::new(half_open.initial, scale, is_rehearsal);
        let clock = self.clock(now);
        self.device.numbered(&mut numbers, |device| {
            self.interface.poll_ingress_single(clock, device, socket.set());
            self.interface.poll_egress(clock, device, socket.set());
        });
        numbers.is_rehearsal = false;
        if socket.state() == State::SynReceived {
            return Some((socket, numbers));
        }
        self.reuse(socket);
        None
    }

    /// A socket that listens for the SYN of a connection. `None` if the system refuses the memory of its rings.
    fn listen(&mut self, key: &FlowKey) -> Option<Socket> {
        let mut socket = self.spare.pop().or_else(|| Socket::new(self.config.window).ok())?;
        // By default an ACK may wait for 10 ms. That would stall a peer if a single packet fills the window.
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(match self.config.congestion {
            StackCongestion::None => CongestionControl::None,
            StackCongestion::Reno => CongestionControl::Reno,
            StackCongestion::Cubic => CongestionControl::Cubic,
        });
        socket.set_timeout(Some(HANDSHAKE_TIMEOUT.min(self.config.user_timeout).into()));
        // If this is set later, smoltcp sends a probe at once.
        socket.set_keep_alive(Some((self.config.user_timeout / 3).into()));
        // This fails only for an open socket or port 0, and there is neither.
        socket.listen(IpEndpoint::from(key.local)).ok()?;
        Some(socket)
    }

    /// Sends the SYN-ACK of a half-open connection if it is due, or forgets it. Returns how many packets it sent.
    pub(super) fn send_syn_ack(&mut self, flow: FlowId, now: Instant) -> usize {
        let Place::HalfOpen(mut half_open) = self.table[flow] else { return 0 };
        let gives_up_at = half_open.since + HANDSHAKE_TIMEOUT.min(self.config.user_timeout);
        let due_at = match half_open.due_at(now) {
            _ if now >= gives_up_at => None,
            Some(at) => Some((at, 0)),
            None => {
                let key = *self.table.key(flow);
                self.answer(&key, &half_open, false, now).map(|(socket, _)| {
                    self.reuse(socket);
                    (half_open.answered(now), 1)
                })
            }
        };
        let Some((due_at, sent)) = due_at else {
            self.forget(flow);
            return 0;
        };
        self.table[flow] = Place::HalfOpen(half_open);
        self.table.set_timer(flow, due_at.min(gives_up_at));
        sent
    }
}
