//! A link that fails as networks and devices do.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use crate::link::packet_len;
use crate::{Capabilities, Link, PacketBuffer, PacketMeta};

/// A [`Link`] around a link, which loses, repeats and delays packets, and fails to send them, as a
/// [`FaultPlan`] says: the same with the same seed and the same packets. For tests; it copies.
///
/// Delayed packets do not wait for ever. What is delayed on its way in is delivered when the link
/// has been found empty twice in turn, and until then the link is readable. What is delayed on its
/// way out is sent when the link is polled for packets and has none, thus before its owner sleeps;
/// if the link is full then, with the next call. A link that is dropped loses the packets that it delays.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    rx: Direction,
    tx: Direction,
    block: Dice,
    fail: Dice,
    fail_with: i32,
    /// Packets to be delivered.
    arrived: VecDeque<Packet>,
    /// Whether the last look found the link empty while packets were delayed.
    found_empty: bool,
    /// What becomes of the packet that the link had no room for, when it is offered again.
    decided: Option<Fate>,
    /// Whether room was denied that there was.
    denied: bool,
    faults: Arc<FaultCounter>,
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

/// The faults of one direction. The default is none. A lost packet is not repeated or delayed, and a repeated
/// one is not delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub lose: Which,
    /// Packets that come twice, one right behind the other.
    pub repeat: Which,
    /// Packets that others overtake.
    pub delay: Which,
    /// By how many others a delayed packet is overtaken where so many come; at least one.
    pub delay_by: usize,
}

/// Some of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// By chance, one in so many; 0 is as good as [`Which::None`].
    OneIn(u32),
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
    repeated: AtomicU64,
    delayed: AtomicU64,
    blocked: AtomicU64,
    failed: AtomicU64,
}

/// The faults of a [`Faulty`] link so far, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets that vanished.
    pub lost: u64,
    /// Packets that came twice.
    pub repeated: u64,
    /// Packets that were held back, whether or not another overtook them.
    pub delayed: u64,
    /// Packets that were denied room.
    pub blocked: u64,
    /// Packets for which sending returned an error.
    pub failed: u64,
}

impl FaultCounter {
    /// The counts so far.
    pub fn counts(&self) -> FaultCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultCounts {
            lost: read(&self.lost),
            repeated: read(&self.repeated),
            delayed: read(&self.delayed),
            blocked: read(&self.blocked),
            failed: read(&self.failed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Lose,
    Repeat,
    Delay,
}

type Packet = (PacketMeta, Vec<u8>);

#[derive(Debug)]
struct Direction {
    lose: Dice,
    repeat: Dice,
    delay: Dice,
    delay_by: usize,
    /// What is held back, and how many packets are still to overtake it.
    delayed: VecDeque<(usize, Packet)>,
}

impl Direction {
    fn new(faults: Faults, seed: u64) -> Self {
        Self {
            lose: Dice::new(faults.lose, seed),
            repeat: Dice::new(faults.repeat, seed.wrapping_add(1)),
            delay: Dice::new(faults.delay, seed.wrapping_add(2)),
            delay_by: faults.delay_by.max(1),
            delayed: VecDeque::new(),
        }
    }

    fn fate(&mut self, len: usize) -> Fate {
        // Every one is thrown for every packet, so that none depends on the others.
        match (self.lose.hit(len), self.repeat.hit(len), self.delay.hit(len)) {
            (true, _, _) => Fate::Lose,
            (_, true, _) => Fate::Repeat,
            (_, _, true) => Fate::Delay,
            _ => Fate::Pass,
        }
    }

    fn delay(&mut self, packet: Packet) {
        self.delayed.push_back((self.delay_by, packet));
    }

    /// Says that a packet has overtaken those that are delayed.
    fn overtaken(&mut self) {
        for (left, _) in &mut self.delayed {
            *left = left.saturating_sub(1);
        }
    }

    /// The next that has waited long enough: the one that has waited longest.
    fn due(&mut self) -> Option<Packet> {
        let (left, _) = self.delayed.front()?;
        if *left > 0 { None } else { self.delayed.pop_front().map(|(_, packet)| packet) }
    }

    /// Says that all have waited long enough.
    fn release(&mut self) {
        for (left, _) in &mut self.delayed {
            *left = 0;
        }
    }
}

/// Picks some of the packets.
#[derive(Debug)]
struct Dice {
    which: Which,
    state: u64,
    counted: u64,
}

impl Dice {
    fn new(which: Which, seed: u64) -> Self {
        // Neighbouring seeds have to begin far apart, and zero would stay zero.
        Self { which, state: seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, counted: 0 }
    }

    fn hit(&mut self, len: usize) -> bool {
        match self.which {
            Which::None | Which::OneIn(0) => false,
            Which::OneIn(sides) => self.throw().is_multiple_of(u64::from(sides)),
            Which::Nth { index, longer_than } => {
                let counted = len > longer_than;
                self.counted += u64::from(counted);
                counted && self.counted == index.saturating_add(1)
            }
        }
    }

    /// Xorshift (Marsaglia, Xorshift RNGs, 2003), of which the upper half is the better one.
    fn throw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 32
    }
}

impl<L: Link> Faulty<L> {
    /// Has all that crosses `link` from now on go as the plan says.
    pub fn new(link: L, plan: FaultPlan) -> Self {
        let seed = |index: u64| plan.seed.wrapping_mul(10).wrapping_add(index);
        Self {
            link,
            rx: Direction::new(plan.rx, seed(0)),
            tx: Direction::new(plan.tx, seed(3)),
            block: Dice::new(plan.block, seed(6)),
            fail: Dice::new(plan.fail, seed(7)),
            fail_with: plan.fail_with,
            arrived: VecDeque::new(),
            found_empty: false,
            decided: None,
            denied: false,
            faults: Arc::default(),
        }
    }

    /// Where the counts are read.
    pub fn faults(&self) -> Arc<FaultCounter> {
        Arc::clone(&self.faults)
    }

    /// Decides the fate of a packet that has arrived.
    fn arrive(&mut self, packet: Packet) {
        match self.rx.fate(packet.1.len()) {
            Fate::Lose => return count(&self.faults.lost),
            Fate::Delay => {
                count(&self.faults.delayed);
                return self.rx.delay(packet);
            }
            Fate::Repeat => {
                count(&self.faults.repeated);
                self.arrived.push_back(packet.clone());
            }
            Fate::Pass => {}
        }
        self.arrived.push_back(packet);
        self.rx.overtaken();
        self.arrived.extend(std::iter::from_fn(|| self.rx.due()));
    }

    /// Delivers delayed packets once the link was found empty twice, or has gone.
    fn nothing_arrived(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::WouldBlock && !self.found_empty {
            self.found_empty = true;
            return;
        }
        self.rx.release();
        self.arrived.extend(std::iter::from_fn(|| self.rx.due()));
    }

    /// Sends packets that were delayed for long enough, as far as the link has room.
    fn send_due(&mut self) -> io::Result<()> {
        while let Some((meta, packet)) = self.tx.due() {
            match self.link.try_send(meta, &[IoSlice::new(&packet)]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tx.delayed.push_front((0, (meta, packet)));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fails as the plan says, or decides the fate of the packet.
    fn decide(&mut self, len: usize) -> io::Result<Fate> {
        if self.block.hit(len) {
            count(&self.faults.blocked);
            self.denied = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.fail.hit(len) {
            count(&self.faults.failed);
            return Err(io::Error::from_raw_os_error(self.fail_with));
        }
        Ok(self.tx.fate(len))
    }
}

impl<L: Link> Link for Faulty<L> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        if self.arrived.is_empty() {
            match self.link.try_recv(buffers) {
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
        // All were lost or delayed. The link has not said that it is empty, so it is still readable.
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let len = packet_len(slices);
        let fate = match self.decided.take() {
            Some(fate) => fate,
            None => self.decide(len)?,
        };
        match fate {
            Fate::Lose => count(&self.faults.lost),
            Fate::Delay => {
                self.tx.delay((meta, slices.iter().flat_map(|slice| slice.iter().copied()).collect()));
                count(&self.faults.delayed);
            }
            Fate::Pass | Fate::Repeat => {
                if let Err(error) = self.link.try_send(meta, slices) {
                    self.decided = Some(fate);
                    return Err(error);
                }
                if fate == Fate::Repeat && self.link.try_send(meta, slices).is_ok() {
                    count(&self.faults.repeated);
                }
                self.tx.overtaken();
            }
        }
        self.send_due()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_due()?;
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.arrived.is_empty() || !self.rx.delayed.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let readable = self.link.poll_readable(cx);
        if readable.is_pending() && !self.tx.delayed.is_empty() {
            self.tx.release();
            self.send_due()?;
            self.link.flush()?;
        }
        readable
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.denied) {
            return Poll::Ready(Ok(()));
        }
        self.send_due()?;
        self.link.poll_writable(cx)
    }
}

#[cfg(test)]
mod tests;
