//! Packets of the proxy's own sockets that come back into its device. Each would open a connection, whose packets come
//! back again.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::Type;

use super::Config;

/// How long the list of addresses is used before it is read again.
const FRESH: Duration = Duration::from_secs(1);

/// The sockets are listed again after this many times the time that it took last.
const PAUSE: u32 = 10;

#[derive(Debug)]
pub(super) struct Own {
    interface: String,
    report: fn(&str),
    /// The addresses of the interface, and when they were read.
    addresses: Mutex<Option<(Instant, Vec<IpAddr>)>>,
    sockets: Mutex<Sockets>,
    is_told: AtomicBool,
}

/// The sockets of this process that may have sent something, and until when the list is used.
#[derive(Debug, Default)]
struct Sockets {
    all: HashSet<(i32, SocketAddr)>,
    until: Option<Instant>,
}

impl Own {
    pub(super) fn new(config: &Config) -> Self {
        let Config { interface, report, .. } = config;
        Self {
            interface: interface.clone(),
            report: *report,
            addresses: Mutex::default(),
            sockets: Mutex::default(),
            is_told: AtomicBool::default(),
        }
    }

    /// Whether a socket of the proxy has sent what comes from this address. The first time, the user is warned.
    pub(super) fn sent(&self, kind: Type, from: SocketAddr) -> bool {
        let is_own = self.has_address(from.ip()) && self.has_socket(kind, from);
        if is_own && !self.is_told.swap(true, Ordering::Relaxed) {
            (self.report)(&format!(
                "warning: packets of this proxy come back into its device, and are dropped: {from} is a socket of its \
                 own; keep packets that {} receives from the routes into the device",
                self.interface
            ));
        }
        is_own
    }

    /// To list the sockets takes long if there are many. A socket that is not in the list yet is found a few packets later.
    fn has_socket(&self, kind: Type, address: SocketAddr) -> bool {
        let mut known = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        if known.until.is_none_or(|until| until <= begun) {
            known.all = platform::sockets().into_iter().map(|(kind, address)| (kind.into(), address)).collect();
            known.until = Some(begun + PAUSE * begun.elapsed());
        }
        let is_known = |ip| known.all.contains(&(kind.into(), SocketAddr::new(ip, address.port())));
        is_known(address.ip()) || is_known(platform::unspecified(address.is_ipv6()))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(read, _)| read.elapsed() > FRESH) {
            *known = Some((Instant::now(), platform::addresses_of(&self.interface).unwrap_or_default()));
        }
        known.as_ref().is_some_and(|(_, addresses)| addresses.contains(&address))
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn only_a_socket_without_a_peer_has_sent_a_packet_that_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
        let of = |ip: &str, address: SocketAddr| SocketAddr::new(ip.parse().unwrap(), address.port());
        let port = datagrams.local_addr().unwrap();
        let own = Own::new(&Config::new(if cfg!(target_os = "linux") { "lo" } else { "lo0" }));
        for (kind, from, is_own) in [
            (Type::STREAM, listener.local_addr().unwrap(), true),
            // A client may have the same port as a connection to another server.
            (Type::STREAM, connected.local_addr().unwrap(), false),
            (Type::DGRAM, of("127.0.0.1", port), true),
            (Type::DGRAM, of("::1", port), false),
            (Type::STREAM, of("127.0.0.1", port), false),
            (Type::DGRAM, of("192.0.2.1", port), false),
        ] {
            assert_eq!(own.sent(kind, from), is_own, "{from}");
        }
    }
}
