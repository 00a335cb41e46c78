//! The peer of every cell: a TCP client of one connection, by a script and not by a clock.
//!
//! It knows what a transfer over a link that loses nothing needs: the handshake, whole segments up
//! to the stack's window, and one acknowledgement for each batch that it takes. It has no timers and
//! repeats nothing; it runs as a task on the runtime of the stack, and once it is made it allocates
//! nothing. So what it does depends on what the stack does, and on nothing else.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::task::{Context, Poll, ready};

use platform::vnet::{self, TcpLayout};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};

use super::Direction;

/// Receive window, in bytes, and its shift count (RFC 7323, 2).
const WINDOW: u32 = 4 << 20;
const SCALE: u8 = 7;
/// Length of an IPv6 header, a TCP header, and the options of a SYN.
const LARGEST_HEADER: usize = 40 + 20 + 8;
/// The MSS of who names none (RFC 9293, 3.7.1).
const DEFAULT_MSS: u16 = 536;

const SYN: u8 = 2;
const ACK: u8 = 16;
/// FIN or RST.
const END: u8 = 1 | 4;

pub(crate) struct Peer {
    link: MemoryLink,
    capabilities: Capabilities,
    batch: Vec<PacketBuffer>,
    /// What it sends: zeros, so that the sum of the payload is 0.
    payload: Box<[u8]>,
    direction: Direction,
    local: SocketAddr,
    remote: SocketAddr,
    /// The stack has answered the SYN.
    established: bool,
    /// What the stack takes: the payload of a segment, the window, and the window's shift count.
    mss: usize,
    window: u32,
    scale: u8,
    /// The window field of our own segments.
    own_window: u16,
    una: u32,
    next: u32,
    expected: u32,
    ack_due: bool,
    /// The link was full.
    blocked: bool,
}

impl Peer {
    pub(crate) fn new(link: MemoryLink, direction: Direction, local: SocketAddr, remote: SocketAddr) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len;
        Self {
            link,
            capabilities,
            batch: (0..capabilities.batch).map(|_| PacketBuffer::new(room)).collect(),
            payload: vec![0; room].into_boxed_slice(),
            direction,
            local,
            remote,
            established: false,
            mss: usize::from(DEFAULT_MSS),
            window: 0,
            scale: 0,
            own_window: u16::MAX,
            una: 1,
            next: 1,
            expected: 0,
            ack_due: false,
            blocked: false,
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Connects and transfers for as long as the link lives. Ends only with an error.
    pub(crate) async fn run(mut self) -> io::Error {
        if let Err(error) = self.send(SYN, 0) {
            return error;
        }
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if let Err(error) = self.turn() {
                return Poll::Ready(error);
            }
            let readable = self.link.poll_readable(cx);
            let writable = if self.blocked { self.link.poll_writable(cx) } else { Poll::Pending };
            if readable.is_pending()
                && let Err(error) = ready!(writable)
            {
                return Poll::Ready(error);
            }
        }
    }

    /// Takes all that waits, a batch after the other, then sends all that it may.
    fn turn(&mut self) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        let received = loop {
            match self.link.try_recv(&mut batch) {
                Ok(count) => batch[..count].iter().try_for_each(|buffer| self.take(buffer.packet()))?,
                Err(error) => break error,
            }
            self.answer()?;
        };
        self.batch = batch;
        if received.kind() != io::ErrorKind::WouldBlock {
            return Err(received);
        }
        self.blocked = false;
        self.answer()?;
        if self.established && self.direction == Direction::Writer {
            self.fill()?;
        }
        Ok(())
    }

    /// One acknowledgement, where one is due and the link has room.
    fn answer(&mut self) -> io::Result<()> {
        if self.ack_due && self.send(ACK, 0)? {
            self.ack_due = false;
        }
        Ok(())
    }

    /// Sends whole segments, as many at once as the link takes, until the window is full or the link.
    fn fill(&mut self) -> io::Result<()> {
        let headers = self.ip_header_len() + 20;
        let largest = (self.capabilities.max_packet_len - headers).max(self.mss) / self.mss * self.mss;
        loop {
            let room = self.window.saturating_sub(self.next.wrapping_sub(self.una)) as usize;
            let len = room.min(largest) / self.mss * self.mss;
            if len == 0 || !self.send(ACK, len)? {
                return Ok(());
            }
        }
    }

    /// A packet from the stack.
    fn take(&mut self, packet: &[u8]) -> io::Result<()> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let Some(layout) = TcpLayout::parse(packet) else { return wrong("not TCP") };
        let tcp = &packet[layout.tcp_at..layout.payload_at];
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let (seq, ack, flags) = (number(4), number(8), tcp[13]);
        let window = u32::from(u16::from_be_bytes([tcp[14], tcp[15]]));
        if flags & END != 0 {
            return wrong("the stack ended the connection");
        }
        if flags & SYN != 0 {
            self.establish(seq, &tcp[20..]);
            self.una = ack;
            self.window = window;
            return Ok(());
        }
        let payload = (packet.len() - layout.payload_at) as u32;
        // What is older came again and is acknowledged again; there is nothing newer.
        if seq == self.expected {
            self.expected = seq.wrapping_add(payload);
        }
        self.ack_due |= payload > 0;
        if ack.wrapping_sub(self.una) <= self.next.wrapping_sub(self.una) {
            self.una = ack;
            self.window = window << self.scale;
        }
        Ok(())
    }

    fn establish(&mut self, seq: u32, mut options: &[u8]) {
        self.established = true;
        self.ack_due = true;
        self.expected = seq.wrapping_add(1);
        let own = self.capabilities.mtu - self.ip_header_len() - 20;
        while let [kind, rest @ ..] = options {
            options = match (kind, rest) {
                (0, _) => return,
                (1, _) => rest,
                (2, [4, high, low, rest @ ..]) => {
                    self.mss = own.min(usize::from(u16::from_be_bytes([*high, *low])));
                    rest
                }
                (3, [3, scale, rest @ ..]) => {
                    self.scale = *scale;
                    self.own_window = (WINDOW >> SCALE) as u16;
                    rest
                }
                (_, [len, ..]) => rest.get(usize::from(*len).max(2) - 1..).unwrap_or_default(),
                (_, []) => return,
            };
        }
    }

    fn ip_header_len(&self) -> usize {
        if self.local.is_ipv4() { 20 } else { 40 }
    }

    /// Sends a packet; `false` where the link is full.
    fn send(&mut self, flags: u8, payload_len: usize) -> io::Result<bool> {
        let mut headers = [0; LARGEST_HEADER];
        let len = self.write_headers(&mut headers, flags, payload_len);
        let mut meta = PacketMeta::default();
        if self.capabilities.checksum.tx {
            meta.checksum = Checksum::Partial;
            meta.gso_size = NonZeroU16::new(self.mss as u16).filter(|_| payload_len > self.mss);
        }
        match self.link.try_send(meta, &[IoSlice::new(&headers[..len]), IoSlice::new(&self.payload[..payload_len])]) {
            Ok(()) => {
                self.next = self.next.wrapping_add(payload_len as u32 + u32::from(flags == SYN));
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes both headers and answers their length.
    fn write_headers(&self, headers: &mut [u8; LARGEST_HEADER], flags: u8, payload_len: usize) -> usize {
        let tcp_at = self.ip_header_len();
        let payload_at = tcp_at + if flags == SYN { 28 } else { 20 };
        let len = payload_at + payload_len;
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                headers[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6]);
                headers[2..4].copy_from_slice(&(len as u16).to_be_bytes());
                headers[12..16].copy_from_slice(&source.octets());
                headers[16..20].copy_from_slice(&destination.octets());
                let sum = !sum(&headers[..20]);
                headers[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                headers[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 6, 64]);
                headers[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
                headers[8..24].copy_from_slice(&source.octets());
                headers[24..40].copy_from_slice(&destination.octets());
            }
            _ => unreachable!("both ends are of one IP version"),
        }
        let tcp = &mut headers[tcp_at..payload_at];
        tcp[..2].copy_from_slice(&self.local.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.remote.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.next.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.expected.to_be_bytes());
        tcp[12] = (tcp.len() as u8 / 4) << 4;
        tcp[13] = flags;
        tcp[14..16].copy_from_slice(&self.own_window.to_be_bytes());
        if flags == SYN {
            let [high, low] = ((self.capabilities.mtu - tcp_at - 20) as u16).to_be_bytes();
            tcp[20..].copy_from_slice(&[2, 4, high, low, 1, 3, 3, SCALE]);
        }
        self.seal(&mut headers[..payload_at], tcp_at, len);
        payload_at
    }

    /// TCP's checksum, or what the link wants in its place.
    fn seal(&self, headers: &mut [u8], tcp_at: usize, len: usize) {
        let layout = TcpLayout { ipv6: self.local.is_ipv6(), tcp_at, payload_at: headers.len() };
        vnet::leave_checksum(headers, &layout, len);
        if !self.capabilities.checksum.tx {
            let sum = !sum(&headers[tcp_at..]);
            headers[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// RFC 1071, of an even number of bytes.
fn sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}
