//! The work of the clients.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use super::{Cell, Mode, Protocol, Subject};

/// The work of the clients. A run matches on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// Bulk bytes over streams of TCP or QUIC: [`Mode::Reader`], [`Mode::Writer`] or [`Mode::Both`].
    Stream(Mode),
    /// Bulk bytes in UDP datagrams.
    Datagrams(Datagrams),
    /// Requests and responses on open connections of TCP or QUIC.
    Rr(Requests),
    /// Requests and responses in UDP datagrams.
    UdpRr(Requests),
    /// Requests with a TCP connection for each, which the server closes after its response.
    Crr(Requests),
    /// Requests in UDP datagrams, each from a port of its own.
    UdpCrr(Requests),
    /// TCP connections that are held open: a byte each way on each, and then nothing.
    Idle,
    /// The same connections, half-closed: the client has closed its side, and the server has not.
    HalfClosed,
    /// UDP flows that are held open: a datagram each way on each, and then nothing.
    UdpIdle,
    /// Packets without TCP, there and back: only [the device](Subject::Device) has it, and it has no other.
    Packets,
}

impl Workload {
    /// The requests that it consists of.
    pub const fn requests(self) -> Option<Requests> {
        match self {
            Self::Rr(requests) | Self::UdpRr(requests) | Self::Crr(requests) | Self::UdpCrr(requests) => Some(requests),
            _ => None,
        }
    }

    /// The payload of a datagram of bulk bytes.
    pub const fn datagram_bytes(self) -> Option<NonZeroU16> {
        match self {
            Self::Datagrams(datagrams) => Some(datagrams.len),
            _ => None,
        }
    }

    /// Whether it only holds connections or flows open.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Idle | Self::HalfClosed | Self::UdpIdle)
    }

    /// The noun for what there are several of.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Stream(_) | Self::Packets => "stream",
            Self::Rr(_) | Self::UdpRr(_) | Self::Crr(_) | Self::UdpCrr(_) | Self::Idle => "connection",
            Self::HalfClosed => "half-closed connection",
            Self::Datagrams(_) | Self::UdpIdle => "flow",
        }
    }

    /// Whether it is bulk bytes, all of which must arrive. Other workloads have one client, and last for a time.
    pub const fn is_stream(self) -> bool {
        matches!(self, Self::Stream(_) | Self::Packets)
    }

    /// Whether it is bulk bytes.
    pub const fn is_bulk(self) -> bool {
        self.is_stream() || matches!(self, Self::Datagrams(_))
    }
}

/// The datagrams of a [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Datagrams {
    /// [`Mode::Reader`], [`Mode::Writer`] or [`Mode::Both`].
    pub mode: Mode,
    /// Payload of each, in bytes.
    pub len: NonZeroU16,
}

/// The requests of a [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requests {
    /// Length of a request, in bytes.
    pub request_bytes: NonZeroU32,
    /// Length of a response, in bytes.
    pub response_bytes: NonZeroU32,
    /// Requests under way on a connection.
    pub depth: NonZeroU16,
    /// Requests a second in all, evenly spaced; `None` for as many as are answered.
    pub rate: Option<NonZeroU32>,
    /// How long a connection waits after a response until its next request is due.
    pub think: Duration,
    /// Connects to an address that stays silent, which are held open beside the requests.
    pub blackholes: u16,
}

impl Requests {
    /// Whether the clock decides how many there are, and not how fast they are answered.
    pub const fn is_paced(self) -> bool {
        self.rate.is_some() || !self.think.is_zero()
    }
}

impl Cell {
    /// The work of its clients. A cell that is [checked](Self::checked) has what its work needs.
    pub fn workload(&self) -> Workload {
        let Some(mode) = self.mode.filter(|_| self.subject() != Subject::Device) else { return Workload::Packets };
        match (mode, self.protocol) {
            (Mode::Reader | Mode::Writer | Mode::Both, Protocol::Tcp | Protocol::Quic) => Workload::Stream(mode),
            (Mode::Reader | Mode::Writer | Mode::Both, Protocol::Udp) => {
                let len = self.datagram.and_then(|len| u16::try_from(len).ok()).and_then(NonZeroU16::new);
                Workload::Datagrams(Datagrams { mode, len: len.unwrap_or(NonZeroU16::MIN) })
            }
            (Mode::Rr, Protocol::Tcp | Protocol::Quic) => Workload::Rr(self.requests()),
            (Mode::Rr, Protocol::Udp) => Workload::UdpRr(self.requests()),
            (Mode::Crr, Protocol::Tcp | Protocol::Quic) => Workload::Crr(self.requests()),
            (Mode::Crr, Protocol::Udp) => Workload::UdpCrr(self.requests()),
            (Mode::Idle, Protocol::Tcp | Protocol::Quic) if self.half_closed => Workload::HalfClosed,
            (Mode::Idle, Protocol::Tcp | Protocol::Quic) => Workload::Idle,
            (Mode::Idle, Protocol::Udp) => Workload::UdpIdle,
        }
    }

    /// Its requests: of a byte each way, unless it has others.
    pub fn requests(&self) -> Requests {
        let len = |len: u64| u32::try_from(len).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        Requests {
            request_bytes: len(self.request),
            response_bytes: len(self.response),
            depth: self.depth,
            rate: self.rate,
            think: self.think,
            blackholes: self.blackholes,
        }
    }
}
