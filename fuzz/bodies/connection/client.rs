//! The clients' side of the connections.

use std::net::SocketAddr;
use std::time::Duration;

use platform::Checksum;
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment};

use super::super::input::Input;
use super::server::{End, Record};
use super::{ACK, FIN, PSH, RST, SYN, URG};

/// The longest stream of a client, in bytes.
const LONGEST: u32 = 100_000;

/// The byte at a place of a client's stream, or of the server's if `back`. A client's first byte is its number.
pub(super) fn pattern(id: u8, at: u32, back: bool) -> u8 {
    if at == 0 && !back {
        return id;
    }
    let mixed = (at ^ (u32::from(id) << 24) ^ (u32::from(back) << 20)).wrapping_mul(0x9E37_79B1);
    (mixed >> 24) as u8 ^ (mixed >> 12) as u8
}

/// How far a number is behind another, or before it if negative.
fn distance(number: u32, from: u32) -> i64 {
    number.wrapping_sub(from).cast_signed().into()
}

/// The addresses of a client and of its server.
pub(super) fn addresses(slot: usize) -> (SocketAddr, SocketAddr) {
    let port = 40_000 + slot as u16;
    if slot & 1 == 0 {
        (SocketAddr::from(([10, 0, 0, 1], port)), SocketAddr::from(([10, 0, 0, 2], 80)))
    } else {
        let ip = |last| [0xfd00, 0, 0, 0, 0, 0, 0, last];
        (SocketAddr::from((ip(1), port)), SocketAddr::from((ip(2), 80)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    SynSent,
    Open,
    /// The stack has reset it.
    Reset,
    /// The client has given up.
    Over,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
/// One connection. Places in the streams count from 0.
pub(super) struct Client {
    pub(super) id: u8,
    pub(super) address: SocketAddr,
    pub(super) state: State,
    /// Whether it has sent nothing that may end the connection, lose bytes or misplace its end.
    pub(super) blameless: bool,
    /// Whether it has vanished: it sends no replies.
    pub(super) is_silent: bool,
    headers: TcpHeaders,
    options: Vec<u8>,
    iss: u32,
    irs: u32,
    /// The first byte that is not acknowledged, the end of what was sent, and whether a FIN was sent there.
    una: u32,
    pub(super) next: u32,
    pub(super) fin: bool,
    /// The end of the stack's window, and its shift.
    edge: u32,
    shift: u8,
    /// Received without a gap, the place of the stack's FIN, and the most that the client's window has ever reached.
    received: u32,
    ended: bool,
    reach: u32,
    window: u16,
    /// When it sends again what is not acknowledged, and after how long once more.
    due_at: Duration,
    wait: Duration,
}

impl Client {
    pub(super) fn new(id: u8, slot: usize, iss: u32, options: Vec<u8>, window: u16) -> Self {
        let (address, server) = addresses(slot);
        Self {
            id,
            address,
            state: State::SynSent,
            blameless: true,
            is_silent: false,
            headers: TcpHeaders::new(address, server).unwrap(),
            options,
            iss,
            irs: 0,
            una: 0,
            next: 0,
            fin: false,
            edge: 0,
            shift: 0,
            received: 0,
            ended: false,
            reach: u32::from(window),
            window,
            due_at: Duration::ZERO,
            wait: Duration::from_secs(1),
        }
    }

    pub(super) fn syn(&self) -> Vec<u8> {
        self.write(self.iss, 0, SYN, self.window, &self.options, &[])
    }

    /// A segment of the stream, with the acknowledgement that is right.
    pub(super) fn packet(&self, at: i64, len: u32, flags: u8, options: &[u8]) -> Vec<u8> {
        let payload: Vec<u8> = (0..len).map(|index| pattern(self.id, at as u32 + index, false)).collect();
        self.write(self.number(at), self.expected(), flags, self.window, options, &payload)
    }

    fn number(&self, at: i64) -> u32 {
        self.iss.wrapping_add(1).wrapping_add(at as u32)
    }

    /// The acknowledgement number.
    fn expected(&self) -> u32 {
        if self.state == State::SynSent {
            return 0;
        }
        self.irs.wrapping_add(1).wrapping_add(self.received).wrapping_add(u32::from(self.ended))
    }

    fn write(
        &self,
        sequence: u32,
        acknowledgement: u32,
        flags: u8,
        window: u16,
        options: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        let mut headers = [0; MAX_HEADERS_LEN];
        let fields = TcpFields { sequence, acknowledgement, flags, window };
        let checksum = if payload.len() > 1_460 { Checksum::Partial } else { Checksum::Filled };
        let len = self.headers.write(fields, options, payload, checksum, &mut headers);
        [&headers[..len], payload].concat()
    }

    /// The next bytes of the stream.
    pub(super) fn more(&mut self, len: u32) -> Vec<u8> {
        let at = self.next;
        self.send_up_to(at + len);
        self.packet(at.into(), self.next - at, ACK | PSH, &[])
    }

    fn send_up_to(&mut self, end: u32) {
        if !self.fin && end <= LONGEST {
            self.next = self.next.max(end);
        }
    }

    /// Bytes from anywhere around the window.
    pub(super) fn wild(&mut self, input: &mut Input<'_>, most: u32) -> Vec<u8> {
        let at = (self.una + u32::from(input.word())).saturating_sub(4_096);
        let choice = input.byte();
        let len = 1 + u32::from(choice & 31) * 47 % most;
        self.send_up_to(at + len);
        let len = len.min(self.next.saturating_sub(at));
        let mut packet = self.packet(at.into(), len, ACK | [0, PSH, URG, PSH | URG][usize::from(choice >> 5 & 3)], &[]);
        if choice & 0x80 != 0 {
            let options = input.take(usize::from(choice & 7) * 4);
            packet = self.packet(at.into(), len, ACK, &options[..options.len() / 4 * 4]);
        }
        packet
    }

    /// Many segments of a byte, with holes between them.
    pub(super) fn tiny(&mut self, input: &mut Input<'_>) -> Vec<Vec<u8>> {
        let from = self.una + u32::from(input.byte());
        let count = u32::from(input.byte() & 31);
        self.send_up_to(from + count * 2 + 1);
        let end = self.next;
        (0..count)
            .map(|index| from + index * 2)
            .filter(|at| *at < end)
            .map(|at| self.packet(at.into(), 1, ACK, &[]))
            .collect()
    }

    /// An ACK with any number, window and options.
    pub(super) fn acknowledge(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        let mut number = self.expected();
        match choice & 3 {
            1 => number = number.wrapping_sub(input.word().into()),
            2 => {
                number = number.wrapping_add(input.word().into());
                self.blameless = false;
            }
            _ => {}
        }
        let window = match choice >> 2 & 3 {
            1 => 0,
            2 => input.word(),
            3 => 1 + u16::from(input.byte()),
            _ => self.window,
        };
        self.reach = self.reach.max(self.received + u32::from(window));
        let words = if choice & 0x10 == 0 { 0 } else { usize::from(input.byte() % 11) };
        let options = input.take(words * 4);
        let options = &options[..options.len() / 4 * 4];
        let flags = if choice & 0x20 == 0 { ACK } else { ACK | input.byte() & (PSH | URG | 0xc0) };
        let at = i64::from(self.next) + i64::from(self.fin);
        self.write(self.number(at), number, flags, window, options, &[])
    }

    /// The FIN at the end of the stream, or at another place.
    pub(super) fn finish(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        if choice & 1 == 0 {
            self.fin = true;
            return self.packet(self.next.into(), 0, FIN | ACK, &[]);
        }
        let at = i64::from(self.una) + i64::from(input.word()) - 4_096;
        self.blameless &= at + 1 < i64::from(self.una);
        self.packet(at, 0, FIN | ACK, &[])
    }

    /// A RST with the right number, after which the client has given up, or with another.
    pub(super) fn reset(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        let flags = if choice & 2 == 0 { RST } else { RST | ACK };
        if choice & 1 == 0 {
            self.state = State::Over;
            return self.packet(i64::from(self.next) + i64::from(self.fin), 0, flags, &[]);
        }
        let at = i64::from(self.una) + i64::from(input.word()) - 4_096;
        // One that is old does nothing.
        self.blameless &= at < i64::from(self.una);
        self.packet(at, 0, flags, &[])
    }

    /// A SYN with any number in the middle of the connection. It gets a challenge ACK.
    pub(super) fn syn_again(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        self.blameless &= self.state == State::Open && self.una > 0 && !self.fin && !self.ended;
        let number = u32::from(input.word()) << 16;
        self.write(number, 0, SYN, self.window, &[2, 4, 5, 0xb4], &[])
    }

    /// All that is not acknowledged and fits into the stack's window.
    pub(super) fn resend(&self, most: u32) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let mut at = self.una;
        // One byte probes a window that is closed.
        let end = self.edge.max(self.una + 1).min(self.next);
        while at < end && packets.len() < 4 {
            let len = most.min(end - at);
            packets.push(self.packet(at.into(), len, ACK | PSH, &[]));
            at += len;
        }
        if self.fin && at == self.next && packets.len() < 4 {
            packets.push(self.packet(at.into(), 0, FIN | ACK, &[]));
        }
        packets
    }

    /// Takes a packet of the stack, and returns the reply.
    pub(super) fn receive(&mut self, segment: &TcpSegment<'_>) -> Option<Vec<u8>> {
        let flags = segment.flags();
        let reply = match self.state {
            _ if flags & RST != 0 => {
                self.take_reset(segment);
                None
            }
            State::SynSent if flags & (SYN | ACK) == SYN | ACK && segment.acknowledgement() == self.number(0) => {
                self.state = State::Open;
                self.irs = segment.sequence();
                let scales = self.options.contains(&3);
                let shift = segment.options().find(|option| option.kind == 3).map_or(0, |option| option.value[0]);
                self.shift = if scales { shift } else { 0 };
                self.edge = segment.window().into();
                Some(self.packet(0, 0, ACK, &[]))
            }
            State::Open if flags & SYN == 0 => self.take(segment),
            State::Open => Some(self.packet(i64::from(self.next) + i64::from(self.fin), 0, ACK, &[])),
            // The stack knows a connection that the client does not (RFC 9293, 3.10.7.1 and 3.10.7.3).
            _ => Some(self.write(segment.acknowledgement(), 0, RST, 0, &[], &[])),
        };
        reply.filter(|_| !self.is_silent)
    }

    fn take_reset(&mut self, segment: &TcpSegment<'_>) {
        let is_ours = match self.state {
            State::SynSent => segment.acknowledgement() == self.number(0),
            State::Open => segment.sequence().wrapping_sub(self.expected()) <= u32::from(self.window),
            State::Reset | State::Over => false,
        };
        if is_ours {
            self.state = State::Reset;
        }
    }

    /// Takes a segment of the open connection.
    fn take(&mut self, segment: &TcpSegment<'_>) -> Option<Vec<u8>> {
        let acknowledged = distance(segment.acknowledgement(), self.number(0));
        if acknowledged >= self.una.into() {
            let end = self.next + u32::from(self.fin);
            assert!(!self.blameless || acknowledged <= end.into(), "{acknowledged} acknowledged, {end} sent");
            if acknowledged > self.una.into() {
                self.wait = Duration::from_secs(1);
            }
            self.una = acknowledged as u32;
            self.edge = self.una + (u32::from(segment.window()) << self.shift);
        }
        let at = distance(segment.sequence(), self.irs.wrapping_add(1));
        let payload = segment.payload();
        let end = at + i64::from(payload.len() as u32);
        if self.blameless {
            for (index, byte) in (0..).zip(payload) {
                let at = at as u32 + index;
                assert_eq!(*byte, pattern(self.id, at, true), "byte {at} from the stack");
            }
            assert!(end <= i64::from(self.reach) + 1, "{end} is beyond the window, {}", self.reach);
        }
        if at <= self.received.into() && end > self.received.into() {
            self.received = end as u32;
        }
        let is_fin = segment.flags() & FIN != 0;
        self.ended |= is_fin && end == i64::from(self.received);
        self.reach = self.reach.max(self.received + u32::from(self.window));
        let replies = !payload.is_empty() || is_fin;
        replies.then(|| self.packet(i64::from(self.next) + i64::from(self.fin), 0, ACK, &[]))
    }

    /// The client has so many bytes to send.
    pub(super) fn want(&mut self, len: u32) {
        self.next = self.next.max(len);
    }

    /// From now on it replies, and closes behind what it has sent.
    pub(super) fn behave(&mut self, window: u16) {
        self.is_silent = false;
        self.window = window;
        self.reach = self.reach.max(self.received + u32::from(window));
        if self.fin {
            // The server never learns the number of a client that sent nothing.
            self.blameless &= self.next > 0;
        } else {
            self.want(1);
        }
        self.fin = true;
        self.wait = Duration::from_secs(1);
    }

    /// The packets that are due at this time: at first an ACK with its window and all that is not acknowledged; then this again,
    /// after ever longer waits.
    pub(super) fn due(&mut self, now: Duration, most: u32) -> Vec<Vec<u8>> {
        let all = self.next + u32::from(self.fin);
        if now < self.due_at || (self.state == State::Open && self.una == all && !self.due_at.is_zero()) {
            return Vec::new();
        }
        self.due_at = now + self.wait;
        self.wait = (self.wait * 2).min(Duration::from_secs(8));
        match self.state {
            State::SynSent => vec![self.syn()],
            State::Open => {
                let mut packets = self.resend(most);
                packets.insert(0, self.packet(i64::from(all), 0, ACK, &[]));
                packets
            }
            State::Reset | State::Over => Vec::new(),
        }
    }

    /// The part of the connection that the stack still owes to the client.
    pub(super) fn missing(&self, record: &Record) -> Option<String> {
        if self.state == State::Over || record.end == End::Gone {
            return None;
        }
        let all = self.next + u32::from(self.fin);
        let is_complete = self.una == all
            && record.end == End::Closed
            && record.read == self.next
            && record.wrote == self.received
            && self.ended;
        (!is_complete).then(|| {
            format!(
                "client {} {:?}: sent {all}, acknowledged {}, received {} {}, server {record:?}",
                self.address, self.state, self.una, self.received, self.ended
            )
        })
    }
}
