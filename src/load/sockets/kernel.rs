//! Sockets of the kernel.

use std::io::{self, Read, Write};
use std::net::{self, IpAddr, Shutdown, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpStream, UdpSocket};
use mio::{Events, Interest, Poll, Token, Waker};
use platform::{Class, PollClock, TcpStatistics};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{Cancel, Sockets};
use crate::cell;
use crate::remedy::{SystemError, WithRemedy};
use crate::socks5::Handshake;

const EVENTS: usize = 1024;

const WAKE: Token = Token(usize::MAX);

/// The default congestion control of a socket, and of the networks of a run, if the kernel has it.
pub(crate) const CONGESTION: &str = "cubic";

pub(crate) struct KernelSockets {
    settings: Settings,
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    clock: PollClock,
    sockets: Vec<Option<KernelSocket>>,
    /// Those with the SOCKS5 server.
    handshakes: Vec<Option<Handshake>>,
    blocking: Arc<OnceLock<net::TcpStream>>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) protocol: cell::Protocol,
    pub(crate) congestion: Option<String>,
    /// A SOCKS5 server that opens the connections.
    pub(crate) socks5: Option<SocketAddr>,
    /// The device that the sockets are bound to.
    pub(crate) device: Option<String>,
    pub(crate) bulk: Option<Bulk>,
    /// The addresses of the servers. Socket after socket of the load connects to them in turn.
    pub(crate) servers: Vec<IpAddr>,
    /// The sockets of the load before the first of these.
    pub(crate) before: usize,
}

impl Settings {
    /// The target of a socket: the same port, at the server whose turn it is.
    fn target_of(&self, index: usize, target: SocketAddr) -> SocketAddr {
        let turn = (self.before + index) % self.servers.len().max(1);
        SocketAddr::new(self.servers.get(turn).copied().unwrap_or(target.ip()), target.port())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Bulk {
    pub(crate) buffer_bytes: usize,
    /// Whether datagrams that are sent together are received together.
    pub(crate) coalesces: bool,
}

impl Bulk {
    pub(crate) fn set_up(self, socket: &net::UdpSocket) {
        let socket = SockRef::from(socket);
        // With smaller buffers more datagrams are lost, which is counted.
        let _limited = platform::set_socket_buffers(&socket, self.buffer_bytes);
        if self.coalesces {
            platform::coalesce_datagrams(&socket);
        }
    }
}

enum KernelSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl KernelSockets {
    pub(crate) fn new(settings: Settings, count: usize) -> Result<Self, SystemError> {
        let failed = |source| platform::Error::new(Class::Failed, "wait for", "sockets", source);
        let poll = Poll::new().map_err(failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(failed)?);
        let sockets = (0..count).map(|_| None).collect();
        let handshakes = (0..count).map(|_| None).collect();
        let events = Events::with_capacity(EVENTS);
        let clock = PollClock::new(&waker);
        Ok(Self { settings, poll, events, waker, clock, sockets, handshakes, blocking: Arc::default() })
    }

    fn open(&self, target: SocketAddr) -> io::Result<KernelSocket> {
        if self.settings.protocol == cell::Protocol::Udp {
            let socket = net::UdpSocket::bind(any_port(target))?;
            if let Some(device) = &self.settings.device {
                platform::bind_to_interface(&SockRef::from(&socket), device, target.is_ipv6())?;
            }
            socket.connect(target)?;
            socket.set_nonblocking(true)?;
            platform::allow_long_datagrams(&SockRef::from(&socket))?;
            if let Some(bulk) = self.settings.bulk {
                bulk.set_up(&socket);
            }
            return Ok(KernelSocket::Udp(UdpSocket::from_std(socket)));
        }
        let socket = match &self.settings.device {
            Some(device) => {
                let socket = bound(target, device)?;
                platform::begin_to_connect(&socket, target)?;
                socket.into()
            }
            None => net::TcpStream::from(TcpStream::connect(self.settings.socks5.unwrap_or(target))?),
        };
        set_up(&socket, self.settings.congestion.as_deref()).map_err(io::Error::other)?;
        Ok(KernelSocket::Tcp(TcpStream::from_std(socket)))
    }

    fn socket(&mut self, index: usize) -> io::Result<&mut KernelSocket> {
        self.sockets[index].as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn udp(&mut self, index: usize) -> io::Result<SockRef<'_>> {
        match self.socket(index)? {
            KernelSocket::Udp(socket) => Ok(SockRef::from(&*socket)),
            KernelSocket::Tcp(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Sockets for KernelSockets {
    fn connect(&mut self, index: usize, target: SocketAddr) -> io::Result<()> {
        let target = self.settings.target_of(index, target);
        let mut socket = self.open(target)?;
        let (registry, both) = (self.poll.registry(), Interest::READABLE | Interest::WRITABLE);
        match &mut socket {
            KernelSocket::Tcp(socket) => registry.register(socket, Token(index), both)?,
            KernelSocket::Udp(socket) => registry.register(socket, Token(index), both)?,
        }
        self.sockets[index] = Some(socket);
        self.handshakes[index] = self.settings.socks5.map(|_| Handshake::at_once(target));
        Ok(())
    }

    fn is_connected(&mut self, index: usize) -> io::Result<bool> {
        let socket = self.sockets[index].as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let KernelSocket::Tcp(socket) = socket else { return Ok(true) };
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        match (socket.peer_addr(), &mut self.handshakes[index]) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (Err(error), _) => Err(error),
            (Ok(_), None) => Ok(true),
            (Ok(_), Some(handshake)) => Ok(handshake.go_on(socket)?.is_some()),
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
            KernelSocket::Udp(socket) => socket.send(bytes).map_err(platform::unsent),
        }
    }

    fn read_datagrams(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        let received = platform::recv_datagrams(&*self.udp(index)?, buffer)?;
        Ok((received.len, received.segment_len))
    }

    fn write_datagrams(&mut self, index: usize, datagrams: &[u8], segment_len: usize) -> io::Result<usize> {
        platform::send_datagrams(&*self.udp(index)?, None, datagrams, segment_len).map_err(platform::unsent)
    }

    fn end_writing(&mut self, index: usize) -> io::Result<()> {
        match self.socket(index)? {
            KernelSocket::Tcp(socket) => socket.shutdown(Shutdown::Write),
            KernelSocket::Udp(_) => Ok(()),
        }
    }

    fn close(&mut self, index: usize) {
        self.sockets[index] = None;
    }

    fn reset(&mut self, index: usize) {
        if let Some(KernelSocket::Tcp(socket)) = &self.sockets[index] {
            // Otherwise it ends by a FIN.
            let _closed = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
        self.close(index);
    }

    fn block(&mut self) -> io::Result<()> {
        let Some(KernelSocket::Tcp(socket)) = self.sockets[0].take() else { return Ok(()) };
        let socket = net::TcpStream::from(socket);
        socket.set_nonblocking(false)?;
        let _first = self.blocking.set(socket.try_clone()?);
        self.sockets[0] = Some(KernelSocket::Tcp(TcpStream::from_std(socket)));
        Ok(())
    }

    fn unblock(&mut self) -> io::Result<()> {
        match &self.sockets[0] {
            Some(KernelSocket::Tcp(socket)) => SockRef::from(socket).set_nonblocking(true),
            _ => Ok(()),
        }
    }

    fn statistics(&self, index: usize) -> TcpStatistics {
        let Some(KernelSocket::Tcp(socket)) = &self.sockets[index] else { return TcpStatistics::default() };
        let handle = SockRef::from(socket).try_clone().map(net::TcpStream::from);
        handle.map(|socket| platform::tcp_statistics(&socket)).unwrap_or_default()
    }

    fn wait(&mut self, end: Instant, due: Option<Instant>, ready: &mut Vec<usize>) -> io::Result<()> {
        let now = Instant::now();
        let waited = match due.filter(|due| *due < end) {
            // A socket that blocks has no events.
            Some(due) if due <= now && self.blocking.get().is_some() => return Ok(()),
            Some(due) if due > now => self.clock.poll_until(&mut self.poll, &mut self.events, due),
            Some(_) => self.poll.poll(&mut self.events, Some(Duration::ZERO)),
            None => self.poll.poll(&mut self.events, Some(end.saturating_duration_since(now))),
        };
        match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        let tokens = self.events.iter().map(Event::token).filter(|token| *token != WAKE);
        ready.extend(tokens.map(|Token(index)| index));
        Ok(())
    }

    fn canceller(&self) -> Cancel {
        let (waker, blocking) = (Arc::clone(&self.waker), Arc::clone(&self.blocking));
        Box::new(move || {
            // An error is ignored: the thread that waits also wakes regularly.
            let _unheard = waker.wake();
            if let Some(socket) = blocking.get() {
                platform::end_connection(socket);
            }
        })
    }
}

/// A socket for a connection to `target`, which does not block and is bound to a device.
pub(crate) fn bound(target: SocketAddr, device: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    platform::bind_to_interface(&socket, device, target.is_ipv6())?;
    Ok(socket)
}

/// Makes a socket for connections to `target`. Also returns the name of its congestion control, if the system reports it.
pub(crate) fn socket(
    target: SocketAddr,
    congestion: Option<&str>,
) -> Result<(net::TcpStream, Option<String>), SystemError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    let socket = net::TcpStream::from(socket);
    let name = set_up(&socket, congestion)?;
    Ok((socket, name))
}

/// Sets the congestion control of a socket, and disables Nagle's algorithm. Returns the name of the congestion control.
fn set_up(socket: &net::TcpStream, congestion: Option<&str>) -> Result<Option<String>, SystemError> {
    // Small messages must not wait: a go, an acknowledgement, a request.
    socket.set_nodelay(true).map_err(|source| platform::Error::new(Class::Failed, "set up", "a socket", source))?;
    match platform::set_congestion_control(&SockRef::from(socket), congestion.unwrap_or(CONGESTION)) {
        Ok(()) => Ok(Some(congestion.unwrap_or(CONGESTION).to_owned())),
        Err(_) if congestion.is_none() => Ok(platform::default_congestion_control()),
        Err(source) => {
            let object = format!("congestion control {}", congestion.unwrap_or_default());
            Err(platform::Error::new(Class::Unavailable, "set", object, source).remedy(
                "see sysctl net.ipv4.tcp_available_congestion_control, load it with modprobe tcp_NAME, or leave out \
                 --congestion",
            ))
        }
    }
}

/// The unspecified address, with any port. A socket that sends to `target` can be bound to it.
fn any_port(target: SocketAddr) -> SocketAddr {
    SocketAddr::new(platform::unspecified(target.is_ipv6()), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scenario::Scenario;

    /// The load's sockets are counted across its threads.
    #[test]
    fn socket_after_socket_connects_to_the_servers_in_turn() {
        for (words, first, before, expected) in [
            ("--program lwip", "198.18.2.1", 7, ["198.18.2.1", "198.18.2.1", "198.18.2.1"]),
            ("--program gotatun --peers 2", "10.10.10.1", 0, ["10.10.10.1", "10.10.11.1", "10.10.10.1"]),
            ("--program gotatun --peers 3", "10.10.10.1", 2, ["10.10.12.1", "10.10.10.1", "10.10.11.1"]),
            ("--program gotatun --peers 2 --inbound", "10.10.10.9", 0, ["10.10.10.9", "10.10.11.9", "10.10.10.9"]),
            ("--program gotatun --peers 2 --ipv6", "fd10::1", 1, ["fd10:10:10:1::1", "fd10::1", "fd10:10:10:1::1"]),
        ] {
            let words = format!("-m rr --parallel 4 {words}").split(' ').map(ToOwned::to_owned).collect();
            let servers = Scenario::of_words(words).unwrap().servers(first.parse().unwrap());
            let (protocol, bulk) = (cell::Protocol::Tcp, None);
            let settings = Settings { protocol, congestion: None, socks5: None, device: None, bulk, servers, before };
            let target = SocketAddr::new(first.parse().unwrap(), 5201);
            let made = [0, 1, 2].map(|index| settings.target_of(index, target));
            assert_eq!(made, expected.map(|address| SocketAddr::new(address.parse().unwrap(), 5201)));
        }
    }
}
