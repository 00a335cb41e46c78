//! The kernel's sockets as clients.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use platform::{Class, TcpStatistics};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::client::{Cancel, Client, Connection, Connector};
use super::error::RunError;
use super::load::Load;
use super::sockets::KernelSockets;
use super::transfer::{Stream, TransferError};
use super::{datagram_client, requester};
use crate::remedy::WithRemedy;
use crate::scenario::Scenario;

/// A handshake within one host takes this long only if there is no answer.
const CONNECT: Duration = Duration::from_secs(10);

/// The congestion control of a socket by default, if the kernel has it.
const CONGESTION: &str = "cubic";

/// A socket for connections to `target` with its congestion control set, and the name of that if the system says.
pub(super) fn socket(target: SocketAddr, congestion: Option<&str>) -> Result<(TcpStream, Option<String>), RunError> {
    let failed = |source| platform::Error::new(Class::Failed, "create", "a socket", source);
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    let socket = TcpStream::from(socket);
    let name = set_up(&socket, congestion)?;
    Ok((socket, name))
}

/// Sets the congestion control of a socket, and that it sends at once. Returns the name of the former.
pub(super) fn set_up(socket: &TcpStream, congestion: Option<&str>) -> Result<Option<String>, RunError> {
    // A go, an acknowledgement and a request must not wait.
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

/// No address, any port: where a socket is bound that sends to `target`.
pub(super) fn any_port(target: SocketAddr) -> SocketAddr {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, 0)
}

/// The clients of a load, in the calling thread's network, and their congestion control. Each stream has a target and
/// a client of its own; requests and datagrams have one client, with the targets behind those.
pub(super) fn clients(
    scenario: &Scenario,
    load: &Load,
    mut targets: Vec<SocketAddr>,
) -> Result<(Vec<Client>, Option<String>), RunError> {
    let others = targets.split_off(load.streams().len());
    let asked = scenario.congestion.as_deref();
    match load {
        Load::Streams(streams) => of_streams(scenario, streams, &targets),
        Load::Requests(exchange, streams) => {
            let (mut clients, _) = of_streams(scenario, streams, &targets)?;
            let (_, congestion) = socket(others[0], asked)?;
            let sockets = KernelSockets::new(exchange.protocol(), exchange.connections, congestion.clone())?;
            clients.push(requester::client(exchange, others, sockets));
            let has_tcp = !exchange.is_udp() || !streams.is_empty();
            Ok((clients, congestion.filter(|_| has_tcp)))
        }
        Load::Datagrams(flow) => {
            let socket = datagram_client::kernel_socket(others[0], scenario.window_bytes)?;
            Ok((vec![datagram_client::client(flow, socket)], None))
        }
        Load::External(_) => Ok((Vec::new(), None)),
    }
}

fn of_streams(
    scenario: &Scenario,
    streams: &Arc<[Stream]>,
    targets: &[SocketAddr],
) -> Result<(Vec<Client>, Option<String>), RunError> {
    let mut congestion = None;
    let mut clients = Vec::with_capacity(targets.len());
    for (index, target) in targets.iter().enumerate() {
        let (socket, name) = socket(*target, scenario.congestion.as_deref())?;
        congestion = name;
        let timeout = scenario.timeout.min(CONNECT);
        let connector = KernelConnector { socket: Arc::new(socket), target: *target, timeout };
        clients.push(Client::new(connector, streams, index));
    }
    Ok((clients, congestion))
}

/// A socket that is not connected yet.
struct KernelConnector {
    socket: Arc<TcpStream>,
    target: SocketAddr,
    timeout: Duration,
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
            // A socket that was never connected cannot be shut down, and need not be shut down.
            let _unconnected = socket.shutdown(Shutdown::Both);
        })
    }
}

/// A connected socket.
struct KernelConnection(Arc<TcpStream>);

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
