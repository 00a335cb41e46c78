//! A link that fails as networks and devices do.

mod alarm;
mod path;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use self::alarm::Alarm;
use self::path::{Dice, Fate, Packet, Path};
use crate::link::packet_len;
use crate::{Capabilities, Link, PacketBuffer, PacketMeta};

/// A [`Link`] around a link, which loses, repeats, reorders, corrupts and delays packets, and fails to send them, as
/// a [`FaultPlan`] says: the same seed and the same packets give the same faults. A super-packet is one packet.
/// Without a plan it only passes on; with one it copies.
///
/// Packets that others are to overtake do not wait for ever. On its way in such a packet is delivered when the link
/// has been found empty twice in turn, and until then the link is readable. On its way out it is sent when the link
/// is polled for packets and has none, thus before its owner sleeps; if the link is full then, with the next call.
///
/// A packet that is delayed by time is delivered, or sent, when the link is used or polled after that time. A thread
/// of the link wakes the task that polled it last when the first packet is due. A link that is dropped loses the
/// packets that it delays.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    /// `None` without a plan.
    state: Option<Box<State>>,
    faults: Arc<FaultCounter>,
}

#[derive(Debug)]
struct State {
    rx: Path,
    tx: Path,
    block: Dice,
    fail: Dice,
    fail_with: i32,
    /// Packets to be delivered.
    arrived: VecDeque<Packet>,
    /// Whether the last look found the link empty while packets were held back.
    found_empty: bool,
    /// What becomes of the packet that the link had no room for, when it is offered again.
    decided: Option<Fate>,
    /// Whether room was denied that there was.
    denied: bool,
    /// `None` where nothing is delayed by time.
    alarm: Option<Alarm>,
    /// The task that polled for packets last, and waits.
    waiting: Option<Waker>,
}

/// The faults of a [`Faulty`] link. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// All chance follows from it.
    pub seed: u64,
    /// Packets that arrive.
    pub rx: Faults,
    /// Packets that are sent.
    pub tx: Faults,
    /// Packets to be sent that the link says to have no room for. It has room at once.
    pub block: Which,
    /// Packets for which `try_send` returns an error and sends nothing. A stack takes that as the end of the
    /// link, by the contract of [`Link`]. A device with passing failures, such as `ENOBUFS` of a TUN, reports the
    /// packet as sent and so loses it; that is [`Faults::lose`].
    pub fail: Which,
    /// The number of that error, in the system's own count.
    pub fail_with: i32,
}

/// The faults of one direction. The default is none. A lost packet is not repeated or held back, and a repeated
/// one is not held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub lose: Which,
    /// Packets that come twice, one right behind the other.
    pub duplicate: Which,
    /// Packets that others overtake.
    pub reorder: Which,
    /// By how many others such a packet is overtaken where so many come; at least one.
    pub reorder_by: usize,
    /// Packets of which one bit is changed. Only for a link without offload: nobody verifies the checksum of a
    /// super-packet.
    pub corrupt: Which,
    /// How long every packet takes.
    pub delay: Duration,
    /// A packet takes up to so much more or less, evenly distributed. None overtakes another by that.
    pub jitter: Duration,
    /// Bits a second that cross at most. Packets wait, and those that would wait longer than [`Faults::QUEUE`] vanish.
    pub rate: Option<u64>,
}

impl Faults {
    /// The longest that a packet waits for its turn where the rate is limited.
    pub const QUEUE: Duration = Duration::from_millis(100);

    /// Whether packets are delayed by time.
    fn takes_time(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.rate.is_some()
    }
}

/// Some of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// By chance, one in so many; 0 is as good as [`Which::None`].
    OneIn(u32),
    /// By chance, so many of a million.
    PerMillion(u32),
    /// One alone, counted from 0 among the packets of more than `longer_than` bytes. With the MTU
    /// for that, it is a super-packet.
    Nth {
        /// The packet's number.
        index: u64,
        /// Shorter packets are not counted.
        longer_than: usize,
    },
}

/// The counters of a [`Faulty`] link, to be read from any thread.
#[derive(Debug, Default)]
pub struct FaultCounter {
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    blocked: AtomicU64,
    failed: AtomicU64,
    corrupted: AtomicU64,
    overflowed: AtomicU64,
}

/// The faults of a [`Faulty`] link so far, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets that vanished.
    pub lost: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets that were held back for others to overtake them, whether or not one did.
    pub reordered: u64,
    /// Packets that were denied room.
    pub blocked: u64,
    /// Packets for which sending returned an error.
    pub failed: u64,
    /// Packets of which a bit was changed.
    pub corrupted: u64,
    /// Packets that vanished because too many waited.
    pub overflowed: u64,
}

impl FaultCounter {
    /// The counts so far.
    pub fn counts(&self) -> FaultCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultCounts {
            lost: read(&self.lost),
            duplicated: read(&self.duplicated),
            reordered: read(&self.reordered),
            blocked: read(&self.blocked),
            failed: read(&self.failed),
            corrupted: read(&self.corrupted),
            overflowed: read(&self.overflowed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<L: Link> Faulty<L> {
    /// Applies `plan` to everything that crosses `link` from now on.
    pub fn new(link: L, plan: FaultPlan) -> Self {
        let is_none = FaultPlan { seed: plan.seed, ..FaultPlan::default() } == plan;
        let state = (!is_none).then(|| Box::new(State::new(&plan)));
        Self { link, state, faults: Arc::default() }
    }

    /// Where the counts are read.
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
            arrived: VecDeque::new(),
            found_empty: false,
            decided: None,
            denied: false,
            alarm: (plan.rx.takes_time() || plan.tx.takes_time()).then(Alarm::new),
            waiting: None,
        }
    }

    /// Decides the fate of a packet that has arrived.
    fn arrive(&mut self, mut packet: Packet, faults: &FaultCounter) {
        match self.rx.fate(packet.1.len()) {
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

    /// Delivers a packet, or has it wait for its time.
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

    /// Delivers what has waited for its time.
    fn deliver_due(&mut self) {
        let now = Instant::now();
        self.arrived.extend(std::iter::from_fn(|| self.rx.next_due(now)));
    }

    /// Delivers packets that were held back once the link was found empty twice, or has gone.
    fn nothing_arrived(&mut self, error: &io::Error, faults: &FaultCounter) {
        if error.kind() == io::ErrorKind::WouldBlock && !self.found_empty {
            self.found_empty = true;
            return;
        }
        self.rx.release();
        self.deliver_overtaken(faults);
    }

    /// Sends packets that were overtaken or have waited for their time, as far as the link has room.
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

    /// Fails as the plan says, or decides the fate of the packet.
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
        Ok(self.tx.fate(len))
    }

    fn try_recv(
        &mut self,
        link: &mut impl Link,
        buffers: &mut [PacketBuffer],
        faults: &FaultCounter,
    ) -> io::Result<usize> {
        self.deliver_due();
        if self.arrived.is_empty() {
            match link.try_recv(buffers) {
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
        // All were lost or delayed. The link has not said that it is empty, so it is still readable.
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(
        &mut self,
        link: &mut impl Link,
        (meta, slices): (PacketMeta, &[IoSlice<'_>]),
        faults: &FaultCounter,
    ) -> io::Result<()> {
        let len = packet_len(slices);
        let fate = match self.decided.take() {
            Some(fate) => fate,
            None => self.decide(len, faults)?,
        };
        let copy = || (meta, slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<_>>());
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

    /// Sends a packet at once, or has it wait for its time.
    fn pass(
        &mut self,
        link: &mut impl Link,
        (meta, slices): (PacketMeta, &[IoSlice<'_>]),
        fate: Fate,
        faults: &FaultCounter,
    ) -> io::Result<()> {
        if self.tx.takes_time() {
            let was_empty = self.tx.due_at().is_none();
            self.tx.wait((meta, slices.iter().flat_map(|slice| slice.iter().copied()).collect()), faults);
            // The task may wait already.
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
        if !self.arrived.is_empty() || self.rx.holds() {
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
            // The link was full, and has room now.
            self.send_due(link, faults)?;
            link.flush()?;
        }
        if self.alarm.is_some() {
            self.waiting = readable.is_pending().then(|| cx.waker().clone());
            self.set_alarm(now);
        }
        readable
    }

    /// Has the task that waits woken when the next packet is due.
    fn set_alarm(&self, now: Instant) {
        let (Some(alarm), Some(waker)) = (&self.alarm, &self.waiting) else { return };
        // What is due and the link has no room for waits for the link.
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

impl<L: Link> Link for Faulty<L> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.link.capabilities();
        // Somebody has to find the packets that were corrupted.
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
