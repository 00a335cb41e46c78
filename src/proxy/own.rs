//! Packets of the proxy's own sockets that come back into its device. Each would open a connection, whose packets come
//! back again.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::Type;

use super::Config;

/// How long the addresses of the interface are taken for those that it has. To ask for them at each flow would cost too much.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Own {
    interface: String,
    report: fn(&str),
    /// The addresses of the interface, and when they were read.
    addresses: Mutex<Option<(Instant, Vec<IpAddr>)>>,
    is_told: AtomicBool,
}

impl Own {
    pub(super) fn new(config: &Config) -> Self {
        let Config { interface, report, .. } = config;
        Self {
            interface: interface.clone(),
            report: *report,
            addresses: Mutex::default(),
            is_told: AtomicBool::default(),
        }
    }

    /// Whether a socket of the proxy has sent what comes from this address. The first time, the user is warned.
    pub(super) fn sent(&self, kind: Type, from: SocketAddr) -> bool {
        let is_own = self.has_address(from.ip()) && platform::has_socket(kind, from);
        if is_own && !self.is_told.swap(true, Ordering::Relaxed) {
            (self.report)(&format!(
                "warning: packets of this proxy come back into its device, and are dropped: {from} is a socket of its \
                 own; keep packets that {} receives from the routes into the device",
                self.interface
            ));
        }
        is_own
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let mut known = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(read, _)| read.elapsed() > FRESH) {
            *known = Some((Instant::now(), platform::addresses_of(&self.interface).unwrap_or_default()));
        }
        known.as_ref().is_some_and(|(_, addresses)| addresses.contains(&address))
    }
}
