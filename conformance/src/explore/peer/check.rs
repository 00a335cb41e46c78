//! The invariants that a single segment can break.

use platform::packet::flags::{FIN, RST};

use super::Peer;
use crate::distance;
use crate::explore::app::{App, Close};
use crate::explore::{Broken, Invariant, Played};
use crate::wire::Segment;

impl Peer {
    /// Checks a segment of the open connection.
    pub(super) fn check(&self, segment: &Segment, app: &App) -> Played {
        if segment.has(RST) {
            let is_due = match app.close {
                _ if self.is_over() => true,
                // It is that of the connection before.
                _ if self.is_again && segment.seq != self.client.expected => true,
                Some(Close::Reset) => true,
                Some(Close::Drop) => app.is_closed && app.read < self.next,
                Some(Close::Shutdown) | None => false,
            };
            let state = || format!("a RST without a reason came; {}; {}", self.state(), app.state());
            return if is_due { Ok(()) } else { Err(self.broken(Invariant::Unasked, segment, &state())) };
        }
        if !segment.payload.is_empty() || segment.has(FIN) {
            self.check_payload(segment, app)?;
        }
        let acknowledged = distance(self.client.isn.wrapping_add(1), segment.ack);
        let prefix = self.delivered.prefix;
        let most = prefix + usize::from(self.is_fin_delivered && prefix == self.next);
        if usize::try_from(acknowledged).is_ok_and(|acknowledged| acknowledged > most) {
            let what = format!("{most} were delivered, and {acknowledged} are acknowledged");
            return Err(self.broken(Invariant::Acks, segment, &what));
        }
        Ok(())
    }

    fn check_payload(&self, segment: &Segment, app: &App) -> Played {
        let (at, end) = self.places(segment);
        let (len, total) = (segment.payload.len(), app.total);
        let ends = segment.has(FIN);
        // Bytes before the stream are those of a probe that has an old number.
        let new = at.map_or(&[][..], |_| &segment.payload);
        let mss = self.opening.offer.mss.unwrap_or(if self.opening.ipv6 { 1220 } else { 536 });
        let is_probe = len == 1 && at == Some(self.limit);
        let (invariant, what) = if end > total {
            (Invariant::Unasked, format!("the server wrote {total} bytes, and {end} came"))
        } else if ends && (app.close.is_none_or(|close| close == Close::Reset) || end != total) {
            (Invariant::Unasked, "a FIN came before its time".to_owned())
        } else if self.streams[1][end - new.len()..end] != *new {
            (Invariant::Bytes, format!("the bytes up to {end} differ from those that the server wrote"))
        } else if len + segment.options.len() > mss.into() {
            (Invariant::Size, format!("the client's MSS is {mss}, and {len} bytes came"))
        } else if end > self.limit && !is_probe {
            (Invariant::Window, format!("the client's window ends at {}, and byte {end} came", self.limit))
        } else {
            return Ok(());
        };
        Err(self.broken(invariant, segment, &what))
    }

    fn broken(&self, invariant: Invariant, segment: &Segment, what: &str) -> Broken {
        Broken::new(invariant, format!("{what}: {}", self.client.describe(segment)))
    }
}
