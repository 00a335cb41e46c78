//! The servers' side: kernel sockets that are bound to one interface.

use std::io;
use std::net::SocketAddr;

use netstacks::Unreachable;
use platform::{Cause, Feature, bind_to_interface};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::Config;

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) config: Config,
}

impl Upstream {
    /// Checks that the interface exists and may be used.
    pub(super) fn new(config: Config) -> Result<Self, platform::Error> {
        let upstream = Self { config };
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
    pub(super) async fn connect(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(Domain::for_address(server), Type::STREAM, Protocol::TCP)?;
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(server);
        let stream = tokio::time::timeout(self.config.connect_timeout, connecting).await??;
        // The client's bytes are forwarded as they come.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A socket for the datagrams to and from a server.
    pub(super) fn datagrams(&self, server: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(Domain::for_address(server), Type::DGRAM, Protocol::UDP)?;
        socket.connect(&server.into())?;
        platform::coalesce_datagrams(&socket);
        UdpSocket::from_std(socket.into())
    }

    pub(super) fn report(&self, operation: &str, server: SocketAddr, error: &io::Error) {
        (self.config.report)(&format!("{operation} {server}: {error}"));
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
