//! One connection of a scripted client, without the link.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use platform::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};

/// Receive window, in bytes, and its shift count (RFC 7323, 2).
pub(super) const WINDOW: usize = 4 << 20;
pub(super) const SCALE: u8 = 7;
/// The MSS of a stack that names none, over IPv4 (RFC 9293, 3.7.1).
const DEFAULT_MSS: u16 = 536;
const SYN_OPTIONS_LEN: usize = 8;

#[derive(Debug)]
pub(super) struct Wire<L> {
    pub(super) link: L,
    pub(super) capabilities: Capabilities,
    /// A packet was not sent because the link was full. The owner of the wire clears this.
    pub(super) is_full: bool,
}

impl<L: Link> Wire<L> {
    pub(super) fn new(link: L) -> Self {
        Self { capabilities: link.capabilities(), link, is_full: false }
    }

    pub(super) fn batch(&self) -> Vec<PacketBuffer> {
        (0..self.capabilities.batch).map(|_| PacketBuffer::new(self.capabilities.max_packet_len)).collect()
    }
}

/// The state of a connection. It sends through a [`Wire`]; its owner receives packets and passes them on.
#[derive(Debug)]
pub(super) struct Connection {
    headers: TcpHeaders,
    ports: [u16; 2],
    unread: VecDeque<u8>,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// The caller has closed the sending half. Its FIN is sent when the stack's window has room for it.
    pub(super) closing: bool,
    ack_due: bool,
    /// The largest payload of a segment and of a packet. Before the stack's SYN: our own limits.
    mss: usize,
    largest: usize,
    /// The stack's window, its largest so far, and its shift count.
    window: u32,
    largest_window: u32,
    scale: u8,
    /// Shift count of our own window.
    own_scale: u8,
    /// The window in the last packet that was sent, in bytes.
    advertised: usize,
    una: u32,
    next: u32,
    expected: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Nothing,
    SynSent,
    /// The stack's SYN-ACK has arrived.
    Open,
    FinSent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    Open,
    /// Its FIN has arrived.
    Ended,
    Reset,
}

impl Connection {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr, capabilities: Capabilities) -> io::Result<Self> {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let headers = TcpHeaders::new(local, remote)
            .ok_or_else(|| invalid("the ends of the connection are of two IP versions"))?;
        let headers_len = headers.len_without_options();
        if capabilities.mtu <= headers_len + SYN_OPTIONS_LEN {
            return Err(invalid("the link's MTU leaves no room for a payload"));
        }
        Ok(Self {
            headers,
            ports: [remote.port(), local.port()],
            unread: VecDeque::new(),
            sending: Sending::Nothing,
            receiving: Receiving::Open,
            closing: false,
            ack_due: false,
            mss: capabilities.mtu - headers_len,
            largest: capabilities.max_packet_len - headers_len,
            window: 0,
            largest_window: 0,
            scale: 0,
            own_scale: 0,
            advertised: usize::from(u16::MAX),
            una: 1,
            next: 1,
            expected: 0,
        })
    }

    /// Whether the stack's SYN-ACK has arrived.
    pub(super) fn is_established(&self) -> bool {
        matches!(self.sending, Sending::Open | Sending::FinSent)
    }

    pub(super) fn discard_unread(&mut self) {
        self.unread = VecDeque::new();
    }

    /// The flags of the packet without payload that has to be sent.
    pub(super) fn due(&self) -> Option<u8> {
        match (self.sending, self.receiving) {
            (_, Receiving::Reset) => None,
            (Sending::Nothing, _) => Some(SYN),
            // A FIN takes a sequence number in the window (RFC 9293, 3.4). Without room the stack may drop it.
            (Sending::Open, _) if self.closing && self.open_window() > 0 => Some(FIN | ACK),
            _ => self.ack_due.then_some(ACK),
        }
    }

    /// Sends the packet that is due, if any. `false` if the link is full.
    pub(super) fn send_due<L: Link>(&mut self, wire: &mut Wire<L>) -> io::Result<bool> {
        match self.due() {
            Some(flags) => self.send(wire, flags, &[]),
            None => Ok(true),
        }
    }

    pub(super) fn read_unread(&mut self, buffer: &mut [u8]) -> usize {
        if self.unread.is_empty() {
            return 0;
        }
        let (head, _) = self.unread.as_slices();
        let len = head.len().min(buffer.len());
        buffer[..len].copy_from_slice(&head[..len]);
        self.unread.drain(..len);
        // The stack may wait for the window to open again.
        self.ack_due |= self.advertised < WINDOW / 2 && self.room() >= WINDOW / 2;
        len
    }

    fn room(&self) -> usize {
        WINDOW.saturating_sub(self.unread.len())
    }

    /// Sends packets of whole segments until the window or the link is full. Does not flush.
    pub(super) fn fill<L: Link>(&mut self, wire: &mut Wire<L>, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            let left = &bytes[sent..];
            if sent > 0 && left.len() < self.largest {
                return Ok(sent);
            }
            let len = self.sendable(left.len());
            if len == 0 || !self.send(wire, ACK, &left[..len])? {
                return Ok(sent);
            }
            sent += len;
        }
    }

    /// The part of the stack's window not in flight, but for one unit: smoltcp 0.14 rounds its scaled window down.
    fn open_window(&self) -> usize {
        let rounding = (1 << self.scale) - 1;
        self.window.saturating_sub(rounding).saturating_sub(self.next.wrapping_sub(self.una)) as usize
    }

    /// The payload of the next packet. Less than a segment only if that is all, or half of the largest window.
    fn sendable(&self, left: usize) -> usize {
        let len = self.open_window().min(left).min(self.largest);
        match len / self.mss * self.mss {
            0 if len == left || len >= self.largest_window as usize / 2 => len,
            whole => whole,
        }
    }

    /// Handles a packet of the stack. Returns how many bytes of its payload are in the buffer.
    pub(super) fn take(&mut self, segment: &TcpSegment<'_>, buffer: &mut [u8]) -> io::Result<usize> {
        let (sequence, flags) = (segment.sequence(), segment.flags());
        if [segment.source_port(), segment.destination_port()] != self.ports || self.receiving == Receiving::Reset {
            return Ok(0);
        }
        if flags & RST != 0 {
            self.receiving = Receiving::Reset;
            return Ok(0);
        }
        if flags & SYN != 0 {
            self.establish(segment);
            return Ok(0);
        }
        // Before the handshake, this is a packet of an earlier connection.
        if !self.is_established() {
            return Ok(0);
        }
        self.acknowledged(segment.acknowledgement(), segment.window().into());
        let payload = segment.payload();
        let fin = flags & FIN != 0;
        // A repeated segment and a keep-alive are acknowledged again. There are no gaps.
        self.ack_due |= fin || !payload.is_empty() || sequence != self.expected;
        if sequence != self.expected || self.receiving == Receiving::Ended {
            return Ok(0);
        }
        self.expected = sequence.wrapping_add(payload.len() as u32 + u32::from(fin));
        if fin {
            self.receiving = Receiving::Ended;
        }
        self.deliver(payload, buffer)
    }

    /// Copies payload to the buffer, and the rest to `unread`.
    fn deliver(&mut self, payload: &[u8], buffer: &mut [u8]) -> io::Result<usize> {
        let len = payload.len().min(buffer.len());
        buffer[..len].copy_from_slice(&payload[..len]);
        if payload.len() - len > self.room() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the stack sends more than the window has room for",
            ));
        }
        self.unread.extend(&payload[len..]);
        Ok(len)
    }

    fn acknowledged(&mut self, acknowledgement: u32, window: u32) {
        if acknowledgement.wrapping_sub(self.una) <= self.next.wrapping_sub(self.una) {
            self.una = acknowledgement;
            self.window = window << self.scale;
            self.largest_window = self.largest_window.max(self.window);
        }
    }

    fn establish(&mut self, syn: &TcpSegment<'_>) {
        self.ack_due = true;
        if self.sending != Sending::SynSent {
            return;
        }
        self.sending = Sending::Open;
        self.expected = syn.sequence().wrapping_add(1);
        let own = self.mss;
        self.mss = own.min(usize::from(DEFAULT_MSS));
        for option in syn.options() {
            if let Some(mss) = option.mss() {
                self.mss = own.min(usize::from(mss).max(1));
            } else if let Some(scale) = option.window_scale() {
                self.scale = scale;
                self.own_scale = SCALE;
            }
        }
        self.largest = self.largest.max(self.mss) / self.mss * self.mss;
        // The window of a SYN is never scaled.
        let window = syn.window().into();
        (self.una, self.window, self.largest_window) = (syn.acknowledgement(), window, window);
    }

    /// Sends a packet. Returns `false` if the link is full.
    fn send<L: Link>(&mut self, wire: &mut Wire<L>, flags: u8, payload: &[u8]) -> io::Result<bool> {
        let options = if flags == SYN { self.syn_options() } else { [0; SYN_OPTIONS_LEN] };
        let options = if flags == SYN { &options[..] } else { &[] };
        let window = (self.room() >> self.own_scale).min(u16::MAX.into()) as u16;
        let fields = TcpFields { sequence: self.next, acknowledgement: self.expected, flags, window };
        let mut meta = PacketMeta::default();
        if wire.capabilities.checksum.tx {
            meta.checksum = Checksum::Partial;
            meta.gso_size = NonZeroU16::new(self.mss as u16).filter(|_| payload.len() > self.mss);
        }
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = self.headers.write(fields, options, payload, meta.checksum, &mut headers);
        match wire.link.try_send(meta, &[IoSlice::new(&headers[..len]), IoSlice::new(payload)]) {
            Ok(()) => {
                self.next = self.next.wrapping_add(payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0));
                self.advertised = usize::from(window) << self.own_scale;
                self.ack_due &= flags & ACK == 0;
                if flags & (SYN | FIN) != 0 {
                    self.sending = if flags & SYN != 0 { Sending::SynSent } else { Sending::FinSent };
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wire.is_full = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn syn_options(&self) -> [u8; SYN_OPTIONS_LEN] {
        let mss = self.mss.min(u16::MAX.into()) as u16;
        let [high, low] = mss.to_be_bytes();
        [2, 4, high, low, 1, 3, 3, SCALE]
    }
}
