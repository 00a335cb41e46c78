//! The servers' side: kernel sockets that are bound to one interface, to the servers or to a SOCKS5 server.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use netstacks::{FlowKey, Unreachable, is_link_local};
use platform::{Cause, Feature, bind_to_interface};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::Config;
use super::reports::Reports;
use crate::socks5::{Command, Handshake};

/// How many keepalive probes in a row a server may leave unanswered. They follow each other in a quarter of the idle time.
const PROBES: u32 = 4;

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) config: Config,
    reports: Reports,
}

impl Upstream {
    /// Checks that the interface exists and may be used.
    pub(super) fn new(config: Config) -> Result<Self, platform::Error> {
        let upstream = Self { reports: Reports::new(config.report), config };
        upstream.socket(Domain::IPV4, Type::DGRAM, Protocol::UDP).map_err(|error| {
            let cause = match error.kind() {
                io::ErrorKind::PermissionDenied => Cause::NeedsNetAdmin,
                io::ErrorKind::Unsupported => Cause::Unsupported(Feature::Tun),
                _ => Cause::NoInterface,
            };
            platform::Error::new(cause, "bind a socket to", &upstream.config.interface, error)
        })?;
        Ok(upstream)
    }

    fn socket(&self, domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket = Socket::new(domain, kind, Some(protocol))?;
        socket.set_nonblocking(true)?;
        bind_to_interface(&socket, &self.config.interface, domain == Domain::IPV6)?;
        Ok(socket)
    }

    /// Connects to a server. Returns `TimedOut` if it does not reply.
    pub(super) async fn connect(&self, server: SocketAddr) -> io::Result<Server> {
        match self.config.socks5 {
            None => self.in_time(self.stream(server)).await.map(Server),
            Some(socks5) => self.ask(socks5, Command::Connect, server).await.map(|(stream, _)| Server(stream)),
        }
    }

    /// Asks a SOCKS5 server to relay datagrams. Returns the connection for which it does, and the address of the relay.
    pub(super) async fn associate(&self, socks5: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
        // The port of the client's datagrams is not known behind a NAT.
        let anything = SocketAddr::new(platform::unspecified(socks5.is_ipv6()), 0);
        let (stream, relay) = self.ask(socks5, Command::UdpAssociate, anything).await?;
        let host = if relay.ip().is_unspecified() { socks5.ip() } else { relay.ip() };
        Ok((stream, SocketAddr::new(host, relay.port())))
    }

    async fn ask(
        &self,
        socks5: SocketAddr,
        command: Command,
        target: SocketAddr,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let asked = async {
            // A failure here is not the target's.
            let stream = self.stream(socks5).await.map_err(|error| io::Error::other(format!("{socks5}: {error}")))?;
            let mut handshake = Handshake::of(command, target);
            loop {
                if let Some(address) = handshake.go_on(&mut Ready(&stream))? {
                    return Ok((stream, address));
                }
                stream.readable().await?;
            }
        };
        self.in_time(asked).await
    }

    async fn in_time<T>(&self, connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::time::timeout(self.config.connect_timeout, connecting).await?
    }

    async fn stream(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(Domain::for_address(server), Type::STREAM, Protocol::TCP)?;
        // RFC 6093, 6.
        socket.set_out_of_band_inline(true)?;
        if let Some(idle) = self.config.keepalive {
            let probe = TcpKeepalive::new().with_time(idle).with_interval((idle / PROBES).max(Duration::from_secs(1)));
            socket.set_tcp_keepalive(&probe.with_retries(PROBES))?;
        }
        let stream = TcpSocket::from_std_stream(socket.into()).connect(server).await?;
        // The client's bytes are forwarded as they come.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A socket for a client's datagrams, with "don't fragment" if they go to the servers themselves.
    pub(super) fn datagrams(&self, key: FlowKey) -> io::Result<UdpSocket> {
        check_scope(key)?;
        let to = self.config.socks5.unwrap_or(key.local);
        let ipv6 = to.is_ipv6();
        let socket = self.socket(Domain::for_address(to), Type::DGRAM, Protocol::UDP)?;
        platform::allow_long_datagrams(&socket)?;
        platform::coalesce_datagrams(&socket, true);
        // A datagram for a SOCKS5 server has a header more than the client's.
        let dont_fragment = platform::set_dont_fragment(&socket, ipv6, self.config.socks5.is_none());
        for option in [platform::queue_errors(&socket, ipv6), dont_fragment] {
            // Other systems do without.
            option.or_else(|error| if error.kind() == io::ErrorKind::Unsupported { Ok(()) } else { Err(error) })?;
        }
        // On Windows nothing can be received, or waited for, before this.
        socket.bind(&SocketAddr::new(platform::unspecified(ipv6), 0).into())?;
        UdpSocket::from_std(socket.into())
    }

    pub(super) fn report(&self, operation: &str, server: SocketAddr, error: &io::Error) {
        self.reports.add(operation, server, error);
    }
}

/// The bytes that a connection has and takes now.
struct Ready<'a>(&'a TcpStream);

impl Read for Ready<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for Ready<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Server(TcpStream);

impl Deref for Server {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsyncRead for Server {
    /// Like [`TcpStream`]'s, which takes a short read for an empty socket. But the kernel ends a read before an urgent byte.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            match self.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Server {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Addresses of one link are not forwarded from or to others.
pub(super) fn check_scope(key: FlowKey) -> io::Result<()> {
    let is_on_one_link = is_link_local(key.local.ip()) || is_link_local(key.peer.ip());
    if is_on_one_link { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

/// Whether the interface, its address or its route is the reason of a failure.
pub(super) fn is_local_failure(error: &io::Error) -> bool {
    // ENXIO and ENODEV on every Unix.
    const NO_DEVICE: [i32; 2] = [6, 19];
    let kinds = [
        io::ErrorKind::NetworkUnreachable,
        io::ErrorKind::NetworkDown,
        io::ErrorKind::AddrNotAvailable,
        io::ErrorKind::InvalidInput,
    ];
    kinds.contains(&error.kind()) || error.raw_os_error().is_some_and(|number| NO_DEVICE.contains(&number))
}

/// The cause of a failure, if a RST or an ICMP message can report it to the client.
pub(super) fn reason(error: &io::Error) -> Option<Unreachable> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Unreachable::Port),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ => is_local_failure(error).then_some(Unreachable::Network),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_link_are_not_forwarded() {
        for (local, peer, is_forwarded) in [
            ("192.0.2.1:53", "10.0.0.1:4000", true),
            ("169.254.169.254:80", "10.0.0.1:4000", false),
            ("192.0.2.1:53", "169.254.0.1:4000", false),
            ("[2001:db8::1]:53", "[fd00::1]:4000", true),
            ("[fe80::1]:53", "[fd00::1]:4000", false),
            ("[2001:db8::1]:53", "[febf::1]:4000", false),
            // The kernel sends to such an address over IPv4.
            ("[::ffff:169.254.169.254]:80", "[fd00::1]:4000", false),
        ] {
            let key = FlowKey { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
            assert_eq!(check_scope(key).is_ok(), is_forwarded, "{local} {peer}");
        }
    }
}
