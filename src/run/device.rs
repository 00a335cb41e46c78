//! The TUN device alone: packets that the kernel routes back into it.
//!
//! ```text
//! task ── write ──► TUN ──► the kernel forwards ──► TUN ── read ──► task
//! ```
//!
//! A task on the runtime under test writes packets to the device, from and to an address on the task's own
//! side of it, and reads them again. So every byte crosses the device twice, is counted once, when it is
//! back, and costs what a write and a read of it cost, with the kernel's routing between; there is no TCP,
//! though the packets look like it, for the device offloads nothing else. One packet carries at most what
//! `--buffer` says. There is no client: it costs no time, and all that the process spends is the device's.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use platform::vnet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpLayout};
use platform::{Checksum, Class, Counted, Interrupts, Link, PacketBuffer, PacketMeta, TcpStatistics};

use super::failure::Failure;
use super::meter::ProcessMeter;
use super::party::Party;
use super::setup::Ran;
use super::supervisor::Supervisor;
use super::transfer::{Finish, Lane, Phase, StartingGate, TransferError};
use super::{RunError, tun};
use crate::plan::{Amount, Scenario};
use crate::sample::{DeviceFacts, Status};

/// The ports by which packets of the run's own are known.
const PORTS: [u16; 2] = [5201, 5202];

/// ACK alone: with any other flag a kernel may take a packet for the beginning or the end of a connection.
const ACK: u8 = 16;

/// The kernel hands a packet on within the write. One that is not back by then has been dropped.
const LOST: Duration = Duration::from_secs(1);

/// Turns after which others of the runtime, who watch the clock, have theirs: about a millisecond.
const TURNS: u64 = 16;

/// Runs the device.
pub(super) async fn run(scenario: &Scenario, interrupts: Interrupts) -> Result<Ran, RunError> {
    if !scenario.isolated {
        let source = io::Error::new(io::ErrorKind::Unsupported, "it would make a router of this host");
        return Err(platform::Error::new(Class::Unavailable, "forward packets in", "the host's network", source)
            .remedy("leave out --netns host; only Linux has networks of a run's own")
            .into());
    }
    let (device, facts) = tun::open(scenario)?;
    platform::enable_forwarding(&facts.name, scenario.network.address.is_ipv6())?;
    let drops = device.drop_counter();
    let link = Counted::new(device);
    let gate = Arc::new(StartingGate::new(1, ProcessMeter::new(link.traffic(), move || drops.read())));
    let lanes: Arc<[Lane]> = Lane::split(scenario).into();
    let shuttle = Shuttle::new(link, scenario, &facts)?;
    let task = {
        let (lanes, gate) = (Arc::clone(&lanes), Arc::clone(&gate));
        async move {
            let Some(lane) = lanes.first() else { return Ok(()) };
            shuttle.run(lane, &gate).await.map_err(|error| failure(&error))
        }
    };
    let outcome = Supervisor::of(scenario, lanes, gate).supervise(Party::alone(task), Vec::new(), interrupts).await?;
    Ok(Ran { outcome, congestion: None, device: Some(facts), effective: None })
}

fn failure(error: &TransferError) -> Failure {
    let mut failure = Failure::of_transfer("the device", error);
    if matches!(error, TransferError::Io { .. }) {
        failure.status = Status::DeviceLost;
    }
    failure
}

/// How far the payload is to go.
#[derive(Clone, Copy)]
enum Goal {
    /// To this offset.
    Offset(u64),
    /// Until then.
    Time(Instant),
    /// No further.
    None,
}

/// Writes packets to a link and takes them back.
struct Shuttle<L> {
    link: L,
    headers: TcpHeaders,
    checksum: Checksum,
    batch: Vec<PacketBuffer>,
    /// Payload of a segment, and of the largest packet, in bytes.
    segment_len: usize,
    largest: usize,
    /// Most payload under way, in bytes.
    window: u64,
    sent: u64,
    back: u64,
    /// The link was full.
    blocked: bool,
}

impl<L: Link> Shuttle<L> {
    /// Both ends of its packets are the stack's address: it is the only one of the device's network that is
    /// sure to be there and is not the kernel's own.
    fn new(link: L, scenario: &Scenario, facts: &DeviceFacts) -> Result<Self, RunError> {
        let [from, to] = PORTS.map(|port| SocketAddr::new(scenario.network.peer, port));
        let capabilities = link.capabilities();
        let headers = TcpHeaders::new(from, to).filter(|headers| capabilities.mtu > headers.len_without_options());
        let headers = headers.ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "an MTU without room for headers");
            platform::Error::new(Class::Invalid, "fill", &facts.name, source).remedy("raise --mtu")
        })?;
        let room = |packet_len: usize| packet_len - headers.len_without_options();
        let segment_len = room(capabilities.mtu).min(scenario.buffer_bytes.get());
        let largest = room(capabilities.max_packet_len).min(scenario.buffer_bytes.get()) / segment_len * segment_len;
        // Half of the queue is for packets that nobody here has sent.
        let queue = facts.tx_queue_len.unwrap_or(2).max(2) as usize / 2 * segment_len;
        Ok(Self {
            batch: (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect(),
            checksum: if capabilities.checksum.tx { Checksum::Partial } else { Checksum::Complete },
            window: scenario.window_bytes.min(queue).max(segment_len) as u64,
            link,
            headers,
            segment_len,
            largest,
            sent: 0,
            back: 0,
            blocked: false,
        })
    }

    /// Delivers the lane to itself.
    async fn run(mut self, lane: &Lane, gate: &StartingGate) -> Result<(), TransferError> {
        self.turn_to(Goal::Offset(lane.warmup_bytes), Phase::WarmUp, lane).await?;
        // The only stream there is opens the gate, and does not wait.
        gate.wait()?;
        let goal = match lane.amount {
            Amount::Bytes(bytes) => Goal::Offset(lane.warmup_bytes + bytes.get()),
            Amount::Time(time) => Goal::Time(Instant::now() + time),
        };
        self.turn_to(goal, Phase::Timed, lane).await?;
        lane.finish(&Finish {
            bytes: self.back - lane.warmup_bytes,
            cpu: Some(Duration::ZERO),
            retransmits: None,
            tcp: TcpStatistics::default(),
            end: gate.read(),
        });
        self.turn_to(Goal::None, Phase::Drain, lane).await
    }

    /// Sends and takes back by turns, a batch each, so that what was sent is still in the processor's cache.
    async fn turn_to(&mut self, goal: Goal, phase: Phase, lane: &Lane) -> Result<(), TransferError> {
        for turn in 1_u64.. {
            let sent = self.send(goal, lane)?;
            let taken = self.take(phase, lane)?;
            match goal {
                Goal::Offset(end) if self.back >= end => return Ok(()),
                Goal::Time(end) if Instant::now() >= end => return Ok(()),
                Goal::None if self.back == self.sent => return Ok(()),
                _ => {}
            }
            if sent + taken == 0 {
                self.wait().await?;
            } else if turn.is_multiple_of(TURNS) {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Sends a batch of packets, as far as there is room for them. Answers how many.
    fn send(&mut self, goal: Goal, lane: &Lane) -> Result<usize, TransferError> {
        self.blocked = false;
        for count in 0..self.batch.len() {
            let left = match goal {
                Goal::Offset(end) => end - self.sent,
                Goal::Time(_) => u64::MAX,
                Goal::None => 0,
            };
            let room = self.window - (self.sent - self.back);
            // Whole segments, but for the last.
            let room = room / self.segment_len as u64 * self.segment_len as u64;
            let len = left.min(room).min(self.largest as u64) as usize;
            if len == 0 {
                return Ok(count);
            }
            match self.send_packet(lane.pattern.slice(self.sent, len)) {
                Ok(()) => self.sent += len as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(count);
                }
                Err(source) => return Err(TransferError::Io { operation: "write", source }),
            }
        }
        Ok(self.batch.len())
    }

    fn send_packet(&mut self, payload: &[u8]) -> io::Result<()> {
        // The receiver sees by the sequence number which bytes they are.
        let fields = TcpFields { sequence: self.sent as u32, acknowledgement: 0, flags: ACK, window: u16::MAX };
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = self.headers.write(fields, &[], payload, self.checksum, &mut headers);
        let segments = payload.len() > self.segment_len;
        let gso_size = NonZeroU16::new(self.segment_len as u16).filter(|_| segments);
        let meta = PacketMeta { checksum: self.checksum, gso_size };
        self.link.try_send(meta, &[IoSlice::new(&headers[..len]), IoSlice::new(payload)])
    }

    /// Takes back what is there. Answers how many packets.
    fn take(&mut self, phase: Phase, lane: &Lane) -> Result<usize, TransferError> {
        let mut taken = 0;
        loop {
            let mut batch = std::mem::take(&mut self.batch);
            let received = self.link.try_recv(&mut batch);
            let result = match received {
                Ok(count) => {
                    batch[..count].iter().try_for_each(|buffer| self.take_packet(buffer.packet(), phase, lane))
                }
                Err(_) => Ok(()),
            };
            self.batch = batch;
            result?;
            match received {
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                Err(source) => return Err(TransferError::Io { operation: "read", source }),
            }
        }
    }

    fn take_packet(&mut self, packet: &[u8], phase: Phase, lane: &Lane) -> Result<(), TransferError> {
        // The kernel has things of its own to say on a new interface.
        let Some(layout) = TcpLayout::parse(packet) else { return Ok(()) };
        let tcp = &packet[layout.tcp_at..layout.payload_at];
        let ports = [u16::from_be_bytes([tcp[0], tcp[1]]), u16::from_be_bytes([tcp[2], tcp[3]])];
        if ports != PORTS {
            return Ok(());
        }
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        // Packets may overtake each other, but not by as much as the numbers go round after.
        let distance = sequence.wrapping_sub(self.back as u32).cast_signed();
        let payload = &packet[layout.payload_at..];
        let offset = self.back.checked_add_signed(distance.into()).unwrap_or(u64::MAX);
        if offset.saturating_add(payload.len() as u64) > self.sent {
            return Err(TransferError::Corrupt { offset });
        }
        lane.check(phase, offset, payload)?;
        self.back += payload.len() as u64;
        if self.back > self.sent {
            return Err(TransferError::Corrupt { offset });
        }
        if phase != Phase::Drain {
            lane.have_arrived(self.back);
        }
        Ok(())
    }

    /// Waits until there is something to take or, where it is that which lacks, room to send.
    async fn wait(&mut self) -> Result<(), TransferError> {
        match tokio::time::timeout(LOST, poll_fn(|cx| self.poll_change(cx))).await {
            Ok(changed) => changed.map_err(TransferError::io("wait")),
            Err(_) => Err(TransferError::Lost { got: self.back, expected: self.sent }),
        }
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writable = if self.blocked { self.link.poll_writable(cx) } else { Poll::Pending };
        let readable = self.link.poll_readable(cx);
        if writable.is_ready() { writable } else { readable }
    }
}

#[cfg(test)]
mod tests;
