//! The kernel's own TCP and UDP as a stack, with sockets as its application.
//!
//! Each case has a network of its own, so no case meets the connections of an earlier one. The addresses of the stack are
//! local there, so the kernel takes the packets of the peer's device for itself. Nothing on the path rewrites or tracks them.

use std::collections::BTreeSet;
use std::future;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use netstacks::StackConfig;
use netstacks::kernel::{KernelDatagrams, KernelListener};
use platform::{Class, Error};
use socket2::{Domain, Socket, Type};

use crate::AnyLink;
use crate::link::{self, Side};
use crate::server::Running;

/// Moves the calling thread into a new network, and opens a device for the peer there. The kernel listens at the addresses
/// of [`link::stack_addresses`]. Also returns the peer's end of the link. Must be called within a runtime.
pub(crate) fn start(ipv6: bool, offload: bool, mtu: u16, config: &StackConfig) -> Result<(AnyLink, Running), Error> {
    // Some cases have a thousand connections, and several cases may run at once.
    platform::allow_open_files(16_384);
    platform::enter_netns()?;
    // The kernel takes packets for any of its addresses from any interface (RFC 1122, 3.3.4.2, weak model).
    platform::set_loopback_up()?;
    let device = link::open(Side::Peer, ipv6, offload, mtu)?;
    let addresses = link::stack_addresses(ipv6);
    for address in BTreeSet::from(addresses.map(|address| address.ip())) {
        platform::add_address("lo", address, if ipv6 { 128 } else { 32 })?;
    }
    let failed = |source| Error::new(Class::Failed, "listen with", "sockets of the kernel's", source);
    let tcp = addresses.iter().map(|address| tcp(*address, config)).collect::<io::Result<Vec<_>>>();
    let udp = addresses.iter().map(|address| udp(*address, config)).collect::<io::Result<Vec<_>>>();
    let running = Running {
        listener: Box::new(tcp.and_then(|tcp| KernelListener::new(tcp, None)).map_err(failed)?),
        datagrams: Box::new(udp.and_then(KernelDatagrams::new).map_err(failed)?),
        driver: Box::pin(future::pending()),
        effective: None,
        process: None,
    };
    Ok((AnyLink::new(device), running))
}

/// Accepted connections inherit all settings.
fn tcp(address: SocketAddr, config: &StackConfig) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    platform::set_socket_buffers(&socket, config.window)?;
    platform::set_user_timeout(&socket, config.user_timeout)?;
    // Every kernel has it, and it is the one of RFC 5681. The default of a system may be another kind of control, as BBR.
    platform::set_congestion_control(&socket, "reno")?;
    // The stacks deliver urgent bytes with the others.
    socket.set_out_of_band_inline(true)?;
    socket.bind(&address.into())?;
    // The kernel's queue takes one more (`include/net/sock.h`, `sk_acceptq_is_full`).
    socket.listen(i32::try_from(config.backlog.saturating_sub(1)).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn udp(address: SocketAddr, config: &StackConfig) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    platform::set_socket_buffers(&socket, config.window)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
