//! A link with the faults of networks and devices.

mod alarm;
mod limit;
mod path;
mod plan;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use self::alarm::Alarm;
use self::limit::Limit;
use self::path::{Dice, Fate, Packet, Path};
use self::plan::count;
pub use self::plan::{FaultCounter, FaultCounts, FaultPlan, Faults, PathMtu, Which};
use crate::link::packet_len;
use crate::{Capabilities, Link, PacketBuffer, PacketMeta};

/// A [`Link`] that wraps another link and loses, duplicates, reorders, corrupts and delays packets, and fails to send
/// them, by a [`FaultPlan`]. The same seed and the same packets give the same faults. A super-packet counts as one
/// packet. With an empty plan, packets pass through; with any other plan, packets may be copied.
///
/// A packet that is held back for reordering does not wait forever. A received one is delivered when the wrapped link
/// was found empty twice in a row; until then the link stays readable. A sent one goes out when the link is polled and
/// has no packets, so before its task sleeps. If the link is full then, it goes out with the next call.
///
/// A packet with a delay is delivered or sent when the link is used or polled after its due time. When a packet is due,
/// a thread of the link wakes the task that polled the link last. Dropping the link drops the delayed packets.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    /// `None` for an empty plan.
    state: Option<Box<State>>,
    faults: Arc<FaultCounter>,
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
    block: Dice,
    fail: Dice,
    fail_with: i32,
    switch: LinkSwitch,
    /// Packets to be delivered.
    arrived: VecDeque<Packet>,
    /// Whether the last receive found the link empty while packets were held back.
    found_empty: bool,
    /// Whether the wrapped link had no more packets at the last receive. Until then its readiness promises nothing.
    drained: bool,
    /// The fate of the packet that the link had no room for. The caller will offer it again.
    decided: Option<Fate>,
    /// Whether the plan, not the link, denied room for the last packet.
    denied: bool,
    /// The limits on the length of received and of sent packets.
    rx_limit: Limit,
    tx_limit: Limit,
    /// `None` if packets have no delay.
    alarm: Option<Alarm>,
    /// The task that polled for packets last and is waiting.
    waiting: Option<Waker>,
}

impl<L: Link> Faulty<L> {
    /// Applies `plan` to all packets that cross `link` from now on.
    pub fn new(link: L, plan: FaultPlan) -> Self {
        let is_none = FaultPlan { seed: plan.seed, ..FaultPlan::default() } == plan;
        let state = (!is_none).then(|| Box::new(State::new(&plan)));
        Self { link, state, faults: Arc::default() }
    }

    /// The links of the shards of a stack, with one plan for all: they count together, and each has an equal share of a rate.
    pub fn of_shards(links: Vec<L>, plan: FaultPlan) -> Vec<Self> {
        let (shards, faults) = (links.len() as u64, Arc::default());
        let of_shard = |(seed, link)| {
            let share = |of: Faults| Faults { rate: of.rate.map(|rate| (rate / shards).max(1)), ..of };
            let plan = FaultPlan { seed, rx: share(plan.rx), tx: share(plan.tx), ..plan };
            Self { faults: Arc::clone(&faults), ..Self::new(link, plan) }
        };
        (plan.seed..).zip(links).map(of_shard).collect()
    }

    /// A switch that cuts the link. Packets may be copied from now on.
    pub fn switch(&mut self) -> LinkSwitch {
        self.state.get_or_insert_with(|| Box::new(State::new(&FaultPlan::default()))).switch.clone()
    }

    /// A handle to the counters.
    pub fn faults(&self) -> Arc<FaultCounter> {
        Arc::clone(&self.faults)
    }
}

impl State {
    fn new(plan: &FaultPlan) -> Self {
        let seed = |index: u64| plan.seed.wrapping_mul(10).wrapping_add(index);
        Self {
            rx: Path::new(plan.rx, seed(0)),
            tx: Path::new(plan.tx, seed(3)),
            block: Dice::new(plan.block, seed(6)),
            fail: Dice::new(plan.fail, seed(7)),
            fail_with: plan.fail_with,
            switch: LinkSwitch::default(),
            arrived: VecDeque::new(),
            found_empty: false,
            drained: true,
            decided: None,
            denied: false,
            rx_limit: Limit::new(plan.rx.path_mtu),
            tx_limit: Limit::new(plan.tx.path_mtu),
            alarm: (plan.rx.takes_time() || plan.tx.takes_time()).then(Alarm::new),
            waiting: None,
        }
    }

    /// Decides the fate of a packet that has arrived.
    fn arrive(&mut self, mut packet: Packet, faults: &FaultCounter) {
        if self.rx_limit.stops(packet.0, &packet.1) {
            count(&faults.too_big);
            if let Some(error) = self.rx_limit.error(&packet.1) {
                self.tx.put_back(error);
            }
            return;
        }
        let fate = self.rx.fate(packet.1.len());
        match if self.switch.is_cut() { Fate::Lose } else { fate } {
            Fate::Lose => return count(&faults.lost),
            Fate::Reorder => {
                count(&faults.reordered);
                return self.rx.hold(packet);
            }
            Fate::Duplicate => {
                count(&faults.duplicated);
                self.deliver(packet.clone(), faults);
            }
            Fate::Corrupt => {
                count(&faults.corrupted);
                self.rx.corrupt(&mut packet.1);
            }
            Fate::Pass => {}
        }
        self.deliver(packet, faults);
        self.rx.overtaken();
        self.deliver_overtaken(faults);
    }

    /// Delivers a packet, or queues it until it is due.
    fn deliver(&mut self, packet: Packet, faults: &FaultCounter) {
        if self.rx.takes_time() {
            self.rx.wait(packet, faults);
        } else {
            self.arrived.push_back(packet);
        }
    }

    fn deliver_overtaken(&mut self, faults: &FaultCounter) {
        while let Some(packet) = self.rx.next_overtaken() {
            self.deliver(packet, faults);
        }
    }

    /// Delivers the packets that are due.
    fn deliver_due(&mut self) {
        let now = Instant::now();
        self.arrived.extend(std::iter::from_fn(|| self.rx.next_due(now)));
    }

    /// Delivers the packets that were held back, if the link was found empty twice in a row or is gone.
    fn nothing_arrived(&mut self, error: &io::Error, faults: &FaultCounter) {
        if error.kind() == io::ErrorKind::WouldBlock && !self.found_empty {
            self.found_empty = true;
            return;
        }
        self.rx.release();
        self.deliver_overtaken(faults);
    }

    /// Sends the packets that were overtaken or are due, as far as the link has room.
    fn send_due(&mut self, link: &mut impl Link, faults: &FaultCounter) -> io::Result<()> {
        if self.tx.takes_time() {
            while let Some(packet) = self.tx.next_overtaken() {
                self.tx.wait(packet, faults);
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

    /// Fails if the plan says so, or decides the fate of the packet.
    fn decide(&mut self, len: usize, faults: &FaultCounter) -> io::Result<Fate> {
        if self.block.hit(len) {
            count(&faults.blocked);
            self.denied = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.fail.hit(len) {
            count(&faults.failed);
            return Err(io::Error::from_raw_os_error(self.fail_with));
        }
        let fate = self.tx.fate(len);
        Ok(if self.switch.is_cut() { Fate::Lose } else { fate })
    }

    fn try_recv(
        &mut self,
        link: &mut impl Link,
        buffers: &mut [PacketBuffer],
        faults: &FaultCounter,
    ) -> io::Result<usize> {
        self.deliver_due();
        if self.arrived.is_empty() {
            let received = link.try_recv(buffers);
            self.drained = received.as_ref().map_or(true, |count| *count < buffers.len());
            match received {
                Ok(count) => {
                    self.found_empty = false;
                    for buffer in &buffers[..count] {
                        self.arrive((buffer.meta(), buffer.packet().to_vec()), faults);
                    }
                }
                Err(error) => {
                    self.nothing_arrived(&error, faults);
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

    fn try_send(
        &mut self,
        link: &mut impl Link,
        (meta, slices): (PacketMeta, &[IoSlice<'_>]),
        faults: &FaultCounter,
    ) -> io::Result<()> {
        let len = packet_len(slices);
        if self.tx_limit.may_stop(len) && self.stops((meta, slices), faults) {
            return self.send_due(link, faults);
        }
        let fate = match self.decided.take() {
            Some(fate) => fate,
            None => self.decide(len, faults)?,
        };
        let copy = || (meta, copy(slices));
        match fate {
            Fate::Lose => count(&faults.lost),
            Fate::Reorder => {
                self.tx.hold(copy());
                count(&faults.reordered);
            }
            Fate::Corrupt => {
                let (meta, mut packet) = copy();
                self.tx.corrupt(&mut packet);
                self.pass(link, (meta, &[IoSlice::new(&packet)]), fate, faults)?;
                count(&faults.corrupted);
            }
            Fate::Duplicate => {
                self.pass(link, (meta, slices), fate, faults)?;
                if self.pass(link, (meta, slices), fate, faults).is_ok() {
                    count(&faults.duplicated);
                }
                // The packet itself has been sent.
                self.decided = None;
            }
            Fate::Pass => self.pass(link, (meta, slices), fate, faults)?,
        }
        if fate != Fate::Lose && fate != Fate::Reorder {
            self.tx.overtaken();
        }
        self.send_due(link, faults)
    }

    /// Drops a packet that is too long for the path. Returns whether it was.
    #[cold]
    fn stops(&mut self, (meta, slices): (PacketMeta, &[IoSlice<'_>]), faults: &FaultCounter) -> bool {
        let packet = copy(slices);
        if !self.tx_limit.stops(meta, &packet) {
            return false;
        }
        count(&faults.too_big);
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
        faults: &FaultCounter,
    ) -> io::Result<()> {
        if self.tx.takes_time() {
            let was_empty = self.tx.due_at().is_none();
            self.tx.wait((meta, copy(slices)), faults);
            // The task may already be waiting.
            if was_empty {
                self.set_alarm(Instant::now());
            }
            return Ok(());
        }
        link.try_send(meta, slices).inspect_err(|_| self.decided = Some(fate))
    }

    fn poll_readable(
        &mut self,
        link: &mut impl Link,
        cx: &mut Context<'_>,
        faults: &FaultCounter,
    ) -> Poll<io::Result<()>> {
        self.deliver_due();
        if !self.arrived.is_empty() || self.rx.holds() || !self.drained {
            return Poll::Ready(Ok(()));
        }
        let readable = link.poll_readable(cx);
        if readable.is_pending() && self.tx.has_packets() {
            self.tx.release();
            self.send_due(link, faults)?;
            link.flush()?;
        }
        let now = Instant::now();
        while readable.is_pending()
            && self.tx.due_at().is_some_and(|due| due <= now)
            && link.poll_writable(cx)?.is_ready()
        {
            // The link was full and has room now.
            self.send_due(link, faults)?;
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

    fn poll_writable(
        &mut self,
        link: &mut impl Link,
        cx: &mut Context<'_>,
        faults: &FaultCounter,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.denied) || self.tx.takes_time() {
            return Poll::Ready(Ok(()));
        }
        self.send_due(link, faults)?;
        link.poll_writable(cx)
    }
}

/// The bytes of a packet in one piece.
fn copy(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices.iter().flat_map(|slice| slice.iter().copied()).collect()
}

impl<L: Link> Link for Faulty<L> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.link.capabilities();
        // The receiver has to verify checksums to find corrupted packets.
        if self.state.as_ref().is_some_and(|state| state.rx.corrupts()) {
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
            Some(state) => state.try_recv(&mut self.link, buffers, &self.faults),
        }
    }

    fn has_passed_on(&mut self) -> bool {
        self.link.has_passed_on()
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        match &mut self.state {
            None => self.link.try_send(meta, slices),
            Some(state) => state.try_send(&mut self.link, (meta, slices), &self.faults),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(state) = &mut self.state {
            state.send_due(&mut self.link, &self.faults)?;
        }
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            None => self.link.poll_readable(cx),
            Some(state) => state.poll_readable(&mut self.link, cx, &self.faults),
        }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            None => self.link.poll_writable(cx),
            Some(state) => state.poll_writable(&mut self.link, cx, &self.faults),
        }
    }
}

#[cfg(test)]
mod tests;
