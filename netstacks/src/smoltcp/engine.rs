//! The engine's side of smoltcp: what the driver calls.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Poll};

use platform::{Capabilities, Link};
use smoltcp::socket::tcp::State;
use tokio::time::Instant;

use super::connection::{Connection, Fin, Place};
use super::{EGRESS_PACKETS, FLOW_PACKETS, SmoltcpEngine};
use crate::datagrams::Inbox;
use crate::driven::{Engine, FlowId, Intake, Table};
use crate::{Sink, Source};

impl<L: Link> Engine for SmoltcpEngine<L> {
    type Connection = Place;

    fn ingress(&mut self, now: Instant) -> io::Result<Intake> {
        let intake = self.device.fill()?;
        self.input(now);
        Ok(intake)
    }

    fn egress(&mut self, now: Instant) -> io::Result<()> {
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.flush(&mut self.device, clock);
        self.table.expire(now);
        let mut left = EGRESS_PACKETS;
        while left > 0
            && !self.device.sender.is_blocked()
            && let Some(flow) = self.table.next_due()
        {
            left -= match self.table[flow] {
                Place::HalfOpen(_) => self.send_syn_ack(flow, now),
                Place::Open(_) => self.send_due(flow, now, left.min(FLOW_PACKETS)),
            };
        }
        self.device.sender.settle()?;
        self.device.sender.link.flush()
    }

    fn deadline(&mut self, _now: Instant) -> Option<Instant> {
        self.table.deadline()
    }

    fn table(&self) -> &Table<Place> {
        &self.table
    }

    fn table_mut(&mut self) -> &mut Table<Place> {
        &mut self.table
    }

    fn close_listener(&mut self) {
        for flow in self.table.close_listener() {
            match self.table[flow] {
                Place::HalfOpen(_) => self.forget(flow),
                Place::Open(_) => self.abort(flow),
            }
        }
    }

    fn lend(&mut self, flow: FlowId, sink: &mut Sink<'_>) -> io::Result<usize> {
        let lent = self.table[flow].open_mut().ok_or(io::ErrorKind::NotConnected)?.lend(sink)?;
        // A window update may be due.
        self.table.set_due(flow);
        Ok(lent)
    }

    fn has_failed(&self, flow: FlowId) -> bool {
        self.table[flow].open().is_none_or(|connection| {
            let closed = connection.socket.state() == State::Closed;
            closed && !(connection.fin != Fin::Open && connection.peer_finished)
        })
    }

    fn fill(&mut self, flow: FlowId, most: usize, source: &mut Source<'_>) -> io::Result<usize> {
        let filled = self.table[flow].open_mut().ok_or(io::ErrorKind::NotConnected)?.fill(most, source)?;
        self.table.set_due(flow);
        Ok(filled)
    }

    /// Sends a FIN behind the queued bytes. After the peer's FIN it waits until all are acknowledged: in LAST-ACK,
    /// smoltcp 0.14 ignores an ACK that only opens the window (`socket/tcp.rs`, `process`).
    fn finish(&mut self, flow: FlowId) {
        let Some(Connection { socket, fin, .. }) = self.table[flow].open_mut() else { return };
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            *fin = Fin::Due;
        } else {
            *fin = Fin::Asked;
            socket.close();
        }
        self.table.set_due(flow);
    }

    fn release(&mut self, flow: FlowId) {
        self.table.orphan(flow);
        // RFC 2525, 2.17: a close with unread data sends a RST.
        if self.table[flow].open().is_some_and(|connection| connection.socket.can_recv()) {
            self.abort(flow);
        } else {
            self.finish(flow);
        }
    }

    fn reset(&mut self, flow: FlowId) {
        self.abort(flow);
    }

    fn inbox(&mut self) -> &mut Inbox {
        &mut self.datagrams.inbox
    }

    fn udp_segmentation(&self) -> Option<Capabilities> {
        let sender = &self.device.sender;
        sender.udp_segmentation.then(|| sender.link.capabilities())
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        payload: &[u8],
        segment_len: Option<NonZeroU16>,
    ) -> io::Result<()> {
        let clock = self.clock(now);
        self.device.sender.settle()?;
        self.datagrams.send(&mut self.device, clock, ends, payload, segment_len)?;
        self.device.sender.settle()?;
        match self.device.sender.link.flush() {
            // The datagram was sent all the same.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }

    fn close_datagrams(&mut self) {
        self.datagrams.close();
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.sender.link.poll_readable(cx)
    }

    fn is_blocked(&self) -> bool {
        self.device.sender.is_blocked()
    }

    fn poll_unblocked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_blocked() { self.device.sender.link.poll_writable(cx) } else { Poll::Pending }
    }
}
