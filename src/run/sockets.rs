//! The sockets of requests: many, by number, driven by readiness.

use std::io::{self, Read, Write};
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use mio::event::Event;
use mio::net::{TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token, Waker};
use platform::Class;

use super::error::RunError;
use super::kernel;
use crate::scenario::Protocol;

/// Most events of one poll.
const EVENTS: usize = 1024;

const WAKE: Token = Token(usize::MAX);

/// Ends a wait from another thread.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The sockets of one thread, by number. Each number has at most one socket.
pub(super) trait Sockets: Send + 'static {
    /// Makes a socket, and begins to connect it.
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()>;

    /// Whether the socket is connected. An error means that it never will be.
    fn is_connected(&mut self, index: usize) -> io::Result<bool>;

    /// Reads the bytes that have arrived, or one datagram. Returns 0 at the end of a stream, and
    /// [`io::ErrorKind::WouldBlock`] if there is nothing.
    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for, over UDP as one datagram. Returns [`io::ErrorKind::WouldBlock`] without
    /// room.
    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize>;

    /// Closes a socket, if there is one.
    fn close(&mut self, index: usize);

    /// Waits for events, until about `end` or exactly `due`, or until it is woken. Appends the numbers of the sockets
    /// that became ready to `ready`. A socket is listed again only after a read or a write returned
    /// [`io::ErrorKind::WouldBlock`] (edge-triggered).
    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()>;

    /// The time of the clock by which it waits.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns a function that ends a wait.
    fn wake(&self) -> Wake;
}

/// Sockets of the kernel.
pub(super) struct KernelSockets {
    protocol: Protocol,
    congestion: Option<String>,
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    sockets: Vec<Option<KernelSocket>>,
}

enum KernelSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl KernelSockets {
    /// Makes room for `count` sockets.
    pub(super) fn new(protocol: Protocol, count: usize, congestion: Option<String>) -> Result<Self, RunError> {
        let failed = |source| platform::Error::new(Class::Failed, "wait for", "sockets", source);
        let poll = Poll::new().map_err(failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(failed)?);
        let sockets = (0..count).map(|_| None).collect();
        Ok(Self { protocol, congestion, poll, events: Events::with_capacity(EVENTS), waker, sockets })
    }

    fn open(&self, target: SocketAddr) -> io::Result<KernelSocket> {
        if self.protocol == Protocol::Udp {
            let socket = net::UdpSocket::bind(kernel::any_port(target))?;
            socket.connect(target)?;
            socket.set_nonblocking(true)?;
            return Ok(KernelSocket::Udp(UdpSocket::from_std(socket)));
        }
        let socket = net::TcpStream::from(TcpStream::connect(target)?);
        kernel::set_up(&socket, self.congestion.as_deref()).map_err(io::Error::other)?;
        Ok(KernelSocket::Tcp(TcpStream::from_std(socket)))
    }

    fn socket(&mut self, index: usize) -> io::Result<&mut KernelSocket> {
        self.sockets[index].as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Sockets for KernelSockets {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        let mut socket = self.open(target)?;
        let (registry, both) = (self.poll.registry(), Interest::READABLE | Interest::WRITABLE);
        match &mut socket {
            KernelSocket::Tcp(socket) => registry.register(socket, Token(index), both)?,
            KernelSocket::Udp(socket) => registry.register(socket, Token(index), both)?,
        }
        self.sockets[index] = Some(socket);
        Ok(())
    }

    fn is_connected(&mut self, index: usize) -> io::Result<bool> {
        let KernelSocket::Tcp(socket) = self.socket(index)? else { return Ok(true) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<usize> {
        match self.socket(index)? {
            KernelSocket::Tcp(socket) => socket.read(buffer),
            KernelSocket::Udp(socket) => socket.recv(buffer),
        }
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> io::Result<usize> {
        match self.socket(index)? {
            KernelSocket::Tcp(socket) => socket.write(bytes),
            KernelSocket::Udp(socket) => match socket.send(bytes) {
                Err(error) if kernel::has_no_room(&error) => Err(io::ErrorKind::WouldBlock.into()),
                result => result,
            },
        }
    }

    fn close(&mut self, index: usize) {
        self.sockets[index] = None;
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        let waited = match due.filter(|due| *due < end) {
            Some(due) => platform::poll_until(&mut self.poll, &mut self.events, due),
            None => self.poll.poll(&mut self.events, Some(end.saturating_duration_since(Instant::now()))),
        };
        match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        let tokens = self.events.iter().map(Event::token).filter(|token| *token != WAKE);
        ready.extend(tokens.map(|Token(index)| index));
        Ok(())
    }

    fn wake(&self) -> Wake {
        let waker = Arc::clone(&self.waker);
        Arc::new(move || {
            // An error is ignored: the thread that waits also wakes regularly.
            let _unheard = waker.wake();
        })
    }
}
