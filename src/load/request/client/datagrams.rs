//! Requests over UDP: a request or its response may be lost, late, or come twice.

use std::time::Duration;

use super::{LOOK, Requester};
use crate::load::error::LoadError;
use crate::load::sockets::Sockets;

impl Requester {
    /// Gives up requests over UDP that have waited too long: the request or its response is lost.
    pub(super) fn give_up<S: Sockets>(&mut self, sockets: &mut S) -> Result<(), LoadError> {
        let now = sockets.now();
        if now.duration_since(self.looked) < LOOK {
            return Ok(());
        }
        self.looked = now;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.sent.is_some_and(|sent| now.duration_since(sent) > self.exchange.patience) {
                (slot.sent, slot.unsent) = (None, 0);
                // Its latency is at least this.
                if let Some(due) = slot.due.pop_front() {
                    self.counts.latency.record(now - due);
                }
                self.free(sockets, index)?;
            }
        }
        Ok(())
    }

    /// Takes a datagram: the response to the last request, a duplicate, or a late response.
    pub(super) fn take_datagram<S: Sockets>(
        &mut self,
        sockets: &mut S,
        index: usize,
        len: usize,
    ) -> Result<(), LoadError> {
        let (slot, response) = (&mut self.slots[index], &self.room[..len]);
        let mark = self.exchange.mark_len();
        if len != self.exchange.response.period {
            return Err(LoadError::Corrupt { offset: len as u64 });
        }
        let is_last = response[..mark] == slot.mark.to_be_bytes()[size_of::<u32>() - mark..];
        if !is_last || slot.sent.is_none() {
            self.counts.duplicated += u64::from(is_last && slot.is_answered);
            return Ok(());
        }
        if self.exchange.verify.checks(self.is_warm_up) {
            self.exchange.response.verify(mark as u64, &response[mark..])?;
        }
        (slot.sent, slot.is_answered) = (None, true);
        let due = slot.due.pop_front();
        self.counts.arrived += 1;
        self.answer(due.map_or(Duration::ZERO, |due| sockets.now() - due));
        self.free(sockets, index)
    }
}
