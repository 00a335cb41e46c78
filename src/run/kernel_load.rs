//! Kernel sockets for a load: its clients, and servers if the subject has none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netstacks::Stream;
use netstacks::kernel::{KernelDatagrams, KernelListener, KernelStream};
use platform::{Cause, Class};
use socket2::{Domain, SockRef, Socket, Type};

use super::loaded::Loaded;
use super::server_side::server;
use crate::error::RunError;
use crate::load::engine::Client;
use crate::load::sockets::kernel::{self, Bulk, KernelSockets, Settings};
use crate::load::{Load, Targets};
use crate::plan::scenario::Scenario;
use crate::program::{Profile, Role, Upstream};
use crate::subject::Prepared;
use crate::subject::networks::{FORWARDED_PORT, Networks, socks5_address};
use crate::subject::stack::backlog;

fn failed(source: io::Error) -> RunError {
    platform::Error::new(Class::Failed, "listen on", "a socket of the kernel's", source).into()
}

/// The server's sockets, at free ports of one address in the calling thread's network.
pub(super) struct Sockets {
    listeners: Vec<std::net::TcpListener>,
    datagrams: Vec<std::net::UdpSocket>,
    targets: Vec<SocketAddr>,
    silent: Option<Silent>,
}

/// The port of a server of the load, by its number: any, or one that a program forwards.
fn port(scenario: &Scenario, number: usize) -> u16 {
    let forwarded = scenario.cell.inbound.then(|| u16::try_from(number).ok()?.checked_add(FORWARDED_PORT + 1));
    forwarded.flatten().unwrap_or_default()
}

/// The sockets of a load's server. Accepted connections inherit their congestion control.
pub(super) fn sockets(scenario: &Scenario, address: IpAddr, load: &Load) -> Result<Sockets, RunError> {
    let Targets { tcp, udp, silent, .. } = load.targets();
    let any_port = SocketAddr::new(address, port(scenario, 0));
    let listeners = listeners(scenario, address, tcp)?;
    let datagrams = datagrams_at(any_port, shared_by(scenario, address).as_deref())?;
    let silent = if silent { Some(Silent::at(any_port)?) } else { None };
    let silent_target = silent.as_ref().map(|silent| silent.listener.local_addr());
    let targets = listeners.iter().take(tcp).map(std::net::TcpListener::local_addr);
    let targets = targets.chain(udp.then(|| datagrams[0].local_addr())).chain(silent_target);
    let targets = targets.collect::<io::Result<_>>().map_err(failed)?;
    Ok(Sockets { listeners, datagrams, targets, silent })
}

/// The interface of an address that a program of the user's may have bound its sockets to. Linux gives the packets of such
/// sockets to those that are bound alike, so each port has two.
fn shared_by(scenario: &Scenario, address: IpAddr) -> Option<String> {
    scenario.given().and_then(|_| platform::interface_of(address))
}

/// Listens at this many ports of an address; those that share a port follow.
pub(super) fn listeners(
    scenario: &Scenario,
    address: IpAddr,
    ports: usize,
) -> Result<Vec<std::net::TcpListener>, RunError> {
    let backlog = i32::try_from(backlog(scenario)).unwrap_or(i32::MAX);
    let interface = shared_by(scenario, address);
    let listen = |port, share| listen(SocketAddr::new(address, port), share, scenario.congestion.as_deref(), backlog);
    let share = interface.is_some().then_some(None);
    let mut listeners =
        (0..ports).map(|number| listen(port(scenario, number), share)).collect::<Result<Vec<_>, _>>()?;
    if interface.is_some() {
        for index in 0..ports {
            let port = listeners[index].local_addr().map_err(failed)?.port();
            listeners.push(listen(port, Some(interface.as_deref()))?);
        }
    }
    Ok(listeners)
}

/// A socket for datagrams, or two at one port. The first one's answers reach both kinds of sockets.
fn datagrams_at(any_port: SocketAddr, interface: Option<&str>) -> Result<Vec<std::net::UdpSocket>, RunError> {
    let open = |address: SocketAddr, share| {
        let cannot = |source| cannot_bind(address, source);
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None).map_err(cannot)?;
        share_port(&socket, share)?;
        socket.bind(&address.into()).map_err(cannot)?;
        platform::allow_long_datagrams(&socket).map_err(failed)?;
        Ok::<_, RunError>(std::net::UdpSocket::from(socket))
    };
    let Some(interface) = interface else { return Ok(vec![open(any_port, None)?]) };
    let bound = open(any_port, Some(Some(interface)))?;
    let other = open(bound.local_addr().map_err(failed)?, Some(None))?;
    Ok(vec![bound, other])
}

/// Whether a port may have several sockets, and the interface of this one.
type Share<'a> = Option<Option<&'a str>>;

fn share_port(socket: &Socket, share: Share<'_>) -> Result<(), RunError> {
    share.map_or(Ok(()), |interface| platform::share_port(socket, interface)).map_err(failed)
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
        let listener = listen(address, None, None, 0)?;
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

fn listen(
    address: SocketAddr,
    share: Share<'_>,
    congestion: Option<&str>,
    backlog: i32,
) -> Result<std::net::TcpListener, RunError> {
    let (socket, _) = kernel::socket(address, congestion)?;
    let socket = Socket::from(socket);
    share_port(&socket, share)?;
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
    let over_tcp = targets.get(..load.targets().tcp).unwrap_or_default();
    let given = subject.parts.program.as_ref().and_then(|program| program.connections_to(over_tcp));
    let listener = KernelListener::new(listeners, given).map_err(failed)?;
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
    let (bulk, servers) = (load.bulk(scenario.cell.window_len()), scenario.servers(target.ip()));
    let mut before = 0;
    let clients = load.clients(targets, |protocol, count| {
        let (congestion, device) = (scenario.congestion.clone(), scenario.given().map(ToOwned::to_owned));
        let settings = Settings { protocol, congestion, socks5, device, bulk, servers: servers.clone(), before };
        before += count;
        KernelSockets::new(settings, count)
    })?;
    Ok((clients, congestion))
}

/// Prepares kernel sockets in both networks: servers at an address of the far one, and clients in the near one. Inbound, the
/// servers are in the near network, and a program may lead this address to any of its own. Behind each peer of a tunnel they have
/// another address.
pub(super) fn prepare_between(
    scenario: &Scenario,
    load: Load,
    networks: &Networks,
    server: IpAddr,
    subject: Prepared,
) -> Result<Loaded, RunError> {
    let is_any = scenario.cell.inbound || scenario.cell.peers.get() > 1;
    let address = if is_any { platform::unspecified(server.is_ipv6()) } else { server };
    let known = (scenario.clone(), load.clone());
    let listen = move || sockets(&known.0, address, &known.1);
    let mut sockets = if scenario.cell.inbound { listen()? } else { networks.far().run(listen)?? };
    sockets.targets.iter_mut().for_each(|target| target.set_ip(server));
    prepare(scenario, load, sockets, subject)
}

/// The sockets of a server of datagrams, set up for a load, with buffers of so many bytes.
pub(super) fn datagrams_for(
    sockets: Vec<std::net::UdpSocket>,
    load: &Load,
    buffer_bytes: usize,
) -> io::Result<KernelDatagrams> {
    let bulk = load.bulk(buffer_bytes).unwrap_or(Bulk { buffer_bytes, coalesces: false });
    for socket in &sockets {
        bulk.set_up(socket);
    }
    KernelDatagrams::new(sockets)
}
