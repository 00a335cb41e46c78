//! The load of a run, and the figures that it delivers.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use platform::TcpStatistics;

use super::datagrams::{Flow, Window};
use super::meter::Snapshot;
use super::requests::{Exchange, Requested};
use super::transfer::{Direction, Finish, Stream};
use crate::sample::DatagramFacts;
use crate::scenario::Scenario;

/// The load of a run.
#[derive(Clone)]
pub(super) enum Load {
    /// The streams of this program.
    Streams(Arc<[Stream]>),
    /// The datagrams of this program.
    Datagrams(Arc<Flow>),
    /// The requests of this program, and the streams beside them.
    Requests(Arc<Exchange>, Arc<[Stream]>),
    /// Another program, which reports when it has ended. A task of the server's side waits for that.
    External(Arc<OnceLock<Delivered>>),
}

/// The figures of a load that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Delivered {
    /// Payload bytes that arrived in the timed window.
    pub(super) bytes: u64,
    /// The part of them that clients read.
    pub(super) read_bytes: u64,
    /// CPU time of the clients' threads, or of the other program, in the timed window.
    pub(super) cpu: Option<Duration>,
    /// Segments that the kernel retransmitted in the timed window.
    pub(super) retransmits: Option<u64>,
    /// The first connection at the end of the window.
    pub(super) tcp: Option<TcpStatistics>,
    /// The end of the timed window.
    pub(super) end: Option<Snapshot>,
    /// The timed window by the clock of the other program.
    pub(super) clock: Option<Clock>,
    /// The results of the requests or idle connections, if the load was made of them.
    pub(super) requested: Option<Requested>,
    /// Payload bytes of the streams beside them.
    pub(super) background_bytes: Option<u64>,
    /// The counts of the datagrams, if the load was over UDP.
    pub(super) datagrams: Option<DatagramFacts>,
}

/// The clock of another program.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// The length of the timed window.
    pub(super) elapsed: Duration,
    /// The end of each interval, and the bytes in it.
    pub(super) parts: Vec<(Duration, u64)>,
}

impl Load {
    /// The load of a scenario that this program makes.
    pub(super) fn of(scenario: &Scenario) -> Self {
        let streams = Stream::split(scenario);
        match (Exchange::of(scenario, &streams), Flow::of(scenario)) {
            (Some(exchange), _) => Self::Requests(Arc::new(exchange), streams),
            (None, Some(flow)) => Self::Datagrams(Arc::new(flow)),
            (None, None) => Self::Streams(streams),
        }
    }

    /// Its streams: each has a client, and a port at the server.
    pub(super) fn streams(&self) -> &[Stream] {
        match self {
            Self::Streams(streams) | Self::Requests(_, streams) => streams,
            Self::Datagrams(_) | Self::External(_) => &[],
        }
    }

    /// Its requests.
    pub(super) fn exchange(&self) -> Option<&Exchange> {
        match self {
            Self::Requests(exchange, _) => Some(exchange),
            Self::Streams(_) | Self::Datagrams(_) | Self::External(_) => None,
        }
    }

    /// Its datagrams.
    pub(super) fn flow(&self) -> Option<&Arc<Flow>> {
        match self {
            Self::Datagrams(flow) => Some(flow),
            Self::Streams(_) | Self::Requests(..) | Self::External(_) => None,
        }
    }

    /// How many payload bytes its server must have received and sent when all clients are done. These are ranges: a
    /// request that failed or was in flight at the end may have arrived or not. Bulk datagrams are counted elsewhere.
    pub(super) fn crossed(&self) -> [RangeInclusive<u64>; 2] {
        [Direction::ToServer, Direction::ToClient].map(|direction| {
            let streams = self.streams().iter().filter(|stream| stream.direction == direction);
            let least: u64 = streams.map(Stream::crossed).sum();
            let Some(exchange) = self.exchange() else { return least..=least };
            let len = if direction == Direction::ToServer { exchange.request.len } else { exchange.response.len };
            let least = least + exchange.answered() * len as u64;
            least..=exchange.copies * (least + exchange.unanswered() * len as u64)
        })
    }

    /// Whether its server ends by itself when all is delivered.
    pub(super) const fn ends(&self) -> bool {
        matches!(self, Self::Streams(_) | Self::External(_))
    }

    /// The number of clients. Each of them waits for the others before it begins.
    pub(super) fn clients(&self) -> usize {
        match self {
            Self::Streams(streams) => streams.len(),
            Self::Requests(_, streams) => 1 + streams.len(),
            Self::Datagrams(_) | Self::External(_) => 1,
        }
    }

    /// Bytes that have arrived so far, including the warm-up; 0 if another program makes the load.
    pub(super) fn arrived(&self) -> u64 {
        match self {
            Self::Streams(streams) => streams.iter().map(Stream::arrived).sum(),
            Self::Datagrams(flow) => flow.arrived_bytes(),
            Self::Requests(exchange, _) => exchange.bytes_of(exchange.answered()),
            Self::External(_) => 0,
        }
    }

    /// Bytes that have arrived in the timed window so far.
    pub(super) fn timed_bytes(&self) -> u64 {
        match self {
            Self::Streams(streams) => streams.iter().map(Stream::timed_bytes).sum(),
            Self::Datagrams(flow) => flow.timed_bytes(),
            Self::Requests(exchange, _) => exchange.bytes_of(exchange.timed()),
            Self::External(_) => 0,
        }
    }

    /// The figures of the parts that have ended. They cover the whole load only after a run without failure.
    pub(super) fn delivered(&self) -> Delivered {
        match self {
            Self::Streams(streams) => of_streams(streams),
            Self::Datagrams(flow) => flow.finished().map(of_datagrams).unwrap_or_default(),
            Self::Requests(exchange, streams) => {
                exchange.finished().map(|made| of_requests(exchange, made, streams)).unwrap_or_default()
            }
            Self::External(delivered) => delivered.get().cloned().unwrap_or_default(),
        }
    }
}

fn of_streams(streams: &[Stream]) -> Delivered {
    let finishes: Vec<Finish> = streams.iter().filter_map(Stream::finished).collect();
    let readers = streams.iter().filter(|stream| stream.direction == Direction::ToClient);
    Delivered {
        bytes: finishes.iter().map(|finish| finish.bytes).sum(),
        read_bytes: readers.filter_map(Stream::finished).map(|finish| finish.bytes).sum(),
        cpu: finishes.iter().map(|finish| finish.cpu).sum(),
        retransmits: finishes.iter().map(|finish| finish.retransmits).sum(),
        tcp: finishes.first().map(|finish| finish.tcp),
        end: finishes.iter().map(|finish| finish.end).max_by_key(|end| end.at),
        ..Delivered::default()
    }
}

fn of_datagrams(window: &Window) -> Delivered {
    let Window { bytes, cpu, end, facts } = *window;
    Delivered { bytes, cpu, end: Some(end), datagrams: Some(facts), ..Delivered::default() }
}

fn of_requests(exchange: &Exchange, made: &Requested, streams: &[Stream]) -> Delivered {
    let beside = of_streams(streams);
    Delivered {
        bytes: exchange.bytes_of(made.answered),
        cpu: made.cpu.zip(beside.cpu).map(|(requests, streams)| requests + streams),
        retransmits: beside.retransmits.filter(|_| !streams.is_empty()),
        end: Some(made.end),
        requested: Some(made.clone()),
        background_bytes: (!streams.is_empty()).then_some(made.background_bytes),
        datagrams: made.datagrams,
        ..Delivered::default()
    }
}
