//! Kernel sockets for a load: its clients, and servers if the subject has none.

use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use netstacks::{Datagram, DatagramBatch, Listener};
use platform::{Class, Received};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::error::RunError;
use super::failure::Failure;
use super::networks::{Networks, socks5_address};
use super::prepared::Prepared;
use super::server_side::ServerSide;
use crate::load::Load;
use crate::load::engine::Client;
use crate::load::meter::Meter;
use crate::load::sockets::kernel::{self, Bulk, KernelSockets, Settings};
use crate::load::window::Window;
use crate::program::{Profile, Role, Upstream};
use crate::remedy::WithRemedy;
use crate::scenario::{Protocol, Scenario};

const NO_IPV6: &str = "set the sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.lo.disable_ipv6 to 0, or \
                       leave out --ipv6";

fn failed(source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, "listen on", "a socket of the kernel's", source).into()
}

/// Connections that may wait to be accepted: as many as with a stack.
const BACKLOG: i32 = 1024;

/// The server's sockets, at free ports of one address in the calling thread's network.
pub(super) struct Sockets {
    /// One for each stream, and one for requests over TCP.
    listeners: Vec<std::net::TcpListener>,
    datagrams: std::net::UdpSocket,
    targets: Vec<SocketAddr>,
    silent: Option<Silent>,
}

/// The sockets of a load's server. Accepted connections inherit their congestion control.
pub(super) fn sockets(scenario: &Scenario, address: IpAddr, load: &Load) -> Result<Sockets, RunError> {
    let is_udp = scenario.workload.protocol() == Some(Protocol::Udp);
    let has_requests = !is_udp && load.exchange().is_some();
    let listeners = load.streams().len() + usize::from(has_requests);
    let any_port = SocketAddr::new(address, 0);
    let listeners = (0..listeners).map(|_| listen(any_port, scenario.congestion.as_deref(), BACKLOG));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    let datagrams = std::net::UdpSocket::bind(any_port).map_err(|source| cannot_bind(any_port, source))?;
    let targets = listeners.iter().map(std::net::TcpListener::local_addr);
    let has_holes = load.exchange().is_some_and(|exchange| exchange.requests.blackholes > 0);
    let silent = if has_holes { Some(Silent::at(any_port)?) } else { None };
    let silent_target = silent.as_ref().map(|silent| silent.listener.local_addr());
    let targets = targets.chain(is_udp.then(|| datagrams.local_addr())).chain(silent_target);
    let targets = targets.collect::<io::Result<_>>().map_err(failed)?;
    Ok(Sockets { listeners, datagrams, targets, silent })
}

/// A port that stays silent: a listener with a full accept queue, whose SYNs the kernel drops.
struct Silent {
    listener: std::net::TcpListener,
    _queued: std::net::TcpStream,
}

impl Silent {
    /// How long an answer may take. It would cross only the loopback.
    const PATIENCE: Duration = Duration::from_millis(100);

    fn at(address: SocketAddr) -> Result<Self, RunError> {
        platform::set_loopback_up()?;
        let listener = listen(address, None, 0)?;
        let target = listener.local_addr().map_err(failed)?;
        let connect = || std::net::TcpStream::connect_timeout(&target, Self::PATIENCE);
        let queued = connect().map_err(failed)?;
        match connect() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(Self { listener, _queued: queued }),
            Err(error) => Err(failed(error)),
            Ok(_) => Err(failed(io::Error::other("it answers although its accept queue is full"))),
        }
    }
}

fn cannot_bind(address: SocketAddr, source: io::Error) -> RunError {
    if address.is_ipv6() {
        let object = address.ip().to_string();
        platform::Error::new(Class::Unavailable, "listen on", object, source).remedy(NO_IPV6).into()
    } else {
        failed(source)
    }
}

fn listen(address: SocketAddr, congestion: Option<&str>, backlog: i32) -> Result<std::net::TcpListener, RunError> {
    let (socket, _) = kernel::socket(address, congestion)?;
    let socket = Socket::from(socket);
    socket.bind(&address.into()).map_err(|source| cannot_bind(address, source))?;
    socket.listen(backlog).and_then(|()| socket.set_nonblocking(true)).map_err(failed)?;
    Ok(socket.into())
}

/// Prepares kernel sockets on both sides: a server with these sockets, and clients in the calling thread's network.
/// `driver` ends if the path between them fails.
pub(super) fn prepare(
    scenario: &Scenario,
    load: Load,
    Sockets { listeners, datagrams, targets, silent }: Sockets,
    driver: impl Future<Output = Failure> + Send + 'static,
    meter: impl Meter,
) -> Result<Prepared, RunError> {
    let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<_>>().map_err(failed)?;
    let ports: Vec<u16> = targets.iter().map(SocketAddr::port).collect();
    let known = load.clone();
    let stream_of = move |connection: &KernelStream| {
        let index = ports.iter().position(|port| *port == connection.local.port())?;
        // Without a second handle, the server's retransmits stay unknown.
        if let (Some(stream), Ok(socket)) = (known.streams().get(index), SockRef::from(&connection.socket).try_clone())
        {
            stream.served_by(socket.into());
        }
        Some(index)
    };
    let window = Window::new(load.clients(), meter);
    let driver = async move {
        let _open = silent;
        driver.await
    };
    let datagrams = KernelDatagrams::of(datagrams, &load, scenario.window_bytes).map_err(failed)?;
    let server = ServerSide::spawn(Listeners::of(listeners), datagrams, driver, &load, stream_of);
    let (clients, congestion) = clients(scenario, &load, &targets)?;
    Ok(Prepared { clients, congestion, ..Prepared::new(load, window, server) })
}

/// Makes the clients of a load in the calling thread's network. Also returns their congestion control. The first targets
/// are for the streams, one for each; the others are for requests or datagrams.
pub(super) fn clients(
    scenario: &Scenario,
    load: &Load,
    targets: &[SocketAddr],
) -> Result<(Vec<Client>, Option<String>), RunError> {
    let Some(target) = targets.first() else { return Ok((Vec::new(), None)) };
    let has_tcp = !load.streams().is_empty() || scenario.workload.protocol() == Some(Protocol::Tcp);
    let congestion = if has_tcp { kernel::socket(*target, scenario.congestion.as_deref())?.1 } else { None };
    let asks = |profile: &&Profile| profile.role == Role::Route && profile.upstream() == Some(Upstream::Socks5);
    let socks5 = scenario.program.as_deref().filter(asks).map(|_| socks5_address(target.ip()));
    let bulk = load.flows().map(|flows| flows.bulk(scenario.window_bytes));
    let clients = load.client_threads(targets, |protocol, count| {
        let settings = Settings { protocol, congestion: scenario.congestion.clone(), socks5, bulk };
        KernelSockets::new(settings, count)
    })?;
    Ok((clients, congestion))
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
    let known = (scenario.clone(), load.clone());
    let sockets = networks.far().run(move || sockets(&known.0, server, &known.1))??;
    prepare(scenario, load, sockets, driver, meter)
}

/// Several listeners as one. Each is polled only when it has become ready: there may be thousands.
struct Listeners(FuturesUnordered<Accepting>);

/// Waits for the next connection of a listener, and returns the listener with it.
type Accepting = Pin<Box<dyn Future<Output = (TcpListener, io::Result<(TcpStream, SocketAddr)>)> + Send>>;

impl Listeners {
    fn of(listeners: Vec<TcpListener>) -> Self {
        Self(listeners.into_iter().map(Self::accepting).collect())
    }

    fn accepting(listener: TcpListener) -> Accepting {
        Box::pin(async move {
            let accepted = listener.accept().await;
            (listener, accepted)
        })
    }
}

impl Listener for Listeners {
    type Stream = KernelStream;

    async fn accept(&mut self) -> io::Result<KernelStream> {
        let Some((listener, accepted)) = self.0.next().await else { return future::pending().await };
        self.0.push(Self::accepting(listener));
        let (socket, peer) = accepted?;
        socket.set_nodelay(true)?;
        Ok(KernelStream { local: socket.local_addr()?, socket, peer })
    }
}

/// A kernel socket in place of a stack's datagrams. If it coalesces, use `recv_batch` alone.
#[derive(Clone)]
pub(super) struct KernelDatagrams(Arc<UdpSocket>);

impl KernelDatagrams {
    /// Sets the socket up for a load, with buffers of so many bytes.
    pub(super) fn of(socket: std::net::UdpSocket, load: &Load, buffer_bytes: usize) -> io::Result<Self> {
        let requests = Bulk { buffer_bytes, coalesces: false };
        load.flows().map_or(requests, |flows| flows.bulk(buffer_bytes)).set_up(&socket);
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket).map(|socket| Self(Arc::new(socket)))
    }
}

impl netstacks::Datagrams for KernelDatagrams {
    async fn recv(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        let (len, peer) = self.0.recv_from(buffer).await?;
        Ok(Datagram { len, local: self.0.local_addr()?, peer })
    }

    async fn recv_batch(&self, buffer: &mut [u8]) -> io::Result<DatagramBatch> {
        let local = self.0.local_addr()?;
        let socket = SockRef::from(&*self.0);
        let receive = || platform::recv_datagrams(&socket, buffer);
        let Received { len, segment_len, from } = self.0.async_io(Interest::READABLE, receive).await?;
        let peer = from.ok_or_else(|| io::Error::other("the kernel does not say where a datagram came from"))?;
        Ok(DatagramBatch { len, segment_len, local, peer })
    }

    /// The socket has only one local address.
    fn try_send(&self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) -> io::Result<()> {
        self.try_send_batch(local, peer, payload, payload.len()).map(drop)
    }

    fn try_send_batch(
        &self,
        _local: SocketAddr,
        peer: SocketAddr,
        payloads: &[u8],
        segment_len: usize,
    ) -> io::Result<usize> {
        // Not tokio's `try_send_to`: tokio does not know yet that a new socket is writable.
        platform::send_datagrams(&SockRef::from(&*self.0), Some(peer), payloads, segment_len)
            .map_err(kernel::without_room)
    }
}

/// A kernel socket in place of a stack's stream.
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

    /// The kernel reports a failure at the next read or write.
    fn has_failed(&self) -> bool {
        false
    }

    fn reset(self) {
        // If that fails, the drop closes the connection with a FIN.
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
