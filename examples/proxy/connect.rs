//! The world beyond the proxy: sockets of the kernel that are bound to one interface.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netstacks::Unreachable;
use platform::{Class, bind_to_interface};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Failure;
use crate::arguments::Arguments;

/// How flows are carried on, and how many and how long.
#[derive(Debug)]
pub(crate) struct World {
    interface: String,
    connections: Arc<Semaphore>,
    /// Half of them may wait for servers that do not answer, so that others go on.
    attempts: Arc<Semaphore>,
    pub(crate) max_flows: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) tcp_idle: Duration,
    pub(crate) udp_idle: Duration,
}

impl World {
    /// Sees that the interface is there and may be used.
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, Failure> {
        let world = Self {
            interface: arguments.interface.clone(),
            connections: Arc::new(Semaphore::new(arguments.max_flows())),
            attempts: Arc::new(Semaphore::new(arguments.max_flows().div_ceil(2))),
            max_flows: arguments.max_flows(),
            connect_timeout: arguments.connect_timeout,
            tcp_idle: arguments.tcp_idle,
            udp_idle: arguments.udp_idle,
        };
        world.socket(Domain::IPV4, Type::DGRAM, Protocol::UDP).map_err(|error| {
            let (class, remedy) = match error.kind() {
                io::ErrorKind::PermissionDenied => (Class::Unavailable, "run as root"),
                io::ErrorKind::Unsupported => (Class::Unavailable, "run on Linux, macOS or Windows"),
                _ => (Class::Invalid, "name one that exists with --interface"),
            };
            platform::Error::new(class, "bind a socket to", &world.interface, error).remedy(remedy)
        })?;
        Ok(world)
    }

    /// The right to one more connection; `None` where there are as many as there may be.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// The right to ask one more server; `None` where as many as may be have not answered yet.
    pub(crate) fn attempt(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.attempts).try_acquire_owned().ok()
    }

    fn socket(&self, domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket = Socket::new(domain, kind, Some(protocol))?;
        socket.set_nonblocking(true)?;
        bind_to_interface(&socket, &self.interface, domain == Domain::IPV6)?;
        Ok(socket)
    }

    /// A connection to a server. `TimedOut` for one that does not answer.
    pub(crate) async fn connect(&self, server: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(Domain::for_address(server), Type::STREAM, Protocol::TCP)?;
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(server);
        let stream = tokio::time::timeout(self.connect_timeout, connecting).await??;
        // What the client writes is passed on when it comes.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A socket whose datagrams go to a server, and come from it.
    pub(crate) fn datagrams(&self, server: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(Domain::for_address(server), Type::DGRAM, Protocol::UDP)?;
        socket.connect(&server.into())?;
        UdpSocket::from_std(socket.into())
    }
}

/// What a client is told of a failure; `None` where there is nothing to tell.
pub(crate) fn reason(error: &io::Error) -> Option<Unreachable> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Unreachable::Port),
        io::ErrorKind::NetworkUnreachable => Some(Unreachable::Network),
        io::ErrorKind::HostUnreachable => Some(Unreachable::Host),
        io::ErrorKind::PermissionDenied => Some(Unreachable::Prohibited),
        _ => None,
    }
}
