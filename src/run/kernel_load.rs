//! A load of kernel sockets on both sides.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use netstacks::Listener;
use platform::Class;
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::barrier::StartBarrier;
use super::error::RunError;
use super::failure::Failure;
use super::kernel;
use super::load::Load;
use super::meter::Meter;
use super::networks::Networks;
use super::prepared::Prepared;
use super::server_side::ServerSide;
use crate::remedy::WithRemedy;
use crate::scenario::Scenario;

const NO_IPV6: &str = "set the sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.lo.disable_ipv6 to 0, or \
                       leave out --ipv6";

fn failed(source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, "listen on", "a socket of the kernel's", source).into()
}

/// Connections that may wait to be accepted, as many as at a stack.
const BACKLOG: i32 = 1024;

/// Listeners at free ports of an address of the calling thread's network, one for each client. Accepted connections
/// inherit their congestion control.
pub(super) fn listeners(
    address: IpAddr,
    clients: usize,
    congestion: Option<&str>,
) -> Result<Vec<std::net::TcpListener>, RunError> {
    (0..clients).map(|_| listen(SocketAddr::new(address, 0), congestion)).collect()
}

fn listen(address: SocketAddr, congestion: Option<&str>) -> Result<std::net::TcpListener, RunError> {
    let (socket, _) = kernel::socket(address, congestion)?;
    let socket = Socket::from(socket);
    socket.bind(&address.into()).map_err(|source| {
        if address.is_ipv6() {
            let object = address.ip().to_string();
            platform::Error::new(Class::Unavailable, "listen on", object, source).remedy(NO_IPV6).into()
        } else {
            failed(source)
        }
    })?;
    socket.listen(BACKLOG).and_then(|()| socket.set_nonblocking(true)).map_err(failed)?;
    Ok(socket.into())
}

/// Prepares kernel sockets on both sides: a server behind these listeners, and a client for each of them in the
/// calling thread's network. `driver` ends if the way between them fails.
pub(super) fn prepare(
    scenario: &Scenario,
    load: Load,
    listeners: Vec<std::net::TcpListener>,
    driver: impl Future<Output = Failure> + Send + 'static,
    meter: impl Meter,
) -> Result<Prepared, RunError> {
    let targets = listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>();
    let targets = targets.map_err(failed)?;
    let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<_>>().map_err(failed)?;
    let ports: Vec<u16> = targets.iter().map(SocketAddr::port).collect();
    let known = load.clone();
    let stream_of = move |connection: &KernelStream| {
        let index = ports.iter().position(|port| *port == connection.local.port())?;
        // Without a second handle the retransmits of the server are unknown.
        if let (Load::Streams(streams), Ok(socket)) = (&known, SockRef::from(&connection.socket).try_clone()) {
            streams[index].served_by(socket.into());
        }
        Some(index)
    };
    let barrier = StartBarrier::new(load.clients(), meter);
    let server = ServerSide::spawn(Listeners(listeners), driver, &load, stream_of);
    let (clients, congestion) = kernel::clients(scenario, &load, targets)?;
    Ok(Prepared { clients, congestion, ..Prepared::new(load, barrier, server) })
}

/// Prepares kernel sockets in both networks: servers at an address of the far one, and clients in the near one.
pub(super) fn prepare_between(
    scenario: &Scenario,
    networks: &Networks,
    server: IpAddr,
    driver: impl Future<Output = Failure> + Send + 'static,
    meter: impl Meter,
) -> Result<Prepared, RunError> {
    let load = Load::of(scenario);
    let (count, congestion) = (load.clients(), scenario.congestion.clone());
    let listeners = networks.far().run(move || listeners(server, count, congestion.as_deref()))??;
    prepare(scenario, load, listeners, driver, meter)
}

/// A listener for each stream.
struct Listeners(Vec<TcpListener>);

impl Listener for Listeners {
    type Stream = KernelStream;

    async fn accept(&mut self) -> io::Result<KernelStream> {
        let (socket, peer) = poll_fn(|cx| self.poll_accept(cx)).await?;
        socket.set_nodelay(true)?;
        Ok(KernelStream { local: socket.local_addr()?, socket, peer })
    }
}

impl Listeners {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let ready = self.0.iter().map(|listener| listener.poll_accept(cx)).find(Poll::is_ready);
        ready.unwrap_or(Poll::Pending)
    }
}

/// A socket as the stream of a stack.
struct KernelStream {
    socket: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl netstacks::Stream for KernelStream {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The kernel reports it to the next read or write.
    fn has_failed(&self) -> bool {
        false
    }

    fn reset(self) {
        // If that fails, the drop closes it gracefully.
        let _abrupt = self.socket.set_zero_linger();
    }
}

impl AsyncRead for KernelStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for KernelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
