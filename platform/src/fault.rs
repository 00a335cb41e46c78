//! A link with impairments.

mod counts;
mod limit;
mod path;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

pub use self::counts::{Fate, FaultCounter, FaultCounts, Faults};
use self::limit::Limit;
use self::path::{Packet, Path};
use crate::alarm::Alarm;
use crate::link::packet_len;
use crate::{Capabilities, Impairments, Link, PacketBuffer, PacketMeta};

/// A [`Link`] that wraps another link and does to packets what [`Impairments`] say, both ways. The same seed and the
/// same packets have the same fates. Without impairments, packets pass through; else they may be copied.
///
/// A received packet that is held back is delivered when the wrapped link was found empty twice in a row; a sent one
/// goes out when the link is polled and has no packets, or with the next call. A delayed packet moves when the link is
/// used or polled after its due time, for which a thread wakes the last task that polled. Packets over a rate limit
/// wait in a queue of 100 ms; more are dropped.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    /// `None` if all packets pass through.
    state: Option<Box<State>>,
    counter: Arc<FaultCounter>,
}

/// Cuts a [`Faulty`] link, and joins it again. While it is cut, all packets are lost.
#[derive(Clone, Debug, Default)]
pub struct LinkSwitch(Arc<AtomicBool>);

impl LinkSwitch {
    /// Cuts the link, or joins it again.
    pub fn cut(&self, is_cut: bool) {
        self.0.store(is_cut, Ordering::Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct State {
    rx: Path,
    tx: Path,
    counter: Arc<FaultCounter>,
    faults: Faults,
    /// How often a packet was offered to be sent.
    offered: u64,
    switch: LinkSwitch,
    arrived: VecDeque<Packet>,
    /// Whether the last receive found the link empty while packets were held back.
    found_empty: bool,
    /// Whether the wrapped link had no more packets at the last receive. Until then its readiness promises nothing.
    drained: bool,
    /// The fate of the packet that the link had no room for. The caller will offer it again.
    decided: Option<Fate>,
    /// Whether a fault, not the link, denied room for the last packet.
    denied: bool,
    rx_limit: Limit,
    tx_limit: Limit,
    /// `None` if packets have no delay.
    alarm: Option<Alarm>,
    /// The task that polled for packets last and is waiting.
    waiting: Option<Waker>,
}

impl<L: Link> Faulty<L> {
    /// Impairs all packets that cross `link` from now on. The seed is that of all chance.
    pub fn new(link: L, impairments: Impairments, seed: u64) -> Self {
        Self::with_faults(link, impairments, seed, Faults::default())
    }

    /// The same, with faults for tests.
    pub fn with_faults(link: L, impairments: Impairments, seed: u64, faults: Faults) -> Self {
        let counter = Arc::default();
        let is_none = !impairments.has_link() && faults == Faults::default();
        let state = (!is_none).then(|| Box::new(State::new(impairments, seed, faults, Arc::clone(&counter))));
        Self { link, state, counter }
    }

    /// The links of the shards of a stack: they count together, and each has an equal share of a rate.
    pub fn of_shards(links: Vec<L>, impairments: Impairments, seed: u64) -> Vec<Self> {
        let (shards, counter) = (links.len() as u64, Arc::default());
        let share = |rate: NonZeroU64| NonZeroU64::new(rate.get() / shards).unwrap_or(NonZeroU64::MIN);
        let of_shard = Impairments { rate_limit: impairments.rate_limit.map(share), ..impairments };
        let faulty = |(seed, link)| {
            let mut faulty = Self::new(link, of_shard, seed);
            faulty.state.iter_mut().for_each(|state| state.counter = Arc::clone(&counter));
            Self { counter: Arc::clone(&counter), ..faulty }
        };
        (seed..).zip(links).map(faulty).collect()
    }

    /// A switch that cuts the link. Packets may be copied from now on.
    pub fn switch(&mut self) -> LinkSwitch {
        let counter = &self.counter;
        let none = || Box::new(State::new(Impairments::default(), 0, Faults::default(), Arc::clone(counter)));
        self.state.get_or_insert_with(none).switch.clone()
    }

    /// A handle to the counts.
    pub fn faults(&self) -> Arc<FaultCounter> {
        Arc::clone(&self.counter)
    }
}

impl State {
    fn new(link: Impairments, seed: u64, faults: Faults, counter: Arc<FaultCounter>) -> Self {
        let path = |index: u64| Path::new(link, faults, seed.wrapping_mul(10).wrapping_add(index));
        Self {
            rx: path(0),
            tx: path(3),
            counter,
            faults,
            offered: 0,
            switch: LinkSwitch::default(),
            arrived: VecDeque::new(),
            found_empty: false,
            drained: true,
            decided: None,
            denied: false,
            rx_limit: Limit::new(&link),
            tx_limit: Limit::new(&link),
            alarm: link.takes_time().then(Alarm::new),
            waiting: None,
        }
    }

    fn arrive(&mut self, mut packet: Packet) {
        if self.rx_limit.stops(packet.0, &packet.1) {
            self.counter.count(|counts| &mut counts.too_big);
            if let Some(error) = self.rx_limit.error(&packet.1) {
                self.tx.put_back(error);
            }
            return;
        }
        let fate = self.rx.fate();
        match if self.switch.is_cut() { Fate::Lose } else { fate } {
            Fate::Lose => return self.counter.count(|counts| &mut counts.lost),
            Fate::Reorder => {
                self.counter.count(|counts| &mut counts.reordered);
                return self.rx.hold(packet);
            }
            Fate::Duplicate => {
                self.counter.count(|counts| &mut counts.duplicated);
                self.deliver(packet.clone());
            }
            Fate::Corrupt => {
                self.counter.count(|counts| &mut counts.corrupted);
                self.rx.corrupt(&mut packet.1);
            }
            Fate::Pass => {}
        }
        self.deliver(packet);
        self.rx.overtaken();
        self.deliver_overtaken();
    }

    /// Delivers a packet, or queues it until it is due.
    fn deliver(&mut self, packet: Packet) {
        if self.rx.takes_time() {
            self.rx.wait(packet, &self.counter);
        } else {
            self.arrived.push_back(packet);
        }
    }

    fn deliver_overtaken(&mut self) {
        while let Some(packet) = self.rx.next_overtaken() {
            self.deliver(packet);
        }
    }

    fn deliver_due(&mut self) {
        let now = Instant::now();
        self.arrived.extend(std::iter::from_fn(|| self.rx.next_due(now)));
    }

    /// Delivers the packets that were held back, if the link was found empty twice in a row or is gone.
    fn nothing_arrived(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::WouldBlock && !self.found_empty {
            self.found_empty = true;
            return;
        }
        self.rx.release();
        self.deliver_overtaken();
    }

    /// Sends the packets that were overtaken or are due, as far as the link has room.
    fn send_due(&mut self, link: &mut impl Link) -> io::Result<()> {
        if self.tx.takes_time() {
            while let Some(packet) = self.tx.next_overtaken() {
                self.tx.wait(packet, &self.counter);
            }
        }
        loop {
            let is_timed = self.tx.takes_time();
            let due = if is_timed { self.tx.next_due(Instant::now()) } else { self.tx.next_overtaken() };
            let Some((meta, packet)) = due else { return Ok(()) };
            match link.try_send(meta, &[IoSlice::new(&packet)]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tx.put_back((meta, packet));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fails if a fault says so, or decides the fate of the packet.
    fn decide(&mut self) -> io::Result<Fate> {
        let number = self.offered;
        self.offered += 1;
        if self.faults.block_every.is_some_and(|every| self.offered.is_multiple_of(every)) {
            self.denied = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Some((_, errno)) = self.faults.fail.filter(|(failing, _)| *failing == number) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let fate = self.tx.fate();
        Ok(if self.switch.is_cut() { Fate::Lose } else { fate })
    }

    fn try_recv(&mut self, link: &mut impl Link, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        self.deliver_due();
        if self.arrived.is_empty() {
            let received = link.try_recv(buffers);
            self.drained = received.as_ref().map_or(true, |count| *count < buffers.len());
            match received {
                Ok(count) => {
                    self.found_empty = false;
                    for buffer in &buffers[..count] {
                        self.arrive((buffer.meta(), buffer.packet().to_vec()));
                    }
                }
                Err(error) => {
                    self.nothing_arrived(&error);
                    if self.arrived.is_empty() {
                        return Err(error);
                    }
                }
            }
        }
        let mut count = 0;
        for buffer in buffers {
            let Some((meta, packet)) = self.arrived.pop_front() else { break };
            buffer.storage_mut()[..packet.len()].copy_from_slice(&packet);
            buffer.filled(packet.len(), meta)?;
            count += 1;
        }
        // If all packets were lost or delayed, the wrapped link may have more: `poll_readable` is ready then.
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(&mut self, link: &mut impl Link, (meta, slices): (PacketMeta, &[IoSlice<'_>])) -> io::Result<()> {
        let len = packet_len(slices);
        if self.tx_limit.may_stop(len) && self.stops((meta, slices)) {
            return self.send_due(link);
        }
        let fate = match self.decided.take() {
            Some(fate) => fate,
            None => self.decide()?,
        };
        let copy = || (meta, copy(slices));
        match fate {
            Fate::Lose => self.counter.count(|counts| &mut counts.lost),
            Fate::Reorder => {
                self.tx.hold(copy());
                self.counter.count(|counts| &mut counts.reordered);
            }
            Fate::Corrupt => {
                let (meta, mut packet) = copy();
                self.tx.corrupt(&mut packet);
                self.pass(link, (meta, &[IoSlice::new(&packet)]), fate)?;
                self.counter.count(|counts| &mut counts.corrupted);
            }
            Fate::Duplicate => {
                self.pass(link, (meta, slices), fate)?;
                if self.pass(link, (meta, slices), fate).is_ok() {
                    self.counter.count(|counts| &mut counts.duplicated);
                }
                // The packet itself has been sent.
                self.decided = None;
            }
            Fate::Pass => self.pass(link, (meta, slices), fate)?,
        }
        if fate != Fate::Lose && fate != Fate::Reorder {
            self.tx.overtaken();
        }
        self.send_due(link)
    }

    /// Drops a packet that is too long for the path. Returns whether it was.
    #[cold]
    fn stops(&mut self, (meta, slices): (PacketMeta, &[IoSlice<'_>])) -> bool {
        let packet = copy(slices);
        if !self.tx_limit.stops(meta, &packet) {
            return false;
        }
        self.counter.count(|counts| &mut counts.too_big);
        if let Some(error) = self.tx_limit.error(&packet) {
            self.arrived.push_back(error);
            // The task may already be waiting.
            if let Some(waker) = self.waiting.take() {
                waker.wake();
            }
        }
        true
    }

    /// Sends a packet now, or queues it until it is due.
    fn pass(
        &mut self,
        link: &mut impl Link,
        (meta, slices): (PacketMeta, &[IoSlice<'_>]),
        fate: Fate,
    ) -> io::Result<()> {
        if self.tx.takes_time() {
            let was_empty = self.tx.due_at().is_none();
            self.tx.wait((meta, copy(slices)), &self.counter);
            // The task may already be waiting.
            if was_empty {
                self.set_alarm(Instant::now());
            }
            return Ok(());
        }
        link.try_send(meta, slices).inspect_err(|_| self.decided = Some(fate))
    }

    fn poll_readable(&mut self, link: &mut impl Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.deliver_due();
        if !self.arrived.is_empty() || self.rx.holds() || !self.drained {
            return Poll::Ready(Ok(()));
        }
        let readable = link.poll_readable(cx);
        if readable.is_pending() && self.tx.has_packets() {
            self.tx.release();
            self.send_due(link)?;
            link.flush()?;
        }
        let now = Instant::now();
        while readable.is_pending()
            && self.tx.due_at().is_some_and(|due| due <= now)
            && link.poll_writable(cx)?.is_ready()
        {
            // The link was full and has room now.
            self.send_due(link)?;
            link.flush()?;
        }
        // Only a packet that becomes due and an error about a packet that was sent wake the task.
        if self.alarm.is_some() || self.tx_limit.is_set() {
            self.waiting = readable.is_pending().then(|| cx.waker().clone());
            self.set_alarm(now);
        }
        readable
    }

    /// Arranges that the waiting task is woken when the next packet is due.
    fn set_alarm(&self, now: Instant) {
        let (Some(alarm), Some(waker)) = (&self.alarm, &self.waiting) else { return };
        // A packet that is already due waits for room in the link, not for a time.
        let later = self.tx.due_at().filter(|due| *due > now);
        if let Some(due) = [self.rx.due_at(), later].into_iter().flatten().min() {
            alarm.set(due, waker);
        }
    }

    fn poll_writable(&mut self, link: &mut impl Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.denied) || self.tx.takes_time() {
            return Poll::Ready(Ok(()));
        }
        self.send_due(link)?;
        link.poll_writable(cx)
    }
}

fn copy(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices.iter().flat_map(|slice| slice.iter().copied()).collect()
}

impl<L: Link> Link for Faulty<L> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.link.capabilities();
        // The receiver has to verify checksums to find corrupted packets.
        if self.state.as_ref().is_some_and(|state| state.rx.link.corrupt_ppm > 0) {
            capabilities.checksum.rx = false;
        }
        capabilities
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        self.link.enable_udp_segmentation()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        match &mut self.state {
            None => self.link.try_recv(buffers),
            Some(state) => state.try_recv(&mut self.link, buffers),
        }
    }

    fn has_passed_on(&mut self) -> bool {
        self.link.has_passed_on()
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        match &mut self.state {
            None => self.link.try_send(meta, slices),
            Some(state) => state.try_send(&mut self.link, (meta, slices)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(state) = &mut self.state {
            state.send_due(&mut self.link)?;
        }
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            None => self.link.poll_readable(cx),
            Some(state) => state.poll_readable(&mut self.link, cx),
        }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            None => self.link.poll_writable(cx),
            Some(state) => state.poll_writable(&mut self.link, cx),
        }
    }
}

#[cfg(test)]
mod tests;
