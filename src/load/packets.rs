//! Packets without connections: they are written to a link and read again.
//!
//! Their source and destination is one address, so every byte crosses the link twice and is counted once, when it is back.
//! The packets have TCP headers, because a device offloads nothing else. A packet carries at most `--buffer` bytes.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::slice;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use platform::packet::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, TcpSegment, flags};
use platform::{Checksum, Class, Link, PacketBuffer, PacketMeta, Switches, TcpStatistics};

use super::error::LoadError;
use super::stream::{Finish, Phase, Stream};
use super::window::Window;
use crate::failure::Failure;
use crate::meter::Cost;
use crate::plan::scenario::{Amount, Scenario};
use crate::remedy::{SystemError, WithRemedy};
use crate::sample::{DeviceFacts, Status};

const PORTS: [u16; 2] = [5201, 5202];

/// The kernel forwards a packet during the write. A packet that is not back after this time was dropped.
const LOST: Duration = Duration::from_secs(1);

/// Turns, about a millisecond in all, after which the task yields: other tasks watch the clock.
const TURNS: u64 = 16;

pub(crate) fn failure(error: &LoadError) -> Failure {
    let failure = error.failure("the device");
    let is_lost = matches!(error, LoadError::Io { .. });
    if is_lost { Failure { status: Status::DeviceLost, ..failure } } else { failure }
}

#[derive(Clone, Copy)]
enum Goal {
    /// Up to this offset.
    Offset(u64),
    /// Until the window that began at this time is over.
    Time {
        begin: Instant,
    },
    None,
}

pub(crate) struct Shuttle<L> {
    link: L,
    headers: TcpHeaders,
    checksum: Checksum,
    batch: Vec<PacketBuffer>,
    /// Payload of a segment, and of the largest packet, in bytes.
    segment_len: usize,
    largest: usize,
    /// Most payload in flight, in bytes.
    window: u64,
    sent: u64,
    back: u64,
    blocked: bool,
}

impl<L: Link> Shuttle<L> {
    /// Source and destination of its packets are this address, which has a route into the link.
    pub(crate) fn new(link: L, scenario: &Scenario, address: IpAddr, facts: &DeviceFacts) -> Result<Self, SystemError> {
        let [from, to] = PORTS.map(|port| SocketAddr::new(address, port));
        let capabilities = link.capabilities();
        let headers = TcpHeaders::new(from, to).filter(|headers| capabilities.mtu > headers.len_without_options());
        let headers = headers.ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "an MTU without room for headers");
            platform::Error::new(Class::Invalid, "fill", &facts.name, source).remedy("raise --mtu")
        })?;
        let room = |packet_len: usize| packet_len - headers.len_without_options();
        let segment_len = room(capabilities.mtu).min(scenario.cell.buffer_len());
        let largest = room(capabilities.max_packet_len).min(scenario.cell.buffer_len()) / segment_len * segment_len;
        // Half of the queue is left for the kernel's own packets.
        let queue = facts.tx_queue_len.unwrap_or(2).max(2) as usize / 2 * segment_len;
        Ok(Self {
            batch: (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect(),
            checksum: if capabilities.checksum.tx { Checksum::Partial } else { Checksum::Filled },
            window: scenario.cell.window_len().min(queue).max(segment_len) as u64,
            link,
            headers,
            segment_len,
            largest,
            sent: 0,
            back: 0,
            blocked: false,
        })
    }

    pub(crate) async fn run(mut self, stream: &Stream, window: &Window) -> Result<(), LoadError> {
        self.turn_to(Goal::Offset(stream.warmup_bytes), Phase::WarmUp, stream).await?;
        // There is only one stream, so this does not block.
        window.wait()?;
        let goal = match stream.amount {
            Amount::Bytes(bytes) => Goal::Offset(stream.warmup_bytes + bytes.get()),
            Amount::Time { .. } => Goal::Time { begin: Instant::now() },
        };
        self.turn_to(goal, Phase::Timed, stream).await?;
        window.end(Cost { cpu: Some(Duration::ZERO), switches: Some(Switches::default()) });
        let bytes = self.back - stream.warmup_bytes;
        stream.finish(&Finish { bytes, retransmits: None, tcp: TcpStatistics::default() });
        self.turn_to(Goal::None, Phase::Drain, stream).await
    }

    /// Sends and reads a batch in turns, so that the packets are still in the processor's cache.
    async fn turn_to(&mut self, goal: Goal, phase: Phase, stream: &Stream) -> Result<(), LoadError> {
        for turn in 1_u64.. {
            let sent = self.send(goal, stream)?;
            let taken = self.take(phase, stream)?;
            match goal {
                Goal::Offset(end) if self.back >= end => return Ok(()),
                Goal::Time { begin } if Stream::is_over(begin, slice::from_ref(stream)) => return Ok(()),
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

    /// Sends up to a batch of packets, as far as there is room. Returns how many.
    fn send(&mut self, goal: Goal, stream: &Stream) -> Result<usize, LoadError> {
        self.blocked = false;
        for count in 0..self.batch.len() {
            let left = match goal {
                Goal::Offset(end) => end - self.sent,
                Goal::Time { .. } => u64::MAX,
                Goal::None => 0,
            };
            let room = self.window - (self.sent - self.back);
            // Whole segments, except the last.
            let room = room / self.segment_len as u64 * self.segment_len as u64;
            let len = left.min(room).min(self.largest as u64) as usize;
            if len == 0 {
                return Ok(count);
            }
            match self.send_packet(stream.pattern.slice(self.sent, len)) {
                Ok(()) => self.sent += len as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(count);
                }
                Err(source) => return Err(LoadError::Io { operation: "write", source }),
            }
        }
        Ok(self.batch.len())
    }

    fn send_packet(&mut self, payload: &[u8]) -> io::Result<()> {
        // The sequence number tells the receiver the offset of the bytes.
        // ACK alone: a kernel may take any other flag for the beginning or the end of a connection.
        let fields = TcpFields { sequence: self.sent as u32, acknowledgement: 0, flags: flags::ACK, window: u16::MAX };
        let mut headers = [0; MAX_HEADERS_LEN];
        let len = self.headers.write(fields, &[], payload, self.checksum, &mut headers);
        let segments = payload.len() > self.segment_len;
        let gso_size = NonZeroU16::new(self.segment_len as u16).filter(|_| segments);
        let meta = PacketMeta { checksum: self.checksum, gso_size };
        self.link.try_send(meta, &[IoSlice::new(&headers[..len]), IoSlice::new(payload)])
    }

    fn take(&mut self, phase: Phase, stream: &Stream) -> Result<usize, LoadError> {
        let mut taken = 0;
        loop {
            let mut batch = std::mem::take(&mut self.batch);
            let received = self.link.try_recv(&mut batch);
            let result = match received {
                Ok(count) => {
                    batch[..count].iter().try_for_each(|buffer| self.take_packet(buffer.packet(), phase, stream))
                }
                Err(_) => Ok(()),
            };
            self.batch = batch;
            result?;
            match received {
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                Err(source) => return Err(LoadError::Io { operation: "read", source }),
            }
        }
    }

    fn take_packet(&mut self, packet: &[u8], phase: Phase, stream: &Stream) -> Result<(), LoadError> {
        // The kernel sends packets of its own to a new interface.
        let Some(tcp) = TcpSegment::parse(packet) else { return Ok(()) };
        if [tcp.source_port(), tcp.destination_port()] != PORTS {
            return Ok(());
        }
        // Packets may overtake each other, but by less than the sequence numbers' range.
        let distance = tcp.sequence().wrapping_sub(self.back as u32).cast_signed();
        let payload = tcp.payload();
        let offset = self.back.checked_add_signed(distance.into()).unwrap_or(u64::MAX);
        if offset.saturating_add(payload.len() as u64) > self.sent {
            return Err(LoadError::Corrupt { offset });
        }
        stream.check(phase, offset, payload)?;
        self.back += payload.len() as u64;
        if self.back > self.sent {
            return Err(LoadError::Corrupt { offset });
        }
        if phase != Phase::Drain {
            stream.set_arrived(self.back);
        }
        Ok(())
    }

    /// Waits until there is something to read or, if the link was full, room to send.
    async fn wait(&mut self) -> Result<(), LoadError> {
        match tokio::time::timeout(LOST, poll_fn(|cx| self.poll_change(cx))).await {
            Ok(changed) => changed.map_err(LoadError::io("wait")),
            Err(_) => Err(LoadError::Lost { got: self.back, expected: self.sent }),
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
