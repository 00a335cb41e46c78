//! The load of a run: the clients that make it, the servers that answer it, and the figures that it delivers.
//!
//! One engine makes every load (`engine`), over the kernel's sockets or scripted peers in memory (`sockets`). All client
//! threads do their warm-up, begin together, and take the same readings at the end (`window`). Each kind of load is a file or folder with its client, its server and its figures. A new one implements [`Figures`],
//! [`Kind`] and [`Sides`], and has a line in the table [`Load`].

pub(crate) mod datagram;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod iperf3;
pub(crate) mod packets;
pub(crate) mod pattern;
pub(crate) mod request;
pub(crate) mod sockets;
pub(crate) mod stream;
pub(crate) mod window;

use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use netstacks::Datagrams;
use serde::Serialize;

use self::engine::Client;
use self::error::LoadError;
use self::sockets::Sockets;
use self::sockets::kernel::Bulk;
use crate::cell::Protocol;
use crate::meter::{Cost, Snapshot};
use crate::plan::scenario::Scenario;
use crate::sample::Measurements;

/// Makes the table of the loads, and everything that depends on their kind.
macro_rules! loads {
    ($($(#[$about:meta])* $name:ident($load:ty),)+) => {
        #[derive(Clone)]
        pub(crate) enum Load {
            $($(#[$about])* $name($load),)+
        }

        impl Load {
            /// The load of a scenario; `None` if its amount is not one of its work.
            pub(crate) fn of(scenario: &Scenario) -> Option<Self> {
                $(if let Some(load) = <$load>::of(scenario) {
                    return Some(Self::$name(load));
                })+
                None
            }

            pub(crate) fn clients<S: Sockets, E>(
                &self,
                targets: &[SocketAddr],
                mut sockets: impl FnMut(Protocol, usize) -> Result<S, E>,
            ) -> Result<Vec<Client>, E> {
                match self { $(Self::$name(load) => load.clients(targets, &mut sockets),)+ }
            }

            pub(crate) fn serve(&self, connection: impl netstacks::Stream, target: Option<usize>) -> Option<Served> {
                match self { $(Self::$name(load) => load.serve(connection, target),)+ }
            }

            pub(crate) fn serve_datagrams(&self, source: impl Datagrams) -> Option<Served> {
                match self { $(Self::$name(load) => load.serve_datagrams(source),)+ }
            }
        }

        impl From<Load> for Arc<dyn Figures> {
            fn from(load: Load) -> Self {
                match load { $(Load::$name(load) => Arc::new(load),)+ }
            }
        }

        impl Deref for Load {
            type Target = dyn Kind;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$name(load) => load,)+ }
            }
        }
    };
}

loads! {
    Streams(stream::Streams),
    Requests(request::RequestLoad),
    Datagrams(datagram::DatagramLoad),
}

/// The part of a load that its supervisor sees.
pub(crate) trait Figures: Send + Sync {
    /// How many connections its server serves before it has ended by itself; `None` if it goes on.
    fn awaited(&self) -> Option<usize> {
        None
    }

    /// Bytes that have arrived so far, including the warm-up; 0 if another program makes the load.
    fn arrived(&self) -> u64;

    /// Bytes that have arrived in the timed window so far.
    fn timed_bytes(&self) -> u64;

    /// What has arrived so far, in words, and the options that ask for less; `None` if another program makes the load.
    fn progress(&self) -> Option<(String, &'static str)>;

    /// Whether the figure needs nothing more: what is missing are bytes that were in flight at the end of the window, or ends.
    fn is_complete(&self) -> bool {
        false
    }

    /// How many payload bytes a server in a process of its own must have received and sent when all clients are done: ranges,
    /// because a request that failed may have arrived or not. Bulk datagrams are counted elsewhere.
    fn crossed(&self) -> [RangeInclusive<u64>; 2] {
        [0..=0, 0..=0]
    }

    /// The figures of the parts that have ended. They cover the whole load only after a run without failure.
    fn delivered(&self) -> Delivered;
}

/// What a load needs of the things that carry its bytes.
pub(crate) trait Kind: Figures {
    /// The number of client threads. Each of them waits for the others before it begins.
    fn threads(&self) -> usize;

    /// The most sockets that its clients have at once, and its server, if that has sockets.
    fn descriptors(&self) -> [usize; 2];

    fn targets(&self) -> Targets;

    /// The buffers of the kernel's sockets of so many bytes, if it sends bulk datagrams.
    fn bulk(&self, _buffer_bytes: usize) -> Option<Bulk> {
        None
    }

    /// Its server is the kernel, which has this socket for a connection to a target.
    fn served_by(&self, _target: usize, _socket: &dyn Fn() -> Option<TcpStream>) {}

    /// The load of a server in a process of its own, whose ports begin with this one.
    fn task(&self, first_port: u16) -> Task;
}

/// A task that serves a connection, or the datagrams of all clients. Boxed: each further type of task makes the compiler
/// generate hundreds of functions.
pub(crate) type Served = BoxFuture<'static, Result<(), LoadError>>;

/// The clients and the servers of a load, over any sockets and any stack.
pub(crate) trait Sides: Kind + Sized {
    /// The load of a scenario; `None` if its work is another one.
    fn of(scenario: &Scenario) -> Option<Self>;

    /// The client threads, with these [targets](Targets). `sockets` makes the sockets of a thread: so many of a protocol.
    fn clients<S: Sockets, E>(
        &self,
        targets: &[SocketAddr],
        sockets: &mut impl FnMut(Protocol, usize) -> Result<S, E>,
    ) -> Result<Vec<Client>, E>;

    /// The server of a connection that came to the target with this number; `None` if the connection is not of the load:
    /// in the host's network, other programs may connect.
    fn serve(&self, connection: impl netstacks::Stream, target: Option<usize>) -> Option<Served>;

    /// The server of datagrams, if it has any. It ends only with an error.
    fn serve_datagrams(&self, _source: impl Datagrams) -> Option<Served> {
        None
    }
}

/// Where the clients of a load connect to. They get the addresses in the order of the fields.
#[derive(Clone, Copy, Default)]
pub(crate) struct Targets {
    pub(crate) tcp: usize,
    /// Whether the last of them may be several, where ports cost nothing.
    pub(crate) spreads: bool,
    pub(crate) udp: bool,
    pub(crate) silent: bool,
}

#[derive(Default, Serialize)]
pub(crate) struct Task {
    pub(crate) streams: Vec<stream::StreamTask>,
    pub(crate) requests: Option<request::RequestsTask>,
    pub(crate) datagrams: Option<datagram::DatagramsTask>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Delivered {
    /// The cost of the clients' threads, or of the other program, in the timed window.
    pub(crate) cost: Cost,
    pub(crate) end: Option<Snapshot>,
    /// The timed window by the clock of the other program.
    pub(crate) clock: Option<Clock>,
    /// The fields of a sample that its kind of load has, and no others.
    pub(crate) figures: Measurements,
}

#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) elapsed: Duration,
    /// The end of each interval, and the bytes in it.
    pub(crate) parts: Vec<(Duration, u64)>,
}

/// The number of client threads of a scenario: more than sockets would have nothing to do.
fn threads(scenario: &Scenario, default: usize, sockets: usize) -> usize {
    scenario.cell.client_threads.map_or(default, |threads| threads.get().into()).min(sockets).max(1)
}

/// A client for each thread: `client` makes it, of the number of the thread, its part of `count` sockets, and these.
fn divided<S, E>(
    threads: usize,
    (protocol, count): (Protocol, usize),
    sockets: &mut impl FnMut(Protocol, usize) -> Result<S, E>,
    mut client: impl FnMut(usize, Range<usize>, S) -> Client,
) -> Result<Vec<Client>, E> {
    let client = |thread| {
        let mine = count * thread / threads..count * (thread + 1) / threads;
        let sockets = sockets(protocol, mine.len())?;
        Ok(client(thread, mine, sockets))
    };
    (0..threads).map(client).collect()
}
