//! The connections of a link, by slot and by local port.

use std::collections::VecDeque;
use std::io;
use std::iter;

use platform::Link;
use platform::packet::TcpSegment;

use crate::peer::connection::{Connection, Receiving, Sending, Wire};

/// Lower ports are for servers.
const FIRST_PORT: u16 = 1024;
/// Largest number of slots that wait for room and are listed at once: most of 10,000 would find the link full again.
const UNBLOCKED_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    /// Indexed by local port. Boxed, because most ports have no connection.
    entries: Vec<Option<Box<Entry>>>,
    /// The local port of each slot's connection; 0 if it has none.
    slots: Vec<u16>,
    next_port: u16,
    /// Only ports that leave the remainder `remainder` are used.
    remainder: u16,
    divisor: u16,
    due: VecDeque<u16>,
    blocked: VecDeque<u16>,
    turn: u64,
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    /// `None` after the caller has closed it.
    slot: Option<usize>,
    is_due: bool,
    is_blocked: bool,
    /// The number of the last wait that listed it.
    listed: u64,
}

impl Entry {
    /// Whether the caller has closed it and nothing is left to send or receive.
    fn is_over(&self) -> bool {
        self.slot.is_none()
            && match (self.connection.sending, self.connection.receiving) {
                (_, Receiving::Reset) | (Sending::Nothing, _) => true,
                (Sending::FinSent, Receiving::Ended) => self.connection.due().is_none(),
                _ => false,
            }
    }

    fn list(&mut self, turn: u64, ready: &mut Vec<usize>) {
        if let Some(slot) = self.slot.filter(|_| self.listed != turn) {
            self.listed = turn;
            ready.push(slot);
        }
    }
}

impl Table {
    /// Uses the ports that leave the remainder `index` when they are divided by `count`.
    pub(super) fn new(index: u16, count: u16) -> Self {
        let entries = iter::repeat_with(|| None).take(1 << 16).collect();
        Self {
            entries,
            slots: Vec::new(),
            next_port: FIRST_PORT,
            remainder: index,
            divisor: count.max(1),
            due: VecDeque::new(),
            blocked: VecDeque::new(),
            turn: 0,
        }
    }

    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// Whether a connection has a packet to send, or waits for room in the link.
    pub(super) fn has_waiting(&self) -> bool {
        !self.due.is_empty() || !self.blocked.is_empty()
    }

    pub(super) fn port(&self, slot: usize) -> io::Result<u16> {
        self.slots.get(slot).copied().filter(|port| *port != 0).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn connection(&mut self, port: u16) -> io::Result<&mut Connection> {
        match &mut self.entries[usize::from(port)] {
            Some(entry) => Ok(&mut entry.connection),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn of_slot(&self, slot: usize) -> Option<&Connection> {
        let port = self.port(slot).ok()?;
        self.entries[usize::from(port)].as_ref().map(|entry| &entry.connection)
    }

    pub(super) fn free_port(&self) -> io::Result<u16> {
        let mut ports = (self.next_port..=u16::MAX).chain(FIRST_PORT..self.next_port);
        ports
            .find(|port| port % self.divisor == self.remainder && self.entries[usize::from(*port)].is_none())
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "all local ports are in use"))
    }

    /// Adds a new connection. Its SYN is due.
    pub(super) fn insert(&mut self, slot: usize, port: u16, connection: Connection) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, 0);
        }
        self.slots[slot] = port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        let entry = Entry { connection, slot: Some(slot), is_due: false, is_blocked: false, listed: 0 };
        self.entries[usize::from(port)] = Some(Box::new(entry));
        self.settle(port);
    }

    pub(super) fn release(&mut self, slot: usize) {
        let Ok(port) = self.port(slot) else { return };
        self.slots[slot] = 0;
        if let Some(entry) = &mut self.entries[usize::from(port)] {
            entry.slot = None;
            entry.connection.closing = true;
            entry.connection.discard_unread();
        }
        self.settle(port);
    }

    pub(super) fn end_writing(&mut self, slot: usize) {
        let Ok(port) = self.port(slot) else { return };
        if let Some(entry) = &mut self.entries[usize::from(port)] {
            entry.connection.closing = true;
        }
        self.settle(port);
    }

    /// Handles a packet of the stack, and lists its slot. Returns how many bytes for the port `reading` are in the
    /// buffer.
    pub(super) fn take(
        &mut self,
        segment: &TcpSegment<'_>,
        reading: u16,
        buffer: &mut [u8],
        ready: &mut Vec<usize>,
    ) -> io::Result<usize> {
        let port = segment.destination_port();
        // The stack may retransmit packets of a connection that is over.
        let Some(entry) = &mut self.entries[usize::from(port)] else { return Ok(0) };
        let len = entry.connection.take(segment, if port == reading { buffer } else { &mut [] })?;
        entry.list(self.turn, ready);
        if entry.slot.is_none() {
            entry.connection.discard_unread();
        }
        self.settle(port);
        Ok(len)
    }

    pub(super) fn block(&mut self, port: u16) {
        if let Some(entry) = self.entries[usize::from(port)].as_mut().filter(|entry| !entry.is_blocked) {
            entry.is_blocked = true;
            self.blocked.push_back(port);
        }
    }

    /// Lists the slots that have waited longest for room.
    pub(super) fn unblock(&mut self, ready: &mut Vec<usize>) {
        for port in self.blocked.drain(..self.blocked.len().min(UNBLOCKED_AT_ONCE)) {
            if let Some(entry) = &mut self.entries[usize::from(port)] {
                entry.is_blocked = false;
                entry.list(self.turn, ready);
            }
        }
    }

    /// Notes that a connection has a packet to send, or drops it if it is over. Call it after each change.
    pub(super) fn settle(&mut self, port: u16) {
        let place = &mut self.entries[usize::from(port)];
        let Some(entry) = place else { return };
        if entry.is_over() {
            *place = None;
        } else if !entry.is_due && entry.connection.due().is_some() {
            entry.is_due = true;
            self.due.push_back(port);
        }
    }

    /// Sends the due packets, until the link is full.
    pub(super) fn send_due<L: Link>(&mut self, wire: &mut Wire<L>) -> io::Result<()> {
        while let Some(&port) = self.due.front() {
            if let Some(entry) = &mut self.entries[usize::from(port)] {
                if !entry.connection.send_due(wire)? {
                    break;
                }
                entry.is_due = false;
                self.settle(port);
            }
            self.due.pop_front();
        }
        Ok(())
    }
}
