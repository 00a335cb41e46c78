//! Clients and servers on both sides of a program.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use platform::Namespace;
use socket2::{Domain, SockRef, Socket, Type};

use crate::{Step, Stop, ms, pattern, same, secs};

/// How long a packet may take that has to come.
pub(super) const SOON: Duration = secs(3);

/// How long all bytes of a case may take, for a program that sends a few at a time.
pub(super) const ALL_WITHIN: Duration = secs(60);

/// How often a case is tried whose datagrams or times a busy machine may spoil.
pub(super) const TRIES: u32 = 3;

/// Accepted connections that may wait. A thousand come at once.
const BACKLOG: i32 = 4096;

/// The program under test, as far as cases touch it.
pub trait Subject {
    /// The next connection that the program asks the SOCKS5 server for, to this target; `None` if it connects itself.
    fn accept(&mut self, target: SocketAddr, within: Duration) -> Option<io::Result<TcpStream>>;

    /// Why it no longer runs, if so.
    fn ended(&mut self) -> Option<String>;

    /// Whether any of its processes has something to do now, even if the machine has no time for it.
    fn is_busy(&self) -> bool;

    /// Lets each of its processes open this many files more than it has now, or as many as it likes.
    fn limit_files(&self, more: Option<u64>) -> io::Result<()>;

    /// Whether the user has interrupted the cases.
    fn is_interrupted(&mut self) -> bool;

    /// Lets no packet pass the link between the networks, or lets them pass again.
    fn cut(&self, is_cut: bool) -> Result<(), String>;
}

/// Two networks, and a program between them. The calling thread is in the near one.
#[allow(missing_debug_implementations, reason = "a subject has none")]
pub struct Lab<'a> {
    /// The far network.
    pub far: &'a Namespace,
    /// The servers' address, and another one there.
    pub servers: [IpAddr; 2],
    /// An address behind the device to which no route leads, if the program opens its connections from the clients' host or asks a
    /// SOCKS5 server for them.
    pub nobody: Option<IpAddr>,
    /// The program's device.
    pub device: &'a str,
    /// The ends of the link between the networks, if the program's packets take it.
    pub link: Option<[&'static str; 2]>,
    /// The address of the near end of that link, with its prefix length.
    pub near: (IpAddr, u8),
    /// Their MTU.
    pub mtu: u16,
    /// The program.
    pub subject: &'a mut dyn Subject,
    /// The next port of a listener.
    pub port: u16,
}

/// A listener in the far network.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    socket: TcpListener,
}

/// Both ends of a connection.
pub(super) struct Pair {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

impl Lab<'_> {
    /// The ports of listeners, which the SOCKS5 server hands over.
    pub const PORTS: Range<u16> = 7000..7400;

    /// A port that nobody listens to.
    pub(super) const CLOSED: u16 = 6999;

    pub(super) const fn server(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.servers[0], port)
    }

    fn any(&self) -> SocketAddr {
        let any = if self.near.0.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        SocketAddr::new(any, 0)
    }

    pub(super) fn domain(&self) -> Domain {
        if self.near.0.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 }
    }

    /// Ends the case if the user has interrupted it. All waits between two of these are of few seconds.
    fn goes_on(&mut self) -> Step {
        if self.subject.is_interrupted() { Err(Stop::Unavailable("interrupted".to_owned())) } else { Ok(()) }
    }

    /// Waits, unless the user interrupts the case.
    pub(super) fn pause(&mut self, time: Duration) -> Step {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.goes_on()?;
            thread::sleep(ms(50));
        }
        Ok(())
    }

    pub(super) fn nobody(&self) -> Step<IpAddr> {
        let no_route = || Stop::NotApplicable("its host has a route to every address, or passes none on".to_owned());
        self.nobody.ok_or_else(no_route)
    }

    pub(super) fn link(&self) -> Step<[&'static str; 2]> {
        let elsewhere = || Stop::NotApplicable("its packets do not take the link between the networks".to_owned());
        self.link.ok_or_else(elsewhere)
    }

    /// Sets the MTU of the far end of the link between the networks, and of the near one too if `both`.
    pub(super) fn set_mtu(&self, mtu: u16, both: bool) -> Step {
        let [near, far] = self.link()?;
        if both {
            platform::set_mtu(near, mtu).map_err(because("the network"))?;
        }
        self.beyond(move || platform::set_mtu(far, mtu).map_err(io::Error::other))
    }

    /// Runs something in the far network.
    pub(super) fn beyond<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Step<T> {
        let done = self.far.run(work).map_err(io::Error::other).flatten();
        done.map_err(because("the far network"))
    }

    pub(super) fn listen(&mut self) -> Step<Listener> {
        let port = self.port;
        self.port = if port + 1 < Self::PORTS.end { port + 1 } else { Self::PORTS.start };
        self.listen_on(port, BACKLOG)
    }

    pub(super) fn listen_on(&mut self, port: u16, backlog: i32) -> Step<Listener> {
        self.goes_on()?;
        let (address, domain) = (self.server(port), self.domain());
        let socket = self.beyond(move || {
            let socket = Socket::new(domain, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(backlog)?;
            Ok(socket)
        })?;
        Ok(Listener { address, socket: socket.into() })
    }

    /// The next connection to a listener.
    pub(super) fn accept(&mut self, listener: &Listener) -> Step<TcpStream> {
        self.goes_on()?;
        let accepted = match self.subject.accept(listener.address, SOON) {
            Some(given) => given,
            None => SockRef::from(&listener.socket)
                .set_read_timeout(Some(SOON))
                .and_then(|()| listener.socket.accept())
                .map(|(stream, _)| stream),
        };
        let ready = accepted.and_then(|stream| in_time(&stream).map(|()| stream));
        ready.map_err(stuck("no connection came to the server"))
    }

    /// Opens a connection.
    pub(super) fn pair(&mut self) -> Step<Pair> {
        let listener = self.listen()?;
        self.pair_to(&listener)
    }

    pub(super) fn pair_to(&mut self, listener: &Listener) -> Step<Pair> {
        let client = connect(listener.address)?;
        let server = self.accept(listener)?;
        Ok(Pair { client, server })
    }

    /// Whether the program still does its work: a connection opens, and bytes pass both ways.
    pub(super) fn echo(&mut self) -> bool {
        self.pair().and_then(|mut pair| pair.works()).is_ok()
    }

    pub(super) fn works(&mut self, when: &str) -> Step {
        let works = (0..TRIES).any(|_| self.echo());
        let ended = self.subject.ended().map(|end| format!(": {end}")).unwrap_or_default();
        check!(works, Hang, "{when} no new connection works{ended}")
    }

    /// A socket of the client, and sockets of the servers.
    pub(super) fn datagrams<const N: usize>(&mut self, at: [(usize, u16); N]) -> Step<(UdpSocket, [UdpSocket; N])> {
        self.goes_on()?;
        let addresses = at.map(|(server, port)| SocketAddr::new(self.servers[server], port));
        let servers = self.beyond(move || {
            let mut sockets = Vec::new();
            for address in addresses {
                sockets.push(UdpSocket::bind(address)?);
            }
            Ok(sockets)
        })?;
        let client = UdpSocket::bind(self.any()).map_err(because("the client"))?;
        for socket in servers.iter().chain([&client]) {
            socket.set_read_timeout(Some(SOON)).map_err(because("a socket"))?;
        }
        servers.try_into().map(|servers| (client, servers)).map_err(|_| Stop::hang("a server is missing"))
    }
}

impl Pair {
    /// Bytes pass both ways.
    pub(super) fn works(&mut self) -> Step {
        send(&mut self.client, b"request")?;
        receive(&mut self.server, b"request", "the server")?;
        send(&mut self.server, b"response")?;
        receive(&mut self.client, b"response", "the client")
    }
}

pub(super) fn connect(to: SocketAddr) -> Step<TcpStream> {
    let connected = TcpStream::connect_timeout(&to, SOON).and_then(|stream| in_time(&stream).map(|()| stream));
    connected.map_err(stuck("the client cannot connect"))
}

fn in_time(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))
}

pub(super) fn send(stream: &mut TcpStream, bytes: &[u8]) -> Step {
    stream.write_all(bytes).map_err(stuck("bytes cannot be sent"))
}

pub(super) fn shut(stream: &TcpStream) -> Step {
    stream.shutdown(Shutdown::Write).map_err(stuck("the half-close"))
}

/// Closes a connection by a reset.
pub(super) fn reset(stream: TcpStream) {
    // It fails for a connection that is closed already, whose end is checked.
    let _closed = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}

/// Receives exactly these bytes.
pub(super) fn receive(stream: &mut TcpStream, expected: &[u8], who: &str) -> Step {
    let (mut got, mut buffer) = (Vec::with_capacity(expected.len()), vec![0; 1 << 16]);
    let begun = Instant::now();
    while got.len() < expected.len() {
        let is_late = begun.elapsed() > ALL_WITHIN;
        check!(!is_late, Speed, "{who} got {} bytes in {} s", got.len(), ALL_WITHIN.as_secs())?;
        let most = buffer.len().min(expected.len() - got.len());
        let end = match stream.read(&mut buffer[..most]) {
            Ok(0) => "the end".to_owned(),
            Ok(len) => {
                got.extend_from_slice(&buffer[..len]);
                continue;
            }
            Err(error) => words(&error),
        };
        return fail!(Data, "{who} got {} of {} bytes, then {end}", got.len(), expected.len());
    }
    same(&got, expected)
}

/// Expects the end of the data.
pub(super) fn ends(stream: &mut TcpStream, who: &str) -> Step {
    match stream.read(&mut [0; 16]) {
        Ok(0) => Ok(()),
        Ok(len) => fail!(Data, "{len} bytes too many came to {who}"),
        Err(error) => fail!(Hang, "{who} got no end, but {}", words(&error)),
    }
}

/// Expects a reset.
pub(super) fn is_reset(stream: &mut TcpStream, who: &str) -> Step {
    match stream.read(&mut [0; 16]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        Ok(0) => fail!(Data, "{who} got an end, as if all bytes had come, in place of the reset"),
        Ok(len) => fail!(Data, "{len} bytes too many came to {who}"),
        Err(error) => fail!(Hang, "{who} got no reset, but {}", words(&error)),
    }
}

/// Sends a datagram, which has to come as it is, and returns where it came from. A busy machine may lose one.
pub(super) fn deliver(
    from: &UdpSocket,
    to: &UdpSocket,
    address: SocketAddr,
    bytes: &[u8],
    who: &str,
) -> Step<SocketAddr> {
    let (mut buffer, mut lost) = (vec![0; 1 << 16], String::new());
    for _ in 0..TRIES {
        from.send_to(bytes, address).map_err(stuck("a datagram cannot be sent"))?;
        match to.recv_from(&mut buffer) {
            Ok((len, source)) => return same(&buffer[..len], bytes).map(|()| source),
            Err(error) => lost = words(&error),
        }
    }
    fail!(Hang, "{who} got no datagram, but {lost}")
}

/// Sends a datagram from a server to a client, at the address that servers know of it.
pub(super) fn arrives(client: &UdpSocket, server: &UdpSocket, address: SocketAddr, len: usize) -> Step {
    let own = server.local_addr().map_err(because("the server"))?;
    let source = deliver(server, client, address, &pattern(7, len), "the client")?;
    check!(source == own, Data, "the datagram came from {source} in place of {own}")
}

/// Sends a datagram to a server and another one back. Returns the client's address as the server sees it.
pub(super) fn exchange(client: &UdpSocket, server: &UdpSocket, len: usize) -> Step<SocketAddr> {
    let to = server.local_addr().map_err(because("the server"))?;
    let from = deliver(client, server, to, &pattern(len as u64, len), "the server")?;
    arrives(client, server, from, len)?;
    Ok(from)
}

/// An operation that the system refused, which is no fault of the program.
pub(super) fn because<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Stop {
    move |error| Stop::Unavailable(format!("{what}: {error}"))
}

/// An operation that did not come to its end.
pub(super) fn stuck(what: &str) -> impl FnOnce(io::Error) -> Stop {
    move |error| Stop::hang(format!("{what}: {}", words(&error)))
}

/// An error in words that do not depend on the system.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("nothing in {} s", SOON.as_secs()),
        ErrorKind::ConnectionReset => "a reset".to_owned(),
        ErrorKind::ConnectionRefused => "a refusal".to_owned(),
        ErrorKind::BrokenPipe => "the connection is closed".to_owned(),
        _ => error.to_string(),
    }
}
