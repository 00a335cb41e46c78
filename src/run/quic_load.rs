//! QUIC for a load: its clients in one network, and its servers in the other.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netstacks::{NoDatagrams, Stream};
use platform::Class;

use super::kernel_load::{datagram_sockets, failed, listening};
use super::loaded::Loaded;
use super::server_side::server;
use crate::error::RunError;
use crate::load::quic::client::QuicSockets;
use crate::load::quic::server::{QuicListener, QuicStream};
use crate::load::quic::{Quic, statistics};
use crate::load::sockets::Turns;
use crate::load::{Load, Retransmits};
use crate::plan::scenario::Scenario;
use crate::subject::Prepared;
use crate::subject::networks::Networks;

/// Prepares servers at an address of the far network, and clients in the near one; inbound the other way round.
pub(super) fn prepare(
    scenario: &Scenario,
    load: Load,
    networks: &Networks,
    address: IpAddr,
    subject: Prepared,
) -> Result<Loaded, RunError> {
    let cannot = |source| platform::Error::new(Class::Failed, "set up", "QUIC", source);
    let quic = Quic::new(scenario).map_err(cannot)?;
    // A target is a connection, whatever carries it.
    let ports = load.targets().tcp;
    let (known, listening) = (scenario.clone(), listening(scenario, address));
    let listen = move || datagram_sockets(&known, listening, ports);
    let sockets = if scenario.cell.inbound { listen()? } else { networks.far().run(listen)?? };
    let target = |socket: &std::net::UdpSocket| Ok(SocketAddr::new(address, socket.local_addr()?.port()));
    let targets = sockets.iter().map(target).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let mut turns = Turns::new(scenario.servers(address));
    let clients =
        load.clients(&targets, |_, count| QuicSockets::new(&quic, turns.take(count), count)).map_err(cannot)?;
    let known = load.clone();
    let target_of = move |stream: &QuicStream| {
        let target = targets.iter().position(|target| target.port() == stream.local_addr().port())?;
        let retransmits = || {
            let connection = stream.connection.clone();
            Some(Box::new(move || statistics(&connection).retransmits) as Retransmits)
        };
        known.served_by(target, &retransmits);
        Some(target)
    };
    let listener = QuicListener::new(sockets, &quic).map_err(cannot)?;
    let server = server(listener, NoDatagrams, &load, target_of);
    Ok(Loaded::new(load.threads(), load, subject, |_| server).with((clients, None)))
}
