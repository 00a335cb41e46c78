//! QUIC in the place of TCP: a connection of a load is one of quinn's with one stream, which both ends write and read.
//!
//! Streams and requests go over it as over TCP. Each connection of a client has a UDP socket of its own, as with most clients. A
//! server has a socket for each of its ports.

pub(crate) mod client;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use platform::TcpStatistics;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig};
use socket2::SockRef;

use crate::cell::Gso;
use crate::plan::scenario::Scenario;

/// The name of the server in its certificate. No one resolves it.
const SERVER: &str = "server";

/// What both ends of the connections of a run need: a certificate, which is made for the run, and their settings.
#[derive(Clone)]
pub(crate) struct Quic {
    client: ClientConfig,
    server: ServerConfig,
    buffer_bytes: usize,
    /// Whether a call sends several datagrams, and receives several that have arrived as one.
    is_together: bool,
}

impl Quic {
    pub(crate) fn new(scenario: &Scenario) -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed([SERVER.to_owned()]).map_err(io::Error::other)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let certificate = made.cert.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(io::Error::other)?;
        let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).map_err(io::Error::other)?;
        let mut server = ServerConfig::with_single_cert(vec![certificate], key.into()).map_err(io::Error::other)?;
        let is_together = scenario.cell.gso != Some(Gso::Off);
        let mut transport = TransportConfig::default();
        // The run decides how long it waits.
        transport.max_idle_timeout(None).enable_segmentation_offload(is_together);
        let transport = Arc::new(transport);
        client.transport_config(Arc::clone(&transport));
        server.transport_config(transport);
        Ok(Self { client, server, buffer_bytes: scenario.cell.window_len(), is_together })
    }

    /// An endpoint on a socket, within a tokio runtime. With the settings of a server it accepts connections.
    fn endpoint(&self, socket: UdpSocket, server: Option<ServerConfig>) -> io::Result<Endpoint> {
        // With smaller buffers more datagrams are lost, and quinn sends their bytes again.
        let _limited = platform::set_socket_buffers(&SockRef::from(&socket), self.buffer_bytes);
        let same = socket.try_clone()?;
        let endpoint = Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?;
        if !self.is_together {
            // quinn has switched it on, and has no setting for it.
            platform::coalesce_datagrams(&SockRef::from(&same), false);
        }
        Ok(endpoint)
    }
}

/// What quinn knows of a connection.
pub(crate) fn statistics(connection: &Connection) -> TcpStatistics {
    let path = connection.stats().path;
    TcpStatistics {
        retransmits: Some(path.lost_packets),
        rtt: Some(path.rtt),
        min_rtt: Some(path.min_rtt),
        congestion_window_bytes: Some(path.cwnd),
        ..TcpStatistics::default()
    }
}
