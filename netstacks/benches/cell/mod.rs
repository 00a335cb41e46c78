//! A cell is one combination of stack, direction, link and IP version. A session is a cell with a connection that moves
//! bytes.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::time::Duration;

use netstacks::peer::Peers;
use netstacks::{Listener, Netstack, StackConfig, StackKind, Started};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

const MTU: usize = 1500;
/// The application's buffer, in bytes: the program's default.
const BUFFER: usize = 1_000_000;
/// A request and its response, in bytes: one segment.
const REQUEST: usize = 1000;
/// Timeout of a transfer. If all tasks wait for ever, a paused clock reaches it at once.
const DEADLINE: Duration = Duration::from_mins(1);

/// Whether the peer reads from the stack, writes to it, or sends requests and waits for each response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Reader,
    Writer,
    Requests,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Requests => "rr",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) stack: StackKind,
    pub(crate) direction: Direction,
    /// The capabilities of the link.
    pub(crate) capabilities: Capabilities,
    pub(crate) ipv6: bool,
}

/// The stacks with adapters that this project optimizes. The other stacks are published crates that run unchanged.
const STACKS: [StackKind; 3] = [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp];

impl Cell {
    /// All cells of all stacks, compiled in or not.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        STACKS.into_iter().flat_map(|stack| {
            [Direction::Reader, Direction::Writer, Direction::Requests].into_iter().flat_map(move |direction| {
                [Capabilities::plain(MTU), Capabilities::offloading(MTU)].into_iter().flat_map(move |capabilities| {
                    [false, true].map(|ipv6| Self { stack, direction, capabilities, ipv6 })
                })
            })
        })
    }

    /// The stack's end of a new link, and a script at the other end.
    pub(crate) fn ends(self) -> (MemoryLink, Script) {
        let (mut near, mut far) = MemoryLink::pair_of(self.capabilities, MemoryLink::DEFAULT_DEPTH);
        fill_storage(&mut near, &mut far);
        fill_storage(&mut far, &mut near);
        let [local, remote]: [IpAddr; 2] = if self.ipv6 {
            [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into()]
        } else {
            [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]
        };
        let mut peers = Peers::new(far, local);
        peers.connect(0, (remote, 80).into()).unwrap();
        (near, Script { peers, direction: self.direction, buffer: vec![0; BUFFER] })
    }
}

/// The work of the peer: it connects and transfers, as a task on the runtime of the stack.
pub(crate) struct Script {
    peers: Peers<MemoryLink>,
    direction: Direction,
    /// The bytes that it sends, all 0, or the buffer that it reads into.
    buffer: Vec<u8>,
}

impl Script {
    /// Runs until the link fails. Ends only with an error.
    async fn run(self) -> io::Error {
        let Self { mut peers, direction, mut buffer } = self;
        let (mut ready, mut is_asking) = (Vec::with_capacity(1), true);
        loop {
            let moved = match direction {
                _ if !peers.is_connected(0) => Err(io::ErrorKind::WouldBlock.into()),
                Direction::Reader => peers.read(0, &mut buffer),
                Direction::Writer => peers.write(0, &buffer),
                // Requests and responses are whole segments.
                Direction::Requests if is_asking => peers.write(0, &buffer[..REQUEST]),
                Direction::Requests => peers.read(0, &mut buffer[..REQUEST]),
            };
            match moved {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => is_asking = !is_asking,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = poll_fn(|cx| peers.poll_wait(cx, &mut ready)).await {
                        return error;
                    }
                }
                Err(error) => return error,
            }
        }
    }
}

/// Makes a link allocate all its memory: fills it with packets of the largest size.
fn fill_storage(from: &mut MemoryLink, to: &mut MemoryLink) {
    let Capabilities { mtu, max_packet_len, .. } = from.capabilities();
    let mut meta = PacketMeta::default();
    if max_packet_len > mtu {
        meta = PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(mtu as u16) };
    }
    let packet = vec![0; max_packet_len];
    while from.try_send(meta, &[IoSlice::new(&packet)]).is_ok() {}
    let mut taken = [PacketBuffer::new(max_packet_len)];
    while to.try_recv(&mut taken).is_ok() {}
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = self.direction.name();
        let link = if self.capabilities.segmentation.any() { "offloading" } else { "plain" };
        let ip = if self.ipv6 { "ipv6" } else { "ipv4" };
        write!(f, "{:<7} {direction:<6} {link:<10} {ip}", self.stack)
    }
}

/// A running cell: a stack and a peer with one connection, on a runtime of one thread.
pub(crate) struct Session<S: Netstack<L>, L: Link> {
    direction: Direction,
    stream: <S::Listener as Listener>::Stream,
    _listener: S::Listener,
    buffer: Vec<u8>,
    /// The stack's driver and the peer.
    tasks: [JoinHandle<io::Error>; 2],
    /// Dropped last. This ends the stack's tasks.
    pub(crate) runtime: Runtime,
}

impl<S: Netstack<L>, L: Link> Session<S, L> {
    /// Starts the stack on `link`, and the script at the other end.
    pub(crate) fn start(runtime: Runtime, link: L, script: Script) -> Self {
        let direction = script.direction;
        let (stream, listener, tasks) = runtime.block_on(async {
            let Started { mut listener, driver, .. } = S::start(link, &StackConfig::default()).unwrap();
            let driver = tokio::spawn(async { driver.await.unwrap_err() });
            let peer = tokio::spawn(script.run());
            let stream = tokio::time::timeout(DEADLINE, listener.accept()).await;
            (stream.expect("no connection").unwrap(), listener, [driver, peer])
        });
        Self { direction, stream, _listener: listener, buffer: vec![0; BUFFER], tasks, runtime }
    }

    /// Moves `len_bytes` bytes, of requests and responses in all. Returns the number of reads or writes.
    pub(crate) fn transfer(&mut self, len_bytes: usize) -> u64 {
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let work = async {
            let (mut left, mut calls) = (len_bytes, 0);
            while left > 0 {
                let chunk = left.min(BUFFER);
                let moved = match self.direction {
                    Direction::Reader => stream.write(&buffer[..chunk]).await.unwrap(),
                    Direction::Writer => stream.read(&mut buffer[..chunk]).await.unwrap(),
                    Direction::Requests => {
                        calls += 1;
                        let len = stream.read(&mut buffer[..REQUEST]).await.unwrap();
                        len + stream.write(&buffer[..len]).await.unwrap()
                    }
                };
                assert!(moved > 0, "the stream ended");
                left = left.saturating_sub(moved);
                calls += 1;
            }
            calls
        };
        let finished = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, work).await });
        finished.unwrap_or_else(|_| self.explain())
    }

    /// Panics with the reason why a transfer does not finish.
    fn explain(&mut self) -> ! {
        for task in &mut self.tasks {
            if task.is_finished() {
                let error = self.runtime.block_on(task);
                panic!("the driver or the peer has ended: {error:?}");
            }
        }
        panic!("nothing moves any more");
    }
}
