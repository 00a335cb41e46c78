//! The kernel's TCP on both sides, over its loopback: what a stack is measured against.
//!
//! The clients are the same as on the whole path, and so is the server with its runtime; but its streams
//! are tokio's sockets. The buffers are those that the kernel chooses.

use std::future::{self, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use netstacks::{Listener, Stream};
use platform::{Class, Interrupts, Traffic};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::failure::Failure;
use super::meter::ProcessMeter;
use super::party::Party;
use super::setup::Ran;
use super::supervisor::Supervisor;
use super::transfer::{Lane, StartingGate};
use super::{RunError, kernel, path};
use crate::plan::Scenario;
use crate::sample::DeviceFacts;

const NO_IPV6: &str = "set the sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.lo.disable_ipv6 to 0, or \
                       leave out --ipv6";

/// Runs the kernel against itself, in a network of the run's own or else in the host's.
pub(super) async fn run(scenario: &Scenario, isolated: bool, interrupts: Interrupts) -> Result<Ran, RunError> {
    let loopback = platform::set_loopback_up()?;
    let device = loopback.map(|interface| DeviceFacts {
        // The host's has its firewall and all who use it, too: a figure of it is to be known as such.
        name: if isolated { interface.name } else { format!("{} (host)", interface.name) },
        mtu: interface.mtu,
        offload: interface.offload,
        // Packets go to the receiver at once, whatever length the queue would have.
        tx_queue_len: None,
    });
    let lanes: Arc<[Lane]> = Lane::split(scenario).into();
    let ipv6 = scenario.network.address.is_ipv6();
    let address = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let listeners = listeners(address, lanes.len(), scenario.congestion.as_deref())?;
    let Served { party, targets } = serve(listeners, future::pending(), Arc::clone(&lanes))?;
    let gate = StartingGate::new(lanes.len(), ProcessMeter::new(Arc::new(Traffic::default()), || None));
    let (clients, congestion) = path::clients(scenario.congestion.as_deref(), scenario.timeout, &targets)?;
    let supervisor = Supervisor::of(scenario, lanes, Arc::new(gate));
    let outcome = supervisor.supervise(party, clients, interrupts).await?;
    Ok(Ran { outcome, congestion, device, effective: None })
}

fn failed(source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, "listen on", "a socket of the kernel's", source).into()
}

/// Listeners at free ports of an address of the calling thread's network, a stream each. What they accept
/// inherits their congestion control.
pub(super) fn listeners(
    address: IpAddr,
    streams: usize,
    congestion: Option<&str>,
) -> Result<Vec<std::net::TcpListener>, RunError> {
    (0..streams).map(|_| listen(SocketAddr::new(address, 0), congestion)).collect()
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
    socket.listen(1).and_then(|()| socket.set_nonblocking(true)).map_err(failed)?;
    Ok(socket.into())
}

/// A server over the kernel's sockets.
pub(super) struct Served {
    pub(super) party: Party,
    /// Where each stream is to connect to.
    pub(super) targets: Vec<SocketAddr>,
}

/// Starts the server of the lanes, a listener each; with it `driver`, which ends where the way to it fails.
pub(super) fn serve(
    listeners: Vec<std::net::TcpListener>,
    driver: impl Future<Output = Failure> + Send + 'static,
    lanes: Arc<[Lane]>,
) -> Result<Served, RunError> {
    let targets = listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>();
    let targets = targets.map_err(failed)?;
    let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<_>>().map_err(failed)?;
    let ports: Vec<u16> = targets.iter().map(SocketAddr::port).collect();
    let known = Arc::clone(&lanes);
    let lane_of = move |stream: &KernelStream| {
        let index = ports.iter().position(|port| *port == stream.local.port())?;
        // Where it cannot be looked at twice, nobody knows what the kernel sent again.
        if let Ok(socket) = SockRef::from(&stream.socket).try_clone() {
            known[index].served_by(socket.into());
        }
        Some(index)
    };
    let party = Party::spawn(Listeners(listeners), driver, lanes, lane_of);
    Ok(Served { party, targets })
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

/// A socket as a stack's stream.
struct KernelStream {
    socket: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Stream for KernelStream {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The kernel tells it to who reads or writes.
    fn has_failed(&self) -> bool {
        false
    }

    fn reset(self) {
        // Where it cannot be had, the drop closes it in good order.
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
