//! The load of a run: the clients that make it, the server tasks that answer it, and the figures that it delivers.
//!
//! One engine makes every load (`engine`): a few client threads, each with many sockets and one work. The sockets are the
//! kernel's or scripted peers in memory (`sockets`). A load knows nothing of its subject.
//!
//! | load | work of a client thread | server |
//! |---|---|---|
//! | bulk bytes over TCP | `stream::client` | `stream::server`, a task for each connection |
//! | requests, idle connections | `request::client`, `request::black_holes` | `request::server`, a task for each connection |
//! | bulk bytes over UDP | `datagram::client`, `datagram::search` | `datagram::server` |
//!
//! All client threads do their warm-up, begin together, and take the same readings at the end (`window`).

pub(crate) mod datagram;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod meter;
pub(crate) mod pattern;
pub(crate) mod request;
pub(crate) mod sockets;
pub(crate) mod stream;
pub(crate) mod window;

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use platform::TcpStatistics;

use self::datagram::Flows;
use self::engine::Client;
use self::meter::{Cost, Snapshot};
use self::request::{Exchange, Requested};
use self::sockets::Sockets;
use self::stream::{Direction, Finish, Stream};
use crate::sample::DatagramFacts;
use crate::scenario::{Protocol, Scenario};

/// The load of a run, and the number of its client threads.
#[derive(Clone)]
pub(crate) enum Load {
    /// The streams of this program.
    Streams(Arc<[Stream]>, usize),
    /// The datagrams of this program.
    Datagrams(Arc<Flows>, usize),
    /// The requests of this program, and the streams beside them, each with a thread of its own.
    Requests(Arc<Exchange>, usize, Arc<[Stream]>),
    /// Another program, which reports when it has ended. A task of the server's side waits for that.
    External(Arc<OnceLock<Delivered>>),
}

/// The figures of a load that has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivered {
    /// Payload bytes that arrived in the timed window.
    pub(crate) bytes: u64,
    /// The part of them that clients read.
    pub(crate) read_bytes: u64,
    /// The cost of the clients' threads, or of the other program, in the timed window.
    pub(crate) cost: Cost,
    /// Segments that the kernel retransmitted in the timed window.
    pub(crate) retransmits: Option<u64>,
    /// The first connection at the end of the window.
    pub(crate) tcp: Option<TcpStatistics>,
    /// The end of the timed window.
    pub(crate) end: Option<Snapshot>,
    /// The timed window by the clock of the other program.
    pub(crate) clock: Option<Clock>,
    /// The results of the requests or idle connections, if the load was made of them.
    pub(crate) requested: Option<Requested>,
    /// Payload bytes of the streams beside them.
    pub(crate) background_bytes: Option<u64>,
    /// The counts of the datagrams, if the load was over UDP.
    pub(crate) datagrams: Option<DatagramFacts>,
}

/// The clock of another program.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The length of the timed window.
    pub(crate) elapsed: Duration,
    /// The end of each interval, and the bytes in it.
    pub(crate) parts: Vec<(Duration, u64)>,
}

impl Load {
    /// The load of a scenario that this program makes.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let streams = Stream::split(scenario);
        // More threads than sockets would have nothing to do.
        let threads = |default: usize, sockets: usize| {
            let asked = scenario.client_threads.map_or(default, usize::from);
            asked.min(sockets).max(1)
        };
        match (Exchange::of(scenario, &streams), Flows::of(scenario)) {
            (Some(exchange), _) => {
                let sockets = if exchange.is_idle { 1 } else { exchange.connections };
                Self::Requests(Arc::new(exchange), threads(1, sockets), streams)
            }
            (None, Some(flows)) => {
                let sockets = flows.count();
                Self::Datagrams(Arc::new(flows), threads(1, sockets))
            }
            (None, None) => {
                let processors = platform::parallelism().unwrap_or(1);
                let threads = threads(processors, streams.len());
                Self::Streams(streams, threads)
            }
        }
    }

    /// The client threads. The first targets are for the streams, one for each; the others are for requests or datagrams,
    /// and the last one for black holes, if there are any.
    /// `sockets` makes the sockets of a thread: so many of a protocol.
    pub(crate) fn client_threads<S: Sockets, E>(
        &self,
        targets: &[SocketAddr],
        mut sockets: impl FnMut(Protocol, usize) -> Result<S, E>,
    ) -> Result<Vec<Client>, E> {
        let (of_streams, others) = targets.split_at(self.streams().len());
        let mut clients = Vec::new();
        let (streams, stream_threads) = match self {
            Self::Streams(streams, threads) => (Some(streams), *threads),
            Self::Requests(_, _, streams) => (Some(streams), streams.len()),
            Self::Datagrams(..) | Self::External(_) => (None, 0),
        };
        for (streams, thread) in streams.into_iter().flat_map(|streams| (0..stream_threads).map(move |i| (streams, i)))
        {
            let mine = share(streams.len(), thread, stream_threads);
            let sockets = sockets(Protocol::Tcp, mine.len())?;
            clients.push(stream::client::client(streams, mine, of_streams, sockets));
        }
        match self {
            Self::Requests(exchange, threads, _) => {
                let holes = usize::from(exchange.requests.blackholes);
                let (others, silent) = others.split_at(others.len() - usize::from(holes > 0));
                if let [silent] = silent {
                    clients.push(request::black_holes::client(exchange, *silent, sockets(Protocol::Tcp, holes)?));
                }
                for thread in 0..*threads {
                    let mine = share(exchange.connections, thread, *threads);
                    let sockets = sockets(exchange.protocol, mine.len())?;
                    let thread = (thread, *threads);
                    clients.push(request::client::client(exchange, mine.len(), others.to_vec(), thread, sockets));
                }
            }
            Self::Datagrams(flows, threads) => {
                for thread in 0..*threads {
                    let mine = share(flows.count(), thread, *threads);
                    let sockets = sockets(Protocol::Udp, mine.len())?;
                    clients.push(datagram::client::client(flows, mine, others[0], sockets));
                }
            }
            Self::Streams(..) | Self::External(_) => {}
        }
        Ok(clients)
    }

    /// Its streams: each has a port at the server.
    pub(crate) fn streams(&self) -> &[Stream] {
        match self {
            Self::Streams(streams, _) | Self::Requests(_, _, streams) => streams,
            Self::Datagrams(..) | Self::External(_) => &[],
        }
    }

    /// Its requests.
    pub(crate) fn exchange(&self) -> Option<&Exchange> {
        match self {
            Self::Requests(exchange, ..) => Some(exchange),
            Self::Streams(..) | Self::Datagrams(..) | Self::External(_) => None,
        }
    }

    /// Its datagrams.
    pub(crate) fn flows(&self) -> Option<&Arc<Flows>> {
        match self {
            Self::Datagrams(flows, _) => Some(flows),
            Self::Streams(..) | Self::Requests(..) | Self::External(_) => None,
        }
    }

    /// How many payload bytes its server must have received and sent when all clients are done. These are ranges: a
    /// request that failed or was in flight at the end may have arrived or not. Bulk datagrams are counted elsewhere.
    pub(crate) fn crossed(&self) -> [RangeInclusive<u64>; 2] {
        [Direction::ToServer, Direction::ToClient].map(|direction| {
            let streams = self.streams().iter().filter(|stream| stream.direction == direction);
            let least: u64 = streams.map(Stream::crossed).sum();
            let Some(exchange) = self.exchange() else { return least..=least };
            let len = if direction == Direction::ToServer { exchange.request.period } else { exchange.response.period };
            let least = least + exchange.answered() * len as u64;
            least..=exchange.copies * (least + exchange.unanswered() * len as u64)
        })
    }

    /// Whether its server ends by itself when all is delivered.
    pub(crate) const fn ends(&self) -> bool {
        matches!(self, Self::Streams(..) | Self::External(_))
    }

    /// The number of client threads. Each of them waits for the others before it begins.
    pub(crate) fn clients(&self) -> usize {
        match self {
            Self::Streams(_, threads) | Self::Datagrams(_, threads) => *threads,
            Self::Requests(exchange, threads, streams) => {
                threads + streams.len() + usize::from(exchange.requests.blackholes > 0)
            }
            Self::External(_) => 1,
        }
    }

    /// Bytes that have arrived so far, including the warm-up; 0 if another program makes the load.
    pub(crate) fn arrived(&self) -> u64 {
        match self {
            Self::Streams(streams, _) => streams.iter().map(Stream::arrived).sum(),
            Self::Datagrams(flows, _) => flows.arrived_bytes(),
            Self::Requests(exchange, ..) => exchange.bytes_of(exchange.answered()),
            Self::External(_) => 0,
        }
    }

    /// Bytes that have arrived in the timed window so far.
    pub(crate) fn timed_bytes(&self) -> u64 {
        match self {
            Self::Streams(streams, _) => streams.iter().map(Stream::timed_bytes).sum(),
            Self::Datagrams(flows, _) => flows.timed_bytes(),
            Self::Requests(exchange, ..) => exchange.bytes_of(exchange.timed()),
            Self::External(_) => 0,
        }
    }

    /// The figures of the parts that have ended. They cover the whole load only after a run without failure.
    pub(crate) fn delivered(&self) -> Delivered {
        match self {
            Self::Streams(streams, _) => of_streams(streams),
            Self::Datagrams(flows, _) => flows.finished().map_or_else(Delivered::default, |made| Delivered {
                bytes: made.bytes,
                read_bytes: made.read_bytes,
                datagrams: Some(made.facts),
                ..Delivered::default()
            }),
            Self::Requests(exchange, _, streams) => {
                exchange.finished().map(|made| of_requests(exchange, made, streams)).unwrap_or_default()
            }
            Self::External(delivered) => delivered.get().cloned().unwrap_or_default(),
        }
    }
}

/// The part of so many sockets that thread `index` of so many threads has.
fn share(sockets: usize, index: usize, threads: usize) -> Range<usize> {
    sockets * index / threads..sockets * (index + 1) / threads
}

fn of_streams(streams: &[Stream]) -> Delivered {
    let finishes: Vec<Finish> = streams.iter().filter_map(Stream::finished).collect();
    let readers = streams.iter().filter(|stream| stream.direction == Direction::ToClient);
    Delivered {
        bytes: finishes.iter().map(|finish| finish.bytes).sum(),
        read_bytes: readers.filter_map(Stream::finished).map(|finish| finish.bytes).sum(),
        retransmits: finishes.iter().map(|finish| finish.retransmits).sum(),
        tcp: finishes.first().map(|finish| finish.tcp),
        ..Delivered::default()
    }
}

fn of_requests(exchange: &Exchange, made: Requested, streams: &[Stream]) -> Delivered {
    Delivered {
        bytes: exchange.bytes_of(made.answered),
        retransmits: of_streams(streams).retransmits.filter(|_| !streams.is_empty()),
        background_bytes: (!streams.is_empty()).then_some(made.background_bytes),
        datagrams: made.datagrams,
        requested: Some(made),
        ..Delivered::default()
    }
}
