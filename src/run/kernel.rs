//! The kernel's sockets, as clients.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use platform::{Class, TcpStatistics};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::RunError;
use super::client::{Cancel, Connection, Connector};
use super::transfer::TransferError;

/// A handshake within one host takes so long only where nobody answers.
const CONNECT: Duration = Duration::from_secs(10);

/// The congestion control that a socket gets where the user names none and the kernel has it.
const CONGESTION: &str = "cubic";

/// A socket for connections to `target`, with its congestion control, and that one's name where the system
/// says.
pub(super) fn socket(target: SocketAddr, congestion: Option<&str>) -> Result<(TcpStream, Option<String>), RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    // The go and the acknowledgement are not to wait for anything.
    socket.set_tcp_nodelay(true).map_err(failed)?;
    let socket = TcpStream::from(socket);
    let name = match platform::set_congestion_control(&socket, congestion.unwrap_or(CONGESTION)) {
        Ok(()) => Some(congestion.unwrap_or(CONGESTION).to_owned()),
        Err(_) if congestion.is_none() => platform::default_congestion_control(),
        Err(source) => {
            let object = format!("congestion control {}", congestion.unwrap_or_default());
            return Err(platform::Error::new(Class::Unavailable, "set", object, source)
                .remedy(
                    "see sysctl net.ipv4.tcp_available_congestion_control, load it with modprobe tcp_NAME, \
                         or leave out --congestion",
                )
                .into());
        }
    };
    Ok((socket, name))
}

/// A socket that is not connected yet.
pub(super) struct KernelConnector {
    socket: Arc<TcpStream>,
    target: SocketAddr,
    timeout: Duration,
}

impl KernelConnector {
    /// To `target`, within `timeout` at most.
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
        Box::new(move || {
            // A socket that was never connected cannot be shut down, and need not be.
            let _unconnected = socket.shutdown(Shutdown::Both);
        })
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
