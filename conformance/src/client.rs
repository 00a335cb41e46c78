//! A TCP client that does only what a case tells it to do: its segments. What it waits for is in `receive`.

mod receive;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use platform::Checksum;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};
use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};

use crate::wire::{Key, SACK, Segment, TIMESTAMPS, Wire};
use crate::{SOON, Step};

pub(crate) const MSS: u8 = 2;
pub(crate) const WINDOW_SCALE: u8 = 3;
pub(crate) const SACK_PERMITTED: u8 = 4;

/// The most bytes of options in a TCP header (RFC 9293, 3.1).
const MAX_OPTIONS_LEN: usize = 40;

/// A SYN, and what the client's later segments have by it.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its flags.
    pub flags: u8,
    /// The window field of all segments, not shifted.
    pub window: u16,
    /// The MSS.
    pub mss: Option<u16>,
    /// The shift count of the client's windows.
    pub scale: Option<u8>,
    /// Whether it permits SACK.
    pub sack: bool,
    /// The first timestamp.
    pub stamp: Option<u32>,
    /// Further options.
    pub extra: Vec<u8>,
}

impl Default for Offer {
    fn default() -> Self {
        Self { flags: SYN, window: u16::MAX, mss: Some(1460), scale: None, sack: false, stamp: None, extra: Vec::new() }
    }
}

impl Offer {
    fn options(&self) -> Vec<u8> {
        let mss = self.mss.map(|mss| [&[MSS, 4][..], &mss.to_be_bytes()].concat());
        let scale = self.scale.map(|scale| vec![WINDOW_SCALE, 3, scale]);
        let sack = self.sack.then(|| vec![SACK_PERMITTED, 2]);
        let mut options = [mss, scale, sack].into_iter().flatten().flatten().collect::<Vec<_>>();
        options.extend(&self.extra);
        options.resize(options.len().next_multiple_of(4), 1);
        options
    }
}

/// Returns a SACK option with these ends of blocks (RFC 2018, 3).
pub(crate) fn sack_option(ends: &[u32]) -> Vec<u8> {
    let header = [1, 1, SACK, 2 + 4 * ends.len() as u8];
    header.into_iter().chain(ends.iter().flat_map(|end| end.to_be_bytes())).collect()
}

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

type Wrap = dyn Fn(&[u8]) -> Vec<u8>;

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
    pub(crate) window: u16,
    pub(crate) growth: u16,
    pub(crate) scale: u8,
    offers_scale: bool,
    syn_ack: Option<Segment>,
    /// The timestamp of our segments, and the newest one of the stack, which they echo. `None` sends neither.
    pub(crate) stamps: Option<[u32; 2]>,
    pub(crate) sack: bool,
    pub(crate) ended: bool,
    pub(crate) wrap: Option<Box<Wrap>>,
    held: BTreeMap<u32, Segment>,
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
            offers_scale: false,
            syn_ack: None,
            stamps: None,
            sack: false,
            ended: false,
            wrap: None,
            held: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.local.port()
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.next = self.next.wrapping_add(len as u32);
    }

    pub(crate) fn stamp(&mut self, stamp: u32) {
        if let Some([own, _]) = &mut self.stamps {
            *own = stamp;
        }
    }

    pub(crate) fn begin_at(&mut self, isn: u32) {
        (self.isn, self.next, self.ended) = (isn, isn, false);
        self.held.clear();
    }

    pub(crate) fn out(&self) -> Out<'static> {
        let (seq, ack, window) = (self.next, self.expected, self.window);
        Out { flags: ACK, seq, ack, window, options: &[], payload: &[] }
    }

    pub(crate) fn part<'a>(&self, bytes: &'a [u8], range: Range<usize>) -> Out<'a> {
        let seq = self.next.wrapping_add(range.start as u32);
        Out { flags: ACK | PSH, seq, payload: &bytes[range], ..self.out() }
    }

    pub(crate) fn stack_packet(&self) -> Vec<u8> {
        let stack = Self::new(Rc::clone(&self.wire), self.server, self.local);
        stack.packet(Out { seq: self.expected, ack: self.next, payload: &[0; 1400], ..stack.out() })
    }

    pub(crate) fn packet(&self, out: Out<'_>) -> Vec<u8> {
        let Out { flags, seq, ack, window, options, payload } = out;
        let own = Some(self.options()).filter(|own| own.len() + options.len() <= MAX_OPTIONS_LEN).unwrap_or_default();
        let options = &[&own[..], options].concat();
        let fields = TcpFields { sequence: seq, acknowledgement: ack, flags, window };
        let mut headers = [0; MAX_HEADERS_LEN];
        let Some(template) = &self.headers else { return Vec::new() };
        let len = template.write(fields, options, payload, Checksum::Filled, &mut headers);
        [&headers[..len], payload].concat()
    }

    pub(crate) fn options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some([own, echo]) = self.stamps {
            options.extend([1, 1, TIMESTAMPS, 10]);
            options.extend([own, echo].into_iter().flat_map(u32::to_be_bytes));
        }
        let blocks = self.blocks();
        if self.sack && !blocks.is_empty() {
            options.extend(sack_option(&blocks.concat()));
        }
        options
    }

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

    pub(crate) fn syn_packet(&self, payload: &[u8]) -> Vec<u8> {
        let options = &Offer::default().options();
        self.packet(Out { flags: SYN, seq: self.isn, ack: 0, options, payload, ..self.out() })
    }

    pub(crate) fn put(&self, out: Out<'_>) -> Step {
        self.send_packet(&self.packet(out))
    }

    /// Sends a segment. The next one follows it.
    pub(crate) fn send(&mut self, out: Out<'_>) -> Step {
        self.put(out)?;
        let flags = usize::from(out.flags & SYN != 0) + usize::from(out.flags & FIN != 0);
        self.next = out.seq;
        self.sent(out.payload.len() + flags);
        Ok(())
    }

    pub(crate) fn send_packet(&self, packet: &[u8]) -> Step {
        match &self.wrap {
            Some(wrap) => self.wire.borrow_mut().send(&wrap(packet)),
            None => self.wire.borrow_mut().send(packet),
        }
    }

    /// Sends a part of the bytes that come next, in segments of up to `len` bytes. `next` stays as it is.
    pub(crate) fn put_parts(&self, bytes: &[u8], range: Range<usize>, len: usize) -> Step {
        let end = range.end;
        range.step_by(len).try_for_each(|from| self.put(self.part(bytes, from..end.min(from + len))))
    }

    /// Sends bytes in segments of 1,000 bytes, joined into a super-packet. `next` stays as it is.
    pub(crate) fn put_joined(&self, bytes: &[u8]) -> Step {
        // A PSH ends a super-packet.
        let segment = |from| self.packet(Out { flags: ACK, ..self.part(bytes, from..bytes.len().min(from + 1000)) });
        self.send_joined(&(0..bytes.len()).step_by(1000).map(segment).collect::<Vec<_>>())
    }

    pub(crate) fn send_joined(&self, packets: &[Vec<u8>]) -> Step {
        self.wire.borrow_mut().send_joined(packets)
    }

    pub(crate) fn takes_super_packets(&self) -> bool {
        self.wire.borrow().capabilities().segmentation.any()
    }

    pub(crate) fn ack(&self) -> Step {
        self.put(self.out())
    }

    pub(crate) fn ack_to(&mut self, end: u32) -> Step {
        self.expected = end;
        self.ack()
    }

    pub(crate) fn syn(&mut self) -> Step {
        self.syn_with(&Offer::default())
    }

    pub(crate) fn syn_with(&mut self, offer: &Offer) -> Step {
        (self.window, self.stamps) = (offer.window, offer.stamp.map(|stamp| [stamp, 0]));
        self.offers_scale = offer.scale.is_some();
        self.send(Out { flags: offer.flags, seq: self.isn, ack: 0, options: &offer.options(), ..self.out() })
    }

    pub(crate) fn syn_ack(&mut self, within: Duration) -> Step<Segment> {
        let after_isn = self.isn.wrapping_add(1);
        let segment =
            self.expect_within(within, "SYN+ACK", |segment| segment.has(SYN | ACK) && segment.ack == after_isn)?;
        self.opened(&segment);
        Ok(segment)
    }

    pub(crate) fn opened(&mut self, syn_ack: &Segment) {
        (self.stack_isn, self.expected) = (syn_ack.seq, syn_ack.end());
        let scale = syn_ack.option(WINDOW_SCALE).and_then(|value| value.first()).filter(|_| self.offers_scale);
        self.scale = scale.map_or(0, |scale| *scale.min(&14));
        self.syn_ack = Some(syn_ack.clone());
    }

    pub(crate) fn again(&mut self) -> Step {
        self.begin_at(self.next.wrapping_add(0x0001_0000));
        self.open()
    }

    pub(crate) fn open(&mut self) -> Step {
        self.open_with(&Offer::default()).map(drop)
    }

    pub(crate) fn has_agreed(&self, option: u8) -> bool {
        self.syn_ack.as_ref().is_some_and(|syn_ack| syn_ack.option(option).is_some())
    }

    pub(crate) fn open_with(&mut self, offer: &Offer) -> Step<Segment> {
        self.syn_with(offer)?;
        let segment = self.syn_ack(SOON)?;
        self.ack()?;
        Ok(segment)
    }

    /// Sends bytes in segments of up to 1,000 bytes, as the MTU allows. Ignores the stack's window.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Step {
        let room = self.wire.borrow().capabilities().mtu - 60;
        bytes.chunks(room.min(1000)).try_for_each(|payload| self.send(self.part(payload, 0..payload.len())))
    }

    /// Sends bytes, and waits for an ACK after each 8,000 bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Step {
        for chunk in bytes.chunks(8000) {
            self.data(chunk)?;
            self.acked(SOON)?;
        }
        Ok(())
    }

    pub(crate) fn fin(&mut self) -> Step {
        self.send(Out { flags: FIN | ACK, ..self.out() })
    }

    /// Sends a FIN, which must be acknowledged with everything before it.
    pub(crate) fn close(&mut self) -> Step {
        self.fin()?;
        self.acked(SOON).map(drop)
    }

    pub(crate) fn fin_again(&self) -> Step {
        self.put(Out { flags: FIN | ACK, seq: self.next.wrapping_sub(1), ..self.out() })
    }

    pub(crate) fn rst(&self) -> Step {
        self.put(Out { flags: RST | ACK, ..self.out() })
    }
}
