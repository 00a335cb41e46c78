//! The work of the clients.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use clap::ValueEnum;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{is_default, nanoseconds};

/// The work of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Bulk bytes over TCP streams: [`Mode::Reader`], [`Mode::Writer`] or [`Mode::Both`].
    Stream(Mode),
    /// Bulk bytes in UDP datagrams.
    Datagrams(Datagrams),
    /// Requests and responses on open TCP connections.
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
    /// Packets without TCP, there and back: only [the device](crate::scenario::Subject::Device) has it, and it has no other.
    Packets,
}

impl Workload {
    /// The work of a mode over TCP; `None` if the mode needs `requests` and there are none.
    pub const fn tcp(mode: Mode, requests: Option<Requests>) -> Option<Self> {
        match (mode, requests) {
            (Mode::Reader | Mode::Writer | Mode::Both, _) => Some(Self::Stream(mode)),
            (Mode::Rr, Some(requests)) => Some(Self::Rr(requests)),
            (Mode::Crr, Some(requests)) => Some(Self::Crr(requests)),
            (Mode::Idle, _) => Some(Self::Idle),
            (Mode::Rr | Mode::Crr, None) => None,
        }
    }

    /// The same work with connections that are half-closed; `None` if it does not hold connections open.
    pub const fn half_closed(self) -> Option<Self> {
        match self {
            Self::Idle => Some(Self::HalfClosed),
            _ => None,
        }
    }

    /// The work of a mode over UDP; `None` if an argument that the mode needs is missing.
    pub const fn udp(mode: Mode, requests: Option<Requests>, datagram_bytes: Option<NonZeroU16>) -> Option<Self> {
        match (mode, requests, datagram_bytes) {
            (Mode::Reader | Mode::Writer | Mode::Both, _, Some(len)) => Some(Self::Datagrams(Datagrams { mode, len })),
            (Mode::Rr, Some(requests), _) => Some(Self::UdpRr(requests)),
            (Mode::Crr, Some(requests), _) => Some(Self::UdpCrr(requests)),
            (Mode::Idle, ..) => Some(Self::UdpIdle),
            _ => None,
        }
    }

    /// Its protocol; `None` if it has none.
    pub const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Stream(_) | Self::Rr(_) | Self::Crr(_) | Self::Idle | Self::HalfClosed => Some(Protocol::Tcp),
            Self::Datagrams(_) | Self::UdpRr(_) | Self::UdpCrr(_) | Self::UdpIdle => Some(Protocol::Udp),
            Self::Packets => None,
        }
    }

    /// The mode of its client; `None` if it has no client.
    pub const fn mode(self) -> Option<Mode> {
        match self {
            Self::Stream(mode) | Self::Datagrams(Datagrams { mode, .. }) => Some(mode),
            Self::Rr(_) | Self::UdpRr(_) => Some(Mode::Rr),
            Self::Crr(_) | Self::UdpCrr(_) => Some(Mode::Crr),
            Self::Idle | Self::HalfClosed | Self::UdpIdle => Some(Mode::Idle),
            Self::Packets => None,
        }
    }

    /// The requests that it consists of.
    pub const fn requests(self) -> Option<Requests> {
        match self {
            Self::Rr(requests) | Self::UdpRr(requests) | Self::Crr(requests) | Self::UdpCrr(requests) => Some(requests),
            Self::Stream(_) | Self::Datagrams(_) | Self::Idle | Self::HalfClosed | Self::UdpIdle | Self::Packets => {
                None
            }
        }
    }

    /// The payload of a datagram of bulk bytes.
    pub const fn datagram_bytes(self) -> Option<NonZeroU16> {
        match self {
            Self::Datagrams(datagrams) => Some(datagrams.len),
            _ => None,
        }
    }

    /// The noun for each of the things that it only holds open; `None` if it does more.
    pub const fn held(self) -> Option<&'static str> {
        match self {
            Self::Idle => Some("connection"),
            Self::HalfClosed => Some("half-closed connection"),
            Self::UdpIdle => Some("flow"),
            _ => None,
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

impl Mode {
    /// Whether it is bulk bytes.
    pub const fn is_bulk(self) -> bool {
        matches!(self, Self::Reader | Self::Writer | Self::Both)
    }
}

/// The datagrams of a [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Datagrams {
    /// [`Mode::Reader`], [`Mode::Writer`] or [`Mode::Both`].
    pub mode: Mode,
    /// Payload of each, in bytes.
    pub len: NonZeroU16,
}

/// The transport protocol of a [`Workload`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Connections and streams
    #[default]
    Tcp,
    /// Datagrams, which may be lost
    Udp,
}

/// The requests of a [`Workload`]. The next request of a connection follows the response, unless there is a rate or a
/// time to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
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
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "think_ns", with = "nanoseconds", default, skip_serializing_if = "Duration::is_zero")]
    pub think: Duration,
    /// Connects to an address that stays silent, which are held open beside the requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blackholes: u16,
}

/// One byte each way, one request at a time, as in netperf's `TCP_RR`.
impl Default for Requests {
    fn default() -> Self {
        Self {
            request_bytes: NonZeroU32::MIN,
            response_bytes: NonZeroU32::MIN,
            depth: NonZeroU16::MIN,
            rate: None,
            think: Duration::ZERO,
            blackholes: 0,
        }
    }
}

impl Requests {
    /// Whether the clock decides how many there are, and not how fast they are answered.
    pub const fn is_paced(self) -> bool {
        self.rate.is_some() || !self.think.is_zero()
    }
}

/// What the client of a connection does. Clients connect: to the stack, or from the near network to the far one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The client reads what the server on the stack sends
    Reader,
    /// The client writes what the server on the stack receives
    Writer,
    /// Both at once, by as many streams each
    Both,
    /// Requests and responses on open connections
    Rr,
    /// A connection for each request: connect, request, response, close
    Crr,
    /// Connections or UDP flows that are held open, and the memory that they take
    Idle,
}
