//! What the client waits for, and the bytes that it receives.

use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, FIN, RST, SYN};

use super::Client;
use crate::wire::Segment;
use crate::{Harm, LATE, SOON, Step, Stop, distance, ms, patient, same, secs};

impl Client {
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
        // A stack that is late is slow. One that does not come at all hangs.
        let harm = if within < SOON { Harm::Speed } else { Harm::Hang };
        Err(Stop::Fail { seen: format!("no {what} within {within:?}; {}", self.came()), harm })
    }

    /// Waits for an answer without which a connection still carries bytes.
    pub(crate) fn expect_answer(&mut self, what: &str, is_it: impl FnMut(&Segment) -> bool) -> Step<Segment> {
        self.expect(what, is_it).map_err(|stop| stop.with(Harm::Manners))
    }

    /// Waits until the stack has acknowledged everything.
    pub(crate) fn acked(&mut self, within: Duration) -> Step<Segment> {
        let next = self.next;
        self.expect_within(within, "ACK of everything", |segment| segment.has(ACK) && segment.ack == next)
    }

    /// Waits for an ACK without data that answers a forged or unknown segment (RFC 5961).
    pub(crate) fn expect_challenge(&mut self, ack: u32) -> Step<Segment> {
        self.expect_answer("challenge ACK", |segment| {
            segment.flags & (ACK | RST | SYN | FIN) == ACK && segment.payload.is_empty() && segment.ack == ack
        })
    }

    pub(crate) fn expect_rst(&mut self) -> Step<Segment> {
        self.expect_answer("RST", |segment| segment.has(RST))
    }

    pub(crate) fn expect_rst_or_fin(&mut self) -> Step<Segment> {
        self.expect_answer("RST or FIN", |segment| segment.has(RST) || segment.has(FIN))
    }

    /// Waits for an ACK of what the stack expects next.
    pub(crate) fn expect_state(&mut self) -> Step<Segment> {
        let next = self.next;
        self.expect("ACK of what is expected", |segment| segment.has(ACK) && segment.ack == next)
    }

    /// Waits for a probe of the client's closed window.
    pub(crate) fn expect_probe(&mut self) -> Step<Segment> {
        self.expect_within(secs(4), "probe", |_| true)
    }

    pub(crate) fn expect_data(&mut self) -> Step<Segment> {
        self.expect("data", |segment| !segment.payload.is_empty())
    }

    /// Waits for more data, which may take a while.
    pub(crate) fn expect_more(&mut self) -> Step<Segment> {
        self.expect_within(LATE, "more data", |segment| !segment.payload.is_empty())
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
            check!(!is_it(&segment), "{what} came: {}", self.describe(&segment))?;
        }
        Ok(())
    }

    pub(crate) fn no_rst(&mut self, during: Duration) -> Step {
        self.expect_none(during, "a RST", |segment| segment.has(RST)).map_err(|stop| stop.with(Harm::Data))
    }

    pub(crate) fn silence(&mut self, during: Duration) -> Step {
        self.expect_none(during, "an answer", |_| true)
    }

    /// Takes in all segments until none comes for this long, and acknowledges nothing. Returns those with a payload.
    pub(crate) fn flight(&mut self, pause: Duration) -> Step<Vec<Segment>> {
        let mut flight = Vec::new();
        while let Some(segment) = self.next_segment(pause)? {
            if !segment.payload.is_empty() {
                flight.push(segment);
            }
        }
        Ok(flight)
    }

    /// Returns how far segments reach beyond the acknowledged bytes.
    pub(crate) fn reach<'a>(&self, segments: impl IntoIterator<Item = &'a Segment>) -> usize {
        let reach = segments.into_iter().map(|segment| distance(self.expected, segment.end()));
        usize::try_from(reach.max().unwrap_or(0)).unwrap_or(0)
    }

    /// Fails if a segment ends beyond a window of so many bytes.
    pub(crate) fn within(&self, window: usize, segment: &Segment) -> Step {
        let right = self.reach([segment]);
        check!(right <= window, "data came {right} bytes ahead of a window of {window}")
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
        self.receive_with(len, within, |_, _| Ok(false))
    }

    pub(crate) fn receive_with(
        &mut self,
        len: usize,
        within: Duration,
        is_lost: impl FnMut(&mut Self, &Segment) -> Step<bool>,
    ) -> Step<Vec<u8>> {
        self.receive_until(Some(len), within, is_lost)
    }

    pub(crate) fn receives(&mut self, bytes: &[u8], within: Duration) -> Step {
        same(&self.receive(bytes.len(), within)?, bytes)
    }

    /// Receives everything up to the stack's FIN, and acknowledges each segment.
    pub(crate) fn receive_to_end(&mut self) -> Step<Vec<u8>> {
        self.receive_until(None, LATE, |_, _| Ok(false))
    }

    pub(crate) fn receives_to_end(&mut self, bytes: &[u8]) -> Step {
        same(&self.receive_to_end()?, bytes)
    }

    /// Receives `len` bytes, or everything up to the stack's FIN, and loses the segments for which `is_lost` is true.
    pub(crate) fn receive_until(
        &mut self,
        len: Option<usize>,
        within: Duration,
        mut is_lost: impl FnMut(&mut Self, &Segment) -> Step<bool>,
    ) -> Step<Vec<u8>> {
        let (mut bytes, until) = (Vec::new(), Instant::now() + patient(within));
        self.seen.clear();
        while len.map_or(!self.ended, |len| bytes.len() < len) {
            let got = bytes.len();
            let Some(segment) = self.segment_until(until)? else {
                let missing =
                    len.map_or_else(|| format!("no end after {got} bytes"), |len| format!("{got} of {len} bytes came"));
                return fail!(Hang, "{missing} within {within:?}; {}", self.came());
            };
            let fin = if len.is_none() { ", and no FIN" } else { "" };
            check!(!segment.has(RST), Data, "a RST came after {got} bytes{fin}")?;
            if !is_lost(self, &segment)? {
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
                (is_enough, until) = (true, Instant::now() + patient(ms(400)));
            }
        }
        check!((least..=window).contains(&reached), "it sent {reached} bytes to a window of {window}")
    }

    /// Takes a segment, and acknowledges it if it has payload, SYN or FIN.
    pub(crate) fn take(&mut self, segment: Segment, bytes: &mut Vec<u8>) -> Step {
        if segment.len() == 0 {
            return Ok(());
        }
        self.accept(segment, bytes);
        self.window = self.window.saturating_add(self.growth);
        self.ack()
    }

    /// Takes a segment: its bytes, if all before them have arrived.
    pub(crate) fn accept(&mut self, segment: Segment, bytes: &mut Vec<u8>) {
        let at = segment.seq.wrapping_sub(self.stack_isn);
        if self.held.get(&at).is_none_or(|held| held.len() < segment.len()) {
            self.held.insert(at, segment);
        }
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
    }
}
