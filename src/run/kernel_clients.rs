//! The clients of a load, over the kernel's sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use super::client::Client;
use super::error::RunError;
use super::kernel::{self, KernelConnector};
use super::load::Load;
use super::sockets::KernelSockets;
use super::transfer::Stream;
use super::{datagram_client, requester};
use crate::scenario::Scenario;

/// Makes the clients of a load in the calling thread's network. Also returns their congestion control. The first
/// targets are for the streams, each with its own client. The other targets are for the one client of requests or
/// datagrams.
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
            let (_, congestion) = kernel::socket(others[0], asked)?;
            let sockets = KernelSockets::new(exchange.protocol(), exchange.connections, congestion.clone())?;
            clients.push(requester::client(exchange, others, sockets));
            let has_tcp = !exchange.is_udp() || !streams.is_empty();
            Ok((clients, congestion.filter(|_| has_tcp)))
        }
        Load::Datagrams(flow) => {
            let socket = datagram_client::kernel_socket(flow, others[0], scenario.window_bytes)?;
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
        let (socket, name) = kernel::socket(*target, scenario.congestion.as_deref())?;
        congestion = name;
        let connector = KernelConnector::new(socket, *target, scenario.timeout);
        clients.push(Client::new(connector, streams, index));
    }
    Ok((clients, congestion))
}
