//! The servers' side: kernel sockets that are bound to one interface.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use netstacks::Unreachable;
use platform::{Cause, Feature, bind_to_interface};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::Config;
use super::reports::Reports;

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
        let socket = self.socket(Domain::for_address(server), Type::STREAM, Protocol::TCP)?;
        // RFC 6093, 6.
        socket.set_out_of_band_inline(true)?;
        if let Some(idle) = self.config.keepalive {
            let probe = TcpKeepalive::new().with_time(idle).with_interval((idle / PROBES).max(Duration::from_secs(1)));
            socket.set_tcp_keepalive(&probe.with_retries(PROBES))?;
        }
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(server);
        let stream = tokio::time::timeout(self.config.connect_timeout, connecting).await??;
        // The client's bytes are forwarded as they come.
        stream.set_nodelay(true)?;
        Ok(Server(stream))
    }

    /// A socket for the datagrams to and from a server.
    pub(super) fn datagrams(&self, server: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(Domain::for_address(server), Type::DGRAM, Protocol::UDP)?;
        socket.connect(&server.into())?;
        platform::coalesce_datagrams(&socket);
        UdpSocket::from_std(socket.into())
    }

    pub(super) fn report(&self, operation: &str, server: SocketAddr, error: &io::Error) {
        self.reports.add(operation, server, error);
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

/// The cause of a failure, if a RST or an ICMP message can report it to the client.
pub(super) fn reason(error: &io::Error) -> Option<Unreachable> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Unreachable::Port),
        io::ErrorKind::NetworkUnreachable => Some(Unreachable::Network),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ => None,
    }
}
