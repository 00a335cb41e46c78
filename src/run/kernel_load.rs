//! Kernel sockets for a load: its clients, and servers if the subject has none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netstacks::Stream;
use netstacks::kernel::{KernelDatagrams, KernelListener, KernelStream};
use platform::{Cause, Class};
use socket2::{SockRef, Socket};

use super::loaded::Loaded;
use super::server_side::server;
use crate::error::RunError;
use crate::load::engine::Client;
use crate::load::sockets::kernel::{self, Bulk, KernelSockets, Settings};
use crate::load::{Load, Targets};
use crate::plan::scenario::Scenario;
use crate::program::{Profile, Role, Upstream};
use crate::subject::Prepared;
use crate::subject::networks::{Networks, socks5_address};
use crate::subject::stack::backlog;

fn failed(source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, "listen on", "a socket of the kernel's", source).into()
}

/// The server's sockets, at free ports of one address in the calling thread's network.
pub(super) struct Sockets {
    listeners: Vec<std::net::TcpListener>,
    datagrams: std::net::UdpSocket,
    targets: Vec<SocketAddr>,
    silent: Option<Silent>,
}

/// The sockets of a load's server. Accepted connections inherit their congestion control.
pub(super) fn sockets(scenario: &Scenario, address: IpAddr, load: &Load) -> Result<Sockets, RunError> {
    let Targets { tcp, udp, silent, .. } = load.targets();
    let any_port = SocketAddr::new(address, 0);
    let backlog = i32::try_from(backlog(scenario)).unwrap_or(i32::MAX);
    let listeners = (0..tcp).map(|_| listen(any_port, scenario.congestion.as_deref(), backlog));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    let datagrams = std::net::UdpSocket::bind(any_port).map_err(|source| cannot_bind(any_port, source))?;
    platform::allow_long_datagrams(&SockRef::from(&datagrams)).map_err(failed)?;
    let silent = if silent { Some(Silent::at(any_port)?) } else { None };
    let silent_target = silent.as_ref().map(|silent| silent.listener.local_addr());
    let targets = listeners.iter().map(std::net::TcpListener::local_addr);
    let targets = targets.chain(udp.then(|| datagrams.local_addr())).chain(silent_target);
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
        platform::Error::new(Cause::NoIpv6, "listen on", object, source).into()
    } else {
        failed(source)
    }
}

fn listen(address: SocketAddr, congestion: Option<&str>, backlog: i32) -> Result<std::net::TcpListener, RunError> {
    let (socket, _) = kernel::socket(address, congestion)?;
    let socket = Socket::from(socket);
    socket.bind(&address.into()).map_err(|source| cannot_bind(address, source))?;
    socket.listen(backlog).map_err(failed)?;
    Ok(socket.into())
}

/// Prepares kernel sockets on both sides: a server with these sockets, and clients in the calling thread's network.
pub(super) fn prepare(
    scenario: &Scenario,
    load: Load,
    Sockets { listeners, datagrams, targets, silent }: Sockets,
    subject: Prepared,
) -> Result<Loaded, RunError> {
    let ports: Vec<u16> = targets.iter().map(SocketAddr::port).collect();
    let known = load.clone();
    let target_of = move |connection: &KernelStream| {
        // It is silent as long as it is there.
        let _kept = &silent;
        let target = ports.iter().position(|port| *port == connection.local_addr().port())?;
        let socket = || SockRef::from(connection.socket()).try_clone().ok().map(Into::into);
        known.served_by(target, &socket);
        Some(target)
    };
    let listener = KernelListener::new(listeners).map_err(failed)?;
    let datagrams = datagrams_for(datagrams, &load, scenario.cell.window_len()).map_err(failed)?;
    let server = server(listener, datagrams, &load, target_of);
    let clients = clients(scenario, &load, &targets)?;
    Ok(Loaded::new(load.threads(), load, subject, |_| server).with(clients))
}

pub(super) fn clients(
    scenario: &Scenario,
    load: &Load,
    targets: &[SocketAddr],
) -> Result<(Vec<Client>, Option<String>), RunError> {
    let Some(target) = targets.first() else { return Ok((Vec::new(), None)) };
    let congestion =
        if load.targets().tcp > 0 { kernel::socket(*target, scenario.congestion.as_deref())?.1 } else { None };
    let asks = |profile: &&Profile| profile.role == Role::Route && profile.upstream() == Some(Upstream::Socks5);
    let socks5 = scenario
        .cell
        .program
        .as_ref()
        .and_then(|program| program.profile())
        .filter(asks)
        .map(|_| socks5_address(target.ip()));
    let bulk = load.bulk(scenario.cell.window_len());
    let clients = load.clients(targets, |protocol, count| {
        let settings = Settings { protocol, congestion: scenario.congestion.clone(), socks5, bulk };
        KernelSockets::new(settings, count)
    })?;
    Ok((clients, congestion))
}

/// Prepares kernel sockets in both networks: servers at an address of the far one, and clients in the near one.
pub(super) fn prepare_between(
    scenario: &Scenario,
    load: Load,
    networks: &Networks,
    server: IpAddr,
    subject: Prepared,
) -> Result<Loaded, RunError> {
    let known = (scenario.clone(), load.clone());
    let sockets = networks.far().run(move || sockets(&known.0, server, &known.1))??;
    prepare(scenario, load, sockets, subject)
}

/// The socket of a server of datagrams, set up for a load, with buffers of so many bytes.
pub(super) fn datagrams_for(
    socket: std::net::UdpSocket,
    load: &Load,
    buffer_bytes: usize,
) -> io::Result<KernelDatagrams> {
    load.bulk(buffer_bytes).unwrap_or(Bulk { buffer_bytes, coalesces: false }).set_up(&socket);
    KernelDatagrams::new([socket])
}
