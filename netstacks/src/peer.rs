//! A scripted TCP peer: the other end of a stack that runs over a link in memory.
//!
//! A [`Peer`] is a client of one connection, without timers: it only reacts to the stack. It supports a
//! transfer over a link that loses, repeats and reorders nothing: the handshake, whole segments up to the
//! stack's window, one acknowledgement for each batch, and a FIN each way. It retransmits nothing: over a
//! link that loses packets, or with a stack that drops them, it waits for ever. It has no congestion control,
//! no selective acknowledgements and no timestamps. Once it is made, it allocates only for bytes that arrive
//! while it is written to and not read.
//!
//! Only the link copies the payload that it sends. Received payload is copied once, from the packet to the
//! caller's buffer.
//!
//! [`Peer`] is for tasks; [`Client`] makes a plain blocking connection of it, for a thread.

mod client;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::task::{Context, Poll, ready};

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};
use platform::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};

pub use self::client::{Canceller, Client};

/// Receive window, in bytes, and its shift count (RFC 7323, 2).
const WINDOW: usize = 4 << 20;
const SCALE: u8 = 7;
/// The kind of the window scale option (RFC 7323, 2.2).
const WINDOW_SCALE: u8 = 3;
/// The MSS of a stack that names none, over IPv4 (RFC 9293, 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// A TCP client of one connection over `L`; the text of the module names its limits.
///
/// Call all its methods in one task or thread; each remembers the waker of its last call only.
#[derive(Debug)]
pub struct Peer<L> {
    link: L,
    capabilities: Capabilities,
    headers: TcpHeaders,
    ports: [u16; 2],
    batch: Vec<PacketBuffer>,
    /// Bytes that arrived and were not read.
    unread: VecDeque<u8>,
    sending: Sending,
    receiving: Receiving,
    /// The limits of the stack: the payload of a segment and of a packet, the window, its largest so far, and
    /// its shift count.
    mss: usize,
    largest: usize,
    window: u32,
    largest_window: u32,
    scale: u8,
    /// Shift count of our own window.
    own_scale: u8,
    /// The window that was last sent, in bytes.
    advertised: usize,
    una: u32,
    next: u32,
    expected: u32,
    ack_due: bool,
    /// The link was full.
    blocked: bool,
}

/// How far our half of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Nothing,
    SynSent,
    /// The stack's SYN-ACK has come.
    Open,
    FinSent,
}

/// How far the stack's half of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Open,
    /// Its FIN is here.
    Ended,
    Reset,
}

impl<L: Link> Peer<L> {
    /// A peer at `local` that connects to `remote`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if these are of two IP versions, or the link's packets are too small for
    /// the headers.
    pub fn new(link: L, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let headers = TcpHeaders::new(local, remote)
            .ok_or_else(|| invalid("the ends of the connection are of two IP versions"))?;
        let capabilities = link.capabilities();
        if capabilities.mtu <= headers.len_without_options() + SYN_OPTIONS_LEN {
            return Err(invalid("the link's MTU leaves no room for a payload"));
        }
        Ok(Self {
            link,
            capabilities,
            headers,
            ports: [remote.port(), local.port()],
            batch: (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect(),
            unread: VecDeque::new(),
            sending: Sending::Nothing,
            receiving: Receiving::Open,
            mss: usize::from(DEFAULT_MSS),
            largest: usize::from(DEFAULT_MSS),
            window: 0,
            largest_window: 0,
            scale: 0,
            own_scale: 0,
            advertised: usize::from(u16::MAX),
            una: 1,
            next: 1,
            expected: 0,
            ack_due: false,
            blocked: false,
        })
    }

    /// Connects: ready after the stack's SYN-ACK.
    ///
    /// # Errors
    ///
    /// The errors of the link, and [`io::ErrorKind::ConnectionReset`] if the stack refuses.
    pub fn poll_connect(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.receive_all()?;
            if matches!(self.sending, Sending::Open | Sending::FinSent) {
                return Poll::Ready(Ok(()));
            }
            if self.sending == Sending::Nothing && self.send(SYN, &[])? {
                self.sending = Sending::SynSent;
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Reads bytes that have arrived; 0 after the stack's FIN, and for an empty buffer.
    ///
    /// # Errors
    ///
    /// The link's own, and [`io::ErrorKind::ConnectionReset`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let len = self.read_unread(buffer)?;
            if len > 0 {
                return Poll::Ready(Ok(len));
            }
            match self.receive(buffer)? {
                Some(0) => continue,
                Some(len) => return Poll::Ready(Ok(len)),
                None => self.settle()?,
            }
            if self.receiving == Receiving::Ended {
                return Poll::Ready(Ok(0));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Sends whole packets from the start of `bytes`, as many as the window and the link take, and returns how
    /// many bytes these are. The caller offers a rest that does not fill a packet again, with more behind it;
    /// alone it is sent too.
    ///
    /// # Errors
    ///
    /// The link's own, [`io::ErrorKind::ConnectionReset`], and [`io::ErrorKind::BrokenPipe`] after
    /// [`Peer::poll_shutdown`].
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.sending == Sending::FinSent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            self.receive_all()?;
            let len = self.fill(bytes)?;
            if len > 0 {
                return Poll::Ready(Ok(len));
            }
            ready!(self.poll_change(cx))?;
        }
    }

    /// Ends the sending half: ready once the FIN is sent, which needs room in the stack's window. Reading goes
    /// on.
    ///
    /// # Errors
    ///
    /// The link's own, and [`io::ErrorKind::ConnectionReset`].
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.sending == Sending::FinSent {
                return Poll::Ready(Ok(()));
            }
            self.receive_all()?;
            // A FIN has a place in the window (RFC 9293, 3.4): without room it may be dropped.
            if self.open_window() > 0 && self.send(FIN | ACK, &[])? {
                self.sending = Sending::FinSent;
                // No call may follow that would flush.
                self.link.flush()?;
            } else {
                ready!(self.poll_change(cx))?;
            }
        }
    }

    /// Ready if the link has packets, or room again if it had none.
    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.flush()?;
        let writable = if self.blocked { self.link.poll_writable(cx) } else { Poll::Pending };
        let readable = self.link.poll_readable(cx);
        if writable.is_ready() { writable } else { readable }
    }

    /// Reads bytes that arrived earlier.
    fn read_unread(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() {
            return Ok(0);
        }
        let (head, _) = self.unread.as_slices();
        let len = head.len().min(buffer.len());
        buffer[..len].copy_from_slice(&head[..len]);
        self.unread.drain(..len);
        // The stack may wait for the window to open again.
        self.ack_due |= self.advertised < WINDOW / 2 && self.room() >= WINDOW / 2;
        self.settle()?;
        Ok(len)
    }

    fn room(&self) -> usize {
        WINDOW.saturating_sub(self.unread.len())
    }

    /// Takes all waiting packets, batch by batch. Their payload is read later.
    fn receive_all(&mut self) -> io::Result<()> {
        while self.receive(&mut [])?.is_some() {}
        self.settle()
    }

    /// Takes a batch of packets and acknowledges it. Returns how many bytes of its payload are in the buffer; the
    /// rest is read later. `None`: no packet waits.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.receiving == Receiving::Reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.link.try_recv(&mut batch);
        let filled = received.and_then(|count| {
            let mut filled = 0;
            for packet in &batch[..count] {
                filled += self.take(packet.packet(), &mut buffer[filled..])?;
            }
            Ok(filled)
        });
        self.batch = batch;
        match filled {
            Ok(filled) => {
                self.answer()?;
                Ok(Some(filled))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the acknowledgement that is due once no packet waits.
    fn settle(&mut self) -> io::Result<()> {
        self.blocked = false;
        self.answer()
    }

    /// Sends one acknowledgement, if one is due and the link has room.
    fn answer(&mut self) -> io::Result<()> {
        if self.ack_due && self.send(ACK, &[])? {
            self.ack_due = false;
            self.link.flush()?;
        }
        Ok(())
    }

    /// Sends packets of whole segments until the window or the link is full, or the rest does not fill one.
    fn fill(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            let left = &bytes[sent..];
            if sent > 0 && left.len() < self.largest {
                self.link.flush()?;
                return Ok(sent);
            }
            let len = self.sendable(left.len());
            if len == 0 || !self.send(ACK, &left[..len])? {
                self.link.flush()?;
                return Ok(sent);
            }
            sent += len;
        }
    }

    /// The part of the stack's window that is not in flight.
    fn open_window(&self) -> usize {
        self.window.saturating_sub(self.next.wrapping_sub(self.una)) as usize
    }

    /// The payload of the next packet, if so many bytes are left. Less than a segment only if that is all, or if
    /// the stack's window is small and nothing else would open it (RFC 9293, 3.8.6.2.1).
    fn sendable(&self, left: usize) -> usize {
        let len = self.open_window().min(left).min(self.largest);
        match len / self.mss * self.mss {
            0 if len == left || len >= self.largest_window as usize / 2 => len,
            whole => whole,
        }
    }

    /// Takes a packet of any kind, and returns how many bytes of its payload are in the buffer.
    fn take(&mut self, packet: &[u8], buffer: &mut [u8]) -> io::Result<usize> {
        // A stack may send other packets too.
        let Some(segment) = TcpSegment::parse(packet) else { return Ok(0) };
        let (sequence, flags) = (segment.sequence(), segment.flags());
        if [segment.source_port(), segment.destination_port()] != self.ports {
            return Ok(0);
        }
        if flags & RST != 0 {
            self.receiving = Receiving::Reset;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if flags & SYN != 0 {
            self.establish(&segment);
            return Ok(0);
        }
        self.acknowledged(segment.acknowledgement(), segment.window().into());
        let payload = segment.payload();
        let fin = flags & FIN != 0;
        self.ack_due |= fin || !payload.is_empty();
        // A repeated segment is acknowledged again; there is none ahead of a gap.
        if sequence != self.expected || self.receiving == Receiving::Ended {
            return Ok(0);
        }
        self.expected = sequence.wrapping_add(payload.len() as u32 + u32::from(fin));
        if fin {
            self.receiving = Receiving::Ended;
        }
        self.deliver(payload, buffer)
    }

    /// Copies payload to the buffer, and the rest to the store.
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

    /// Takes the stack's SYN and its options.
    fn establish(&mut self, syn: &TcpSegment<'_>) {
        self.ack_due = true;
        if self.sending != Sending::SynSent {
            return;
        }
        self.sending = Sending::Open;
        self.expected = syn.sequence().wrapping_add(1);
        let headers = self.headers.len_without_options();
        let own = self.capabilities.mtu - headers;
        self.mss = self.mss.min(own);
        for option in syn.options() {
            if let Some(mss) = option.mss() {
                self.mss = own.min(usize::from(mss).max(1));
            } else if let (WINDOW_SCALE, [scale]) = (option.kind, option.value) {
                // RFC 7323, 2.3.
                self.scale = (*scale).min(14);
                self.own_scale = SCALE;
            }
        }
        self.largest = (self.capabilities.max_packet_len - headers).max(self.mss) / self.mss * self.mss;
        // The window of a SYN is never scaled.
        let window = syn.window().into();
        (self.una, self.window, self.largest_window) = (syn.acknowledgement(), window, window);
    }

    /// Sends a packet; `false` where the link is full.
    fn send(&mut self, flags: u8, payload: &[u8]) -> io::Result<bool> {
        let options = if flags == SYN { self.syn_options() } else { [0; SYN_OPTIONS_LEN] };
        let options = if flags == SYN { &options[..] } else { &[] };
        let window = (self.room() >> self.own_scale).min(u16::MAX.into()) as u16;
        let fields = TcpFields { sequence: self.next, acknowledgement: self.expected, flags, window };
        let mut meta = PacketMeta::default();
        if self.capabilities.checksum.tx {
            meta.checksum = Checksum::Partial;
            meta.gso_size = NonZeroU16::new(self.mss as u16).filter(|_| payload.len() > self.mss);
        }
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = self.headers.write(fields, options, payload, meta.checksum, &mut headers);
        match self.link.try_send(meta, &[IoSlice::new(&headers[..len]), IoSlice::new(payload)]) {
            Ok(()) => {
                self.next = self.next.wrapping_add(payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0));
                self.advertised = usize::from(window) << self.own_scale;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The MSS, and a window that is scaled.
    fn syn_options(&self) -> [u8; SYN_OPTIONS_LEN] {
        let mss = (self.capabilities.mtu - self.headers.len_without_options()).min(u16::MAX.into()) as u16;
        let [high, low] = mss.to_be_bytes();
        [2, 4, high, low, 1, 3, 3, SCALE]
    }
}

const SYN_OPTIONS_LEN: usize = 8;
