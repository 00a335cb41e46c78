//! A TCP client that does only what a case tells it to do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use platform::Checksum;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};

use crate::wire::{Key, SACK, Segment, TIMESTAMPS, Wire};
use crate::{LATE, SOON, Step, Stop, check, distance, patient};

/// Kinds of options.
pub(crate) const MSS: u8 = 2;
pub(crate) const WINDOW_SCALE: u8 = 3;
pub(crate) const SACK_PERMITTED: u8 = 4;

/// The options and flags of a SYN.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    /// Further options.
    pub(crate) extra: Vec<u8>,
    pub(crate) flags: u8,
}

impl Default for Offer {
    fn default() -> Self {
        Self { mss: Some(1460), scale: None, extra: Vec::new(), flags: SYN }
    }
}

impl Offer {
    fn options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([MSS, 4]);
            options.extend(mss.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            options.extend([WINDOW_SCALE, 3, scale]);
        }
        options.extend(&self.extra);
        while options.len() % 4 > 0 {
            options.push(1);
        }
        options
    }
}

/// A segment to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out<'a> {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// The window field, not shifted.
    pub(crate) window: u16,
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// The client's side of a connection with the stack.
pub(crate) struct Client {
    wire: Rc<RefCell<Wire>>,
    /// `None` if the addresses are of different IP versions. No case has this.
    headers: Option<TcpHeaders>,
    key: Key,
    pub(crate) local: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The sequence number of our SYN, and of the stack's SYN.
    pub(crate) isn: u32,
    pub(crate) stack_isn: u32,
    /// The sequence number of our next byte, and of the stack's next byte.
    pub(crate) next: u32,
    pub(crate) expected: u32,
    /// The window field of our segments.
    pub(crate) window: u16,
    /// How much the window field grows with each ACK that [`Client::receive`] sends.
    pub(crate) growth: u16,
    /// The shift count of the stack's windows.
    pub(crate) scale: u8,
    /// The timestamp of our segments, and the newest one of the stack, which they echo. `None` sends neither.
    pub(crate) stamps: Option<[u32; 2]>,
    /// Whether our segments report the held ones (RFC 2018).
    pub(crate) sack: bool,
    /// Whether the stack's FIN and all bytes before it have arrived.
    pub(crate) ended: bool,
    /// Segments that arrived out of order, by their sequence numbers.
    held: BTreeMap<u32, Segment>,
    /// The last segments that arrived, for the text of a failure.
    seen: Vec<String>,
}

impl Client {
    pub(crate) fn new(wire: Rc<RefCell<Wire>>, local: SocketAddr, server: SocketAddr) -> Self {
        let isn = 0x1000_0000 | u32::from(local.port()) << 8;
        Self {
            wire,
            headers: TcpHeaders::new(local, server),
            key: (local.port(), server.ip(), server.port()),
            local,
            server,
            isn,
            stack_isn: 0,
            next: isn,
            expected: 0,
            window: u16::MAX,
            growth: 0,
            scale: 0,
            stamps: None,
            sack: false,
            ended: false,
            held: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.local.port()
    }

    /// Begins a new connection from the same port, with this initial sequence number.
    pub(crate) fn begin_at(&mut self, isn: u32) {
        (self.isn, self.next, self.ended) = (isn, isn, false);
        self.held.clear();
    }

    /// Returns an ACK of everything that has arrived.
    pub(crate) fn out(&self) -> Out<'static> {
        let (seq, ack, window) = (self.next, self.expected, self.window);
        Out { flags: ACK, seq, ack, window, options: &[], payload: &[] }
    }

    /// Returns the packet of a segment.
    pub(crate) fn packet(&self, out: Out<'_>) -> Vec<u8> {
        let Out { flags, seq, ack, window, options, payload } = out;
        let options = &[&self.options()[..], options].concat();
        let fields = TcpFields { sequence: seq, acknowledgement: ack, flags, window };
        let mut headers = [0; MAX_HEADERS_LEN];
        let Some(template) = &self.headers else { return Vec::new() };
        let len = template.write(fields, options, payload, Checksum::Filled, &mut headers);
        [&headers[..len], payload].concat()
    }

    /// Returns the options that all our segments have at present.
    fn options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some([own, echo]) = self.stamps {
            options.extend([1, 1, TIMESTAMPS, 10]);
            options.extend([own, echo].into_iter().flat_map(u32::to_be_bytes));
        }
        let blocks = self.blocks();
        if self.sack && !blocks.is_empty() {
            options.extend([1, 1, SACK, 2 + 8 * blocks.len() as u8]);
            options.extend(blocks.into_iter().flatten().flat_map(u32::to_be_bytes));
        }
        options
    }

    /// Returns the last three ranges of sequence numbers that are held, the last one first.
    fn blocks(&self) -> Vec<[u32; 2]> {
        let mut blocks: Vec<[u32; 2]> = Vec::new();
        for segment in self.held.values() {
            match blocks.last_mut() {
                Some([_, end]) if *end == segment.seq => *end = segment.end(),
                _ => blocks.push([segment.seq, segment.end()]),
            }
        }
        blocks.into_iter().rev().take(3).collect()
    }

    /// Sends a segment. The next sequence number stays the same.
    pub(crate) fn put(&self, out: Out<'_>) -> Step {
        self.send_packet(&self.packet(out))
    }

    pub(crate) fn send_packet(&self, packet: &[u8]) -> Step {
        self.wire.borrow_mut().send(packet)
    }

    pub(crate) fn ack(&self) -> Step {
        self.put(self.out())
    }

    pub(crate) fn syn(&mut self, offer: &Offer) -> Step {
        let options = offer.options();
        let syn = Out { flags: offer.flags, seq: self.isn, ack: 0, options: &options, ..self.out() };
        self.next = self.isn.wrapping_add(1);
        self.put(syn)
    }

    /// Waits for the SYN+ACK.
    pub(crate) fn syn_ack(&mut self, within: Duration) -> Step<Segment> {
        let after_isn = self.isn.wrapping_add(1);
        let segment =
            self.expect_within(within, "SYN+ACK", |segment| segment.has(SYN | ACK) && segment.ack == after_isn)?;
        (self.stack_isn, self.expected) = (segment.seq, segment.end());
        self.scale = segment.option(WINDOW_SCALE).and_then(|value| value.first().copied()).unwrap_or(0);
        Ok(segment)
    }

    /// Opens the connection with a handshake. Returns the SYN+ACK.
    pub(crate) fn open(&mut self, offer: &Offer) -> Step<Segment> {
        self.syn(offer)?;
        let segment = self.syn_ack(SOON)?;
        self.ack()?;
        Ok(segment)
    }

    /// Sends bytes in segments of up to 1,000 bytes, as the MTU allows. Ignores the stack's window.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Step {
        let room = self.wire.borrow().capabilities().mtu - 60;
        for payload in bytes.chunks(room.min(1000)) {
            self.put(Out { flags: ACK | PSH, payload, ..self.out() })?;
            self.next = self.next.wrapping_add(payload.len() as u32);
        }
        Ok(())
    }

    /// Sends bytes, and waits for an ACK after each 8,000 bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Step {
        for chunk in bytes.chunks(8000) {
            self.data(chunk)?;
            self.acked(SOON)?;
        }
        Ok(())
    }

    /// Waits until the stack has acknowledged everything.
    pub(crate) fn acked(&mut self, within: Duration) -> Step<Segment> {
        let next = self.next;
        self.expect_within(within, "ACK of everything", |segment| segment.has(ACK) && segment.ack == next)
    }

    pub(crate) fn fin(&mut self) -> Step {
        self.put(Out { flags: FIN | ACK, ..self.out() })?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    pub(crate) fn rst(&self) -> Step {
        self.put(Out { flags: RST | ACK, ..self.out() })
    }

    /// Returns the next segment of the stack, if one arrives in time.
    pub(crate) fn next_segment(&mut self, within: Duration) -> Step<Option<Segment>> {
        self.segment_until(Instant::now() + patient(within))
    }

    /// The same with an end that stays as it is.
    pub(crate) fn segment_until(&mut self, until: Instant) -> Step<Option<Segment>> {
        let segment = self.wire.borrow_mut().segment(self.key, until)?;
        if let Some(segment) = &segment {
            self.seen.push(self.describe(segment));
            if let (Some([_, echo]), Some([own, _])) = (&mut self.stamps, segment.stamps()) {
                *echo = own;
            }
        }
        Ok(segment)
    }

    /// Describes a segment, with numbers relative to both initial sequence numbers.
    pub(crate) fn describe(&self, segment: &Segment) -> String {
        let seq = segment.seq.wrapping_sub(self.stack_isn);
        let ack = segment.ack.wrapping_sub(self.isn);
        let window = segment.window;
        if segment.has(SYN) {
            format!("{segment} (ack {ack}, window {window})")
        } else {
            format!("{segment} (seq {seq}, ack {ack}, window {window})")
        }
    }

    /// Waits for a segment, and skips other segments.
    pub(crate) fn expect(&mut self, what: &str, is_it: impl FnMut(&Segment) -> bool) -> Step<Segment> {
        self.expect_within(SOON, what, is_it)
    }

    pub(crate) fn expect_within(
        &mut self,
        within: Duration,
        what: &str,
        mut is_it: impl FnMut(&Segment) -> bool,
    ) -> Step<Segment> {
        let until = Instant::now() + patient(within);
        self.seen.clear();
        while let Some(segment) = self.segment_until(until)? {
            if is_it(&segment) {
                return Ok(segment);
            }
        }
        Err(Stop::fail(format!("no {what} within {within:?}; {}", self.came())))
    }

    /// Fails if a segment arrives for which `is_it` is true.
    pub(crate) fn expect_none(
        &mut self,
        during: Duration,
        what: &str,
        mut is_it: impl FnMut(&Segment) -> bool,
    ) -> Step {
        let until = Instant::now() + during;
        self.seen.clear();
        while let Some(segment) = self.segment_until(until)? {
            if is_it(&segment) {
                return Err(Stop::fail(format!("{what} came: {}", self.describe(&segment))));
            }
        }
        Ok(())
    }

    /// Describes the segments that arrived instead of the expected one.
    fn came(&self) -> String {
        match self.seen.as_slice() {
            [] => "nothing came".to_owned(),
            all @ ([_] | [_, _] | [_, _, _]) => format!("it sent {}", all.join(", ")),
            [first, .., last] => {
                format!("it sent {} segments: first {first}, last {last}", self.seen.len())
            }
        }
    }

    /// Drops all segments that have arrived.
    pub(crate) fn forget(&mut self) -> Step {
        while self.segment_until(Instant::now())?.is_some() {}
        Ok(())
    }

    /// Receives `len` bytes, and acknowledges each segment.
    pub(crate) fn receive(&mut self, len: usize, within: Duration) -> Step<Vec<u8>> {
        self.receive_with(len, within, |_| false)
    }

    /// The same over a link that loses the segments for which `lost` is true.
    pub(crate) fn receive_with(
        &mut self,
        len: usize,
        within: Duration,
        mut lost: impl FnMut(&Segment) -> bool,
    ) -> Step<Vec<u8>> {
        let mut bytes = Vec::new();
        let until = Instant::now() + patient(within);
        self.seen.clear();
        while bytes.len() < len {
            let Some(segment) = self.segment_until(until)? else {
                let got = bytes.len();
                return Err(Stop::fail(format!("{got} of {len} bytes came within {within:?}; {}", self.came())));
            };
            if segment.has(RST) {
                return Err(Stop::fail(format!("a RST came after {} bytes", bytes.len())));
            }
            if !lost(&segment) {
                self.take(segment, &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Receives everything up to the stack's FIN, and acknowledges each segment.
    pub(crate) fn receive_to_end(&mut self) -> Step<Vec<u8>> {
        self.receive_to_end_with(|_| false)
    }

    /// The same with losses.
    pub(crate) fn receive_to_end_with(&mut self, mut lost: impl FnMut(&Segment) -> bool) -> Step<Vec<u8>> {
        let mut bytes = Vec::new();
        let until = Instant::now() + patient(LATE);
        self.seen.clear();
        while !self.ended {
            let Some(segment) = self.segment_until(until)? else {
                let got = bytes.len();
                return Err(Stop::fail(format!("no end after {got} bytes within {LATE:?}; {}", self.came())));
            };
            if segment.has(RST) {
                return Err(Stop::fail(format!("a RST came after {} bytes, and no FIN", bytes.len())));
            }
            if !lost(&segment) {
                self.take(segment, &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Checks how many bytes the stack sends without an ACK: at least `least`, and no more than the window. The first `least`
    /// bytes may take a while. Any beyond them would follow at once.
    pub(crate) fn sent_to(&mut self, least: i32, window: i32) -> Step {
        let (mut until, mut reached) = (Instant::now() + patient(LATE), 0);
        let mut is_enough = false;
        while let Some(segment) = self.segment_until(until)? {
            reached = reached.max(distance(self.expected, segment.end()));
            if reached >= least && !is_enough {
                (is_enough, until) = (true, Instant::now() + patient(Duration::from_millis(400)));
            }
        }
        check((least..=window).contains(&reached), || format!("it sent {reached} bytes to a window of {window}"))
    }

    /// Takes a segment, and acknowledges it if it has payload, SYN or FIN.
    pub(crate) fn take(&mut self, segment: Segment, bytes: &mut Vec<u8>) -> Step {
        if segment.len() == 0 {
            return Ok(());
        }
        self.held.insert(segment.seq.wrapping_sub(self.stack_isn), segment);
        while let Some(entry) = self.held.first_entry() {
            let ahead = distance(entry.get().seq, self.expected);
            if ahead < 0 {
                break;
            }
            let segment = entry.remove();
            let new = segment.payload.get(ahead.unsigned_abs() as usize..).unwrap_or_default();
            bytes.extend_from_slice(new);
            self.expected = self.expected.wrapping_add(new.len() as u32);
            if segment.has(FIN) && self.expected.wrapping_add(1) == segment.end() {
                self.expected = segment.end();
                self.ended = true;
            }
        }
        self.window = self.window.saturating_add(self.growth);
        self.ack()
    }
}
