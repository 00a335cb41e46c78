//! The kernel's sockets as clients.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use platform::{Class, TcpStatistics};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::client::{Cancel, Connection, Connector};
use super::error::RunError;
use super::transfer::TransferError;
use crate::remedy::WithRemedy;

/// How long a handshake may take. Within one host it takes this long only if there is no reply.
const CONNECT: Duration = Duration::from_secs(10);

/// The default congestion control of a socket, if the kernel has it.
const CONGESTION: &str = "cubic";

/// Makes a socket for connections to `target`, and sets its congestion control. Also returns the name of the congestion
/// control, if the system reports it.
pub(super) fn socket(target: SocketAddr, congestion: Option<&str>) -> Result<(TcpStream, Option<String>), RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    let socket = TcpStream::from(socket);
    let name = set_up(&socket, congestion)?;
    Ok((socket, name))
}

/// Sets the congestion control of a socket, and disables Nagle's algorithm. Returns the name of the congestion control.
pub(super) fn set_up(socket: &TcpStream, congestion: Option<&str>) -> Result<Option<String>, RunError> {
    // Small messages must not wait: a go, an acknowledgement, a request.
    socket.set_nodelay(true).map_err(|source| platform::Error::new(Class::Failed, "set up", "a socket", source))?;
    match platform::set_congestion_control(socket, congestion.unwrap_or(CONGESTION)) {
        Ok(()) => Ok(Some(congestion.unwrap_or(CONGESTION).to_owned())),
        Err(_) if congestion.is_none() => Ok(platform::default_congestion_control()),
        Err(source) => {
            let object = format!("congestion control {}", congestion.unwrap_or_default());
            Err(platform::Error::new(Class::Unavailable, "set", object, source)
                .remedy(
                    "see sysctl net.ipv4.tcp_available_congestion_control, load it with modprobe tcp_NAME, \
                         or leave out --congestion",
                )
                .into())
        }
    }
}

/// Whether a datagram was not sent for lack of room, or not received because none was there.
pub(super) fn has_no_room(error: &io::Error) -> bool {
    // ENOBUFS, and its number on Windows: some systems return it if the queue of a device is full.
    const NO_BUFFERS: i32 = if cfg!(windows) {
        10_055
    } else if cfg!(target_os = "linux") {
        105
    } else {
        55
    };
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(NO_BUFFERS)
}

/// The unspecified address, with any port. A socket that sends to `target` can be bound to it.
pub(super) fn any_port(target: SocketAddr) -> SocketAddr {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, 0)
}

/// A socket that is not connected yet.
pub(super) struct KernelConnector {
    socket: Arc<TcpStream>,
    target: SocketAddr,
    timeout: Duration,
}

impl KernelConnector {
    pub(super) fn new(socket: TcpStream, target: SocketAddr, timeout: Duration) -> Self {
        Self { socket: Arc::new(socket), target, timeout: timeout.min(CONNECT) }
    }
}

impl Connector for KernelConnector {
    type Connection = KernelConnection;

    fn connect(self) -> Result<KernelConnection, TransferError> {
        SockRef::from(&*self.socket)
            .connect_timeout(&self.target.into(), self.timeout)
            .map_err(TransferError::io("connect"))?;
        Ok(KernelConnection(self.socket))
    }

    fn canceller(&self) -> Cancel {
        let socket = Arc::clone(&self.socket);
        Box::new(move || platform::end_connection(&socket))
    }
}

/// A connected socket.
pub(super) struct KernelConnection(Arc<TcpStream>);

impl Connection for KernelConnection {
    fn shutdown_write(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn statistics(&self) -> TcpStatistics {
        platform::tcp_statistics(&self.0)
    }
}

impl Read for KernelConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Write for KernelConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}
