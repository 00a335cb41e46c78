//! Clients and servers on both sides of a program.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::time::Duration;

use platform::Namespace;
use socket2::{Domain, SockRef, Socket, Type};

use crate::{Harm, Step, Stop, pattern, same, secs};

/// How long a packet may take that has to come.
pub(super) const SOON: Duration = secs(3);

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
    /// The ends of the link between the networks, and the near end's address with its prefix length.
    pub link: [&'static str; 2],
    /// See `link`.
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

    /// Runs something in the far network.
    pub(super) fn beyond<T: Send + 'static>(&self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Step<T> {
        let done = self.far.run(work).map_err(io::Error::other).flatten();
        done.map_err(because("the far network"))
    }

    pub(super) fn listen(&mut self) -> Step<Listener> {
        let port = self.port;
        self.port += 1;
        self.listen_on(port, BACKLOG)
    }

    pub(super) fn listen_on(&self, port: u16, backlog: i32) -> Step<Listener> {
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
        self.accept_within(listener, SOON)
    }

    pub(super) fn accept_within(&mut self, listener: &Listener, within: Duration) -> Step<TcpStream> {
        let accepted = match self.subject.accept(listener.address, within) {
            Some(given) => given,
            None => SockRef::from(&listener.socket)
                .set_read_timeout(Some(within))
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

    /// A socket of the client, which only hears one server, and sockets of the server.
    pub(super) fn datagrams<const N: usize>(&self, at: [(usize, u16); N]) -> Step<(UdpSocket, [UdpSocket; N])> {
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
    stream.shutdown(Shutdown::Write).map_err(because("a half-close"))
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
    while got.len() < expected.len() {
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

/// Receives a datagram, and returns its length and where it came from. The buffer is longer than any.
pub(super) fn datagram(socket: &UdpSocket, buffer: &mut [u8], who: &str) -> Step<(usize, SocketAddr)> {
    let came = socket.recv_from(buffer);
    came.map_err(|error| Stop::hang(format!("{who} got no datagram, but {}", words(&error))))
}

/// Sends a datagram to a server and another one back, which both must come as they are. Returns the client's address as the server
/// sees it.
pub(super) fn exchange(client: &UdpSocket, server: &UdpSocket, len: usize) -> Step<SocketAddr> {
    let (question, answer, mut buffer) = (pattern(len as u64, len), pattern(7, len), vec![0; 1 << 16]);
    let to = server.local_addr().map_err(because("the server"))?;
    let mut from = None;
    // The first datagram of a flow may be lost on a busy machine.
    for attempt in 1..=TRIES {
        client.send_to(&question, to).map_err(stuck("a datagram cannot be sent"))?;
        match datagram(server, &mut buffer, "the server") {
            Err(lost) if attempt == TRIES => return Err(lost),
            Err(_) => {}
            Ok((got, address)) => {
                same(&buffer[..got], &question)?;
                from = Some(address);
                break;
            }
        }
    }
    let Some(from) = from else { return fail!("no datagram came") };
    for attempt in 1..=TRIES {
        server.send_to(&answer, from).map_err(stuck("an answer cannot be sent"))?;
        match datagram(client, &mut buffer, "the client") {
            Err(lost) if attempt == TRIES => return Err(lost),
            Err(_) => {}
            Ok((got, source)) => {
                same(&buffer[..got], &answer)?;
                check!(source == to, "the answer came from {source} in place of {to}")?;
                break;
            }
        }
    }
    Ok(from)
}

/// An operation that the system refused.
pub(super) fn because<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Stop {
    move |error| Stop::Fail { seen: format!("{what}: {error}"), harm: Harm::Manners }
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
